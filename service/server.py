"""uvicorn, told how to stop: drain at the first signal, leave at the second, never hang at exit.

Knows nothing of routes; of the app only its Drain and whether threads of it are still at work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from importlib.util import find_spec
from types import FrameType
from typing import Literal

import uvicorn
from fastapi import FastAPI

from service.draining import Drain
from service.logs import log_config
from service.memory import keep_freed_memory
from service.settings import Settings

MAX_CONNECTIONS = 1024  # a high fuse; what may run and wait is admission's to say
KEEP_ALIVE = 15  # seconds that an idle connection is kept
H11_HEAD_BYTES = 64 * 1024  # over the 32 KiB that the app itself refuses
log = logging.getLogger("fluoroscope")


class Server(uvicorn.Server):
    """One process's server. `exit_code` is 1 once `fail` was called."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        keep_freed_memory()
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=log_config(settings.log_format, settings.log_level),
                http=connection_class(),
                access_log=False,
                server_header=False,
                ws="none",
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=1,  # for last bytes; what runs has had its grace by then
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=H11_HEAD_BYTES,
            )
        )
        self.exit_code = 0
        self._app = app
        self._grace_seconds = settings.grace_seconds
        self._told = False
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def fail(self) -> None:
        """End without waiting for anything, with an exit code that says so."""
        self.exit_code = 1
        self._app.state.drain.begun.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._told or self._loop is None:
            os._exit(128 + sig)  # the second one: at once
        self._told = True
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        drain: Drain | None = getattr(self._app.state, "drain", None)
        if drain is None:  # told before it had begun
            self.should_exit = True
            return
        log.info("draining: %d requests are under way", drain.under_way)
        if not await drain.finish(self._grace_seconds):
            log.warning("%d requests outlived the grace and are ended", drain.under_way)
            for task in list(self.server_state.tasks):
                task.cancel()
            await drain.finish(0.5)  # they still say why
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
        if self._at_work():
            # The interpreter would wait for that thread; nothing here is left half written.
            log.warning("a thread is still at work and is left behind")
            logging.shutdown()
            sys.stdout.flush()
            os._exit(self.exit_code)

    def _at_work(self) -> bool:
        state = self._app.state
        loading = getattr(state, "loading", None)
        return (loading is not None and not loading.done()) or (
            state.inspector is not None and state.inspector.busy
        )


def connection_class() -> type[asyncio.Protocol] | Literal["h11"]:
    """Our bounded connection, or h11 with a bound of its own where there is no httptools."""
    if find_spec("httptools") is None:
        return "h11"
    from service.connection import Connection

    return Connection
