"""A server whose runs stop inside the model until a test opens the gate, seen through files.

Knows nothing of Ray: it is the app of this house, made in another process than the test's.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.checkpoints.open import OpenedModel
from service.app import create_app, open_configured
from service.settings import Settings

PATIENCE = 60.0  # seconds until a gate that nobody opens opens itself


@dataclass(frozen=True)
class Gate:
    """Marks left in a folder, each with its process: a run `entered` it and `passed`, a step of a
    generation `stepped` into it, a request `ended`, maybe `unanswered`. Steps have their own gate.
    """

    folder: Path

    def open(self, what: str = "runs") -> None:
        (self.folder / f"open-{what}").touch()

    def close(self) -> None:
        """Shut both, with no mark left."""
        for mark in self.folder.iterdir():
            mark.unlink()

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

    def pass_through(self, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / f"open-{what}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def gated_app(settings: Settings, gate: Gate) -> FastAPI:
    """The app with a gate before the second block, and a route that only these tests ask."""

    def open_gated(settings: Settings) -> OpenedModel:
        opened = open_configured(settings)

        def before_second(_: Any, given: tuple[Any, ...]) -> None:
            x, frame = given[:2]
            if x.shape[1] > 1:  # a health check's single token goes through
                gate.mark("entered")
                gate.pass_through("runs")
            elif frame.positions[0] > 0:
                gate.mark("stepped")
                gate.pass_through("steps")

        opened.model.blocks[1].register_forward_pre_hook(before_second)
        # A run that nobody waits for ends on its way into the next block.
        opened.model.blocks[2].attn.register_forward_pre_hook(lambda *_: gate.mark("passed"))
        return opened

    app = create_app(settings, open_with=open_gated)
    app.add_middleware(MarkEnds, gate=gate)

    @app.get("/process")
    async def process() -> dict[str, str | int]:
        names = ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "GOMP_SPINCOUNT")
        return {"threads": torch.get_num_threads(), **{name: os.environ[name] for name in names}}

    return app


class MarkEnds:
    """Marks each request's end, and where it had no answer because nobody waited for it."""

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
            self.gate.mark("ended")
            if not answered:
                self.gate.mark("unanswered")
