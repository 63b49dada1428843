"""An answer's body in parts: sent as they are, or compressed on the way, never joined up."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

import zstandard
from anyio import to_thread

from service.wire.negotiation import Coding
from service.wire.parts import Chunk, Part, pieces_of, size_of
from service.wire.sending import SentInPieces

COMPRESS_FROM = 64 * 1024
# A client that takes no piece for so long is given up: its answer counts against the budget of all.
STALLED_SECONDS = 60.0
_BATCH = 1 << 21
_PIECE = 640 << 10  # at least 90 kbit/s, then, are asked of a client


class ChunkedBody(SentInPieces):
    """Parts of known size with a Content-Length; compressed ones without."""

    def __init__(self, parts: list[Part], media_type: str, coding: Coding) -> None:
        super().__init__(media_type, STALLED_SECONDS)
        self._parts = parts
        size = size_of(parts)
        self._coding: Coding = coding if size >= COMPRESS_FROM else "identity"
        if self._coding == "identity":
            self.headers["content-length"] = str(size)
        else:
            self.headers["content-encoding"] = self._coding

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
