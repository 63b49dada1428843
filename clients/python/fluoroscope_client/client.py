"""The two clients: the same calls, sent by blocking or by awaiting. All else is in `calls.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar

import httpx

from fluoroscope_client.answers import json_object
from fluoroscope_client.asking import Wire
from fluoroscope_client.calls import Call, Calls
from fluoroscope_client.errors import (
    AnswerError,
    ConnectError,
    FluoroscopeError,
    ProblemError,
    TimedOut,
    problem,
)
from fluoroscope_client.patience import Patience, retry_after

if TYPE_CHECKING:
    from typing_extensions import Self

__version__ = "0.1.0"
P = ParamSpec("P")
T = TypeVar("T")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT = httpx.Timeout(60.0, connect=5.0)


def _blocking(
    build: Callable[Concatenate[Calls, P], Call[T]],
) -> Callable[Concatenate[Fluoroscope, P], T]:
    @wraps(build)
    def send(self: Fluoroscope, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._send(build(self._calls, *args, **kwargs))

    return send


def _awaiting(
    build: Callable[Concatenate[Calls, P], Call[T]],
) -> Callable[Concatenate[AsyncFluoroscope, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def send(self: AsyncFluoroscope, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send(build(self._calls, *args, **kwargs))

    return send


class _Client:
    """What both clients know: the address, the form of tensors, how long to wait when refused."""

    def __init__(self, base_url: str, wire: Wire, retries: int, max_wait: float) -> None:
        self.base_url = base_url
        self._calls = Calls(wire)
        self._retries, self._max_wait = retries, max_wait

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def _patience(self) -> Patience:
        return Patience(self._retries, self._max_wait)


class Fluoroscope(_Client):
    """A Fluoroscope server, asked by blocking calls. Threads may share it; close it, or use `with`.

    `key` is sent as a bearer token. `timeout` is httpx's: seconds, or an `httpx.Timeout`.
    `wire` is the form that tensors travel in. `compress` asks for compressed answers: worth it
    over a slow network, a loss on one machine. A 429 or 503 that says Retry-After is tried again
    up to `retries` times (0: never) while all waits together stay within `max_wait` seconds.
    `transport` is httpx's, for tests. Every call raises FluoroscopeError.
    """

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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, wire, retries, max_wait)
        self._http = httpx.Client(
            transport=transport, timeout=timeout, **_connection(base_url, key, compress)
        )

    model = _blocking(Calls.model)
    sites = _blocking(Calls.sites)
    parameters = _blocking(Calls.parameters)
    tokenize = _blocking(Calls.tokenize)
    detokenize = _blocking(Calls.detokenize)
    attention = _blocking(Calls.attention)
    logits = _blocking(Calls.logits)
    inspect = _blocking(Calls.inspect)

    def _send(self, call: Call[T]) -> T:
        patience = self._patience()
        while True:
            try:
                response = self._http.request(**_request(call))
            except httpx.RequestError as error:
                raise _no_answer(error, self.base_url) from error
            wait = patience.after(response)
            if wait is None:
                return _read(call, response)
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


class AsyncFluoroscope(_Client):
    """The same for asyncio: every call is awaited. Close it with `aclose`, or use `async with`."""

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, wire, retries, max_wait)
        self._http = httpx.AsyncClient(
            transport=transport, timeout=timeout, **_connection(base_url, key, compress)
        )

    model = _awaiting(Calls.model)
    sites = _awaiting(Calls.sites)
    parameters = _awaiting(Calls.parameters)
    tokenize = _awaiting(Calls.tokenize)
    detokenize = _awaiting(Calls.detokenize)
    attention = _awaiting(Calls.attention)
    logits = _awaiting(Calls.logits)
    inspect = _awaiting(Calls.inspect)

    async def _send(self, call: Call[T]) -> T:
        patience = self._patience()
        while True:
            try:
                response = await self._http.request(**_request(call))
            except httpx.RequestError as error:
                raise _no_answer(error, self.base_url) from error
            wait = patience.after(response)
            if wait is None:
                return _read(call, response)
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


class _Connection(TypedDict):
    base_url: httpx.URL
    headers: dict[bytes, bytes]
    trust_env: bool


def _connection(base_url: str, key: str | None, compress: bool) -> _Connection:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{base_url!r} is no address; give one such as http://127.0.0.1:8000")
    headers = {b"User-Agent": f"fluoroscope-client/{__version__}".encode()}
    if not compress:
        headers[b"Accept-Encoding"] = b"identity"
    if key is not None:
        if "\r" in key or "\n" in key:
            raise ValueError("the key has a line break in it, which no header can hold")
        headers[b"Authorization"] = b"Bearer " + key.encode()  # a key may be of any alphabet
    # A proxy from the environment cannot reach this machine's own loopback.
    return {"base_url": url, "headers": headers, "trust_env": url.host not in LOOPBACK}


class _Request(TypedDict):
    method: str
    url: str
    params: dict[str, str] | None
    content: bytes | None
    headers: dict[str, str]


def _request(call: Call[Any]) -> _Request:
    headers = {"Accept": call.accept}
    content = call.content()
    if content is not None:
        headers["Content-Type"] = "application/json"
    query = dict(call.query) if call.query else None
    return {
        "method": call.method,
        "url": call.path,
        "params": query,
        "content": content,
        "headers": headers,
    }


def _read(call: Call[T], response: httpx.Response) -> T:
    if not response.is_success:
        raise _problem(response)
    return call.parse(_media_type(response), response.content)


def _problem(response: httpx.Response) -> ProblemError:
    """A refusal by whatever stands between says no more than its status."""
    said: dict[str, Any] = {}
    if _media_type(response) == "application/problem+json":
        try:
            said = json_object(response.content)
        except AnswerError:
            said = {}
    said.setdefault("title", response.reason_phrase)
    if request_id := response.headers.get("x-request-id"):
        said.setdefault("instance", request_id)
    return problem(response.status_code, said, retry_after(response))


def _media_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _no_answer(error: httpx.RequestError, base_url: str) -> FluoroscopeError:
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{base_url} gave no answer in time: {said}")
    if isinstance(error, httpx.DecodingError):
        return AnswerError(f"the answer of {base_url} cannot be decompressed: {said}")
    return ConnectError(f"{base_url} cannot be reached: {said}")
