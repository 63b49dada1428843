"""Tensors in safetensors files, read and written one at a time. Knows nothing of any model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.checkpoints.contents import CheckpointError, Stored

LARGEST_HEADER = 8 * 2**20  # of real checkpoints the largest are under 1 MiB


def read_safetensors(file: Path) -> dict[str, Stored]:
    """Every tensor of the file. Raises CheckpointError for a damaged or lying file."""
    try:
        with open(file, "rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
        if header > LARGEST_HEADER:
            raise CheckpointError(
                f"{file}: its header claims {header:,} bytes; at most {LARGEST_HEADER:,} are read"
            )
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
            return {
                name: Stored(tuple(tensors.get_slice(name).get_shape()), _reader(file, name))
                for name in names
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: {error}") from error


def _reader(file: Path, name: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        # Opened anew for each: what one mapping has touched would stay in memory to the end.
        try:
            with safe_open(file, framework="pt") as tensors:
                tensor: Tensor = tensors.get_tensor(name)
                return tensor
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: {error}") from error

    return read


_NAME_OF = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_safetensors(
    file: Path,
    shapes: Mapping[str, torch.Size],
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    format_: str,
) -> None:
    """Write the tensors in `dtype` as they come, each into the place that its name has in `shapes`.

    The layout: 8 bytes with the header's length, the header in JSON, the bytes of each tensor.
    Raises ValueError where one is missing, unknown or of another shape.
    """
    if dtype not in _NAME_OF:
        raise ValueError(f"{dtype} is not written; {', '.join(map(str, _NAME_OF))} are")
    header: dict[str, object] = {"__metadata__": {"format": format_}}
    begins: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        begins[name], end = end, end + shape.numel() * dtype.itemsize
        header[name] = {
            "dtype": _NAME_OF[dtype],
            "shape": list(shape),
            "data_offsets": [begins[name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8, as the format asks
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors:
            if name not in begins or tensor.shape != shapes[name]:
                raise ValueError(f"{name} {list(tensor.shape)} is not to be written, or twice")
            stream.seek(8 + len(text) + begins.pop(name))
            values = tensor.detach().to(device="cpu", dtype=dtype).contiguous()
            stream.write(values.view(-1).view(torch.uint8).numpy().data)
    if begins:
        raise ValueError(f"{', '.join(begins)} did not come")
