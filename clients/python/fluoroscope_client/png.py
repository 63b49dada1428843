"""A PNG of palette colours, written by hand: small, and no library is needed for it.

https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def png(indices: npt.NDArray[np.uint8], palette: Sequence[tuple[int, int, int]]) -> bytes:
    """A picture of one pixel for each index into the palette, of at most 256 colours."""
    rows, columns = indices.shape
    # Width, height, 8 bits, colour type 3 (palette); the usual compression, filter, no interlace.
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    unfiltered = np.zeros((rows, columns + 1), np.uint8)  # each row begins with its filter, 0
    unfiltered[:, 1:] = indices
    chunks = (
        (b"IHDR", header),
        (b"PLTE", bytes(channel for colour in palette for channel in colour)),
        (b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
