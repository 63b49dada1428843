"""The yardstick: held against transformers in float64, stored values, and the model in float64.

The last of these is the test of every architectural choice that the model has; each choice made
wrong must show in the yardstick's own numbers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from model.capture import Capture
from model.checkpoints.open import open_model
from model.config import GPTConfig, RopeScaling
from model.gpt import GPT
from model.reading import read
from model.reference import ReferenceRun, frequencies_of, reference_run
from model.sites import SITES
from tests.conftest import with_large_weights

STORIES = Path(__file__).parents[3] / "shared" / "checkpoints" / "stories260K"
TOKENS = 24
SHAPE: dict[str, Any] = {"n_layer": 2, "d_model": 24, "vocab_size": 41, "n_ctx": 64, "n_head": 4}
LLAMA: dict[str, Any] = SHAPE | {
    "n_head": 6,
    "n_kv_head": 2,
    "d_head": 10,
    "d_mlp": 20,
    "rope_pairing": "half",
    "norm": "rmsnorm",
    "norm_bias": False,
    "activation": "swiglu",
    "qkv_bias": False,
    "o_bias": False,
    "mlp_bias": False,
}


def scaling(kind: Any, **choices: Any) -> dict[str, Any]:
    choices = {"factor": 4.0, "original_context": 10} | choices
    return LLAMA | {"rope_scaling": RopeScaling(kind=kind, **choices), "rope_base": 500.0}


# Each choice, and a wrong one that must show.
CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "course": (SHAPE, {"rope_pairing": "half"}),
    "learned": (SHAPE | {"positions": "learned", "tied": True}, {"norm_eps": 1e-2}),
    "none": (SHAPE | {"positions": "none"}, {"score_scale": 0.5}),
    "tanh": (SHAPE | {"activation": "gelu_tanh"}, {"activation": "gelu"}),
    "no biases": (
        SHAPE | dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "norm_bias"), False),
        {"norm_eps": 1e-3},
    ),
    "parallel, a part rotated": (
        SHAPE | {"parallel_residual": True, "rotary_dim": 4, "rope_pairing": "half"},
        {"parallel_residual": False},
    ),
    "a part of each pair's head": (SHAPE | {"rotary_dim": 4}, {"rotary_dim": 6}),
    "llama": (LLAMA, {"rope_pairing": "interleaved"}),
    "llama with biases, tied": (
        LLAMA | {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "tied": True},
        {"n_kv_head": 2, "rope_base": 9e3},
    ),
    "qk norm": (LLAMA | {"qk_norm": True}, {"norm_eps": 1e-3}),
    "window": (LLAMA | {"window": 7}, {"window": 8}),
    "window in one layer": (LLAMA | {"window": 5, "windowed_layers": (1,)}, {"window": None}),
    "scores unscaled": (LLAMA | {"score_scale": 1.0}, {"score_scale": None}),
    "linear": (scaling("linear"), {"rope_scaling": None}),
    "ntk": (scaling("ntk"), {"rope_scaling": None}),
    "dynamic": (scaling("dynamic"), {"rope_scaling": None}),
    "dynamic, not reached": (scaling("dynamic", original_context=50), {"rope_base": 400.0}),
    "yarn": (scaling("yarn", beta_fast=4.0), {"rope_scaling": None}),
    "yarn, its own factor": (
        scaling("yarn", attention_factor=1.3),
        {"rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_context=10)},
    ),
    "llama3": (scaling("llama3", original_context=60), {"rope_scaling": None}),
    "a lone pair": (scaling("ntk") | {"rotary_dim": 2}, {"rope_base": 400.0, "rotary_dim": 4}),
}


def some_ids(config: GPTConfig) -> list[int]:
    return [(7 * position * position + 3) % config.vocab_size for position in range(TOKENS)]


def of(model: GPT, **wrong: Any) -> ReferenceRun:
    config = replace(model.config, **wrong)
    return reference_run(config, model.state_dict(), some_ids(config))


def error(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("name", CHOICES)
def test_the_model_in_float64_gives_the_yardstick_s_numbers(name: str) -> None:
    choices, wrong = CHOICES[name]
    model = with_large_weights(GPTConfig(**choices)).double()
    captures = [
        Capture.resolve(SITES[site], {}, model.config, TOKENS, dtype=torch.float64)
        for site in ("logits", "attn.pattern")
    ]
    found = read(model, some_ids(model.config), captures).tensors
    expected = of(model)
    assert error(found["logits"].numpy(), expected.logits) < 1e-13
    assert error(found["attn.pattern"].numpy(), expected.patterns) < 1e-13
    assert expected.patterns.std(-1).mean() > 0.03
    other = of(model, **wrong)
    assert error(other.logits, expected.logits) > 1e-5
    assert error(other.patterns, expected.patterns) > 1e-5


def test_gpt2_of_transformers_in_float64_gives_the_yardstick_s_numbers() -> None:
    settings: dict[str, Any] = {"vocab_size": 41, "n_embd": 24, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(
        **settings, n_positions=64, bos_token_id=0, eos_token_id=0, attn_implementation="eager"
    )
    made = transformers.GPT2LMHeadModel(config).eval().double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            noise = 0.2 * torch.randn(weight.shape, generator=draw)
            weight.copy_(noise + (weight.dim() == 1))
    theirs = made.state_dict()
    ours = {
        "embed.weight": theirs["transformer.wte.weight"],
        "pos_embed.weight": theirs["transformer.wpe.weight"],
        "ln_final.weight": theirs["transformer.ln_f.weight"],
        "ln_final.bias": theirs["transformer.ln_f.bias"],
    }
    names = {"ln1": "ln_1", "ln2": "ln_2", "attn.o": "attn.c_proj"}
    names |= {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    for layer in range(2):
        for kind in ("weight", "bias"):
            fused = theirs[f"transformer.h.{layer}.attn.c_attn.{kind}"]
            for letter, part in zip("qkv", fused.chunk(3, dim=-1), strict=True):
                ours[f"blocks.{layer}.attn.{letter}.{kind}"] = part.T if part.dim() == 2 else part
            for mine, name in names.items():
                part = theirs[f"transformer.h.{layer}.{name}.{kind}"]
                ours[f"blocks.{layer}.{mine}.{kind}"] = part.T if part.dim() == 2 else part
    own = GPTConfig(**SHAPE, positions="learned", activation="gelu_tanh", tied=True)
    ids = some_ids(own)
    found = reference_run(own, ours, ids)
    with torch.no_grad():
        answer = made(torch.tensor([ids]), output_attentions=True, use_cache=False)
    assert error(found.logits, answer.logits[0].numpy()) < 1e-13
    patterns = torch.stack(answer.attentions)[:, 0].numpy()
    assert error(found.patterns, patterns) < 1e-13
    wrong = reference_run(replace(own, activation="gelu"), ours, ids)
    assert error(wrong.logits, answer.logits[0].numpy()) > 1e-5


def test_stored_float64_values_of_stories_are_met() -> None:
    if not STORIES.is_dir():
        pytest.skip("no ../shared/checkpoints/stories260K")
    stored = json.loads((STORIES / "reference.json").read_text())
    model = open_model(
        str(STORIES / "stories260K.bin"), device=torch.device("cpu"), dtype=torch.float32
    ).model
    found = reference_run(model.config, model.state_dict(), stored["run_ids"])
    rounding = 1e-7  # the values are stored to 8 digits
    assert error(found.logits[-1], np.array(stored["logits_last_row"])) < rounding
    patterns = {key: np.array(value) for key, value in stored.items() if "pattern" in key}
    first, last = (patterns[key] for key in sorted(patterns, key=lambda key: "last" in key))
    assert error(found.patterns[0, 0], first) < rounding
    assert error(found.patterns[-1, 5], last) < rounding


def test_each_row_is_a_distribution_over_what_came_before() -> None:
    found = of(with_large_weights(GPTConfig(**LLAMA, window=7)))
    assert np.abs(found.patterns.sum(-1) - 1).max() < 1e-15 * TOKENS
    order = np.arange(TOKENS)
    seen = (order[None] <= order[:, None]) & (order[None] > order[:, None] - 7)
    assert np.all((found.patterns > 0) == seen)


def test_frequencies_worked_by_hand() -> None:
    """Pairs of a head of 4 at base 100 turn by 1 and 1/10 a position."""
    plain = GPTConfig(**(SHAPE | {"n_head": 6, "rope_base": 100.0}))
    assert frequencies_of(plain, 8)[0] == pytest.approx([1.0, 0.1])
    halved = replace(plain, rope_scaling=RopeScaling(kind="linear", factor=2.0))
    assert frequencies_of(halved, 8)[0] == pytest.approx([0.5, 0.05])
    # The slowest pair four times slower, the fastest as it was.
    stretched = replace(plain, rope_scaling=RopeScaling(kind="ntk", factor=4.0))
    assert frequencies_of(stretched, 8)[0] == pytest.approx([1.0, 0.025])
    # 16 tokens, 8 trained on, factor 4: as if the factor were 4 · 2 − 3 = 5.
    grown = replace(plain, rope_scaling=RopeScaling(kind="dynamic", factor=4, original_context=8))
    assert frequencies_of(grown, 16)[0] == pytest.approx([1.0, 0.02])
    assert frequencies_of(grown, 8)[0] == pytest.approx([1.0, 0.1])
    # Waves of 2π and 20π over 40 positions: kept below 40/4, divided above 40/1.
    llama3 = RopeScaling(kind="llama3", factor=8.0, original_context=40)
    assert frequencies_of(replace(plain, rope_scaling=llama3), 8)[0] == pytest.approx([1, 0.0125])
    yarn = RopeScaling(kind="yarn", factor=float(np.exp(2)), original_context=40)
    assert frequencies_of(replace(plain, rope_scaling=yarn), 8)[1] == pytest.approx(1.2)


def test_what_before_layer_raises_ends_the_run() -> None:
    model = with_large_weights(GPTConfig(**SHAPE))
    asked: list[int] = []

    def enough() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        reference_run(model.config, model.state_dict(), [1, 2], before_layer=enough)
    assert len(asked) == 2
