"""open_model: which names open what, what the answer says, and how refusals read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.checkpoints import assemble, native
from model.checkpoints import open as opening
from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import OpenedModel, hash_weights, open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import train_tokenizer

TEXTS = ["The cat chased the mouse because it was hungry.", "猫追老鼠，因为它饿了。"]
CONFIG = GPTConfig(n_layer=2, d_model=24, n_head=3, vocab_size=300, n_ctx=32)


def open_here(name: str | Path, dtype: torch.dtype = torch.float32) -> OpenedModel:
    return open_model(str(name), device=torch.device("cpu"), dtype=dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    native.save(
        tmp_path / "mine",
        GPT(CONFIG, seed=3),
        train_tokenizer(TEXTS, 280),
        dtype=torch.float32,
        about={"source": "a test"},
    )
    return tmp_path / "mine"


@pytest.fixture
def demo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(opening, "DEMO", folder)
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_a_matrix_lies_as_a_step_of_one_row_reads_it_fastest(tied: bool, tmp_path: Path) -> None:
    config = replace(CONFIG, positions="learned", tied=tied)
    native.save(tmp_path / "laid", GPT(config), None, dtype=torch.float32)
    by_columns = {
        name: weight.stride() == (1, weight.shape[0])
        for name, weight in open_here(tmp_path / "laid").model.state_dict().items()
        if weight.dim() == 2
    }
    wide = {"unembed.weight", "blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"}
    # Only looked up, so rows stay rows, unless it is the head as well.
    wide |= {"embed.weight"} if tied else set()
    assert {name for name, columns in by_columns.items() if columns} == wide


def test_a_native_folder_opens_with_its_weights_and_where_they_come_from(folder: Path) -> None:
    opened = open_here(folder)
    expected = GPT(CONFIG, seed=3).state_dict()
    found = opened.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    file = (folder / "model.safetensors").read_bytes()
    assert opened.weights_sha256 == hashlib.sha256(file).hexdigest()
    assert (opened.id, opened.source, opened.format) == ("mine", "a test", "fluoroscope-1")
    assert opened.trained and opened.notes == ()
    assert opened.tokenizer is not None and opened.tokenizer.vocab_size <= 280
    assert not any(weight.requires_grad for weight in opened.model.parameters())
    assert not opened.model.training


def test_wide_matrices_lie_by_columns_and_looked_up_ones_by_rows(folder: Path) -> None:
    weights = open_here(folder).model.state_dict()
    for name, by_columns in {
        "embed.weight": False,
        "unembed.weight": True,
        "blocks.0.attn.q.weight": False,  # square
        "blocks.1.mlp.up.weight": True,
        "blocks.1.mlp.down.weight": False,
    }.items():
        weight = weights[name]
        assert weight.is_contiguous() != by_columns, name
        assert weight.T.is_contiguous() == by_columns, name


def test_demo_is_the_embedded_folder(demo: Path) -> None:
    assert open_here("demo").id == "demo"


def test_dtype_is_what_was_asked_for(folder: Path) -> None:
    assert {w.dtype for w in open_here(folder, torch.bfloat16).model.parameters()} == {
        torch.bfloat16
    }


def test_a_preset_is_random_and_says_so(demo: Path) -> None:
    opened = open_here("preset:course")
    assert sum(w.numel() for w in opened.model.parameters()) == 49_244_928
    assert not opened.trained and opened.tokenizer is not None
    assert "random" in opened.notes[0] and "demo" in opened.notes[1]


def test_a_preset_whose_vocabulary_is_too_small_has_no_tokenizer(demo: Path) -> None:
    opened = open_here("preset:nano")
    assert opened.tokenizer is None and "do not fit in 3" in opened.notes[1]


def test_the_hash_of_random_weights_is_of_their_bytes(demo: Path) -> None:
    opened, again = open_here("preset:nano"), open_here("preset:nano", torch.bfloat16)
    assert opened.weights_sha256 == again.weights_sha256  # the same draw, in another dtype
    digest = hashlib.sha256()
    for weight in opened.model.parameters():
        digest.update(weight.numpy().tobytes())
    assert opened.weights_sha256 == digest.hexdigest()
    assert hash_weights(GPT(opened.model.config, seed=1)) != opened.weights_sha256


def test_a_preset_larger_than_memory_is_refused_before_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assemble, "memory_of", lambda device: 24 * 2**30)
    with pytest.raises(
        CheckpointError, match=r"174,604,259,328 weights take 650 GiB .* has 24 GiB"
    ):
        open_here("preset:gpt3")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("preset:gpt5", r"no 'preset:gpt5'; presets are course, nano"),
        ("/nowhere/at/all", r"no such file or folder"),
        ("", r"no name"),
        ("elsewhere", r"a model is 'demo'"),
    ],
)
def test_an_unknown_name_is_refused_with_what_there_is(name: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        open_here(name)


def test_a_damaged_tokenizer_names_its_file(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        open_here(folder)


def test_a_tokenizer_with_more_ids_than_rows_is_noted(tmp_path: Path) -> None:
    small = GPTConfig(n_layer=1, d_model=8, n_head=1, vocab_size=100, n_ctx=8)
    native.save(tmp_path / "small", GPT(small), train_tokenizer(TEXTS, 280))
    (note,) = open_here(tmp_path / "small").notes
    assert "only 100 rows" in note


def test_a_missing_tokenizer_is_noted(tmp_path: Path) -> None:
    native.save(tmp_path / "mute", GPT(CONFIG), None)
    opened = open_here(tmp_path / "mute")
    assert opened.tokenizer is None and "token ids" in opened.notes[0]


def test_a_folder_that_says_untrained_is_not_called_trained(tmp_path: Path) -> None:
    native.save(tmp_path / "raw", GPT(CONFIG), None, about={"trained": False})
    assert json.loads((tmp_path / "raw" / "config.json").read_text())["about"] == {"trained": False}
    assert not open_here(tmp_path / "raw").trained
