"""Distribution: statistics and histogram of a vector's or matrix's numbers, in float64.

Values that are not finite are counted and left out. A large tensor is read in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model.parameters.inventory import ParameterError

_CHUNK = 1 << 16  # numbers held in float64 at once: 512 KiB, which stay in the cache


@dataclass(frozen=True)
class Statistics:
    """Over the finite values; None where there are none. `std` is that of the population.

    `norm` is √(Σ x²).
    """

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    fraction_zero: float
    nan_count: int
    infinite_count: int

    @property
    def any_nan(self) -> bool:
        return self.nan_count > 0


def statistics(values: Tensor) -> Statistics:
    """Two passes in float64, the second for the deviations from the mean."""
    zeros = nans = infinite = finite = 0
    low, high, first, square = math.inf, -math.inf, 0.0, 0.0
    for chunk in _chunks(values):
        known = _finite(chunk)
        zeros += int((known == 0).sum())
        if known is not chunk:
            nans += int(chunk.isnan().sum())
            infinite += int(chunk.isinf().sum())
        if known.numel():
            finite += known.numel()
            low, high = min(low, float(known.min())), max(high, float(known.max()))
            first += float(known.sum())
            square += float(known.dot(known))
    if not finite:
        empty = (None,) * 5
        return Statistics(values.numel(), *empty, zeros / values.numel(), nans, infinite)
    mean = first / finite
    deviation = 0.0
    for chunk in _chunks(values):
        away = _finite(chunk) - mean
        deviation += float(away.dot(away))
    return Statistics(
        count=values.numel(),
        mean=mean,
        std=math.sqrt(deviation / finite),
        min=low,
        max=high,
        norm=math.sqrt(square),
        fraction_zero=zeros / values.numel(),
        nan_count=nans,
        infinite_count=infinite,
    )


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` values lie from `edges[i]` up to but not `edges[i + 1]`; the last bin has both.

    Finite values only. Where all are equal the bins span one unit around them.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


def histogram(values: Tensor, bins: int = 64, *, known: Statistics | None = None) -> Histogram:
    """Equal bins from the smallest to the largest value; no bins where none is finite.

    `known` are the same values' statistics, where they are at hand. Raises ParameterError for
    fewer than 1 bin.
    """
    if bins < 1:
        raise ParameterError(f"bins is {bins}; it must be at least 1")
    known = statistics(values) if known is None else known
    if known.min is None or known.max is None:
        return Histogram((), ())
    counts = np.zeros(bins, dtype=np.int64)
    edges = np.histogram_bin_edges(np.empty(0), bins, (known.min, known.max))
    for chunk in _chunks(values):
        counts += np.bincount(_bin_of(_finite(chunk).numpy(), edges), minlength=bins)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))


def _bin_of(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> Any:
    """The bin of each value: by division, then put right where rounding crossed an edge."""
    bins, low = len(edges) - 1, edges[0]
    places = ((values - low) * (bins / (edges[-1] - low))).astype(np.intp)
    np.minimum(places, bins - 1, out=places)
    places -= values < edges.take(places)
    places += (values >= edges.take(places + 1)) & (places < bins - 1)
    return places


def _chunks(values: Tensor) -> Iterator[Tensor]:
    """Flat, in float64, on the CPU, about _CHUNK numbers each (a row at least)."""
    rows = max(1, _CHUNK // max(1, values[0].numel()))
    for start in range(0, len(values), rows):
        yield values[start : start + rows].cpu().double().flatten()


def _finite(chunk: Tensor) -> Tensor:
    """The chunk itself where all of it is finite."""
    there = chunk.isfinite()
    return chunk if there.all() else chunk[there]
