"""Tensors of a GGUF file in floating point, block formats unpacked by the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from model.checkpoints.contents import CheckpointError, Stored
from model.checkpoints.gguf_header import Located

PLAIN = {Kind.F32: np.float32, Kind.F16: np.float16, Kind.F64: np.float64}
BLOCKS = (
    Kind.Q8_0,
    Kind.Q4_0,
    Kind.Q4_1,
    Kind.Q5_0,
    Kind.Q5_1,
    Kind.Q4_K,
    Kind.Q5_K,
    Kind.Q6_K,
)
AT_ONCE = 2**18  # numbers unpacked together: what unpacking needs beside them stays small


def stored(file: Path, name: str, located: Located) -> Stored:
    """Raises CheckpointError for a format that is not implemented."""
    if located.kind not in PLAIN and located.kind not in (*BLOCKS, Kind.BF16):
        known = ", ".join(kind.name for kind in (*PLAIN, Kind.BF16, *BLOCKS))
        raise CheckpointError(f"{file}: {name} is {located.kind.name}; {known} can be opened")
    return Stored(located.shape, _reader(file, located))


def _reader(file: Path, located: Located) -> Callable[[], Tensor]:
    def read() -> Tensor:
        count = prod(located.shape)
        if located.kind in PLAIN:
            plain = np.fromfile(file, PLAIN[located.kind], count, offset=located.start)
            return torch.from_numpy(plain.reshape(located.shape))
        if located.kind == Kind.BF16:
            halves = np.fromfile(file, np.int16, count, offset=located.start)
            return torch.from_numpy(halves.reshape(located.shape)).view(torch.bfloat16)
        return torch.from_numpy(_unpacked(file, located, count).reshape(located.shape))

    return read


def _unpacked(
    file: Path, located: Located, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Blocks lie one after another, rows or not: any whole number of them unpacks alone."""
    block, size = gguf.GGML_QUANT_SIZES[located.kind]
    values = np.empty(count, np.float32)
    step = AT_ONCE // block
    with open(file, "rb") as stream:
        stream.seek(located.start)
        for first in range(0, count // block, step):
            n_blocks = min(step, count // block - first)
            # As one row: the package walks over rows in small groups.
            packed = np.frombuffer(stream.read(n_blocks * size), np.uint8).reshape(1, -1)
            part = gguf.quants.dequantize(packed, located.kind)
            values[first * block : (first + n_blocks) * block] = part.ravel()
    return values
