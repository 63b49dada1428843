"""TrainConfig, weights and the schedule of the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import GPTConfig
from model.gpt import GPT
from model.training.config import Piecewise, TrainConfig, TrainConfigError, Weight, parse_weight
from model.training.optimizer import Optimizers, scale_at

TINY = GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=300, n_ctx=16)


def config(**values: Any) -> TrainConfig:
    return TrainConfig(**({"data": None, "out": Path("x"), "model": TINY, "steps": 3} | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": None}, "needs steps or minutes"),
        ({"rows": 0}, "rows is 0; it must be over 0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"decay": 1.5}, "decay is 1.5"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"held_out_every": 1}, "held_out_every is 1"),
        ({"weights": (parse_weight("a=1"), parse_weight("a=2"))}, r"\['a'\] have two weights"),
    ],
)
def test_config_that_cannot_run_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainConfigError, match=message):
        config(**values)


@pytest.mark.parametrize(
    "spec", ["a", "a=", "a=x", "=1", "a=-1", "a=nan", "a=1@0.5", "a=1@1.5:2", "a=1@.5:2@.5:3"]
)
def test_weight_that_says_nothing_is_refused(spec: str) -> None:
    with pytest.raises(TrainConfigError, match=r"is neither|is not like|it must be"):
        parse_weight(spec)


def test_constant_weight_is_read() -> None:
    assert parse_weight("gutenberg=0.47") == Weight("gutenberg", Piecewise(((1.0, 0.47),)))


def test_tokens_per_step_counts_all_rows() -> None:
    assert config(rows=3, accumulate=5).tokens_per_step == 3 * 5 * 16


def test_scale_goes_up_stays_and_comes_down() -> None:
    scales = [
        scale_at(step, step / 100, warmup_steps=10, decay=0.5) for step in (0, 4, 9, 50, 75, 100)
    ]
    assert scales == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5, 0.0])


def test_muon_takes_the_matrices_of_the_blocks_alone() -> None:
    model = GPT(TINY)
    optimizers = Optimizers(model, config())
    by_muon = {id(p) for group in optimizers.muon.param_groups for p in group["params"]}
    named = {name for name, p in model.named_parameters() if id(p) in by_muon}
    assert named == {
        f"blocks.0.{name}.weight"
        for name in ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.down")
    }
    by_adam = sum(len(group["params"]) for group in optimizers.adam.param_groups)
    assert len(named) + by_adam == len(list(model.parameters()))


def test_set_scale_multiplies_both_rates() -> None:
    optimizers = Optimizers(GPT(TINY), config(muon_lr=0.02, adam_lr=0.004))
    optimizers.set_scale(0.5)
    rates = [o.param_groups[0]["lr"] for o in (optimizers.muon, optimizers.adam)]
    assert rates == pytest.approx([0.01, 0.002])


def test_step_drops_the_gradients() -> None:
    model = GPT(TINY)
    optimizers = Optimizers(model, config())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step()
    assert all(parameter.grad is None for parameter in model.parameters())
