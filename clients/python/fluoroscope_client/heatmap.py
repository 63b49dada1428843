"""Tensors and readings as HTML for notebooks: maps with their tokens, of bounded size.

A map is one small PNG however long the text is; words and hover numbers come only where there is
room to read them. Whatever comes from a text is escaped.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fluoroscope_client.labels import CONTINUED, clipped, visible, width
from fluoroscope_client.png import png
from fluoroscope_client.safetensors import Floats
from fluoroscope_client.shades import block, extent, pooled, shaded

if TYPE_CHECKING:
    from fluoroscope_client.answers import Prediction
    from fluoroscope_client.reading import Reading
    from fluoroscope_client.tensor import Tensor

MAPS, CELLS, SMALL = 24, 256, 64
HOVER = 1024  # cells that say their number
SIDE, READABLE = 480, 9  # pixels: of a large map, of a cell that has a label
TOKENS, POSITIONS = 256, 16
_MONO = "font-family:ui-monospace,monospace;font-size:11px"


def tensor_html(tensor: Tensor) -> str | None:
    """A map of the last two axes for each index of the others; None for a single number."""
    if tensor.values.size == 0 or tensor.values.ndim == 0:
        return None
    outer = tensor.axes[:-2]
    bounds = extent(tensor.values)
    caption = f"<div>{escape(repr(tensor).partition(chr(10))[0])}, {_range(bounds)}</div>"
    if not outer:
        return caption + _large(tensor, bounds)
    whole = [tensor.indices(axis) for axis in outer]
    figures = []
    for number, indices in enumerate(product(*whole)):
        if number == MAPS:
            break
        places = dict(zip(outer, indices, strict=True))
        title = " · ".join(f"{axis} {index}" for axis, index in places.items())
        picture = _image(tensor.sel(**places).values, bounds, SMALL, 96)
        figures.append(
            f'<figure style="margin:0">{picture}<figcaption>{escape(title)}</figcaption></figure>'
        )
    count = int(np.prod([len(indices) for indices in whole]))
    more = f"<div>{MAPS} of {count} maps; sel({escape(outer[0])}=…) shows others</div>"
    grid = f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(figures)}</div>'
    return f"{caption}{grid}{more if count > MAPS else ''}"


def reading_html(reading: Reading) -> str:
    """The tokens, what is likely to come next, and the first tensor's maps."""
    said = f"{reading.input['n_tokens']} tokens, {reading.model['id']}"
    parts = [f"<div><b>Reading</b> of {escape(said)}</div>", _tokens(reading)]
    parts += [_prediction(said, reading) for said in reading.predictions[:POSITIONS]]
    for number, tensor in enumerate(reading.tensors.values()):
        picture = tensor_html(tensor) if number == 0 else None
        parts.append(picture or f"<div>{escape(repr(tensor).partition(chr(10))[0])}</div>")
    return "".join(parts)


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}"


def _tokens(reading: Reading) -> str:
    style = "border:1px solid #8886;padding:0 2px;margin:1px;display:inline-block"
    shown = "".join(
        f'<span title="{place}: id {reading.token_ids[place]}" style="{style}">'
        f"{escape(visible(token['display'] or CONTINUED))}</span>"
        for place, token in enumerate(reading.tokens[:TOKENS])
    )
    more = " …" if len(reading.tokens) > TOKENS else ""
    return f'<div style="{_MONO}">{shown}{more}</div>'


def _prediction(said: Prediction, reading: Reading) -> str:
    place = said["position"]
    after = reading.tokens[place]["display"] if place < len(reading.tokens) else str(place)
    rows = "".join(
        f"<tr><td>{escape(visible(token['text'] or str(token['id'])))}</td>"
        f"<td>{token['probability']:.3f}</td>"
        f'<td><div style="background:#5894d6;height:9px;width:{token["probability"] * 200:.0f}px">'
        "</div></td></tr>"
        for token in said["top"][:10]
    )
    return (
        f'<div>after {place}, {escape(visible(after))}</div><table style="{_MONO}">{rows}</table>'
    )


def _large(tensor: Tensor, bounds: tuple[float, float]) -> str:
    values = np.atleast_2d(tensor.values)
    columns = tensor.labels(tensor.axes[-1])
    rows = tensor.labels(tensor.axes[0]) if tensor.values.ndim == 2 else [tensor.name]
    steps = block(len(rows), CELLS), block(len(columns), CELLS)
    cell = min(22, max(2, SIDE // -(-max(len(rows), len(columns)) // max(steps))))
    high, wide = (cell * -(-n // step) for n, step in zip(values.shape, steps, strict=True))
    if cell < READABLE or max(steps) > 1:
        each = "" if max(steps) == 1 else f"; each cell the largest of {steps[0]} × {steps[1]}"
        return f"<div>{_image(values, bounds, CELLS, max(high, wide))}{each}</div>"
    rows, columns = ([clipped(visible(one), 14) for one in some] for some in (rows, columns))
    left, top = (7 * max(map(width, some)) + 6 for some in (rows, columns))
    down = _words(rows, lambda at: f'x="{left - 4}" y="{top + (at + 0.7) * cell:.0f}"')
    across = _words(
        columns,
        lambda at: f'transform="translate({left + (at + 0.7) * cell:.0f},{top - 4}) rotate(-90)"',
    )
    cells = _cells(values, rows, columns, cell) if values.size <= HOVER else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide}" height="{top + high}" '
        f'role="img" style="{_MONO}" fill="currentColor">'
        f'<image x="{left}" y="{top}" width="{wide}" height="{high}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{_data(values, bounds)}"/>'
        f'<g text-anchor="end">{down}</g>{across}'
        f'<g transform="translate({left},{top})" fill-opacity="0">{cells}</g></svg>'
    )


def _words(labels: Sequence[str], place: Callable[[int], str]) -> str:
    return "".join(f"<text {place(at)}>{escape(one)}</text>" for at, one in enumerate(labels))


def _cells(values: Floats, rows: Sequence[str], columns: Sequence[str], cell: int) -> str:
    return "".join(
        f'<rect x="{x * cell}" y="{y * cell}" width="{cell}" height="{cell}"><title>'
        f"{escape(rows[y])} {escape(columns[x])}: {number:.4g}</title></rect>"
        for (y, x), number in np.ndenumerate(values)
    )


def _image(values: Floats, bounds: tuple[float, float], cells: int, side: int) -> str:
    """A map without words, no larger than `cells` each way and `side` pixels on the page."""
    small = pooled(np.atleast_2d(values), cells, cells)
    longest = max(small.shape)
    high, wide = (max(8, side * length // longest) for length in small.shape)
    return (
        f'<img width="{wide}" height="{high}" style="image-rendering:pixelated" alt="" '
        f'src="{_data(small, bounds)}">'
    )


def _data(values: Floats, bounds: tuple[float, float]) -> str:
    shades = shaded(values, bounds)
    return f"data:image/png;base64,{b64encode(png(shades.of, shades.palette)).decode()}"
