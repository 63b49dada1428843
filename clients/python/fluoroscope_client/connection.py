"""What httpx needs to know and what it tells: an address, a refusal. Sends nothing."""

from __future__ import annotations

from typing import Any, TypedDict

import httpx

from fluoroscope_client.answers import json_object
from fluoroscope_client.errors import (
    AnswerError,
    ConnectError,
    FluoroscopeError,
    ProblemError,
    TimedOut,
    problem,
)
from fluoroscope_client.patience import retry_after

__version__ = "0.1.0"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class Connection(TypedDict):
    base_url: httpx.URL
    headers: dict[bytes, bytes]
    trust_env: bool


def connection(base_url: str, key: str | None, compress: bool) -> Connection:
    """Raises ValueError for an address or a key that can be none."""
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


def refusal(response: httpx.Response) -> ProblemError:
    """A refusal by whatever stands between says no more than its status."""
    said: dict[str, Any] = {}
    if media_type(response) == "application/problem+json":
        try:
            said = json_object(response.content)
        except AnswerError:
            said = {}
    said.setdefault("title", response.reason_phrase)
    if request_id := response.headers.get("x-request-id"):
        said.setdefault("instance", request_id)
    return problem(response.status_code, said, retry_after(response))


def media_type(response: httpx.Response) -> str:
    """Without its parameters."""
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def no_answer(error: httpx.RequestError, base_url: str) -> FluoroscopeError:
    """What it means that httpx got none."""
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{base_url} gave no answer in time: {said}")
    if isinstance(error, httpx.DecodingError):
        return AnswerError(f"the answer of {base_url} cannot be decompressed: {said}")
    return ConnectError(f"{base_url} cannot be reached: {said}")
