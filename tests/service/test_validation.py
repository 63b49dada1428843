"""Findings of the schema: each at its place in the body, nothing of the body repeated."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.validation import findings
from tests.answers import refused

PATH = "/v1/inspect"
CAPTURES = [{"site": "embed"}]


def pointers(client: TestClient, **body: Any) -> dict[str, str]:
    problem = refused(
        client, PATH, "invalid-request", **{"text": "a", "captures": CAPTURES, **body}
    )
    return {error["pointer"]: error["detail"] for error in problem["errors"]}


@pytest.mark.parametrize(
    ("edit", "pointer", "detail"),
    [
        ({"op": "scale", "site": "embed"}, "/edits/0/by", "Field required"),
        ({"op": "scale", "site": "embed", "by": "2"}, "/edits/0/by", "valid number"),
        ({"op": "add", "site": "embed", "value": "x"}, "/edits/0/value", "number or a valid list"),
        ({"op": "add", "site": "embed", "value": [[1], ["x"]]}, "/edits/0/value/1/0", "number"),
        ({"op": "add", "site": "embed", "value": 1, "add": 2}, "/edits/0/add", "no such field"),
        ({"op": "zero"}, "/edits/0/site", "Field required"),
        ({"op": "zero", "site": "embed", "by": 1}, "/edits/0/by", "no such field"),
        ({"op": "block", "site": "attn.scores"}, "/edits/0/site", "'attn.masked_scores'"),
        ({"site": "embed"}, "/edits/0", "op"),
        ("zero", "/edits/0", "object"),
        (
            {"op": "patch", "site": "embed", "source": {"text": "a", "token_ids": [1]}},
            "/edits/0/source",
            "exactly one of text and token_ids",
        ),
    ],
)
def test_finding_in_an_edit_has_its_own_pointer(
    edit: Any, pointer: str, detail: str, client: TestClient
) -> None:
    found = pointers(client, edits=[edit])
    assert list(found) == [pointer]
    assert detail in found[pointer]


def test_every_place_is_told(client: TestClient) -> None:
    found = pointers(client, tokens="some", format={"decimals": 9}, wiring={"rope": {"base": 0.5}})
    assert list(found) == ["/tokens", "/wiring/rope/base", "/format/decimals"]


def test_unknown_op_is_told_with_those_there_are_and_not_repeated(client: TestClient) -> None:
    found = pointers(client, edits=[{"op": "explode-canary", "site": "embed"}])
    assert "canary" not in str(found)
    for op in ("zero", "block", "scale", "add", "set", "mean", "patch"):
        assert f"'{op}'" in found["/edits/0"]


def test_pointer_escapes_what_rfc_6901_says(client: TestClient) -> None:
    assert list(pointers(client, **{"a/b~c": 1})) == ["/a~1b~0c"]


def test_key_too_long_to_repeat_is_pointed_at_from_above(client: TestClient) -> None:
    assert list(pointers(client, format={"k" * 500: 1})) == ["/format"]


def test_what_is_no_object_says_how_to_send_one(client: TestClient) -> None:
    answer = client.post(PATH, content='"text"', headers={"content-type": "application/json"})
    assert answer.json()["errors"][0]["pointer"] == ""
    assert "curl --json" in answer.json()["detail"]


def test_findings_are_told_only_so_many_times(client: TestClient) -> None:
    assert len(pointers(client, edits=[{"op": "zero"}] * 200)) == 32


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/attention", {"token_ids": ["x"] * 5000}),
        ("/v1/attention", {"text": "a", "keys": ["x"] * 5000}),
        (
            "/v1/attention",
            {"text": "a", "edits": [{"op": "set", "site": "embed", "value": ["x"] * 5000}]},
        ),
        (
            "/v1/attention",
            {"text": "a", "edits": [{"op": "add", "site": "embed", "value": [["x"]] * 5000}]},
        ),
        (
            "/v1/attention",
            {
                "text": "a",
                "edits": [{"op": "patch", "site": "embed", "source": {"token_ids": ["x"] * 5000}}],
            },
        ),
        ("/v1/detokenize", {"token_ids": ["x"] * 5000}),
        ("/v1/rope/rotate", {"q": ["x"] * 5000, "k": [1]}),
        ("/v1/rope/rotate", {"positions": ["x"] * 5000}),
        (
            "/v1/labs/attention",
            {"source": {"kind": "vectors", "q": [["x"]] * 5000, "k": [[1]], "v": [[1]]}},
        ),
        ("/v1/labs/order", {"token_ids": [["x"] * 5000, [1]]}),
    ],
    ids=range(10),
)
def test_long_list_is_left_at_its_first_fault(
    path: str, body: dict[str, Any], client: TestClient
) -> None:
    problem = refused(client, path, "invalid-request", **body)
    assert len(problem["errors"]) == 1


def test_faults_past_the_first_hundreds_are_not_looked_at() -> None:
    faults = [{"type": "x", "loc": ("body", f"k{n}"), "msg": "no"} for n in range(300_000)]
    found = findings(faults, {f"k{n}": 1 for n in range(300_000)})
    assert [error["pointer"] for error in found] == [f"/k{n}" for n in range(32)]
