"""A body that is made while it is sent, for as long as somebody takes it. Knows nothing of what it
says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.wire.leaving import ClientGone, until_gone
from service.wire.parts import Chunk


class TakesNothing(Exception):
    """The client is there and reads nothing; what is held for it is needed."""


class SentInPieces(Response):
    """Asks for a piece once the one before it is sent.

    Breaks off where the client is gone, or takes nothing for `patience` seconds: the pieces are
    closed, and what is not made yet is never made.
    """

    def __init__(self, media_type: str, patience: float) -> None:
        super().__init__(media_type=media_type)
        self._patience = patience
        self._held: AsyncExitStack | None = None
        del self.headers["content-length"]

    def when_sent(self, held: AsyncExitStack) -> None:
        """What to let go of once the body is sent, or cannot be."""
        self._held = held

    def _pieces(self) -> AsyncGenerator[Chunk, None]:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(TakesNothing, ClientGone):  # without its end: the server closes it
                await until_gone(receive, self._send_all(_patient(send, self._patience)))
        finally:
            if self._held is not None:
                await self._held.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _patient(send: Send, seconds: float) -> Send:
    """The same, raising TakesNothing where a message is not taken in time."""

    async def sent(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            raise TakesNothing from None

    return sent
