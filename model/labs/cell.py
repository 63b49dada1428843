"""One number of an attention map taken apart, and held against the model's own.

Knows nothing of HTTP. Shapes: S key, D d_head, E width of v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.labs.attention import attend_row
from model.labs.given import Array


@dataclass(frozen=True, eq=False)
class Cell:
    """From the products to what the query takes from the key, all in float64.

    `products` (D,) add up to `dot`; `score` = dot × `scale`; `exp` = exp(score − `row_max`), or 0
    where `masked`; `weight` = exp / `row_sum`; `weighted_v` = weight × `v` (E,).
    `magnitude` is Σ |q_i k_i|, what the error of a dot is measured by.
    """

    rot_q: Array
    rot_k: Array
    products: Array
    magnitude: float
    dot: float
    scale: float
    score: float
    masked: bool
    row_max: float
    exp: float
    row_sum: float
    weight: float
    v: Array
    weighted_v: Array


@dataclass(frozen=True)
class CellErrors:
    """Largest distances of the model's own numbers from these.

    `dot` and `score` are parts of `magnitude` (times the scale), `weight` is absolute.
    """

    dot: float
    score: float
    weight: float


def take_apart(
    key: int, rot_q: Array, rot_k: Array, v: Array, *, scale: float, hidden: NDArray[np.bool_]
) -> Cell:
    """The cell of one query (rot_q (D,)) at `key`; the others' keys (S, D) give its softmax."""
    row = attend_row(0, rot_q, rot_k, v, scale=scale, hidden=hidden)
    products = row.products[key]
    return Cell(
        rot_q=rot_q,
        rot_k=rot_k[key],
        products=products,
        magnitude=float(np.abs(products).sum()),
        dot=float(row.dots[key]),
        scale=scale,
        score=float(row.scores[key]),
        masked=bool(hidden[key]),
        row_max=row.row_max,
        exp=float(row.exps[key]),
        row_sum=row.row_sum,
        weight=float(row.pattern[key]),
        v=v[key],
        weighted_v=row.weighted_v[key],
    )


def errors_of(cell: Cell, *, dot: float, score: float, weight: float) -> CellErrors:
    """How far the model's own dot, score and weight are from the cell's."""
    size = cell.magnitude or 1.0
    return CellErrors(
        dot=abs(dot - cell.dot) / size,
        score=abs(score - cell.score) / (size * abs(cell.scale) or 1.0),
        weight=abs(weight - cell.weight),
    )
