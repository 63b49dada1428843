"""Admission: who may run now. Knows nothing of models; it counts slots, waiters and bytes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import Problem
from service.settings import Settings


class Admission:
    """One slot for the device, a bounded queue before it, and a budget of answer bytes.

    Used from the event loop alone. A request that cannot wait is refused at once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._steps: set[asyncio.Future[None]] = set()  # those of the waiters that are steps
        self.running = 0
        self.generating = 0
        self.bytes_in_flight = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[None]:
        """One of the generations that may be under way at once. Raises a 429 where they are."""
        self._require_seat()
        self.generating += 1
        try:
            yield
        finally:
            self.generating -= 1

    @asynccontextmanager
    async def answer_bytes(self, estimated: int, *, beside: int = 0) -> AsyncIterator[None]:
        """Hold the answer's share of the budget until it has been sent; `beside` it is what the
        run itself keeps, such as keys and values or the logits of a comparison.

        Raises a 422 where one answer is over the limit, a 429 where all together would be.
        """
        limits = self._settings
        if estimated > limits.max_answer_bytes:
            raise Problem(
                "answer-too-large",
                f"the answer would take {estimated} bytes; at most {limits.max_answer_bytes} are "
                "given: select fewer layers, heads, queries or keys, or take fewer steps and rows",
                limit=limits.max_answer_bytes,
                actual=estimated,
            )
        estimated += beside
        if beside and estimated > limits.max_in_flight_bytes:  # never to be had, however long
            raise Problem(
                "answer-too-large",
                f"the answer and what the run keeps beside it would take {estimated} bytes; at "
                f"most {limits.max_in_flight_bytes} are held at once: take a shorter input, or "
                "fewer new tokens, positions or patches",
                limit=limits.max_in_flight_bytes,
                actual=estimated,
            )
        if self.bytes_in_flight + estimated > limits.max_in_flight_bytes:
            raise self._busy(
                f"{self.bytes_in_flight} bytes of answers are under way and this one takes "
                f"{estimated}; together at most {limits.max_in_flight_bytes}"
            )
        self.bytes_in_flight += estimated
        try:
            yield
        finally:
            self.bytes_in_flight -= estimated

    def require_room(self, *, generation: bool = False) -> None:
        """Raises the 429 that `acquire`, or `generation`, would raise now: before work that would
        be in vain. May be asked from any thread."""
        if generation:
            self._require_seat()
        queued = len(self._waiters) - len(self._steps)
        if self.running and queued >= self._settings.waiting:
            raise self._busy(f"{queued} requests wait already, as many as may")

    def _require_seat(self) -> None:
        if self.generating >= self._settings.generations:
            raise self._busy(f"generations under way: {self.generating}, as many as may be")

    async def acquire(self, *, step: bool = False) -> float:
        """Wait for the device, first come first served; milliseconds waited.

        Whoever gets the slot owes a `release`. Raises a 429 where the queue is full or too slow;
        never for a step of a generation that was let in, which queues like all but takes no place.
        """
        start = time.perf_counter()
        await self._acquire(step)
        return (time.perf_counter() - start) * 1e3

    async def _acquire(self, step: bool) -> None:
        if not self.running:
            self.running = 1
            return
        queued = sum(waiter not in self._steps for waiter in self._waiters)
        if not step and queued >= self._settings.waiting:
            raise self._busy(f"{queued} requests wait already, as many as may")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if step:
            self._steps.add(waiter)
        try:
            async with asyncio.timeout(None if step else self._settings.wait_seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.release()  # the slot was handed over in the same moment
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._busy(
                    f"no slot came free within {self._settings.wait_seconds:g} s"
                ) from None
            raise
        finally:
            self._steps.discard(waiter)

    def release(self) -> None:
        """Hand the slot to the next in the queue, or leave it free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot passes on without ever being free
                return
        self.running = 0

    def _busy(self, detail: str) -> Problem:
        return Problem("too-busy", detail, headers={"retry-after": "1"})
