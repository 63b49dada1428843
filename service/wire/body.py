"""An answer's body in pieces: sent as they are, or compressed on the way, never joined up."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack

import zstandard
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.wire.negotiation import Coding
from service.wire.tensors import Chunk

COMPRESS_FROM = 64 * 1024
_PIECE = 1 << 18  # more than a socket takes at once is copied again by the transport


class ChunkedBody(Response):
    """Known pieces with a Content-Length; compressed pieces without one."""

    def __init__(self, chunks: list[Chunk], media_type: str, coding: Coding) -> None:
        super().__init__(media_type=media_type)
        self._chunks = chunks
        self._held: AsyncExitStack | None = None
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        self._coding: Coding = coding if size >= COMPRESS_FROM else "identity"
        del self.headers["content-length"]
        if self._coding == "identity":
            self.headers["content-length"] = str(size)
        else:
            self.headers["content-encoding"] = self._coding

    def when_sent(self, held: AsyncExitStack) -> None:
        """What to let go of once the body is sent, or cannot be."""
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_all(send)
        finally:
            if self._held is not None:
                await self._held.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[Chunk]:
        if self._coding == "identity":
            for piece in _cut(self._chunks):
                yield bytes(piece)
        else:
            compress = _zstd if self._coding == "zstd" else _gzip
            async for compressed in iterate_in_threadpool(compress(_cut(self._chunks))):
                yield compressed


def _cut(chunks: Iterable[Chunk]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, view.nbytes, _PIECE):
            yield view[start : start + _PIECE]


def _zstd(pieces: Iterator[memoryview]) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    for piece in pieces:
        if out := compressor.compress(piece):
            yield out
    yield compressor.flush()


def _gzip(pieces: Iterator[memoryview]) -> Iterator[bytes]:
    compressor = zlib.compressobj(level=1, wbits=31)
    for piece in pieces:
        if out := compressor.compress(piece):
            yield out
    yield compressor.flush()
