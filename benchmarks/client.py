"""The one client that asks every server: http.client, kept alive, the body read to its last byte.

Bodies land in one ready buffer, so that the client costs every server the same and little.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from typing import Any

SAFETENSORS = "application/vnd.safetensors"
IDLE_SECONDS = 3.0  # servers close a connection after 5 idle ones


@dataclass(frozen=True)
class Answer:
    """`body` is valid until the client's next request."""

    ms: float
    body: memoryview
    headers: HTTPMessage

    @property
    def timing_ms(self) -> dict[str, float]:
        """Milliseconds by stage, as a Fluoroscope answer in JSON says at its end."""
        end = bytes(self.body[-400:])
        return dict(json.loads(end[end.rindex(b'"timing_ms":') + 12 : -1]))


class Client:
    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=600)
        self._buffer = bytearray(1 << 20)
        self._used = float("-inf")

    def post(self, path: str, question: dict[str, Any], accept: str = "application/json") -> Answer:
        """Raises RuntimeError with the server's words for any status but 200."""
        body = json.dumps(question).encode()
        headers = {"Content-Type": "application/json", "Accept": accept}
        if time.perf_counter() - self._used > IDLE_SECONDS:
            self._connection.close()
            self._connection.connect()
        start = time.perf_counter()
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        size = int(response.headers["Content-Length"])
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            got = response.readinto(view[filled:])
            if not got:
                raise RuntimeError(f"{path}: the body ended after {filled} of {size} bytes")
            filled += got
        response.read()
        self._used = time.perf_counter()
        ms = (self._used - start) * 1e3
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}: {bytes(view[:2000]).decode()}")
        return Answer(ms, view, response.headers)

    def close(self) -> None:
        self._connection.close()
