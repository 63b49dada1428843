"""A server whose runs stop inside the model until a test opens the gate, seen through files.

Knows nothing of Ray: it is the app of this house, made in another process than the test's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.checkpoints.open import OpenedModel
from service.app import create_app, open_configured
from service.settings import Settings

PATIENCE = 60.0  # seconds until a gate that nobody opens opens itself


@dataclass(frozen=True)
class Gate:
    """Marks left in a folder: `entered`, `passed` and `unanswered`, each with its process."""

    folder: Path

    def open(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        for mark in self.folder.iterdir():
            mark.unlink()

    @property
    def is_open(self) -> bool:
        return (self.folder / "open").exists()

    def mark(self, what: str) -> None:
        (self.folder / f"{what}-{os.getpid()}-{uuid4().hex}").touch()

    def marks(self, what: str) -> list[int]:
        """The process of each mark, the oldest first."""
        found = sorted(self.folder.glob(f"{what}-*"), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.name.split("-")[1]) for path in found]

    def wait_for(self, what: str, count: int = 1) -> list[int]:
        deadline = time.monotonic() + PATIENCE
        while len(found := self.marks(what)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {what}"
            time.sleep(0.01)
        return found

    def pass_through(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.is_open and time.monotonic() < deadline:
            time.sleep(0.01)


def gated_app(settings: Settings, gate: Gate) -> FastAPI:
    """The app with a gate before the second block, and routes that only these tests ask."""

    def open_gated(settings: Settings) -> OpenedModel:
        opened = open_configured(settings)

        def before_second(_: Any, given: tuple[Any, ...]) -> None:
            if given[0].shape[1] > 1:  # a health check's single token goes through
                gate.mark("entered")
                gate.pass_through()

        opened.model.blocks[1].register_forward_pre_hook(before_second)
        # A run that nobody waits for ends on its way into the next block.
        opened.model.blocks[2].attn.register_forward_pre_hook(lambda *_: gate.mark("passed"))
        return opened

    app = create_app(settings, open_with=open_gated)
    app.add_middleware(MarkUnanswered, gate=gate)

    @app.get("/process")
    async def process() -> dict[str, str | int]:
        names = ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX")
        return {"threads": torch.get_num_threads(), **{name: os.environ[name] for name in names}}

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first "
            await asyncio.to_thread(gate.pass_through)
            yield b"second"

        return StreamingResponse(parts(), media_type="text/plain")

    return app


class MarkUnanswered:
    """Marks each request that ended without an answer, because nobody waited for it."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = scope["type"] != "http"

        async def seen(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, receive, seen)
        finally:
            if not answered:
                self.gate.mark("unanswered")
