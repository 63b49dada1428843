"""From Contents to a running GPT: the one place in which a checkpoint becomes a model.

Each tensor goes from the file straight to its place, dtype and device, so what is in memory at the
peak is the model, one tensor of the file, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.checkpoints.contents import CheckpointError, Contents
from model.config import GPTConfig
from model.gpt import GPT

ALIGNED = 64  # bytes, as torch aligns its own memory

Progress = Callable[[int, int], None]


def assemble(
    contents: Contents,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> GPT:
    """The model in `dtype` on `device`, frozen and in evaluation mode.

    `progress` is called with the weights placed so far and all there are, in numbers. Raises
    CheckpointError where the weights exceed the memory or cannot be read.
    """
    model = skeleton(contents.config)
    slots = tensor_shapes(model)
    total = sum(shape.numel() for shape in slots.values())
    require_memory(contents.source, total, device, dtype)
    only_looked_up = {"pos_embed.weight"}  # a tied embedding is read whole as well, as the head
    if not contents.config.tied:
        only_looked_up.add("embed.weight")
    placed: dict[str, Tensor] = {}
    done = 0
    try:
        for name, tensor in contents.tensors():
            assert tensor.shape == slots[name], name
            placed[name] = _place(tensor, device, dtype, rows=name in only_looked_up)
            done += tensor.numel()
            if progress is not None:
                progress(done, total)
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, OSError) as error:  # the file changed while it was read
        raise CheckpointError(f"{contents.source}: {error}") from error
    model.load_state_dict(placed, assign=True, strict=not contents.config.tied)
    if contents.config.tied:
        model.unembed.weight = model.embed.weight
    assert not any(weight.is_meta for weight in model.parameters()), "a tensor was not yielded"
    return model.eval().requires_grad_(False)


def _place(tensor: Tensor, device: torch.device, dtype: torch.dtype, *, rows: bool) -> Tensor:
    """The tensor in new memory: a view of a mapped file would change with the file.

    A generation step reads every matrix for one row. On the CPU a wide one (out > in) is then read
    up to twice as fast by its inputs' columns as by its outputs' rows, so that is how it lies; runs
    of many rows do not care. What is only looked up, row by row, stays in `rows`; an embedding that
    is the head as well does not: a look-up costs 4 µs more a token, a step 6 ms less (GPT-2).
    """
    is_wide = tensor.dim() == 2 and tensor.shape[0] > tensor.shape[1]
    if device.type != "cpu" or rows or not is_wide:
        return _memory(tensor.shape, device, dtype).copy_(tensor)
    return _memory(tensor.shape[::-1], device, dtype).copy_(tensor.T).T


def _memory(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Memory to fill. On the CPU numpy gives it, which asks for huge pages: reading hundreds of
    megabytes once, as a step does, costs less where there are fewer pages to find."""
    if device.type != "cpu":
        return torch.empty(shape, device=device, dtype=dtype)
    size = shape.numel() * dtype.itemsize
    memory = torch.from_numpy(np.empty(size + ALIGNED, dtype=np.uint8))
    start = -memory.data_ptr() % ALIGNED
    return memory[start : start + size].view(dtype).view(shape)


def skeleton(config: GPTConfig) -> GPT:
    """The model without memory for its weights. Raises CheckpointError for impossible sizes."""
    try:
        with torch.device("meta"), _Unfilled():
            return GPT(config)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointError(f"no model can have this config: {error}") from error


class _Unfilled(TorchFunctionMode):
    """Leaves out what nn.init does to new weights.

    On the meta device it fills nothing, but imports a compiler to do so: 2 seconds and 74 MiB.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def tensor_shapes(model: GPT) -> dict[str, torch.Size]:
    """Every tensor that a checkpoint of this model holds; a tied head is the embedding again."""
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    if model.config.tied:
        del shapes["unembed.weight"]
    return shapes


def require_memory(source: str, count: int, device: torch.device, dtype: torch.dtype) -> None:
    """Raises CheckpointError where `count` weights exceed the device's whole memory."""
    need, have = count * dtype.itemsize, memory_of(device)
    if need > have:
        raise CheckpointError(
            f"{source}: {count:,} weights take {need / 2**30:,.0f} GiB in {dtype}; "
            f"{device} has {have / 2**30:,.0f} GiB"
        )


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has, in use or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
