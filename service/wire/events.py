"""Server-Sent Events: their text, and the response that sends them as they come.

(WHATWG HTML, 9.2.) Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.wire.body import TakesNothing, patient
from service.wire.leaving import ClientGone, until_gone
from service.wire.negotiation import EVENTS

PING = b": ping\n\n"
PING_SECONDS = 10.0  # proxies end connections on which nothing is said for longer than a minute


def event_text(name: str, data: bytes) -> bytes:
    """One event; `data` is JSON on a single line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventStream(Response):
    """Sends each event as soon as it is there, never compressed, and a comment while none is.

    Pulled by what the client takes: an event is asked for once the one before it is sent. Where the
    client goes away, or takes nothing for `patience` seconds, the events are closed.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        patience: float,
        ping_seconds: float | None = None,
    ) -> None:
        super().__init__(media_type=EVENTS)
        self._events = events
        self._patience = patience
        self._ping_seconds = PING_SECONDS if ping_seconds is None else ping_seconds
        self._held: AsyncExitStack | None = None
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"  # nginx would gather them

    def when_sent(self, held: AsyncExitStack) -> None:
        """What to let go of once the stream is over, however it ends."""
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(TakesNothing, ClientGone):  # without its end: the server closes it
                await until_gone(receive, self._send_all(patient(send, self._patience)))
        finally:
            await self._events.aclose()
            if self._held is not None:
                await self._held.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._with_pings()) as pieces:  # an event on its way is ended with it
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_pings(self) -> AsyncGenerator[bytes, None]:
        while True:
            coming = asyncio.ensure_future(anext(self._events, None))
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
