"""NaN and ∞ never pass silently: JSON refuses them, bytes carry them, checks tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.answers import array, ask, refused, safetensors

TEXT = "The cat"
# At resid_post of the last layer a finite number; its square in the norm is not.
HUGE = {"op": "set", "site": "logits", "value": 1e300}
NAN = {"op": "set", "site": "attn.scores", "value": 1e300, "layers": [1]}


def test_nan_in_nested_json_is_refused_with_its_place(client: TestClient) -> None:
    problem = refused(client, "/v1/attention", "not-finite", text=TEXT, edits=[NAN])
    assert (
        "attn.pattern holds nan at {'layer': 1, 'head': 0, 'query': 0, 'key': 0}"
        in (problem["detail"])
    )


def test_infinity_in_nested_json_is_refused(client: TestClient) -> None:
    problem = refused(
        client, "/v1/attention", "not-finite", text=TEXT, edits=[NAN], stages=["scores"]
    )
    assert "holds inf" in problem["detail"]


@pytest.mark.parametrize("encoding", ["nested", "sparse"])
def test_nan_is_refused_in_every_json_form(encoding: str, client: TestClient) -> None:
    for exact in (True, False):
        form = {"encoding": encoding, "exact": exact}
        refused(client, "/v1/attention", "not-finite", text=TEXT, edits=[NAN], format=form)


def test_bytes_carry_nan_and_the_checks_say_so(client: TestClient) -> None:
    body: dict[str, Any] = {"text": TEXT, "edits": [NAN], "layers": [1]}
    answer = ask(client, "/v1/attention", **body, format={"encoding": "base64"})
    assert np.isnan(array(answer["tensors"]["attn.pattern"])).any()
    assert answer["checks"]["finite"] is False
    answer, arrays = safetensors(client, "/v1/attention", **body)
    assert np.isnan(arrays["attn.pattern"]).any()
    assert answer["checks"]["finite"] is False


def test_nan_beside_what_was_asked_for_is_told(client: TestClient) -> None:
    body: dict[str, Any] = {"text": TEXT, "captures": [{"site": "embed"}], "checks_level": "full"}
    assert ask(client, "/v1/inspect", **body)["checks"]["finite"] is True
    checks = ask(client, "/v1/inspect", **body, edits=[NAN])["checks"]
    assert checks["finite"] is False and checks["row_sum_error"] is None


@pytest.mark.parametrize("edit", [HUGE, NAN], ids=["infinite", "nan"])
def test_no_probability_is_made_of_logits_that_are_no_numbers(
    edit: Any, client: TestClient
) -> None:
    for full in (True, False):
        problem = refused(client, "/v1/logits", "not-finite", text=TEXT, edits=[edit], full=full)
        assert "logits hold NaN or +∞" in problem["detail"]
    refused(
        client,
        "/v1/inspect",
        "not-finite",
        text=TEXT,
        edits=[edit],
        captures=[{"site": "embed"}],
        compare=True,
    )


def test_minus_infinity_of_masked_scores_is_null_and_finite(client: TestClient) -> None:
    body: dict[str, Any] = {"text": TEXT, "layers": [0], "stages": ["masked_scores"]}
    for form in ({}, {"exact": True}):
        answer = ask(client, "/v1/attention", **body, format=form)
        tensor = answer["tensors"]["attn.masked_scores"]
        assert tensor["data"][0][0][0][1] is None
        assert answer["checks"]["finite"] is True
    _, arrays = safetensors(client, "/v1/attention", **body)
    above = np.triu(np.ones(arrays["attn.masked_scores"].shape[-2:], dtype=bool), 1)
    assert np.isneginf(arrays["attn.masked_scores"][..., above]).all()


def test_overflow_of_half_precision_is_told(client: TestClient) -> None:
    body: dict[str, Any] = {
        "text": TEXT,
        "captures": [{"site": "embed"}],
        "edits": [{"op": "set", "site": "embed", "value": 1e5}],
    }
    form = {"encoding": "base64", "dtype": "float16"}
    answer = ask(client, "/v1/inspect", **body, format=form)
    assert np.isposinf(array(answer["tensors"]["embed"])).all()
    assert answer["checks"]["finite"] is False
