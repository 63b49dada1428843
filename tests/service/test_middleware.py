"""What every request meets on its way: HEAD as GET, one Vary, an id, and the last catch."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.draining import Drain
from service.logs import Withheld
from service.middleware import LastCatch
from tests.conftest import Serve
from tests.service.asgi import Exchange

ORIGIN = "http://localhost:5173"
GETS = ("/v1/model", "/v1/sites", "/health/live", "/metrics", "/openapi.json", "/docs", "/v1/no")
# What is another at each request.
OWN = {"x-request-id", "date"}


def headers(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OWN}


@pytest.mark.parametrize("path", GETS)
def test_head_has_the_status_and_headers_of_get_and_no_body(path: str, client: TestClient) -> None:
    get, head = client.get(path), client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b"" and get.content != b""
    if path == "/metrics":  # which counts these very requests
        assert head.headers.keys() == get.headers.keys()
    else:
        assert headers(head) == headers(get)
        assert int(head.headers["content-length"]) == len(get.content)


def test_head_is_conditional_as_get_is(client: TestClient) -> None:
    etag = client.get("/v1/sites").headers["etag"]
    answer = client.head("/v1/sites", headers={"if-none-match": etag})
    assert answer.status_code == 304 and answer.headers["etag"] == etag


def test_head_where_only_post_is_answered_is_a_405_that_says_so(client: TestClient) -> None:
    answer = client.head("/v1/attention")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.content == b""


def test_page_may_send_head_with_headers_of_its_own(client: TestClient) -> None:
    answer = client.options(
        "/v1/model",
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "HEAD",
            "access-control-request-headers": "x-request-id",
        },
    )
    assert answer.status_code == 200
    assert "HEAD" in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize("origin", [None, ORIGIN, "https://evil.example"])
@pytest.mark.parametrize("path", ["/v1/model", "/v1/attention", "/health/live", "/nothing"])
def test_vary_names_everything_once(path: str, origin: str | None, client: TestClient) -> None:
    sent = {} if origin is None else {"origin": origin}
    if path == "/v1/attention":
        answer = client.post(path, json={"text": "a"}, headers=sent)
    else:
        answer = client.get(path, headers=sent)
    names = [name.strip() for name in answer.headers["vary"].split(",")]
    expected = ["Accept", "Accept-Encoding"] if path.startswith("/v1/") else []
    assert names == [*expected, "Origin"]


def test_preflight_has_an_id_and_is_counted(serve: Serve) -> None:
    client = serve()
    sent = {"origin": ORIGIN, "access-control-request-method": "POST", "x-request-id": "mine-1"}
    answer = client.options("/v1/attention", headers=sent)
    assert answer.headers["x-request-id"] == "mine-1"
    assert 'method="OPTIONS",route="none",status="2xx"} 1.0' in client.get("/metrics").text


class Breaking:
    """An app that fails, or is cancelled, before or after it began to answer."""

    def __init__(self, error: BaseException, *, started: bool) -> None:
        self._error, self._started = error, started
        self._app = FastAPI()
        self._app.state.drain = Drain()

    @property
    def drain(self) -> Drain:
        drain: Drain = self._app.state.drain
        return drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._started:
            start: Message = {"type": "http.response.start", "status": 200, "headers": []}
            await send(start)
        raise self._error

    async def caught(self) -> Exchange:
        exchange = Exchange(b"{}")

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"request_id": "mine-2"}
            scope["app"] = self._app
            await LastCatch(self)(scope, receive, send)

        return await exchange.run(with_state, "/v1/attention")


def test_fault_before_the_answer_is_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    exchange = asyncio.run(Breaking(KeyError("canary"), started=False).caught())
    assert exchange.status == 500 and exchange.problem["instance"] == "mine-2"
    assert "canary" not in caplog.text


def test_fault_amid_the_answer_breaks_it_off_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Withheld, match=r"^KeyError$") as raised:
        asyncio.run(Breaking(KeyError("canary"), started=True).caught())
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
    assert [record.getMessage() for record in caplog.records] == ["request mine-2 failed"]
    assert caplog.records[0].levelno == logging.ERROR and "canary" not in caplog.text


def test_run_that_is_cancelled_while_draining_is_told_why_and_else_is_cancelled() -> None:
    breaking = Breaking(asyncio.CancelledError(), started=False)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(breaking.caught())
    breaking.drain.begun.set()
    exchange = asyncio.run(breaking.caught())
    assert exchange.status == 503
    assert exchange.problem["type"].endswith(":shutting-down")
    late = Breaking(asyncio.CancelledError(), started=True)
    late.drain.begun.set()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(late.caught())
