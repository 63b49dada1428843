"""HTTP by hand, over a socket: what no well-behaved client would send, at next to no cost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.answers import strict_json


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return strict_json(self.body)


def head(path: str, *, method: str = "POST", **headers: str) -> bytes:
    """A request's first lines; names of headers are given with _ for -."""
    lines = {"host": "localhost", **{name.replace("_", "-"): v for name, v in headers.items()}}
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")


def request(path: str, body: Any = None, *, method: str = "POST", **headers: str) -> bytes:
    """A whole request; a body that is not bytes is sent as JSON."""
    if body is None:
        return head(path, method="GET", **headers)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content_type": "application/json", **headers}
    return head(path, method=method, content_length=str(len(content)), **headers) + content


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, url: str) -> Connection:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=2**20))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """The next answer, whole. Raises IncompleteReadError where the server hangs up first."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        status = int(lines[0].split()[1])
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(status, headers, body)

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    def leave(self) -> None:
        """Gone without a word, as a closed browser tab."""
        self.writer.transport.abort()


async def ask(url: str, data: bytes) -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.to(url)
    try:
        return await connection.ask(data)
    finally:
        connection.leave()
