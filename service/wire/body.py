"""An answer's body in parts: sent as they are, or compressed on the way, never joined up."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress

import zstandard
from anyio import to_thread
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.wire.leaving import ClientGone, until_gone
from service.wire.negotiation import Coding
from service.wire.parts import Chunk, Part, pieces_of, size_of

COMPRESS_FROM = 64 * 1024
# A client that takes no piece for so long is given up: its answer counts against the budget of all.
STALLED_SECONDS = 60.0
_BATCH = 1 << 21
_PIECE = 640 << 10  # at least 90 kbit/s, then, are asked of a client


class TakesNothing(Exception):
    """The client is there and reads nothing; what is held for it is needed."""


def patient(send: Send, seconds: float) -> Send:
    """The same, raising TakesNothing where a message is not taken in time."""

    async def sent(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            raise TakesNothing from None

    return sent


class ChunkedBody(Response):
    """Parts of known size with a Content-Length; compressed ones without.

    Breaks off where the client is gone, or takes nothing for STALLED_SECONDS: what is not written
    yet is never written.
    """

    def __init__(self, parts: list[Part], media_type: str, coding: Coding) -> None:
        super().__init__(media_type=media_type)
        self._parts = parts
        self._held: AsyncExitStack | None = None
        size = size_of(parts)
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
            with suppress(TakesNothing, ClientGone):  # without its end: the server closes it
                await until_gone(receive, self._send_all(patient(send, STALLED_SECONDS)))
        finally:
            if self._held is not None:
                await self._held.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncGenerator[Chunk, None]:
        """Views, not copies: a server writes them as it would bytes."""
        sources: list[Chunk | Iterator[Chunk]]
        if self._coding == "identity":
            sources = [part if isinstance(part, Chunk) else part.pieces() for part in self._parts]
        else:
            compress = _zstd if self._coding == "zstd" else _gzip
            sources = [compress(_cut(pieces_of(self._parts)))]
        for source in sources:
            if isinstance(source, Chunk):
                for view in _cut([source]):
                    yield view
            else:
                async with aclosing(_ahead(_cut(source))) as ahead:
                    async for piece in ahead:
                        yield piece


async def _ahead(pieces: Iterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    """Pieces that a thread makes, the next batch while this one is sent."""
    batches = _batches(pieces)

    def make() -> asyncio.Task[list[Chunk] | None]:
        return asyncio.create_task(to_thread.run_sync(next, batches, None))

    coming = make()
    try:
        while (batch := await coming) is not None:
            coming = make()
            for piece in batch:
                yield piece
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _batches(pieces: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """As much at a time as is worth a turn of a thread."""
    batch: list[Chunk] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += memoryview(piece).nbytes
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


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
