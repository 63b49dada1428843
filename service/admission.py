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
        self.running = 0
        self.bytes_in_flight = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @asynccontextmanager
    async def answer_bytes(self, estimated: int) -> AsyncIterator[None]:
        """Hold the answer's share of the budget until it has been sent.

        Raises a 422 where one answer is over the limit, a 429 where all together would be.
        """
        limits = self._settings
        if estimated > limits.max_answer_bytes:
            raise Problem(
                "answer-too-large",
                f"the tensors would take {estimated} bytes; at most {limits.max_answer_bytes} are "
                "given: select fewer layers, heads, queries or keys",
                limit=limits.max_answer_bytes,
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

    async def acquire(self) -> float:
        """Wait for the device, first come first served; milliseconds waited.

        Whoever gets the slot owes a `release`. Raises a 429 where the queue is full or too slow.
        """
        start = time.perf_counter()
        await self._acquire()
        return (time.perf_counter() - start) * 1e3

    async def _acquire(self) -> None:
        if not self.running:
            self.running = 1
            return
        if len(self._waiters) >= self._settings.waiting:
            raise self._busy(f"{len(self._waiters)} requests wait already, as many as may")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._settings.wait_seconds):
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
