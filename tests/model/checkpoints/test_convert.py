"""Conversion to a native folder: the same weights, where they came from, whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoints import native
from model.checkpoints.contents import CheckpointError
from model.checkpoints.convert import convert
from model.checkpoints.open import open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import train_tokenizer

CPU = torch.device("cpu")
LLAMA = {
    "vocab_size": 300,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}


@pytest.fixture
def llama(oracles: Any, tmp_path: Path) -> Path:
    """A Hugging Face folder whose tokenizer begins every text."""
    folder = tmp_path / "llama"
    oracles.make("Llama", LLAMA).save_pretrained(folder)
    trained = train_tokenizer(["the cat"] * 9, 270, ["<|begin|>", "<|end|>"])
    (folder / "tokenizer.json").write_text(trained.to_str(), encoding="utf-8")
    about = {"add_bos_token": True, "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def test_what_is_written_opens_to_the_same_model(llama: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(str(llama), tmp_path / "out", dtype=torch.float32, progress=lambda *at: seen.append(at))
    before = open_model(str(llama), device=CPU, dtype=torch.float32)
    after = open_model(str(tmp_path / "out"), device=CPU, dtype=torch.float32)
    expected = before.model.state_dict()
    assert all(torch.equal(w, expected[name]) for name, w in after.model.state_dict().items())
    assert after.model.config == before.model.config
    assert after.tokenizer is not None and before.tokenizer is not None
    assert after.tokenizer.encode("the cat") == before.tokenizer.encode("the cat")
    assert after.tokenizer.describe() == before.tokenizer.describe()
    assert seen[-1][0] == seen[-1][1] == sum(w.numel() for w in before.model.parameters())
    assert after.source == before.source == "llama"


def test_the_hash_and_the_origin_are_written(llama: Path, tmp_path: Path) -> None:
    convert(str(llama), tmp_path / "out", dtype=torch.bfloat16)
    description = json.loads((tmp_path / "out" / "config.json").read_text())
    original = (llama / "model.safetensors").read_bytes()
    written = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert description["about"]["source_sha256"] == hashlib.sha256(original).hexdigest()
    assert description["about"]["source_format"] == "huggingface Llama"
    assert description["weights_sha256"] == hashlib.sha256(written).hexdigest()
    weights = load_file(tmp_path / "out" / "model.safetensors")  # the library reads what we wrote
    theirs = load_file(llama / "model.safetensors")
    assert torch.equal(weights["embed.weight"], theirs["model.embed_tokens.weight"].bfloat16())


@pytest.mark.parametrize("tied", [True, False])
def test_what_save_writes_is_what_safetensors_would(tied: bool, tmp_path: Path) -> None:
    config = GPTConfig(n_layer=1, d_model=6, n_head=3, vocab_size=5, n_ctx=4, tied=tied)
    model = GPT(config, seed=1)
    native.save(tmp_path / "m", model, None, dtype=torch.float16)
    weights = load_file(tmp_path / "m" / "model.safetensors")
    expected = {name: weight.half() for name, weight in model.state_dict().items()}
    if tied:
        del expected["unembed.weight"]
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_conversion_that_fails_leaves_what_was_there(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(str(llama), out, dtype=torch.float32)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    weights = load_file(llama / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int32)
    save_file(weights, llama / "model.safetensors")
    for folder in (out, tmp_path / "new"):
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight is torch\.int32"):
            convert(str(llama), folder, dtype=torch.float32)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["llama", "out"]


def test_a_folder_of_other_things_is_left_alone(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds no native checkpoint; nothing was written"):
        convert(str(llama), tmp_path / "out", dtype=torch.float32)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_another_model_s_card_does_not_stay(llama: Path, tmp_path: Path) -> None:
    convert(str(llama), tmp_path / "out", dtype=torch.float32)
    (tmp_path / "out" / "golden.json").write_text("{}")
    convert(str(llama), tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out" / "golden.json").exists()
