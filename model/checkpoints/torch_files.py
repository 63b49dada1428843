"""Tensors in files of torch.save: looked at before they are believed, and never executed.

`torch.load(weights_only=True)` runs no foreign code, but it does what the file says with memory.
So the pickle's opcodes are read first: it may name tensors, storages and dictionaries, no more.
"""

from __future__ import annotations

import pickletools  # nosec B403
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from model.checkpoints.contents import CheckpointError, Stored

_NAMED = re.compile(
    r"collections OrderedDict"
    r"|torch\._utils _rebuild_(tensor_v2|parameter)"
    r"|torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
_REFUSED = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}


def load_torch(file: Path) -> dict[Any, Any]:
    """What torch.save wrote, its tensors mapped from the file. Raises CheckpointError."""
    examine(file)
    return _load(file)


def _load(file: Path) -> dict[Any, Any]:
    try:
        value = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
    except Exception as error:  # torch raises whatever the damage leads to
        said = [*str(error).splitlines(), type(error).__name__]  # it may say nothing
        raise CheckpointError(f"{file}: {said[0]}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds {type(value).__name__}, not tensors by name")
    return value


def read_torch(file: Path, inside: str | None = None) -> dict[str, Stored]:
    """Every tensor of a state dict, or of the one under the key `inside`."""
    examine(file)
    state = _state(file, inside)
    stored = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{file}: {name!r} is {type(tensor).__name__}, not a tensor")
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.itemsize:
            raise CheckpointError(
                f"{file}: {name} claims {list(tensor.shape)} over "
                f"{tensor.untyped_storage().nbytes():,} bytes"
            )
        # A mapped file is loaded anew for each tensor: what one mapping has touched would stay in
        # memory to the end. An old file has no mapping; there the tensors are kept.
        read = _reader(file, inside, name) if _is_zip(file) else _keeper(tensor)
        stored[name] = Stored(tuple(tensor.shape), read)
    return stored


def examine(file: Path) -> None:
    """Raises CheckpointError where the file names anything but tensors, or swells when read."""
    try:
        if _is_zip(file):
            _examine_zip(file)
        else:
            with open(file, "rb") as stream:
                for _ in range(5):  # magic number, protocol, system, the object, storage keys
                    _examine_pickle(file, stream)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged name alone is a UnicodeDecodeError of zipfile's
        raise CheckpointError(f"{file}: {error}") from error


def _examine_zip(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise CheckpointError(f"{file}: it is compressed; torch.save compresses nothing")
        if sum(entry.file_size for entry in entries) > file.stat().st_size:
            raise CheckpointError(f"{file}: its parts claim more bytes than the file has")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise CheckpointError(f"{file}: holds {len(pickles)} data.pkl; one is expected")
        with archive.open(pickles[0]) as stream:
            _examine_pickle(file, stream)


def _examine_pickle(file: Path, stream: IO[bytes]) -> None:
    size = file.stat().st_size
    try:
        for op, argument, _ in pickletools.genops(stream):
            if op.name in _REFUSED or (op.name == "GLOBAL" and not _NAMED.fullmatch(str(argument))):
                what = argument if op.name == "GLOBAL" else f"an object by {op.name}"
                raise CheckpointError(
                    f"{file}: its pickle names {what}; only tensors and plain values are read"
                )
            if "PUT" in op.name and int(argument or 0) > size:
                raise CheckpointError(f"{file}: its pickle numbers {argument:,} objects")
    except CheckpointError:
        raise
    except Exception as error:  # pickletools raises ValueError and more for what is no pickle
        raise CheckpointError(f"{file}: not a file of torch.save: {error}") from error


def _state(file: Path, inside: str | None) -> dict[Any, Any]:
    value = _load(file)
    state = value if inside is None else value.get(inside)
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: {inside} holds {type(state).__name__}, not tensors")
    return state


def _reader(file: Path, inside: str | None, name: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        tensor = _state(file, inside)[name]
        assert isinstance(tensor, Tensor)
        return tensor

    return read


def _keeper(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


def _is_zip(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(4) == b"PK\x03\x04"
