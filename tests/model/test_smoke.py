"""The smoke test passes a sound model and fails each kind of broken one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from model.gpt import GPT
from model.smoke import smoke_test


def test_sound_model_passes_with_its_shapes_and_count(
    family: str, models: Mapping[str, GPT]
) -> None:
    report = smoke_test(models[family])
    assert report.passed
    assert report.ids_shape == (2, 32) and report.logits_shape == (2, 32, 360)
    assert report.parameters == sum(weight.numel() for weight in models[family].parameters())
    assert report.future_mass == 0 and report.row_sum_error <= 2e-6
    assert report.seconds > 0


def test_context_shorter_than_the_test_is_respected(models: Mapping[str, GPT]) -> None:
    assert smoke_test(models["course"], n_tokens=1000).ids_shape == (2, 64)


def test_not_a_number_among_the_weights_fails(models: Mapping[str, GPT]) -> None:
    broken = copy.deepcopy(models["course"])
    broken.ln_final.weight[3] = float("nan")
    report = smoke_test(broken)
    assert not report.finite and not report.passed


def test_model_that_looks_ahead_fails(
    models: Mapping[str, GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.frame._hidden", lambda *_: {None: torch.zeros(32, 32).bool()})
    report = smoke_test(models["course"])
    assert report.future_mass > 0.5 and not report.passed


def test_rows_that_do_not_sum_to_one_fail(
    models: Mapping[str, GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "model.attention.softmax", lambda scores, **_: torch.softmax(scores, -1) * 0.999
    )
    report = smoke_test(models["course"])
    assert report.row_sum_error == pytest.approx(1e-3, rel=0.01) and not report.passed


def test_wrong_vocabulary_fails(models: Mapping[str, GPT]) -> None:
    report = replace(smoke_test(models["course"]), vocab_size=361)
    assert not report.passed
