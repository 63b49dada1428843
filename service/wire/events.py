"""Server-Sent Events: their text, and the response that sends them as they come.

(WHATWG HTML, 9.2.) Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from service.wire.negotiation import EVENTS
from service.wire.parts import Chunk
from service.wire.sending import SentInPieces

PING = b": ping\n\n"
PING_SECONDS = 10.0  # proxies end connections on which nothing is said for longer than a minute


def event_text(name: str, data: bytes) -> bytes:
    """One event; `data` is JSON on a single line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventStream(SentInPieces):
    """Sends each event as soon as it is there, never compressed, and a comment while none is."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        patience: float,
        ping_seconds: float | None = None,
    ) -> None:
        super().__init__(EVENTS, patience)
        self._events = events
        self._ping_seconds = PING_SECONDS if ping_seconds is None else ping_seconds
        self.headers["x-accel-buffering"] = "no"  # nginx would gather them

    async def _pieces(self) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._events) as events:  # an event on its way is ended with them
            while True:
                coming = asyncio.ensure_future(anext(events, None))
                try:
                    while not (await asyncio.wait({coming}, timeout=self._ping_seconds))[0]:
                        yield PING
                    event = coming.result()
                finally:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                if event is None:
                    return
                yield event
