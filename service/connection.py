"""A connection whose request heads must be whole within limits of size and time.

uvicorn's own protocol reads a head without end, of either kind, as it does the headers that may
follow a chunked body, and answers what is no HTTP as plain text. Knows nothing of routes: up to
256 KiB, a head is the middleware's to refuse.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import Problem, problem_response

HEAD_BYTES = 256 * 1024
HEAD_SECONDS = 10.0


class Connection(HttpToolsProtocol):
    """Closes where no whole head comes in time, or with an answer: too large, or no HTTP."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._within_body = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_whole()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if not self._within_body:
            self._await_head()
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(
                Problem(
                    "headers-too-large",
                    f"over {HEAD_BYTES} bytes came that are no whole head, and of no body",
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._within_body:  # nobody reads what follows a chunked body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._within_body = True
        self._head_is_whole()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._within_body = False
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem("bad-request", "what came is no HTTP request"))

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_is_whole(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, problem: Problem) -> None:
        answer = problem_response(problem, secrets.token_hex(8))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[answer.status_code] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()
