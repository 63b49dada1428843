"""Bodies that break parsers: an answer under 500, problem+json, and nothing of them repeated."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.answers import strict_json

CANARY = "canary-7f3a"
ROUTES = ["/v1/attention", "/v1/logits", "/v1/inspect", "/v1/tokenize", "/v1/detokenize"]


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def with_value(value: bytes) -> bytes:
    return b'{"text":"a","edits":[{"op":"set","site":"embed","value":' + value + b"}]}"


def with_scale(value: bytes) -> bytes:
    return b'{"text":"a","wiring":{"score_scale":' + value + b"}}"


NOT_JSON = {
    "cut off": b'{"text": "a',
    "not UTF-8": b'\xff\xfe{"text": "a"}',
    "UTF-8 cut off": b'{"text": "\xe7\x8c"}',
    "deep": deep(20_000),
    "deep in a field": with_value(deep(20_000)),
    "a number of 5,000 digits": with_scale(b"1" * 5_000),
    "two values": b"{} {}",
    "single quotes": b"{'text': 'a'}",
    "no-break space": "\u00a0{}".encode(),
    "form": b"text=a",
}
NOT_FITTING = {
    "NaN": with_scale(b"NaN"),
    "Infinity": with_scale(b"-Infinity"),
    "1e999": with_scale(b"1e999"),
    "NaN in an array": with_value(b"[NaN]"),
    "1e999 in an array": with_value(b"[[1e999]]"),
    "integer of 400 digits": with_value(b"1" + b"0" * 400),
    "integer of 400 digits in an array": with_value(b"[1" + b"0" * 400 + b"]"),
    "layer of 400 digits": b'{"text":"a","layers":[1' + b"0" * 400 + b"]}",
    "NaN for a text": b'{"text":NaN}',
    "lone surrogate": rb'{"text":"\ud83d"}',
    "lone surrogate in a key": rb'{"\udc00":1}',
    "lone surrogate in a tag": rb'{"text":"a","edits":[{"op":"\ud800"}]}',
    "lone surrogate in a site": rb'{"text":"a","edits":[{"op":"zero","site":"\ud800"}]}',
    "lone surrogate in a key further down": rb'{"text":"a","format":{"\ud800":1}}',
    "deep array": with_value(deep(300)),
    "uneven array": with_value(b"[[1],[2,3]]"),
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "string": b'"a"',
}


def sent(client: TestClient, path: str, body: bytes) -> Any:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    problem = strict_json(answer.content)
    assert problem["status"] == answer.status_code
    return problem


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_json_is_a_400_that_says_why(path: str, name: str, client: TestClient) -> None:
    problem = sent(client, path, NOT_JSON[name])
    assert problem["status"] == 400
    assert problem["type"].endswith(":not-json")
    assert problem["detail"]


@pytest.mark.parametrize("name", NOT_FITTING)
@pytest.mark.parametrize("path", ROUTES)
def test_what_no_schema_takes_is_a_422(path: str, name: str, client: TestClient) -> None:
    assert sent(client, path, NOT_FITTING[name])["status"] == 422


def test_repeated_key_counts_as_the_last(client: TestClient) -> None:
    body = b'{"text":"one two","text":"a"}'
    answer = client.post(
        "/v1/attention", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200 and answer.json()["input"]["text"] == "a"


@pytest.mark.parametrize("value", ["1e38", "-1e38", "3.4e38", "1e39", "1e300"])
def test_numbers_that_overflow_a_float32_are_answered_or_refused_with_strict_json(
    value: str, client: TestClient
) -> None:
    for body in (with_value(value.encode()), with_scale(value.encode())):
        for path in ("/v1/attention", "/v1/logits"):
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 422), answer.text
            found = strict_json(answer.content)
            if answer.status_code == 422:
                assert found["type"].endswith(":not-finite")
            else:
                assert found["checks"]["finite"] is True


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["all", "embed", "attn.z", "zero", "set", "patch"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "text",
                    "token_ids",
                    "layers",
                    "heads",
                    "edits",
                    "op",
                    "site",
                    "value",
                    "format",
                    "wiring",
                    "rope",
                    "captures",
                    "positions",
                    "start",
                    "stop",
                    "step",
                    "decimals",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(ROUTES), body=_JSON, text=st.booleans())
def test_any_json_at_all_is_answered_under_500(
    path: str, body: Any, text: bool, client: TestClient
) -> None:
    if text and isinstance(body, dict):
        body = {"text": "a", **body}
    answer = client.post(
        path,
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code < 500, answer.text
    strict_json(answer.content)


CANARIES = [
    {"text": [CANARY]},
    {"text": CANARY, "token_ids": [1]},
    {"text": CANARY * 10},
    {"text": CANARY + "\ud800"},
    {"text": CANARY, "layers": [99]},
    {"text": CANARY, "heads": CANARY},
    {"text": CANARY, "nonsense": CANARY},
    {"text": CANARY, "edits": [{"op": CANARY}]},
    {"text": CANARY, "edits": [{"op": "zero", "site": "pos_embed"}]},
    {"text": CANARY, "edits": [{"op": "set", "site": "embed", "value": [1.0]}]},
    {"text": "a", "edits": [{"op": "patch", "site": "embed", "source": {"text": CANARY * 10}}]},
    {"text": CANARY, "edits": [{"op": "set", "site": "embed", "value": 1e300}]},
    {"text": CANARY, "format": {"encoding": CANARY}},
    {"text": CANARY, "tokens": CANARY},
]


@pytest.mark.parametrize("body", CANARIES, ids=range(len(CANARIES)))
@pytest.mark.parametrize("path", ROUTES[:3])
def test_prompt_is_in_no_error_and_no_log(
    path: str, body: dict[str, Any], client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    captures = {"captures": [{"site": "attn.pattern"}]} if path == "/v1/inspect" else {}
    answer = client.post(
        path,
        content=json.dumps({**captures, **body}),
        headers={"content-type": "application/json"},
    )
    assert 400 <= answer.status_code < 500, answer.text
    assert CANARY not in answer.text
    assert CANARY not in caplog.text


def test_prompt_of_an_answered_request_is_in_no_log_of_ours(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = client.post("/v1/logits", json={"text": CANARY})
    assert answer.status_code == 200 and CANARY in answer.text
    assert CANARY not in caplog.text
