"""Faults of a run: memory that ran out, a device that is lost. Knows nothing of routes or slots."""

from __future__ import annotations

import re
import traceback

import torch

from service.errors import Problem

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
# Words of torch's allocators on CUDA and on the CPU, and of cuBLAS and the driver.
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "DefaultCPUAllocator")
_ASKED = re.compile(rf"(?:[Tt]ried|trying) to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")


def as_out_of_memory(error: BaseException) -> Problem | None:
    """The 503 for a run that found no memory, with the allocator's numbers; None for other errors.

    What the run held is let go and the device's cache emptied, so that the next one finds room.
    """
    said = str(error)
    ran_out = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY)
    )
    if not ran_out:
        return None
    asked, total, free = (_bytes(pattern, said) for pattern in (_ASKED, _TOTAL, _FREE))
    detail = "the device's memory ran out during the run"
    if asked is not None:
        detail += f": {asked} bytes more were asked for"
    if total is not None and free is not None:
        detail += f", {free} of {total} were free"
    traceback.clear_frames(error.__traceback__)  # the failed run's tensors hang on them
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return Problem("out-of-memory", detail, limit=free, actual=asked, headers={"retry-after": "1"})


def is_fatal(error: BaseException) -> bool:
    """Whether no later run can succeed in this process: the device is lost, or what was raised
    is no Exception. Call it after `as_out_of_memory`."""
    lost = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and str(error).startswith("CUDA error")
    )
    return lost or not isinstance(error, Exception)


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])
