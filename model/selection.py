"""Selections: which indices of an axis, asked for and resolved. Knows nothing of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from model.sites import Axis


class SelectionError(ValueError):
    """Indices outside an axis, said twice, or none at all; the message gives the valid range.

    `limit` and `actual`: the furthest index that there is, and the one asked for instead.
    """

    def __init__(
        self, message: str, *, limit: int | None = None, actual: int | None = None
    ) -> None:
        super().__init__(message)
        self.limit, self.actual = limit, actual


@dataclass(frozen=True, kw_only=True)
class Span:
    """start, stop, step as in Python's range, negative numbers counting from the end."""

    start: int | None = None
    stop: int | None = None
    step: int = 1


Asked = Literal["all"] | Sequence[int] | Span
Indices = range | tuple[int, ...]


def is_open(asked: Asked) -> bool:
    """Whether it has no end, and covers what a growing axis gains. A list or a stop is an end;
    a span that counts down begins at the end that there was."""
    return asked == "all" or (isinstance(asked, Span) and asked.stop is None and asked.step > 0)


def resolve(asked: Asked, size: int, axis: Axis) -> Indices:
    """The true indices, in the order asked for, as a range wherever they are evenly spaced upwards.

    Nothing is clamped: raises SelectionError where an index is outside the axis.
    """
    valid = f"valid are {-size} to {size - 1}"
    if asked == "all":
        return range(size)
    if isinstance(asked, Span):
        return _resolve_span(asked, size, axis, valid)
    if not asked:
        raise SelectionError(f"no {axis} is selected; give at least one, {valid}")
    for index in asked:
        if not -size <= index < size:
            furthest = -size if index < 0 else size - 1
            raise SelectionError(
                f"{axis} {index} is out of range; {valid}", limit=furthest, actual=index
            )
    true = tuple(index % size for index in asked)
    if len(set(true)) < len(true):
        twice = next(index for place, index in enumerate(true) if index in true[:place])
        raise SelectionError(f"{axis} {twice} is selected more than once")
    step = true[1] - true[0] if len(true) > 1 else 1
    even = range(true[0], true[-1] + 1, step) if step > 0 and true[-1] >= true[0] else None
    return even if even is not None and true == tuple(even) else true


def _resolve_span(span: Span, size: int, axis: Axis, valid: str) -> Indices:
    if span.step == 0:
        raise SelectionError(f"{axis} step is 0; it must be another whole number")
    for name, bound in (("start", span.start), ("stop", span.stop)):
        # One past either end is how a whole span is spelled.
        if bound is not None and not -size - 1 <= bound <= size:
            furthest = -size if bound < 0 else size - 1
            raise SelectionError(
                f"{axis} {name} {bound} is out of range; {valid}", limit=furthest, actual=bound
            )
    indices = range(size)[slice(span.start, span.stop, span.step)]
    if not indices:
        raise SelectionError(
            f"{axis} start {span.start}, stop {span.stop}, step {span.step} selects nothing "
            f"of {size}"
        )
    return indices if span.step > 0 else tuple(indices)


def take(values: Tensor, indices: Sequence[Indices | None]) -> Tensor:
    """The selected part of values, one entry of `indices` for each axis (None takes it whole).

    A view where every selection is evenly spaced, else a copy.
    """
    slices = tuple(
        slice(index.start, index.stop, index.step) if isinstance(index, range) else slice(None)
        for index in indices
    )
    values = values[slices]
    for dim, index in enumerate(indices):
        if isinstance(index, tuple):
            values = values.index_select(dim, torch.tensor(index, device=values.device))
    return values


def put(values: Tensor, indices: Sequence[Indices | None], new: Tensor | float) -> None:
    """Write `new`, of the selection's shape or broadcast to it, into values in place."""
    grid = []
    for dim, index in enumerate(indices):
        line = torch.tensor(
            list(range(values.shape[dim]) if index is None else index), device=values.device
        )
        grid.append(line.view([-1 if other == dim else 1 for other in range(values.dim())]))
    values[tuple(grid)] = torch.as_tensor(new, dtype=values.dtype, device=values.device)
