"""What stands in Ray's proxy, around a stand-in for it: no Ray needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.errors import Problem, problem_response
from service.ray_proxy import ATTEMPTS, KEPT_BYTES, AskAgain
from tests.service.asgi import Exchange, gone

START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"x-request-id", b"app"), (b"x-request-id", b"ray")],
}


class Proxy:
    """Ends without a word `silent` times, as Ray's does when a replica dies; then answers with the
    body that it was given."""

    def __init__(self, silent: int, meanwhile: Callable[[Scope], None] = lambda scope: None):
        self.silent = silent
        self.meanwhile = meanwhile
        self.asked: list[bytes] = []
        self.headers: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.meanwhile(scope)
        self.headers.append(dict(scope["headers"]))
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        self.asked.append(body)
        if message["type"] == "http.request" and len(self.asked) > self.silent:
            await send({**START, "headers": list(START["headers"])})
            await send({"type": "http.response.body", "body": body})


def exchange(proxy: Any, *parts: bytes, **given: Any) -> Exchange:
    return asyncio.run(Exchange(*parts, **given).run(AskAgain(proxy), "/v1/logits"))


@pytest.mark.parametrize("silent", range(ATTEMPTS))
def test_unanswered_request_is_asked_again_whole(silent: int) -> None:
    proxy = Proxy(silent)
    answer = exchange(proxy, b"one ", b"two ", b"three")
    assert answer.status == 200 and answer.body == b"one two three"
    assert proxy.asked == [b"one two three"] * (silent + 1)


def test_after_the_last_attempt_it_is_a_problem_as_the_app_writes_it() -> None:
    proxy = Proxy(ATTEMPTS)
    answer = exchange(proxy, b"{}")
    assert len(proxy.asked) == ATTEMPTS
    problem = answer.problem
    wanted = problem_response(
        Problem("not-ready", problem["detail"], headers={"retry-after": "1"}), problem["instance"]
    )
    assert answer.body == wanted.body and answer.status == wanted.status_code
    assert answer.headers.pop("x-request-id") == problem["instance"]
    assert {*answer.headers.items()} - {("x-request-id", problem["instance"])} == {
        *wanted.headers.items()
    }


def test_nobody_is_asked_again_for_a_client_that_left() -> None:
    proxy = Proxy(ATTEMPTS)
    answer = exchange(proxy, b"half", then=gone)
    assert proxy.asked == [b"half"] and answer.sent == []


def test_begun_answer_is_never_begun_again() -> None:
    async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "headers": []})

    answer = exchange(breaks_off, b"{}")
    assert [message["type"] for message in answer.sent] == ["http.response.start"]


def test_body_too_long_to_keep_is_sent_once() -> None:
    proxy = Proxy(1)
    answer = exchange(proxy, b"x" * KEPT_BYTES, b"x")
    assert len(proxy.asked) == 1 and answer.sent == []


def test_each_attempt_starts_from_the_clients_own_scope() -> None:
    """Ray writes the prefix of the application into it: /a would become /a/a."""
    seen: list[str] = []

    def prefix(scope: Scope) -> None:
        seen.append(scope["root_path"])
        scope["root_path"] += "/a"

    exchange(Proxy(1, prefix), b"{}")
    assert seen == ["", ""]


def test_of_two_request_ids_the_apps_is_kept() -> None:
    answer = exchange(Proxy(0), b"{}")
    ids = [value for name, value in answer.sent[0]["headers"] if name == b"x-request-id"]
    assert ids == [b"app"]


@pytest.mark.parametrize(
    "name",
    [
        "X-Request-Timeout-Seconds",
        "x-request-disconnect-disabled",
        "x-session-id",
        "X_Session_Id",
        "serve-multiplexed-model-id",
        "serve_multiplexed_model_id",
    ],
)
def test_client_does_not_command_ray(name: str) -> None:
    proxy = Proxy(0)
    exchange(proxy, b"{}", **{name: "1", "x-other": "kept"})
    assert name.lower().encode() not in proxy.headers[0]
    assert proxy.headers[0][b"x-other"] == b"kept"


@pytest.mark.parametrize(("brought", "seen"), [("abc-1", b"abc-1"), ("a b", b"a b"), ("é", b"")])
def test_request_id_that_ray_cannot_read_is_emptied(brought: str, seen: bytes) -> None:
    proxy = Proxy(0)
    exchange(proxy, b"{}", **{"x-request-id": brought})
    assert proxy.headers[0][b"x-request-id"] == seen


def test_proxy_needs_neither_torch_nor_ray() -> None:
    """It stands in a process of its own on every node of a cluster."""
    code = (
        "import sys, service.ray_proxy as p; assert p.middleware()[0].cls is p.AskAgain; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
