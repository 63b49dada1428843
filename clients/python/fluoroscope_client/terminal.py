"""Maps and tables as lines of a terminal: they fit its width, and say the same without colours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from fluoroscope_client.labels import clipped, padded, visible, width
from fluoroscope_client.shades import MASKED, Colour, Shades, block, pooled, shaded, through
from fluoroscope_client.tensor import Tensor

# From nothing to the largest, on a dark screen and on a light one.
_RISING: list[Colour] = [(22, 30, 62), (46, 108, 190), (246, 196, 64)]
_DARKNESS = " .:-=+*#%@"
_LABEL, _CELL, _NUMBER = 14, 6, 5
RESET = "\x1b[0m"


@dataclass(frozen=True)
class Screen:
    """`colours`: how many it has, 0 for a file, a pipe, or where NO_COLOR asks for none."""

    columns: int
    colours: Literal[0, 256, 16777216]

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Screen:
        """What a stream can show (https://no-color.org)."""
        columns = shutil.get_terminal_size((100, 24)).columns
        plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or not stream.isatty()
        if plain:
            return cls(columns, 0)
        full = environ.get("COLORTERM") in ("truecolor", "24bit")
        return cls(columns, 16777216 if full else 256)


def draw_map(tensor: Tensor, screen: Screen) -> list[str]:
    """A map of two axes: a line for each index of the first, cells for those of the second.

    Where a cell is less than a column, several share one, which shows the largest of them.
    """
    rows, columns = ([visible(label) for label in tensor.labels(axis)] for axis in tensor.axes)
    digits = len(str(max(tensor.indices(tensor.axes[0]), default=0)))
    names = min(_LABEL, max(map(width, rows), default=1))
    left = digits + names + 2
    room = max(1, screen.columns - left)
    size = block(len(columns), room)
    cell = min(_CELL, max(1, room // len(columns)))
    values = pooled(tensor.values, -(-len(rows) // size), -(-len(columns) // size))
    shades = shaded(values)
    lines = [" " * left + _header(columns, list(tensor.indices(tensor.axes[1])), cell, size)]
    for row, number in enumerate(list(tensor.indices(tensor.axes[0]))[::size]):
        name = f"{number:>{digits}} {padded(rows[row * size], names)} "
        numbers = [_number(value, cell) for value in values[row]] if cell >= _NUMBER else None
        lines.append(name + _cells(shades, row, cell, numbers, screen))
    if size > 1:
        lines.append(f"each cell is the largest of {size} × {size}")
    return [line.rstrip() for line in lines]


def _header(labels: Sequence[str], indices: Sequence[int], cell: int, size: int) -> str:
    """Words where they can be read, else a number now and then."""
    if size == 1 and (cell > 2 or all(width(label) <= cell for label in labels)):
        words = cell if cell < 3 else cell - 1
        return "".join(padded(clipped(label, words), cell) for label in labels)
    every = -(-10 // cell)
    marks = [str(index) for index in indices[:: size * every]]
    return "".join(mark.ljust(every * cell) for mark in marks)[: cell * -(-len(labels) // size)]


def _cells(
    shades: Shades, row: int, cell: int, numbers: Sequence[str] | None, screen: Screen
) -> str:
    parts, colour = [], ""
    ramp = shades.palette if shades.signed else through(_RISING)
    for at, shade in enumerate(shades.of[row].tolist()):
        empty = shade == MASKED or (shade == 0 and not shades.signed)
        said = "" if numbers is None or empty else numbers[at]
        if not screen.colours:
            parts.append((said or _dark(shade, shades) * cell).center(cell))
            continue
        wanted = RESET if empty else _paint(ramp[shade], screen.colours)
        if wanted != colour:
            parts.append(wanted)
            colour = wanted
        parts.append(said.center(cell))
    return "".join(parts) + (RESET if colour not in ("", RESET) else "")


def _dark(shade: int, shades: Shades) -> str:
    if shade == MASKED:
        return " "
    strength = abs(shade - 127) / 127 if shades.signed else shade / 254
    return _DARKNESS[round(strength * (len(_DARKNESS) - 1))]


def _number(value: float, cell: int) -> str:
    """With as many of two decimals as leave a column between it and the next."""
    texts = (f"{value:.{decimals}f}" for decimals in (2, 1, 0))
    return next((text for text in texts if len(text) < cell), clipped("…", cell))


def _paint(colour: Colour, colours: int) -> str:
    """The colour as ground, with black or white on it, whichever is easier to read."""
    red, green, blue = colour
    ink = 16 if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else 231
    if colours > 256:
        ground = f"2;{red};{green};{blue}"
    else:  # the 6 × 6 × 6 cube, whose steps are 0, 95, 135, … 255
        r, g, b = (0 if part < 48 else 1 if part < 115 else (part - 35) // 40 for part in colour)
        ground = f"5;{16 + 36 * r + 6 * g + b}"
    return f"\x1b[48;{ground};38;5;{ink}m"


def bar(part: float, columns: int) -> str:
    """A share of 1 as a bar, padded to so many columns."""
    eighths = round(max(0.0, min(1.0, part)) * columns * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(columns)


def table(rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Columns side by side; `right` has an r for each column whose text stands at its right."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    sides = right.ljust(len(widths))
    return [
        "  ".join(
            padded(text, columns, right=side == "r")
            for text, columns, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]
