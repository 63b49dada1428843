"""What stands in Ray's HTTP proxy: a request whose replica died goes to another one.

Ray itself repeats only what no replica had taken yet. Every route computes and keeps nothing, so
repeating is safe until the first byte of the answer. Imports neither Ray nor torch: a proxy runs
on every node. Ray loads it where RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middleware`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ATTEMPTS = 3  # what kills the replica that runs it must not go through the whole fleet
KEPT_BYTES = 16 << 20  # of a body; a longer one is not sent again
# By these a client would change Ray's timeout, keep a run alive after it left, or choose a replica;
# one that is not UTF-8 is a 500.
OF_RAY = frozenset(
    {
        b"x_request_timeout_seconds",
        b"x_request_disconnect_disabled",
        b"x_session_id",
        b"serve_multiplexed_model_id",
    }
)


def middleware() -> list[Middleware]:
    """Ray asks this for what to put around its proxy."""
    return [Middleware(AskAgain)]


class AskAgain:
    """Asks again where Ray's proxy ends without a word, as it does when the replica that had the
    request is gone. Keeps from Ray what only an operator should tell it, and of the request ids
    that the app and Ray both send the app's."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["headers"] = as_ray_may_see(scope["headers"])
        body = KeptBody(receive)
        started = False

        async def send_with_one_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                if first := headers.get("x-request-id"):
                    headers["x-request-id"] = first  # setting leaves one
            await send(message)

        for _ in range(ATTEMPTS):
            # Ray writes the route's prefix into the scope: each attempt has its own.
            await self.app(dict(scope), body.from_start(), send_with_one_id)
            if started or body.client_left or not body.whole:
                return
        await replicas_lost()(scope, receive, send)


def as_ray_may_see(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what commands Ray; a request id that is not ASCII, which it cannot read, is empty."""
    return [
        (name, b"" if name == b"x-request-id" and not value.isascii() else value)
        for name, value in headers
        if name.replace(b"-", b"_") not in OF_RAY
    ]


def replicas_lost() -> Response:
    """The problem `not-ready`, as the app would write it."""
    request_id = secrets.token_hex(8)
    content = {
        "type": "urn:fluoroscope:problem:not-ready",
        "title": "The model is not ready",
        "status": 503,
        "detail": f"{ATTEMPTS} replicas ended while they had this request",
        "instance": request_id,
        "errors": [],
    }
    return Response(
        json.dumps(content, separators=(",", ":")),
        status_code=503,
        headers={"cache-control": "no-store", "retry-after": "1", "x-request-id": request_id},
        media_type="application/problem+json",
    )


class KeptBody:
    """What the client sent, kept so that it can be given again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._bytes = 0
        self.client_left = False

    @property
    def whole(self) -> bool:
        """Whether all that was received can be given again."""
        return self._bytes <= KEPT_BYTES

    def from_start(self) -> Receive:
        """A `receive` that gives what is kept, then what the connection says next."""
        given = 0

        async def receive() -> Message:
            nonlocal given
            if given < len(self._kept):
                given += 1
                return self._kept[given - 1]
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.client_left = True
                return message
            self._bytes += len(message.get("body", b""))
            if self.whole:
                self._kept.append(message)
                given += 1
            else:
                self._kept.clear()
            return message

        return receive
