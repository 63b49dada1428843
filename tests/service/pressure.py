"""What the tests under pressure share: a gate before the model, a clock before the app, waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes true; asked again and again, without a loop of the test's own."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Gate:
    """Stands before the model's first block: runs wait there until it is opened, after as many as
    it lets pass. Counts the runs and the blocks that they enter."""

    def __init__(self, app: FastAPI) -> None:
        self.inspector = app.state.inspector
        self.entered = threading.Event()
        self.open = threading.Event()
        self.passes = 0
        self.runs = 0
        self.blocks = 0
        model = self.inspector.opened.model
        self._hooks = [model.blocks[0].register_forward_pre_hook(self._wait)]
        self._hooks += [block.register_forward_pre_hook(self._count) for block in model.blocks]

    def _wait(self, *_: Any) -> None:
        self.runs += 1
        if self.passes > 0:
            self.passes -= 1
            return
        self.entered.set()
        assert self.open.wait(60), "the gate was never opened"

    def _count(self, *_: Any) -> None:
        self.blocks += 1

    def remove(self) -> None:
        self.open.set()
        for hook in self._hooks:
            hook.remove()


@contextmanager
def gated(app: FastAPI) -> Iterator[Gate]:
    gate = Gate(app)
    try:
        yield gate
    finally:
        gate.remove()


def idle(inspector: Any) -> bool:
    """Nothing runs, waits or is held."""
    admission = inspector.admission
    return not (admission.running or admission.waiting or admission.bytes_in_flight)


class Stopwatch:
    """Outermost of all: the seconds from a request's arrival to the start of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.answers: list[tuple[str, int, float]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = time.perf_counter() - arrived
                self.answers.append((scope["path"], message["status"], took))
            await send(message)

        await self.app(scope, receive, timed)

    def seconds(self, path: str, status: int) -> list[float]:
        return sorted(t for p, s, t in self.answers if (p, s) == (path, status))


class Contention:
    """Seconds for which other processes kept a thread of this one off the processor, since it was
    made: the most that any one thread waited in the scheduler's queue. Zero where the kernel does
    not tell, and on a machine that has nothing else to do."""

    def __init__(self) -> None:
        self._before = self._waited()

    def seconds(self) -> float:
        now = self._waited()
        waits = [waited - self._before.get(thread, waited) for thread, waited in now.items()]
        return max(waits, default=0) / 1e9

    def _waited(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for thread in Path("/proc/self/task").glob("*"):
            with suppress(OSError, IndexError):  # it may just have ended
                found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return found


class Probe:
    """A task on the server's own loop that sleeps 10 ms at a time and notes how much later than
    that it woke: what anything that holds the loop costs everybody else. Waits that other
    processes caused are left out."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self._stop = threading.Event()

    async def watch(self, every: float = 0.01) -> None:
        while not self._stop.is_set():
            others, slept = Contention(), time.perf_counter()
            await asyncio.sleep(every)
            late = time.perf_counter() - slept - every
            self.gaps.append(late - others.seconds())

    def stop(self) -> None:
        self._stop.set()


def least(attempts: int, measure: Callable[[], float], *, under: float) -> float:
    """The least of some measurements, stopped at the first that keeps the promise: code that
    breaks it breaks it every time, another process's burst does not come every time."""
    found = float("inf")
    for _ in range(attempts):
        found = min(found, measure())
        if found < under:
            break
    return found
