"""The two clients. Their calls are described once, elsewhere; here they are sent, by blocking or by
awaiting, and that is all in which the two differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from fluoroscope_client.asking import Wire, accepted
from fluoroscope_client.call import Awaiting, Blocking, Call
from fluoroscope_client.calls_of_generation import GenerationCalls
from fluoroscope_client.calls_of_labs import LabCalls
from fluoroscope_client.calls_on_models import ModelCalls
from fluoroscope_client.calls_on_runs import RunCalls
from fluoroscope_client.connection import TIMEOUT, connection, media_type, no_answer, refusal
from fluoroscope_client.patience import Patience
from fluoroscope_client.streams import AsyncGeneration, Generation

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)


class _Client(ModelCalls, RunCalls, GenerationCalls, LabCalls, Generic[Http, Transport]):
    """Every question to a server, whichever way it is sent."""

    _connected: Callable[..., Http]

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout: float | httpx.Timeout | None = TIMEOUT,
        wire: Wire = "safetensors",
        compress: bool = False,
        retries: int = 2,
        max_wait: float = 30.0,
        transport: Transport | None = None,
    ) -> None:
        """`key` is sent as a bearer token. `timeout` is httpx's: seconds, or an `httpx.Timeout`.

        `wire` is the form that tensors travel in. `compress` asks for compressed answers: worth
        it over a slow network, a loss on one machine. A 429 or 503 that says Retry-After is tried
        again up to `retries` times (0: never) while all waits together stay within `max_wait`
        seconds. `transport` is httpx's, for tests. Raises ValueError for what can be no address.
        """
        accepted(wire)
        self.base_url = base_url
        self._wire = wire
        self._retries, self._max_wait = retries, max_wait
        self._http: Http = self._connected(
            transport=transport, timeout=timeout, **connection(base_url, key, compress)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def _request(self, call: Call[Any]) -> httpx.Request:
        content = call.content()
        headers = {"Accept": call.accept}
        if content is not None:
            headers["Content-Type"] = "application/json"
        made: httpx.Request = self._http.build_request(
            call.method, call.path, params=call.query or None, content=content, headers=headers
        )
        return made

    def _patience(self, call: Call[Any]) -> Patience:
        return Patience(self._retries if call.patient else 0, self._max_wait)


class Fluoroscope(_Client[httpx.Client, httpx.BaseTransport], Blocking):
    """A Fluoroscope server, asked by blocking calls. Threads may share it. Close it, or use `with`.

    Every call raises FluoroscopeError.
    """

    _connected = httpx.Client

    def _send(self, call: Call[T]) -> T:
        response = self._open(call)
        try:
            return call.parse(media_type(response), response.read())
        except httpx.RequestError as error:
            raise no_answer(error, self.base_url) from error
        finally:
            response.close()

    def _steps(self, call: Call[None]) -> Generation:
        return Generation(lambda: self._open(call), self.base_url)

    def _open(self, call: Call[Any]) -> httpx.Response:
        """The answer before its body is read. Raises what the server refuses with."""
        patience = self._patience(call)
        while True:
            try:
                response: httpx.Response = self._http.send(self._request(call), stream=True)
                if response.is_success:
                    return response
                response.read()
            except httpx.RequestError as error:
                raise no_answer(error, self.base_url) from error
            wait = patience.after(response)
            if wait is None:
                raise refusal(response)
            time.sleep(wait)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncFluoroscope(_Client[httpx.AsyncClient, httpx.AsyncBaseTransport], Awaiting):
    """The same for asyncio: every call is awaited. Close it with `aclose`, or use `async with`."""

    _connected = httpx.AsyncClient

    async def _send(self, call: Call[T]) -> T:
        response = await self._open(call)
        try:
            return call.parse(media_type(response), await response.aread())
        except httpx.RequestError as error:
            raise no_answer(error, self.base_url) from error
        finally:
            await response.aclose()

    def _steps(self, call: Call[None]) -> AsyncGeneration:
        return AsyncGeneration(lambda: self._open(call), self.base_url)

    async def _open(self, call: Call[Any]) -> httpx.Response:
        patience = self._patience(call)
        while True:
            try:
                response: httpx.Response = await self._http.send(self._request(call), stream=True)
                if response.is_success:
                    return response
                await response.aread()
            except httpx.RequestError as error:
                raise no_answer(error, self.base_url) from error
            wait = patience.after(response)
            if wait is None:
                raise refusal(response)
            await asyncio.sleep(wait)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
