"""What a body is put together from: bytes that are there, and text that is written when it is sent.

Knows nothing of tensors or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

Chunk = bytes | memoryview


class Written(Protocol):
    """Text of a known size, made piece by piece as it is asked for, never held as a whole."""

    n_bytes: int

    def pieces(self) -> Iterator[Chunk]: ...


Part = Chunk | Written


def size_of(parts: Iterable[Part]) -> int:
    """Bytes of all of them."""
    return sum(
        memoryview(part).nbytes if isinstance(part, Chunk) else part.n_bytes for part in parts
    )


def pieces_of(parts: Iterable[Part]) -> Iterator[Chunk]:
    """Everything in order, each piece made as it is asked for."""
    for part in parts:
        if isinstance(part, Chunk):
            yield part
        else:
            yield from part.pieces()
