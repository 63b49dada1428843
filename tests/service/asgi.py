"""An app called as a server calls it, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message

Receive = Callable[[], Awaitable[Message]]


class Exchange:
    """One request. `then` is what the connection says when the parts of the body are over, `after`
    when the body was whole with the last of them."""

    def __init__(
        self,
        *parts: bytes,
        then: Receive | None = None,
        after: Receive | None = None,
        **headers: str,
    ) -> None:
        self.sent: list[Message] = []
        self._parts = list(parts)
        self._then = then
        self._after = after or never
        self._headers = {"host": "localhost", "content-type": "application/json", **headers}

    async def run(self, app: ASGIApp, path: str, method: str = "POST") -> Exchange:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in self._headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if self._parts:
            body = self._parts.pop(0)
            more = bool(self._parts) or self._then is not None
            return {"type": "http.request", "body": body, "more_body": more}
        return await (self._then or self._after)()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        return dict(json.loads(self.body))


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("never")


async def gone() -> Message:
    return {"type": "http.disconnect"}
