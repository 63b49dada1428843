"""Bodies that are too large, too slow, or of another type are refused before they are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.answers import refused
from tests.conftest import Serve
from tests.service.asgi import Exchange, gone, never

PATH = "/v1/attention"
LIMIT = 400


@pytest.fixture
def small(serve: Serve) -> TestClient:
    return serve(max_body_bytes=LIMIT, body_seconds=0.2)


def body_of(size: int) -> bytes:
    text = json.dumps({"text": "a"})
    return (text[:-1] + " " * (size - len(text)) + "}").encode()


def test_body_of_the_very_limit_is_read(small: TestClient) -> None:
    headers = {"content-type": "application/json"}
    assert small.post(PATH, content=body_of(LIMIT), headers=headers).status_code == 200


def test_declared_size_over_the_limit_is_refused_with_the_numbers(small: TestClient) -> None:
    answer = small.post(
        PATH, content=body_of(LIMIT + 1), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    problem = answer.json()
    assert (problem["limit"], problem["actual"]) == (LIMIT, LIMIT + 1)


def test_chunked_body_is_counted_as_it_comes(small: TestClient) -> None:
    def chunks(n: int) -> Iterator[bytes]:
        body = body_of(n)
        for start in range(0, n, 50):
            yield body[start : start + 50]

    headers = {"content-type": "application/json"}
    assert small.post(PATH, content=chunks(LIMIT), headers=headers).status_code == 200
    answer = small.post(PATH, content=chunks(LIMIT + 1), headers=headers)
    assert answer.status_code == 413 and answer.json()["limit"] == LIMIT


def test_endless_body_is_cut_off_at_the_limit(small: TestClient) -> None:
    asked = 0

    async def more() -> dict[str, object]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"[" * 100, "more_body": True}

    exchange = asyncio.run(Exchange(b"", then=more).run(small.app, PATH))
    assert exchange.status == 413
    assert asked == LIMIT // 100 + 1


def test_declared_size_is_refused_before_anything_is_received(small: TestClient) -> None:
    exchange = Exchange(then=never, **{"content-length": str(LIMIT + 1)})
    assert asyncio.run(exchange.run(small.app, PATH)).status == 413


def test_size_that_is_a_lie_does_not_help(small: TestClient) -> None:
    exchange = Exchange(body_of(LIMIT + 50), **{"content-length": "10"})
    assert asyncio.run(exchange.run(small.app, PATH)).status == 413


def test_body_that_does_not_come_is_not_waited_for(small: TestClient) -> None:
    exchange = asyncio.run(Exchange(b'{"text":', then=never).run(small.app, PATH))
    assert exchange.status == 408
    assert exchange.problem["type"].endswith(":body-timeout")
    assert exchange.problem["limit"] == 0.2


def test_client_that_leaves_within_its_body_starts_no_run(
    small: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.app.state.inspector, "inspect", None)  # type: ignore[attr-defined]
    exchange = asyncio.run(Exchange(b'{"text":', then=gone).run(small.app, PATH))
    assert not exchange.sent or exchange.status < 500


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"]
)
def test_other_content_type_is_refused_by_name_and_says_how(kind: str, client: TestClient) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = client.post(PATH, content=b'{"text": "a"}', headers=headers)
    assert answer.status_code == 415
    detail = answer.json()["detail"]
    assert "curl --json" in detail and (kind or "without a content type") in detail


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"]
)
def test_json_is_taken_with_its_parameters(kind: str, client: TestClient) -> None:
    answer = client.post(PATH, content=b'{"text": "a"}', headers={"content-type": kind})
    assert answer.status_code == 200


def test_headers_over_32_kib_are_refused_with_the_numbers(client: TestClient) -> None:
    answer = client.get("/v1/model", headers={"x-padding": "p" * 32 * 1024})
    assert answer.status_code == 431
    problem = answer.json()
    assert problem["limit"] == 32 * 1024 < problem["actual"]
    assert client.get("/v1/model", headers={"x-padding": "p" * 31 * 1024}).status_code == 200


def test_answer_over_its_limit_is_refused_before_it_is_run(serve: Serve) -> None:
    client = serve(max_answer_bytes=3 * 4 * 20 * 20 * 4)
    ids = list(range(1, 21))
    whole = client.post(
        PATH, json={"token_ids": ids, "format": {"encoding": "base64"}}, headers={"accept": "*/*"}
    )
    assert whole.status_code == 422  # the tensor fits, its text beside it does not
    answer = client.post(
        PATH, json={"token_ids": ids}, headers={"accept": "application/vnd.safetensors"}
    )
    assert answer.status_code == 200
    problem = refused(client, PATH, "answer-too-large", token_ids=[*ids, 21])
    assert problem["limit"] == 19200 < problem["actual"]
    assert refused(client, PATH, "answer-too-large", token_ids=ids, layers=[0, 1])
