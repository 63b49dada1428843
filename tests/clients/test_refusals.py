"""Problems as exceptions, retries and broken connections, with scripted answers. No server."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fluoroscope_client import (
    AnswerError,
    AsyncFluoroscope,
    ConnectError,
    Fluoroscope,
    FluoroscopeError,
    InvalidRequest,
    NotReady,
    ProblemError,
    ServerError,
    TimedOut,
    TooBusy,
    Unauthorized,
)
from fluoroscope_client import client as sending

PROBLEM = {
    "type": "urn:fluoroscope:problem:too-many-tokens",
    "title": "There are too many tokens",
    "status": 422,
    "detail": "the input has 65 tokens; at most 64 are run",
    "instance": "abc123",
    "errors": [{"detail": "too long", "pointer": "/text"}],
    "limit": 64,
    "actual": 65,
}
SITES = {"sites": []}


def refusal(status: int = 422, **headers: str) -> httpx.Response:
    return httpx.Response(
        status,
        json={**PROBLEM, "status": status},
        headers={"content-type": "application/problem+json", **headers},
    )


class Script:
    """Answers in order, the last one again and again; counts what was asked."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def client(script: Callable[[httpx.Request], httpx.Response], **options: Any) -> Fluoroscope:
    return Fluoroscope("http://127.0.0.1:1", transport=httpx.MockTransport(script), **options)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    # The names in the client alone: a server of another test sleeps for real.
    monkeypatch.setattr(sending, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(sending, "asyncio", SimpleNamespace(sleep=sleep))
    return waits


def test_problem_becomes_an_exception_with_the_servers_numbers() -> None:
    with pytest.raises(InvalidRequest) as caught:
        client(Script(refusal())).sites()
    error = caught.value
    assert (error.status, error.type) == (422, "urn:fluoroscope:problem:too-many-tokens")
    assert (error.limit, error.actual) == (64, 65)
    assert error.errors == [{"detail": "too long", "pointer": "/text"}]
    assert error.request_id == "abc123"
    assert str(error) == (
        "422 There are too many tokens: the input has 65 tokens; at most 64 are run "
        "(request abc123)"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (InvalidRequest, str(error))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, ProblemError),
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, InvalidRequest),
        (422, InvalidRequest),
        (429, TooBusy),
        (500, ServerError),
        (502, ServerError),
        (503, NotReady),
    ],
)
def test_each_status_has_its_exception(status: int, kind: type[ProblemError]) -> None:
    with pytest.raises(FluoroscopeError) as caught:
        client(Script(refusal(status))).sites()
    assert type(caught.value) is kind


def test_refusal_by_something_else_says_at_least_its_status() -> None:
    page = httpx.Response(502, html="<h1>nginx</h1>", headers={"x-request-id": "r1"})
    with pytest.raises(ServerError, match=r"^502 Bad Gateway \(request r1\)$"):
        client(Script(page)).sites()
    broken = httpx.Response(500, content=b"{", headers={"content-type": "application/problem+json"})
    with pytest.raises(ServerError, match="500 Internal Server Error"):
        client(Script(broken)).sites()


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_asked_again_after_the_time_it_names(
    status: int, slept: list[float]
) -> None:
    busy = refusal(status, **{"retry-after": "3"})
    script = Script(busy, busy, httpx.Response(200, json=SITES))
    assert client(script).sites() == []
    assert slept == [3.0, 3.0]
    assert len({request.url for request in script.requests}) == 1


def test_retries_are_bounded_and_can_be_left_out(slept: list[float]) -> None:
    busy = refusal(429, **{"retry-after": "1"})
    script = Script(busy)
    with pytest.raises(TooBusy) as caught:
        client(script).sites()
    assert caught.value.retry_after == 1.0
    assert (len(script.requests), slept) == (3, [1.0, 1.0])
    script = Script(busy)
    with pytest.raises(TooBusy):
        client(script, retries=0).sites()
    assert (len(script.requests), slept) == (1, [1.0, 1.0])


def test_wait_longer_than_the_client_has_is_not_begun(slept: list[float]) -> None:
    script = Script(refusal(503, **{"retry-after": "20"}))
    with pytest.raises(NotReady):
        client(script, max_wait=30).sites()
    assert (len(script.requests), slept) == (2, [20.0])


@pytest.mark.parametrize(
    "answer",
    [
        refusal(503),  # without a time: the run passed its deadline, and would again
        refusal(422, **{"retry-after": "1"}),
        refusal(429, **{"retry-after": "soon"}),
    ],
)
def test_refusal_that_will_not_pass_is_not_tried_again(
    answer: httpx.Response, slept: list[float]
) -> None:
    script = Script(answer)
    with pytest.raises(ProblemError):
        client(script).sites()
    assert (len(script.requests), slept) == (1, [])


def test_asking_whether_it_is_ready_does_not_wait_for_it(slept: list[float]) -> None:
    script = Script(refusal(503, **{"retry-after": "1"}))
    with pytest.raises(NotReady):
        client(script).ready()
    assert (len(script.requests), slept) == (1, [])


def test_retry_after_may_be_a_date(slept: list[float]) -> None:
    later = refusal(503, **{"retry-after": formatdate(time.time() + 5, usegmt=True)})
    past = refusal(503, **{"retry-after": formatdate(time.time() - 60, usegmt=True)})
    client(Script(later, past, httpx.Response(200, json=SITES))).sites()
    assert 3 < slept[0] <= 5
    assert slept[1] == 0


def test_async_client_retries_alike(slept: list[float]) -> None:
    script = Script(refusal(429, **{"retry-after": "2"}), httpx.Response(200, json=SITES))

    async def ask() -> None:
        async with AsyncFluoroscope(transport=httpx.MockTransport(script)) as remote:
            assert await remote.sites() == []

    asyncio.run(ask())
    assert slept == [2.0]


def raising(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (httpx.ConnectError("refused"), ConnectError),
        (httpx.RemoteProtocolError("cut off"), ConnectError),
        (httpx.ReadTimeout(""), TimedOut),
        (httpx.DecodingError("not gzip"), AnswerError),
    ],
)
def test_broken_connection_is_the_clients_own_exception(
    cause: Exception, kind: type[FluoroscopeError]
) -> None:
    with pytest.raises(FluoroscopeError, match=r"127\.0\.0\.1:1") as caught:
        client(raising(cause)).sites()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause

    async def ask() -> None:
        remote = AsyncFluoroscope(transport=httpx.MockTransport(raising(cause)))
        await remote.sites()

    with pytest.raises(kind):
        asyncio.run(ask())


def test_nobody_listening_is_a_connect_error() -> None:
    with Fluoroscope("http://127.0.0.1:9") as nobody, pytest.raises(ConnectError):
        nobody.model()


@pytest.mark.parametrize("wrong", ["127.0.0.1:8000", "localhost:8000", "http://", "ftp://a", "::"])
def test_address_that_is_none_is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        Fluoroscope(wrong)


def test_headers_say_who_asks_and_no_compression() -> None:
    script = Script(httpx.Response(200, json=SITES))
    with client(script, key="secret") as remote:
        remote.sites()
        assert "secret" not in repr(remote)
    sent = script.requests[0].headers
    assert sent["authorization"] == "Bearer secret"
    assert sent["accept-encoding"] == "identity"
    assert sent["user-agent"].startswith("fluoroscope-client/")
    script = Script(httpx.Response(200, json=SITES))
    client(script, compress=True).sites()
    assert "gzip" in script.requests[0].headers["accept-encoding"]


def test_key_with_a_line_break_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="line break"):
        Fluoroscope(key="secret\nX-Other: 1")


def test_base_url_may_lie_under_a_prefix() -> None:
    script = Script(httpx.Response(200, json=SITES))
    Fluoroscope("http://127.0.0.1:1/gpt2/", transport=httpx.MockTransport(script)).sites()
    assert script.requests[0].url.path == "/gpt2/v1/sites"


def test_proxy_of_the_environment_is_not_used_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    assert not Fluoroscope()._http._mounts
    assert Fluoroscope("http://gpu.example")._http._mounts


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, html="<h1>hello</h1>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"sites": "none"}),
    ],
)
def test_answer_of_another_service_is_refused(answer: httpx.Response) -> None:
    with pytest.raises(AnswerError):
        client(Script(answer)).sites()
