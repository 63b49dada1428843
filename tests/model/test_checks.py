"""Checks tell a right run from a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from model.capture import Capture
from model.checks import PatternCheck
from model.edit import Edit
from model.gpt import GPT
from model.reading import read
from model.sites import SITES
from model.wiring import Wiring

IDS = [5, 80, 3, 250, 17, 9]


def observed(*patterns: Any) -> tuple[float | None, float | None, int]:
    check = PatternCheck(2)
    for layer, pattern in enumerate(patterns):
        check.observers["attn.pattern"](layer, torch.tensor(pattern))
    return check.result()


def test_rows_are_measured_and_empty_ones_counted_and_left_out() -> None:
    right = [[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]
    wrong = [[[0.75, 0.125], [0.0, 0.0]], [[0.0, 0.0], [0.25, 0.25]]]
    assert observed(right) == (0.0, 0.0, 0)
    assert observed(right, wrong) == (0.5, 0.125, 2)


def test_largest_of_all_layers_counts() -> None:
    assert observed([[[1.5]]], [[[1.25]]]) == (0.5, 0.0, 0)


def test_nan_in_a_row_is_not_hidden() -> None:
    error, future, _ = observed([[[1.0, 0.0], [float("nan"), 0.5]]], [[[1.0, 0.0], [0.5, 0.5]]])
    assert error != error and future != future


def test_run_without_attention_has_nothing_to_check() -> None:
    assert observed() == (None, None, 0)


def checks(model: GPT, *, edits: Any = (), wiring: Wiring | None = None) -> Any:
    capture = Capture.resolve(SITES["embed"], {}, model.config, len(IDS))
    return read(
        model, IDS, [capture], edits=edits, wiring=wiring or Wiring(), full_checks=True
    ).checks


def add(model: GPT, site: str, **asked: Any) -> Edit:
    return Edit.resolve("add", SITES[site], asked, model.config, len(IDS), value=0.25)


def test_every_sum_holds_in_a_plain_run(family: str, models: Mapping[str, GPT]) -> None:
    found = checks(models[family])
    assert found.row_sum_error <= 2e-6
    assert found.future_mass == 0
    assert found.empty_rows == 0
    assert found.residual_sum_error < 2e-5
    assert found.head_sum_error < 2e-5
    assert found.logits_error < 2e-5


@pytest.mark.parametrize(
    "wiring",
    [Wiring(causal=False), Wiring(score_scale=1.0), Wiring(positions="none")],
    ids=["no mask", "unscaled", "no positions"],
)
def test_sums_hold_under_other_wiring(
    wiring: Wiring, family: str, models: Mapping[str, GPT]
) -> None:
    found = checks(models[family], wiring=wiring)
    assert max(found.residual_sum_error, found.head_sum_error, found.logits_error) < 2e-5
    assert (found.future_mass > 0.05) == (not wiring.causal)


def test_residual_off_has_no_residual_sum(models: Mapping[str, GPT]) -> None:
    found = checks(models["course"], wiring=Wiring(residual=False))
    assert found.residual_sum_error is None
    assert found.head_sum_error < 2e-5 and found.logits_error < 2e-5


@pytest.mark.parametrize(
    ("site", "wrong"),
    [
        ("resid_post", "residual_sum_error"),
        ("attn_out", "head_sum_error"),
        ("ln_final.out", "logits_error"),
    ],
)
def test_edit_between_the_parts_and_their_sum_fails_that_check_alone(
    site: str, wrong: str, models: Mapping[str, GPT]
) -> None:
    model = models["course"]
    found = checks(
        model, edits=[add(model, site, **({"layer": [1]} if site != "ln_final.out" else {}))]
    )
    for name in ("residual_sum_error", "head_sum_error", "logits_error"):
        error = getattr(found, name)
        assert error > 0.2 if name == wrong else error < 2e-5, (name, error)


def test_edit_of_a_heads_result_keeps_every_sum(models: Mapping[str, GPT]) -> None:
    model = models["grouped"]
    found = checks(model, edits=[add(model, "attn.result", layer=[1], head=[2])])
    assert max(found.residual_sum_error, found.head_sum_error, found.logits_error) < 2e-5
