"""Generations that are read while they come: the same progress, fed by blocking or by awaiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from fluoroscope_client.asking import EVENT_STREAM
from fluoroscope_client.connection import media_type, no_answer
from fluoroscope_client.errors import AnswerError
from fluoroscope_client.events import Events
from fluoroscope_client.generation import Progress, Step

if TYPE_CHECKING:
    from typing_extensions import Self


class _Stream(Progress):
    """Iterated over once."""

    def __init__(self, base_url: str) -> None:
        super().__init__()
        self._base_url = base_url
        self._events = Events()
        self._response: httpx.Response | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} by {self._base_url}"

    def _begun(self, response: httpx.Response) -> None:
        if (kind := media_type(response)) != EVENT_STREAM:
            raise AnswerError(f"the answer is {kind or 'of no type'}, not {EVENT_STREAM}")

    def _check_unread(self) -> None:
        if self._response is not None:
            raise RuntimeError("a generation is read once; call generate again for another")

    def _read(self, chunk: bytes) -> Iterator[Step]:
        try:
            for name, data in self._events.feed(chunk):
                if (step := self.take_text(name, data)) is not None:
                    yield step
        except UnicodeDecodeError as error:
            raise AnswerError(f"the stream is no UTF-8: {error}") from error


class Generation(_Stream):
    """The steps of a generation: `for step in generation`. Leaving stops the server; `with` makes
    sure of it.

    `meta` and `prompt` are there with the first step, `done` and `samples` after the last.
    """

    def __init__(self, ask: Callable[[], httpx.Response], base_url: str) -> None:
        super().__init__(base_url)
        self._ask = ask

    def __iter__(self) -> Iterator[Step]:
        self._check_unread()
        self._response = response = self._ask()
        try:
            self._begun(response)
            for chunk in response.iter_bytes():
                yield from self._read(chunk)
        except httpx.RequestError as error:
            raise no_answer(error, self._base_url) from error
        finally:
            response.close()
        self.check_ended()

    def close(self) -> None:
        """Let the server stop."""
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncGeneration(_Stream):
    """The same by `async for step in generation`, and `async with`."""

    def __init__(self, ask: Callable[[], Awaitable[httpx.Response]], base_url: str) -> None:
        super().__init__(base_url)
        self._ask = ask

    async def __aiter__(self) -> AsyncIterator[Step]:
        self._check_unread()
        self._response = response = await self._ask()
        try:
            self._begun(response)
            async for chunk in response.aiter_bytes():
                for step in self._read(chunk):
                    yield step
        except httpx.RequestError as error:
            raise no_answer(error, self._base_url) from error
        finally:
            await response.aclose()
        self.check_ended()

    async def aclose(self) -> None:
        """Let the server stop."""
        if self._response is not None:
            await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
