"""llama2.c: the real stories260K against stored float64 values, and files made here."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.capture import Capture
from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import OpenedModel, open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.sites import SITES
from model.tap import Probe

CPU = torch.device("cpu")
STORIES = Path(__file__).parents[4] / "shared" / "checkpoints" / "stories260K"
CONFIG = GPTConfig(
    n_layer=2,
    d_model=24,
    n_head=6,
    n_kv_head=2,
    d_mlp=20,
    vocab_size=300,
    n_ctx=16,
    norm="rmsnorm",
    norm_bias=False,
    activation="swiglu",
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
)


def opened(file: Path) -> OpenedModel:
    return open_model(str(file), device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def stories() -> OpenedModel:
    if not STORIES.is_dir():
        pytest.skip("no ../shared/checkpoints/stories260K")
    return opened(STORIES / "stories260K.bin")


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((STORIES / "reference.json").read_text())
    return values


def test_stories_has_its_published_size_and_hash(stories: OpenedModel) -> None:
    assert sum(weight.numel() for weight in stories.model.parameters()) == 260_032
    assert stories.weights_sha256 == (
        "b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696"
    )
    assert (stories.id, stories.format, stories.notes) == ("stories260K", "llama2.c version 0", ())


def test_stories_tells_the_stored_story(stories: OpenedModel, reference: dict[str, Any]) -> None:
    ids = reference["greedy_ids"][:1]
    while len(ids) < len(reference["greedy_ids"]):
        logits = stories.model(torch.tensor([ids]), unembed=[len(ids) - 1])
        assert logits is not None
        ids.append(int(logits[0, -1].argmax()))
    assert ids == reference["greedy_ids"] and len(ids) == 49
    assert stories.tokenizer is not None
    assert stories.tokenizer.decode(ids[1:]) == reference["text"].removeprefix(" ")
    assert stories.tokenizer.encode(reference["text"].removeprefix(" ")) == ids


def test_stories_numbers_are_the_stored_ones(
    stories: OpenedModel, reference: dict[str, Any]
) -> None:
    ids = torch.tensor([reference["run_ids"]])
    stored = {key: np.array(value) for key, value in reference.items() if key not in ("config",)}
    patterns = {key: value for key, value in stored.items() if "pattern" in key}
    found = read(stories.model, ids, "attn.pattern", "logits")
    assert np.abs(found["logits"][-1].numpy() - stored["logits_last_row"]).max() < 1e-4
    first, last = (patterns[key] for key in sorted(patterns, key=lambda key: "last" in key))
    assert np.abs(found["attn.pattern"][0, 0].numpy() - first).max() < 1e-4
    assert np.abs(found["attn.pattern"][-1, 5].numpy() - last).max() < 1e-4
    assert np.abs(found["attn.pattern"][-1, 4].numpy() - last).max() > 1e-2  # another head


def read(model: GPT, ids: Tensor, *names: str) -> dict[str, Tensor]:
    captures = [Capture.resolve(SITES[n], {}, model.config, ids.shape[1]) for n in names]
    probe = Probe(captures)
    model(ids, tap=probe)
    found = {}
    for recording in probe.recordings:
        assert recording.values is not None
        found[recording.capture.name] = recording.values
    return found


def floats(model: GPT, *names: str) -> NDArray[np.float32]:
    """The named tensors, or one for each layer, one after the other."""
    state = model.state_dict()
    layers = range(model.config.n_layer)
    keys = [
        key
        for name in names
        for key in ([name] if name in state else [f"blocks.{layer}.{name}" for layer in layers])
    ]
    return np.concatenate([state[key].numpy().ravel() for key in keys])


def written(tmp_path: Path, version: int, tied: bool) -> tuple[GPT, Path]:
    """A file as llama2.c's export.py lays it out."""
    model = GPT(GPTConfig(**(CONFIG.to_dict() | {"tied": tied})), seed=5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    attention = [f"attn.{letter}.weight" for letter in "qkvo"]
    mlp = [f"mlp.{part}.weight" for part in ("gate", "down", "up")]  # w1, w2, w3
    sizes = [24, 20, 2, 6, 2, 300 if tied or version else -300, 16]
    head = [] if tied else [floats(model, "unembed.weight")]
    if version == 0:
        header = struct.pack("<7i", *sizes)
        body = [
            floats(model, "embed.weight", "ln1.weight", *attention, "ln2.weight", *mlp),
            floats(model, "ln_final.weight"),
            np.full(16 * 4, np.nan, np.float32),  # freqs_cis, real and imaginary
        ]
    else:
        header = struct.pack("<4s8iB", b"24ka", 1, *sizes, tied).ljust(256, b"\0")
        body = [floats(model, "ln1.weight", "ln2.weight", "ln_final.weight", "embed.weight")]
        body.append(floats(model, *attention, *mlp))
    file = tmp_path / "mine.bin"
    file.write_bytes(header + np.concatenate(body + head).astype("<f4").tobytes())
    return model, file


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("version", [0, 1])
def test_both_versions_open_to_the_weights_that_were_written(
    version: int, tied: bool, tmp_path: Path
) -> None:
    model, file = written(tmp_path, version, tied)
    found = opened(file)
    assert found.model.config == model.config
    expected = model.state_dict()
    assert all(torch.equal(w, expected[n]) for n, w in found.model.state_dict().items())
    assert found.tokenizer is None and "token ids" in found.notes[0]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-4], r"asks for [\d,]+ bytes; it has"),
        (lambda data: data + b"\0\0\0\0", r"asks for [\d,]+ bytes; it has"),
        (lambda data: data[:20], r"not a llama2\.c file"),
        (lambda data: struct.pack("<i", 2**30) + data[4:], r"not divisible|asks for"),
        (lambda data: data[:8] + struct.pack("<i", 2**31 - 1) + data[12:], r"asks for"),
        (lambda data: data[:8] + struct.pack("<i", -2) + data[12:], r"n_layer is -2"),
        (lambda data: b"24ka" + struct.pack("<i", 2) + data[8:], r"version 2 \(quantized\)"),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(
    spoil: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    _, file = written(tmp_path, 0, True)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(CheckpointError, match=says):
        opened(file)


def stories_with_tokenizer(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> Path:
    if not STORIES.is_dir():
        pytest.skip("no ../shared/checkpoints/stories260K")
    shutil.copy(STORIES / "stories260K.bin", tmp_path)
    (tmp_path / "tok512.bin").write_bytes(spoil((STORIES / "tok512.bin").read_bytes()))
    return tmp_path / "stories260K.bin"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-1], r"tok512\.bin: .*a text of"),
        (lambda data: data[:100], r"tok512\.bin: .*"),
        (lambda data: data[:8] + struct.pack("<i", 2**31 - 1) + data[12:], r"2,147,483,647 bytes"),
        (lambda data: data[:8] + struct.pack("<i", -5) + data[12:], r"a text of -5"),
        (lambda data: data + struct.pack("<fi", 0, 1) + b"q", r"513 tokens, the model 512|twice"),
    ],
)
def test_a_damaged_tokenizer_is_refused(
    spoil: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=says):
        opened(stories_with_tokenizer(tmp_path, spoil))


@pytest.mark.parametrize("text", ["Once upon a time", "  two  spaces", "猫追老鼠。", "a👍🏽b\n"])
def test_every_text_comes_back_through_the_stories_tokenizer(
    text: str, stories: OpenedModel
) -> None:
    tokenizer = stories.tokenizer
    assert tokenizer is not None
    encoded = tokenizer.read(text)
    assert encoded.bos_added and encoded.ids[0] == 1
    assert tokenizer.decode(encoded.ids[1:]) == text
    assert "".join(token.display for token in tokenizer.tokens(encoded)[1:]) == text
