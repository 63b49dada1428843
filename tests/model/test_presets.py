"""Presets against the published parameter counts of the models that they describe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model.gpt import GPT
from model.presets import PRESETS

# The published checkpoints, each tensor counted once; GPT-3 by its paper's shapes.
PUBLISHED = {
    "course": 49_244_928,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    # V·d twice, n_ctx·d, L(12d² + 13d), 2d with V 3, d 48, n_ctx 11, L 3.
    "nano": 2 * 3 * 48 + 11 * 48 + 3 * (12 * 48**2 + 13 * 48) + 2 * 48,
}


def parameters(name: str, **changes: object) -> int:
    with torch.device("meta"):
        model = GPT(replace(PRESETS[name], **changes))  # type: ignore[arg-type]
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_count_is_the_published_one(name: str) -> None:
    assert parameters(name) == PUBLISHED[name]


def test_course_count_moves_with_its_choices_as_worked_by_hand() -> None:
    assert parameters("course", tied=True) == 29_946_240
    no_biases = {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "norm_bias": False}
    assert parameters("course", **no_biases) == 49_219_200
    assert parameters("course", tied=True, **no_biases) == 29_920_512
    assert parameters("course", positions="learned") == 49_244_928 + 384 * 1024


def test_course_pairs_neighbouring_dimensions_and_llama_halves() -> None:
    assert PRESETS["course"].rope_pairing == "interleaved"
    assert PRESETS["llama-2-7b"].rope_pairing == "half"
