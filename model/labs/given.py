"""What a lab is given, checked: float64 arrays and whole numbers within the limits.

Knows nothing of any one lab. Shapes: T token, D any dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = Sequence[float] | Array
Rows = Sequence[Sequence[float]] | Array

# Products of four such numbers over 1024 dimensions stay far from float64's end at 1.8e308.
LARGEST = 1e30


class LabError(ValueError):
    """What a lab cannot be done with: says the wrong number and the allowed one.

    `field` is the name of the input at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class LabLimits:
    """How large an input may be: `dimensions` of a vector, `tokens` of a sequence."""

    dimensions: int = 1024
    tokens: int = 64


LAB_LIMITS = LabLimits()


def whole(field: str, value: int, least: int, most: int) -> int:
    """`value`, where it lies within least … most."""
    if not least <= value <= most:
        raise LabError(field, f"{field} is {value}; allowed are {least} to {most}")
    return value


def positive(field: str, value: float, most: float = LARGEST) -> float:
    """`value`, where it is a number over 0 and at most `most`."""
    if not 0 < value <= most:
        raise LabError(field, f"{field} is {value}; it must be over 0 and at most {most:g}")
    return value


def vector(
    field: str, values: Row, limits: LabLimits = LAB_LIMITS, *, size: int | None = None
) -> Array:
    """A vector (D,) in float64; `size` is the D that it must have."""
    array = _floats(field, values)
    if array.ndim != 1:
        raise LabError(field, f"{field} has {array.ndim} axes; it must be one row of numbers")
    return _sized(field, array, "numbers", 0, limits.dimensions, size)


def matrix(
    field: str,
    values: Rows,
    limits: LabLimits = LAB_LIMITS,
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> Array:
    """A weight matrix (rows, columns) in float64, both of them dimensions."""
    array = _sized(field, _table(field, values), "rows", 0, limits.dimensions, rows)
    return _sized(field, array, "columns", 1, limits.dimensions, columns)


def sequence(
    field: str,
    values: Rows,
    limits: LabLimits = LAB_LIMITS,
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> Array:
    """One vector a token: (T, D) in float64, T and D within the limits or exactly as asked."""
    array = _sized(field, _table(field, values), "rows, one a token", 0, limits.tokens, rows)
    return _sized(field, array, "columns", 1, limits.dimensions, columns)


def token_names(tokens: Sequence[str] | None, n_tokens: int) -> tuple[str, ...]:
    """The tokens' names; their indices where none are given."""
    if tokens is None:
        return tuple(str(index) for index in range(n_tokens))
    if len(tokens) != n_tokens:
        raise LabError("tokens", f"tokens has {len(tokens)} names for {n_tokens} rows of vectors")
    return tuple(tokens)


def index_of(field: str, index: int, size: int) -> int:
    """The true index on an axis of `size`; negative ones count from the end."""
    return whole(field, index, -size, size - 1) % size


def _table(field: str, values: Rows) -> Array:
    if not isinstance(values, np.ndarray):
        # numpy's own word for rows of unequal length names no row.
        for index, row in enumerate(values):
            if isinstance(row, Sequence) and len(row) != len(values[0]):
                raise LabError(
                    field,
                    f"{field}[{index}] has {len(row)} numbers and {field}[0] has "
                    f"{len(values[0])}; all rows must have one length",
                )
    array = _floats(field, values)
    if array.ndim != 2:
        raise LabError(field, f"{field} has {array.ndim} axes; it must be a list of rows")
    return array


def _floats(field: str, values: Row | Rows) -> Array:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise LabError(field, f"{field} is not made of numbers: {error}") from error
    bad = np.argwhere(~(np.abs(array) <= LARGEST))
    if len(bad):
        where = "".join(f"[{index}]" for index in bad[0])
        raise LabError(
            field,
            f"{field}{where} is {array[tuple(bad[0])]}; "
            f"numbers must lie between {-LARGEST:g} and {LARGEST:g}",
        )
    return array


def _sized(field: str, array: Array, noun: str, axis: int, most: int, wanted: int | None) -> Array:
    size = array.shape[axis]
    if wanted is not None and size != wanted:
        raise LabError(field, f"{field} has {size} {noun}; it must have {wanted}")
    if not 1 <= size <= most:
        raise LabError(field, f"{field} has {size} {noun}; allowed are 1 to {most}")
    return array
