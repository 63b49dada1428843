"""Stopping in order: what is under way is finished, what is new is refused. Knows no server."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Problem
from service.security import route_path


class Drain:
    """Whether the server is stopping, and how many requests it still owes an answer."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def enter(self) -> None:
        self.under_way += 1
        self._quiet.clear()

    def leave(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._quiet.set()

    async def finish(self, seconds: float) -> bool:
        """Take nothing new; True once all that is under way has ended, False after `seconds`."""
        self.begun.set()
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True


class Draining:
    """Counts the requests under /v1, and refuses them once the server is stopping."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not route_path(scope).startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        drain: Drain = scope["app"].state.drain
        if drain.begun.is_set():
            raise shutting_down()
        drain.enter()
        try:
            await self.app(scope, receive, send)
        finally:
            drain.leave()


def shutting_down() -> Problem:
    """What is said while draining; another server may take the request at once."""
    return Problem(
        "shutting-down",
        "the server is shutting down and takes nothing new",
        headers={"retry-after": "1"},
    )
