"""The header of a GGUF file: metadata and where each tensor lies. Reads no tensor.

The layout is ggml's docs/gguf.md, versions 2 and 3, little-endian. Every count and length is held
against the file's size before it is believed, and no list grows past a fixed number of entries.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from model.checkpoints.contents import CheckpointError, Shape

MOST_KEYS, MOST_TENSORS, MOST_ENTRIES = 4_096, 65_536, 1_000_000
LONGEST_NAME = 65_536
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
TEXT, LIST = 8, 9


@dataclass(frozen=True)
class Located:
    """A tensor in the file: shape with the outermost axis first, and its bytes from `start` on."""

    kind: GGMLQuantizationType
    shape: Shape
    start: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    metadata: dict[str, Any]
    tensors: dict[str, Located]


def read_header(file: Path) -> Header:
    """Raises CheckpointError for a file that is cut off, of another kind, or lies."""
    try:
        with (
            open(file, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(data).header()
    except CheckpointError:
        raise
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{file}: not a whole GGUF file: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def header(self) -> Header:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self.at = 4
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}; 2 and 3, little-endian, can be read")
        n_tensors, n_keys = self.count("Q", MOST_TENSORS), self.count("Q", MOST_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.text()
            if key in metadata:
                raise ValueError(f"key {key} is there twice")
            metadata[key] = self.value(self.number("I"))
        infos = [self.tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        begin = self.at + -self.at % alignment
        tensors = dict(self.located(begin, *info) for info in infos)
        if len(tensors) < n_tensors:
            raise ValueError("a tensor is there twice")
        return Header(metadata, tensors)

    def located(
        self, begin: int, name: str, kind: int, shape: Shape, offset: int
    ) -> tuple[str, Located]:
        quantization = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[quantization]
        if not shape or shape[-1] % block:
            raise ValueError(f"{name} {list(shape)} is not made of blocks of {block}")
        n_bytes = prod(shape) // block * size
        if begin + offset + n_bytes > len(self.data):
            raise ValueError(
                f"{name} {list(shape)} would end at byte {begin + offset + n_bytes:,} "
                f"of {len(self.data):,}"
            )
        return name, Located(quantization, shape, begin + offset, n_bytes)

    def tensor(self) -> tuple[str, int, Shape, int]:
        name = self.text()
        n_axes = self.count("I", 4)
        shape = tuple(reversed([self.number("Q") for _ in range(n_axes)]))
        return name, self.number("I"), shape, self.number("Q")

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self.data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value

    def count(self, kind: str, most: int) -> int:
        value = int(self.number(kind))
        if value > most:
            raise ValueError(f"it counts {value:,} entries at byte {self.at:,}; {most:,} at most")
        return value

    def text(self, longest: int = LONGEST_NAME) -> str:
        return self.bytes_(longest).decode("utf-8")

    def bytes_(self, longest: int) -> bytes:
        size = int(self.number("Q"))
        if size > longest or self.at + size > len(self.data):
            raise ValueError(f"a text of {size:,} bytes at byte {self.at:,} of {len(self.data):,}")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == TEXT:
            return self.text(longest=len(self.data))
        if kind != LIST:
            raise ValueError(f"a value of type {kind} at byte {self.at:,}")
        inner, length = self.number("I"), self.count("Q", MOST_ENTRIES)
        if inner == TEXT:
            return list(self.texts(length))
        if inner not in NUMBERS:
            raise ValueError(f"a list of type {inner} at byte {self.at:,}")
        width = struct.calcsize(NUMBERS[inner])
        if self.at + length * width > len(self.data):
            raise ValueError(f"a list of {length:,} numbers at byte {self.at:,}")
        values = list(struct.unpack_from(f"<{length}{NUMBERS[inner]}", self.data, self.at))
        self.at += length * width
        return values

    def texts(self, length: int) -> Iterator[str]:
        for _ in range(length):
            yield self.text()
