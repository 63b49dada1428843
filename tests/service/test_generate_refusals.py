"""What a generation is refused for, before a word of it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.answers import ask, refused, strict_json
from tests.conftest import CONTEXT, VOCABULARY, Serve
from tests.service.sse import EVENTS, stream

TEXT = "The cat chased the mouse"
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no input": ("invalid-request", {"text": None}),
    "two inputs": ("invalid-request", {"token_ids": [1]}),
    "a temperature below 0": ("invalid-request", {"temperature": -0.1}),
    "a temperature that is nearly 0": ("invalid-sampling", {"temperature": 1e-9}),
    "top_k of 0": ("invalid-request", {"top_k": 0}),
    "top_p of 0": ("invalid-request", {"top_p": 0}),
    "top_p over 1": ("invalid-request", {"top_p": 1.01}),
    "no tokens wanted": ("invalid-request", {"max_new_tokens": 0}),
    "too many tokens wanted": ("invalid-request", {"max_new_tokens": 257}),
    "no samples": ("invalid-request", {"n": 0}),
    "too many samples": ("invalid-request", {"n": 17}),
    "an empty stop string": ("invalid-request", {"stop": [""]}),
    "a stop id outside the vocabulary": ("invalid-request", {"stop_ids": [VOCABULARY]}),
    "a seed that JavaScript cannot hold": ("invalid-request", {"seed": 2**53}),
    "a seed that is no number": ("invalid-request", {"seed": "7"}),
    "compare": ("invalid-request", {"compare": True}),
    "a trace of nothing": ("invalid-request", {"trace": {"captures": []}}),
    "an unknown site": ("invalid-site", {"trace": {"captures": [{"site": "attn.nothing"}]}}),
    "a layer out of range": (
        "invalid-selection",
        {"trace": {"captures": [{"site": "attn.pattern", "layers": [3]}]}},
    ),
    "a position that the prompt has not": (
        "invalid-selection",
        {"trace": {"captures": [{"site": "resid_post", "positions": [40]}]}},
    ),
    "two traces of one name": (
        "invalid-selection",
        {"trace": {"captures": [{"site": "attn.v"}, {"site": "attn.v"}]}},
    ),
    "an edit of the wrong shape": (
        "invalid-edit",
        {"edits": [{"op": "set", "site": "attn.z", "value": [1, 2]}]},
    ),
    "an empty text": ("no-tokens", {"text": ""}),
    "a lone surrogate": ("invalid-text", {"text": "\ud800"}),
    "a lone surrogate to stop at": ("invalid-request", {"stop": ["a", "b\udfff"]}),
    "a top_k of more digits than JSON readers keep": ("invalid-request", {"top_k": 2**64}),
    "an unfit wiring": ("invalid-request", {"wiring": {"rope": {"base": 0.5}}}),
}


@pytest.mark.parametrize("accept", ["application/json", EVENTS])
@pytest.mark.parametrize(("slug", "body"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_a_problem_in_every_form(
    client: TestClient, slug: str, body: dict[str, Any], accept: str
) -> None:
    answer = client.post(
        "/v1/generate",
        content=json.dumps({"text": TEXT, **body}),  # a lone surrogate escaped, as JSON may
        headers={"accept": accept, "content-type": "application/json"},
    )
    problem = strict_json(answer.content)
    assert answer.status_code == problem["status"] == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"].rpartition(":")[2] == slug
    assert TEXT not in answer.text


def test_refusals_name_the_numbers(client: TestClient) -> None:
    asked = {"text": TEXT, "max_new_tokens": 257}
    problem = refused(client, "/v1/generate", "invalid-request", **asked)
    assert (problem["limit"], problem["actual"]) == (256, 257)
    assert problem["errors"][0]["pointer"] == "/max_new_tokens"
    asked = {"text": TEXT, "stop_ids": [3, VOCABULARY]}
    problem = refused(client, "/v1/generate", "invalid-request", **asked)
    assert (problem["limit"], problem["actual"]) == (VOCABULARY - 1, VOCABULARY)
    assert problem["errors"][0]["pointer"] == "/stop_ids/1"


def test_prompt_over_the_context_is_refused(client: TestClient) -> None:
    ids = [1] * (CONTEXT + 1)
    problem = refused(client, "/v1/generate", "too-many-tokens", token_ids=ids)
    assert (problem["limit"], problem["actual"]) == (CONTEXT, CONTEXT + 1)


def test_form_that_is_not_offered_is_refused_with_those_that_are(client: TestClient) -> None:
    answer = client.post("/v1/generate", json={"text": TEXT}, headers={"accept": "text/html"})
    assert answer.status_code == 406
    for form in ("application/json", EVENTS, "application/vnd.safetensors"):
        assert form in answer.json()["detail"]


def test_other_routes_stream_nothing(client: TestClient) -> None:
    answer = client.post("/v1/attention", json={"text": TEXT}, headers={"accept": EVENTS})
    assert answer.status_code == 406


def test_logits_that_are_no_numbers_are_refused_before_the_stream(client: TestClient) -> None:
    burst = {"op": "scale", "site": "resid_post", "layers": [2], "by": 3e38}
    for accept in ("application/json", EVENTS):
        body = {"text": TEXT, "edits": [burst, burst]}
        answer = client.post("/v1/generate", json=body, headers={"accept": accept})
        assert answer.status_code == 422
        assert answer.json()["type"].endswith(":not-finite")


def test_edit_that_touches_nothing_is_refused(client: TestClient) -> None:
    edit = {"op": "zero", "site": "attn.dots", "layers": [0], "queries": [90]}
    refused(client, "/v1/generate", "invalid-selection", text=TEXT, edits=[edit])


def test_answer_too_large_in_one_piece_may_still_be_streamed(serve: Serve) -> None:
    client = serve(max_answer_bytes=100_000)
    body = {"text": TEXT, "max_new_tokens": 40, "top": 200, "stop_ids": [], "seed": 1}
    problem = refused(client, "/v1/generate", "answer-too-large", **body)
    assert problem["limit"] == 100_000 < problem["actual"]
    assert len(stream(client, **body)) == 43
    body["trace"] = {"captures": [{"site": "mlp.post"}, {"site": "resid_post"}]}
    body["text"] = TEXT * 4
    answer = client.post("/v1/generate", json=body, headers={"accept": EVENTS})
    assert answer.status_code == 422
    assert answer.json()["type"].endswith(":answer-too-large")


def test_keys_and_values_that_never_fit_are_refused_with_the_numbers(serve: Serve) -> None:
    client = serve(max_in_flight_bytes=100_000)
    body = {"text": TEXT, "max_new_tokens": 2, "top": 1, "stop_ids": []}
    assert len(ask(client, "/v1/generate", **body)["steps"]) == 2  # 73,728 bytes of them
    problem = refused(client, "/v1/generate", "answer-too-large", **body, n=2)
    assert problem["limit"] == 100_000 and problem["actual"] > 2 * 73_728
    assert client.app.state.inspector.admission.bytes_in_flight == 0  # type: ignore[attr-defined]
