"""Fields that are wrong in ways a client can act on: one sentence, the limit, what was asked."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.schemas.arrays import MAX_DEPTH
from service.schemas.base import UNKNOWN
from tests.answers import refused

PATH = "/v1/attention"
EMBED = [{"site": "embed"}]


@pytest.mark.parametrize(
    ("field", "value", "limit", "actual"),
    [
        ("layers", [3], 2, 3),
        ("layers", [0, -4], -3, -4),
        ("heads", [99], 3, 99),
        ("queries", {"start": 9}, 0, 9),
        ("keys", {"stop": -9}, -1, -9),
    ],
)
def test_index_out_of_range_says_the_nearest_one_and_itself_as_numbers(
    field: str, value: Any, limit: int, actual: int, client: TestClient
) -> None:
    """The model has 3 layers of 4 heads; the text is one token."""
    problem = refused(client, PATH, "invalid-selection", text="a", **{field: value})
    assert (problem["limit"], problem["actual"]) == (limit, actual)


def test_index_of_an_edit_and_of_a_patch_says_them_too(client: TestClient) -> None:
    zero = {"op": "zero", "site": "attn.z", "layers": [7]}
    problem = refused(client, PATH, "invalid-selection", text="a", edits=[zero])
    assert (problem["limit"], problem["actual"]) == (2, 7)
    assert problem["detail"].startswith("edit 0: layer 7 is out of range")
    patch = {"op": "patch", "site": "embed", "source": {"text": "a", "positions": [5]}}
    problem = refused(
        client, PATH, "invalid-selection", text="a", edits=[zero | {"layers": [1]}, patch]
    )
    assert (problem["limit"], problem["actual"]) == (0, 5)
    assert problem["detail"].startswith("edit 1: in the source of 1 tokens: position 5")


def test_selection_that_is_no_number_out_of_range_has_no_numbers(client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-selection", text="a", layers=[1, 1])
    assert "limit" not in problem and "actual" not in problem


def test_empty_selection_is_told_in_one_sentence(client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", text="a", layers=[])
    assert problem["errors"] == [
        {"detail": "List should have at least 1 item after validation, not 0", "pointer": "/layers"}
    ]


def test_selection_of_another_kind_is_told_every_kind_that_it_may_be(client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", text="a", layers=7)
    assert problem["detail"] == "/layers: Input should be 'all' or a valid list or an object"


def test_a_few_unknown_fields_are_named_and_many_are_counted(client: TestClient) -> None:
    few = refused(client, PATH, "invalid-request", text="a", colour=1, size=2)
    assert {error["pointer"] for error in few["errors"]} == {"/colour", "/size"}
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    known = len(schemas["AttentionRequest"]["properties"])
    fields = {f"k{number}": 1 for number in range(known + UNKNOWN)}
    many = refused(client, PATH, "invalid-request", text="a", **fields)
    assert many["errors"] == [
        {
            "detail": f"there are {known + UNKNOWN + 1} fields; there can be at most {known}",
            "pointer": "",
        }
    ]
    del fields["k0"]
    assert len(refused(client, PATH, "invalid-request", text="a", **fields)["errors"]) > 1


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_arrays_go_as_deep_as_any_site_has_axes(depth: int, client: TestClient) -> None:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    edit = {"op": "set", "site": "attn.scores", "layers": [0], "heads": [0], "value": value}
    body = {"text": "a", "edits": [edit], "layers": [0], "heads": [0]}
    answer = client.post(PATH, json=body)
    if depth == MAX_DEPTH:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.json()["errors"] == [
            {"detail": "arrays go at most 4 deep", "pointer": "/edits/0/value/0/0/0/0"}
        ]


def test_no_site_has_more_axes_than_arrays_may_go_deep(client: TestClient) -> None:
    sites = client.get("/v1/sites").json()["sites"]
    assert max(len(site["axes"]) for site in sites) == MAX_DEPTH


@pytest.mark.parametrize(
    ("value", "place"),
    [(True, ""), (None, ""), ("1", ""), ({}, ""), ([True], "/0"), ([[1], ["x"]], "/1/0")],
)
def test_values_that_are_no_numbers_are_told_by_their_place(
    value: Any, place: str, client: TestClient
) -> None:
    edit = {"op": "add", "site": "embed", "value": value}
    problem = refused(
        client, "/v1/inspect", "invalid-request", text="a", captures=EMBED, edits=[edit]
    )
    detail = "Input should be a valid number or a valid list"
    assert problem["errors"] == [{"detail": detail, "pointer": f"/edits/0/value{place}"}]


def test_long_lists_of_ids_are_refused_before_they_are_read(client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", token_ids=[1] * 65_537)
    assert "at most 65536 items" in problem["detail"]
    refused(client, PATH, "too-many-tokens", token_ids=[1] * 65_536)
