"""The embedded demo model: it is what its card says, to the last file."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
import torch

from model.checkpoints.native import CheckpointError, load
from model.checkpoints.open import DEMO, OpenedModel, open_model
from model.parity import parity
from model.training.evaluate import (
    induction_scores,
    previous_token_scores,
    template_accuracy,
)
from model.training.tokens import end_of_text

STORY = (
    "Once upon a time, there was a little bear who lived in the forest with his mother. One day, "
    "the little bear went out to find some honey. He saw a bee and asked the bee where the honey "
    "was. The bee said that the honey was in the big tree by the river. The bear was very happy. "
    "He ran to the river and climbed the big tree, but the honey was too high for him."
)
CPU = torch.device("cpu")


@cache
def demo() -> OpenedModel:
    return open_model("demo", device=CPU, dtype=torch.float32)


def card() -> str:
    return (DEMO / "card.md").read_text("utf-8")


def test_demo_is_the_course_size_and_small_enough_to_ship() -> None:
    config = demo().model.config
    assert (config.n_layer, config.d_model, config.n_head) == (6, 384, 6)
    assert config.rope_pairing == "interleaved"
    assert config.n_ctx >= 256
    assert sum(file.stat().st_size for file in DEMO.iterdir()) <= 28 << 20


def test_demo_with_one_byte_changed_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for file in DEMO.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = bytearray((tmp_path / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(CheckpointError, match="sha256"):
        load(tmp_path, device=CPU, dtype=torch.float32)


def test_demo_reproduces_its_stored_float64_numbers() -> None:
    report = parity(demo())
    assert report.against == "golden"
    assert report.passed
    assert report.control_missed


def test_demo_has_the_heads_that_its_card_names() -> None:
    tokenizer = demo().tokenizer
    assert tokenizer is not None
    named = re.search(r"\| induction: [^|]*\| (\d)\.(\d) ([0-9.]+)", card())
    assert named is not None
    scores = induction_scores(demo().model, end_of_text(tokenizer))
    score = float(scores[int(named[1]), int(named[2])])
    assert score == pytest.approx(float(named[3]), abs=5e-3)
    assert score >= 0.5
    ids = torch.tensor(tokenizer.encode(STORY, add_bos=False))
    assert float(previous_token_scores(demo().model, ids).max()) >= 0.6


@pytest.mark.parametrize("language", ["en", "zh"])
def test_demo_endings_are_as_good_as_its_card_says(language: str) -> None:
    tokenizer = demo().tokenizer
    assert tokenizer is not None
    said = re.search(rf"\| {language} \| ([0-9.]+) \|", card())
    assert said is not None
    found = sum(
        template_accuracy(demo().model, tokenizer, language, form=form)  # type: ignore[arg-type]
        for form in range(3)
    )
    assert found / 3 == pytest.approx(float(said[1]), abs=0.011)


def test_demo_card_is_of_these_weights() -> None:
    described = json.loads((DEMO / "config.json").read_text("utf-8"))
    assert described["weights_sha256"] in card()
