"""Selections in requests: refusals name the axis, the valid range and the place in the body."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.answers import ask, refused

PATH = "/v1/attention"
IDS = list(range(1, 10))

FIELDS = {"layers": ("layer", 3), "heads": ("head", 4), "queries": ("query", 9), "keys": ("key", 9)}


@pytest.fixture(params=list(FIELDS))
def field(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_last_index_at_either_end_is_taken(field: str, client: TestClient) -> None:
    axis, size = FIELDS[field]
    for index in (-size, size - 1):
        answer = ask(client, PATH, token_ids=IDS, **{field: [index]})
        assert answer["tensors"]["attn.pattern"]["coords"] == {axis: [index % size]}


def test_index_past_either_end_is_refused_with_the_valid_range(
    field: str, client: TestClient
) -> None:
    axis, size = FIELDS[field]
    for index in (-size - 1, size):
        problem = refused(client, PATH, "invalid-selection", token_ids=IDS, **{field: [0, index]})
        assert (
            f"{axis} {index} is out of range; valid are {-size} to {size - 1}"
            in (problem["detail"])
        )


def test_index_said_twice_is_refused(field: str, client: TestClient) -> None:
    axis, size = FIELDS[field]
    problem = refused(client, PATH, "invalid-selection", token_ids=IDS, **{field: [1, 1 - size]})
    assert f"{axis} 1 is selected more than once" in problem["detail"]


@pytest.mark.parametrize(
    ("span", "says"),
    [
        ({"start": 10}, "query start 10 is out of range"),
        ({"stop": -11}, "query stop -11 is out of range"),
        ({"step": 0}, "query step is 0"),
        ({"start": 4, "stop": 4}, "selects nothing of 9"),
    ],
)
def test_span_that_leaves_the_axis_is_refused_not_clamped(
    span: dict[str, int], says: str, client: TestClient
) -> None:
    assert says in refused(client, PATH, "invalid-selection", token_ids=IDS, queries=span)["detail"]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ({}, None),
        ({"start": 7}, [7, 8]),
        ({"start": -2}, [7, 8]),
        ({"stop": 2}, [0, 1]),
        ({"step": 4}, [0, 4, 8]),
        ({"step": -4}, [8, 4, 0]),
        ({"start": 3, "stop": None, "step": -2}, [3, 1]),
        ({"start": 0, "stop": 9}, None),
    ],
)
def test_span_counts_as_python_slices_do(
    span: dict[str, int], expected: list[int] | None, client: TestClient
) -> None:
    coords = ask(client, PATH, token_ids=IDS, keys=span)["tensors"]["attn.pattern"]["coords"]
    assert coords == ({} if expected is None else {"key": expected})


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ("every", "/layers"),
        (0, "/layers"),
        (None, "/layers"),
        ([], "/layers"),
        ([0, "1"], "/layers/1"),
        ([0.5], "/layers/0"),
        ([True], "/layers/0"),
        ([2**31], "/layers/0"),
        ([[0]], "/layers/0"),
        ({"start": "a"}, "/layers/start"),
        ({"begin": 0}, "/layers/begin"),
        ({"start": 1, "step": 1.5}, "/layers/step"),
    ],
)
def test_what_is_no_selection_is_pointed_at(value: Any, pointer: str, client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", token_ids=IDS, layers=value)
    assert pointer in [error["pointer"] for error in problem["errors"]]
    assert problem["detail"].startswith(f"{pointer}: ")
    for error in problem["errors"]:
        assert error["pointer"].startswith("/layers")


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        ({"site": "attn.pattern", "positions": [0]}, "attn.pattern has no position axis"),
        ({"site": "resid_pre", "heads": [0]}, "resid_pre has no head axis"),
        ({"site": "embed", "layers": [0]}, "embed has no layer axis"),
        ({"site": "attn.k", "heads": [0]}, "attn.k has no head axis"),
        ({"site": "attn.q", "kv_heads": [0]}, "attn.q has no kv_head axis"),
    ],
)
def test_axis_that_a_site_lacks_is_refused_with_those_it_has(
    capture: dict[str, Any], says: str, client: TestClient
) -> None:
    problem = refused(client, "/v1/inspect", "invalid-selection", token_ids=IDS, captures=[capture])
    assert says in problem["detail"] and "it can be selected on [" in problem["detail"]


def test_unknown_stage_is_refused_with_those_there_are(client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", token_ids=IDS, stages=["patern"])
    assert problem["errors"][0]["pointer"] == "/stages/0"
    for stage in ("dots", "scores", "masked_scores", "pattern"):
        assert f"'{stage}'" in problem["detail"]
    assert "patern'" not in problem["detail"]
