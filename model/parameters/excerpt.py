"""Excerpt: a look at the numbers of one tensor. Knows nothing of where the tensor came from.

One head's share, rows and columns, a picture of at most so many cells. Sums are in float64; nothing
is changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from model.config import GPTConfig
from model.parameters.inventory import ParameterError, TensorAxis, TensorInfo
from model.selection import Asked, Indices, resolve, take
from model.sites import Axis

Reduction = Literal["mean", "max", "stride"]


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Part of a vector or matrix.

    `indices` say for each axis where each entry stands in the head's or the tensor's own count
    (for a picture: where its cell begins), `cell` how many entries one entry stands for along each
    axis (the last cell may hold fewer).
    """

    values: Tensor
    axes: tuple[TensorAxis, ...]
    indices: tuple[Indices, ...]
    cell: tuple[int, ...]

    @classmethod
    def of(cls, info: TensorInfo, tensor: Tensor) -> Excerpt:
        """All of it. Raises ParameterError where the tensor is not of the shape that info names."""
        if tuple(tensor.shape) != info.shape:
            raise ParameterError(
                f"{info.name} has shape {list(tensor.shape)}, the config asks for "
                f"{list(info.shape)}"
            )
        return cls(tensor.detach(), info.axes, tuple(map(range, info.shape)), (1,) * tensor.dim())

    def select(self, rows: Asked = "all", columns: Asked = "all") -> Excerpt:
        """Rows are the first axis, columns the second. Raises SelectionError, and ParameterError
        for columns of a vector.
        """
        if self.values.dim() == 1 and columns != "all":
            raise ParameterError(
                f"columns are asked for, but this is a vector over {self.axes[0]}; ask for rows"
            )
        asked = (rows, columns)[: self.values.dim()]
        picked = [
            resolve(which, size, cast(Axis, axis))
            for which, size, axis in zip(asked, self.values.shape, self.axes, strict=True)
        ]
        return replace(
            self,
            values=take(self.values, picked),
            indices=tuple(map(_through, self.indices, picked)),
        )

    def picture(self, how: Reduction, rows: int, columns: int) -> Excerpt:
        """At most rows × columns cells, each the mean, the maximum or the first entry of its own.

        All cells are equally large but for the last of each axis, which may hold less. A vector
        has rows only. Values are a copy, in float32. Raises ParameterError for limits under 1.
        """
        if rows < 1 or columns < 1:
            raise ParameterError(f"a picture of {rows} × {columns} has no cells; give at least 1")
        steps = [
            -(-size // most) for size, most in zip(self.values.shape, (rows, columns), strict=False)
        ]
        firsts = [range(0, size, n) for size, n in zip(self.values.shape, steps, strict=True)]
        if how == "stride":
            values = take(self.values, firsts).to(torch.float32, copy=True)
        else:
            values = _pool(self.values, how, steps)
        return Excerpt(
            values,
            self.axes,
            tuple(map(_through, self.indices, firsts)),
            tuple(cell * step for cell, step in zip(self.cell, steps, strict=True)),
        )

    def picture_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """The shape that `picture` gives, nothing computed."""
        steps = self._steps(rows, columns)
        return tuple(-(-size // n) for size, n in zip(self.values.shape, steps, strict=True))

    def _steps(self, rows: int, columns: int) -> list[int]:
        if rows < 1 or columns < 1:
            raise ParameterError(f"a picture of {rows} × {columns} has no cells; give at least 1")
        sizes = zip(self.values.shape, (rows, columns), strict=False)
        return [-(-size // most) for size, most in sizes]


def of_head(
    config: GPTConfig,
    info: TensorInfo,
    tensor: Tensor,
    *,
    head: int | None = None,
    kv_head: int | None = None,
) -> Excerpt:
    """One head's rows of W_q, W_k, W_v or their biases, or its columns of W_o.

    `head` is a query head; on keys and values it means the key/value head that it reads. `kv_head`
    names that one directly. Raises ParameterError for a tensor that is not shared out by head, and
    SelectionError for a head that the model does not have.
    """
    if (head is None) == (kv_head is None):
        raise ParameterError("give one of head and kv_head")
    whole = Excerpt.of(info, tensor)
    for dim, axis in enumerate(info.axes):
        if axis not in ("head*d_head", "kv_head*d_head"):
            continue
        place = _head_place(config, axis, head, kv_head)
        rows = range(place * config.d_head, (place + 1) * config.d_head)
        picked: list[Indices | None] = [None] * len(info.axes)
        picked[dim] = rows
        axes, indices = list(info.axes), list(whole.indices)
        axes[dim], indices[dim] = "d_head", range(config.d_head)
        return Excerpt(take(whole.values, picked), tuple(axes), tuple(indices), whole.cell)
    raise ParameterError(
        f"{info.name} is not shared out by head: its axes are {', '.join(info.axes)}"
    )


def _head_place(config: GPTConfig, axis: TensorAxis, head: int | None, kv_head: int | None) -> int:
    if kv_head is not None:
        if axis != "kv_head*d_head":
            raise ParameterError("this tensor has query heads; ask for head, not kv_head")
        return resolve([kv_head], config.n_kv_head, "kv_head")[0]
    assert head is not None
    true = resolve([head], config.n_head, "head")[0]
    return config.kv_head_of[true] if axis == "kv_head*d_head" else true


def _through(outer: Indices, inner: Indices) -> Indices:
    """The indices of a part of a part."""
    if isinstance(outer, range) and isinstance(inner, range):
        return outer[inner.start : inner.stop : inner.step]
    return tuple(outer[place] for place in inner)


def _pool(values: Tensor, how: Reduction, steps: list[int]) -> Tensor:
    """Cells of `steps` entries along each axis, a band of rows at a time."""
    bands = []
    for start in range(0, len(values), steps[0]):
        band = values[start : start + steps[0]].cpu()
        row = (
            band.sum(0, keepdim=True, dtype=torch.float64)
            if how == "mean"
            else band.amax(0, keepdim=True).double()
        )
        if values.dim() == 2:
            starts = np.arange(0, values.shape[1], steps[1])
            join = np.add if how == "mean" else np.maximum
            row = torch.from_numpy(join.reduceat(row.numpy(), starts, axis=1))
        if how == "mean":
            row = row / (len(band) * _widths(values, steps))
        bands.append(row)
    return torch.cat(bands).float()


def _widths(values: Tensor, steps: list[int]) -> Tensor | int:
    """How many columns each cell holds."""
    if values.dim() == 1:
        return 1
    size, step = values.shape[1], steps[1]
    return torch.tensor([min(step, size - start) for start in range(0, size, step)])
