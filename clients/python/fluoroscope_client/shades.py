"""Numbers as shades: how dark each one is, and the colours from the lightest to the darkest.

Knows nothing of screens and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fluoroscope_client.safetensors import Floats

Colour = tuple[int, int, int]
MASKED = 255
_STEPS = 254
_WHITE, _BLUE, _NAVY, _ORANGE, _BROWN = (
    (255, 255, 255),
    (88, 148, 214),
    (12, 38, 94),
    (240, 150, 84),
    (122, 42, 8),
)
_GREY = (205, 205, 205)


@dataclass(frozen=True)
class Shades:
    """`of` holds a shade of 0 to 254 for each number, and MASKED where one is −∞ or no number.

    `signed`: 127 is 0, and the darkest of either side the largest magnitude. Otherwise 0 is
    `low` and 254 is `high`.
    """

    of: npt.NDArray[np.uint8]
    low: float
    high: float
    signed: bool

    @property
    def palette(self) -> list[Colour]:
        """The colour of each shade, of MASKED too."""
        signed = [_BROWN, _ORANGE, _WHITE, _BLUE, _NAVY]
        return [*through(signed if self.signed else [_WHITE, _BLUE, _NAVY]), _GREY]


def through(colours: Sequence[Colour]) -> list[Colour]:
    """As many colours as there are shades, evenly from the first of these to the last."""
    places = np.linspace(0, _STEPS, len(colours))
    channels = [
        np.interp(np.arange(_STEPS + 1), places, [colour[channel] for colour in colours])
        for channel in range(3)
    ]
    return [(int(r), int(g), int(b)) for r, g, b in zip(*np.rint(channels), strict=True)]


def shaded(values: Floats, bounds: tuple[float, float] | None = None) -> Shades:
    """Values from 0 up are shaded from 0 to the largest, others from minus to plus the largest
    magnitude. `bounds` of more than these values can be given, to make maps comparable.
    """
    low, high = bounds or extent(values)
    signed = low < 0
    reach = max(-low, high) if signed else high
    start = -reach if signed else 0.0
    finite = np.isfinite(values)
    numbers = np.where(finite, values, 0).astype(np.float64)
    parts = (numbers - start) / ((reach - start) or 1.0)
    shades = (parts.clip(0, 1) * _STEPS).round().astype(np.uint8)
    shades[~finite] = MASKED
    return Shades(shades, start, reach, signed)


def extent(values: Floats) -> tuple[float, float]:
    """The smallest and the largest finite value, (0, 0) where there is none."""
    if values.size and np.isfinite(bounds := (float(values.min()), float(values.max()))).all():
        return bounds
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def pooled(values: Floats, rows: int, columns: int) -> Floats:
    """A matrix of at most so many cells: each is the value of the largest magnitude in its block.

    A block of nothing but −∞ is −∞.
    """
    return _pooled(_pooled(values, rows, 0), columns, 1)


def block(length: int, limit: int) -> int:
    """How many entries one cell stands for."""
    return max(1, -(-length // limit))


def _pooled(values: Floats, limit: int, axis: int) -> Floats:
    size = block(values.shape[axis], limit)
    if size == 1:
        return values
    starts = np.arange(0, values.shape[axis], size)
    hidden = np.isfinite(values)
    highest = np.maximum.reduceat(np.where(hidden, values, -np.inf), starts, axis=axis)
    lowest = np.minimum.reduceat(np.where(hidden, values, np.inf), starts, axis=axis)
    return np.where(highest >= -lowest, highest, lowest).astype(values.dtype)
