"""Numbers as fixed-decimal JSON text at memory speed. Knows nothing of tensors' names or HTTP.

Every number is one slot of the same width: a comma, spaces, the whole part with its point and
sign, the fraction. A slot is filled by gathers from small tables of ready bytes, so a row costs a
few passes over memory and the size is known before anything is written.
Shapes: R rows, S numbers a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt
import orjson

GROUP = 4  # digits of the fraction in one table
LARGEST = 10_000  # whole parts from here on are not in the table: those numbers go the slow way
_CHUNK = 1 << 14  # numbers written at a time, so that what lies between stays in the cache

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def write_nested(values: Floats, decimals: int, *, weights: bool) -> Iterator[bytes]:
    """`values` as nested JSON arrays, each number rounded half to even at `decimals` digits.

    −∞ becomes null; NaN and +∞ must not occur. `weights` says that the values are expected to be
    between 0 and 1, which makes slots narrower; it is checked, not trusted.
    """
    if values.ndim < 1 or 0 in values.shape:
        yield orjson.dumps(values.tolist())
        return
    rows = values.reshape(-1, values.shape[-1])
    prefixes, closing = _brackets(values.shape)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        yield _write_rows(part, decimals, prefixes[start : start + step], weights)
    yield closing


def nested_size(shape: tuple[int, ...], decimals: int, *, weights: bool) -> int:
    """Bytes that write_nested gives for values under LARGEST − 1 in magnitude."""
    if not shape or 0 in shape:
        return 2
    slot = (4 if weights else 8) + -(-decimals // GROUP) * 4
    rows = prod(shape[:-1])
    return rows * (_prefix_width(len(shape)) + shape[-1] * slot) + len(shape)


def _prefix_width(depth: int) -> int:
    """Room for `]],[[` of the deepest step between rows, in whole words."""
    return -(-max(2 * depth - 1, depth) // 4) * 4


def _brackets(shape: tuple[int, ...]) -> tuple[Words, bytes]:
    """What stands before each row (R, prefix words), and what stands after the last."""
    depth = len(shape)
    width = _prefix_width(depth)
    kinds = [(b"]" * n + b"," + b"[" * n).rjust(width) for n in range(1, depth)]
    kinds.append((b"[" * depth).rjust(width))
    table = np.frombuffer(b"".join(kinds), dtype=np.uint32).reshape(depth, -1)
    rows = np.arange(prod(shape[:-1]))
    ended = np.zeros(len(rows), dtype=np.intp)
    for axis in range(1, depth - 1):
        ended += rows % prod(shape[axis:-1]) == 0
    if len(ended):
        ended[0] = depth - 1
    return table[ended], b"]" * depth


def _write_rows(rows: Floats, decimals: int, prefixes: Words, weights: bool) -> bytes:
    low, high = float(rows.min()), float(rows.max())
    if high >= LARGEST - 1 or -np.inf < low <= 1 - LARGEST or _hides_a_large_one(rows, low):
        return _write_rows_slowly(rows, decimals, prefixes)
    prefix = prefixes.shape[1]
    groups = -(-decimals // GROUP)
    whole = 1 if weights and low >= 0 and high <= 1 else 2
    out = np.empty((len(rows), prefix + rows.shape[1] * (whole + groups)), dtype=np.uint32)
    out[:, :prefix] = prefixes
    slots = out[:, prefix:].reshape(*rows.shape, whole + groups)
    scaled = np.rint(np.multiply(np.abs(rows), 10.0**decimals, dtype=np.float64))
    if whole == 1 and groups == 1:
        slots.view(np.uint64)[..., 0] = _weight_slots(decimals).take(scaled.astype(np.intp))
    else:
        _fill_slots(slots, rows, scaled, decimals, whole)
    text = out.view(np.uint8)
    text[:, 4 * prefix] = ord(" ")  # no comma before a row's first number
    return text.tobytes()


def _hides_a_large_one(rows: Floats, low: float) -> bool:
    """Whether −∞ as the minimum hides a finite number too large for the table."""
    return bool(low == -np.inf and (rows[np.isfinite(rows)] <= 1 - LARGEST).any())


def _fill_slots(
    slots: Words, rows: Floats, scaled: npt.NDArray[np.float64], decimals: int, whole: int
) -> None:
    """Whole part and groups of the fraction into slots (R, S, words); scaled = |x| · 10^decimals,
    a whole number below 2^53, so that every step here is exact."""
    null = np.isneginf(rows)
    any_null = bool(null.any())
    if any_null:
        scaled[null] = 0
    power = 10.0**decimals
    units = np.floor(scaled / power)
    rest = scaled - units * power
    if whole == 2:
        units += np.signbit(rows) * float(LARGEST)
        if any_null:
            units[null] = 2 * LARGEST
    for word, table in enumerate(_whole_parts(whole, decimals > 0)):
        slots[..., word] = table.take(units.astype(np.intp))
    for group in range(-(-decimals // GROUP)):
        digits = min(GROUP, decimals - group * GROUP)
        power /= 10.0**digits
        part = np.floor(rest / power) if power > 1 else rest
        if any_null:
            part = np.where(null, 10.0**digits, part)
        slots[..., whole + group] = _fractions(digits).take(part.astype(np.intp))
        if power > 1:
            rest -= np.where(null, 0, part) * power


def _write_rows_slowly(rows: Floats, decimals: int, prefixes: Words) -> bytes:
    """Any magnitude: shortest text of the rounded double, through orjson."""
    rounded = np.round(rows.astype(np.float64), decimals)
    lines = (orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for row in rounded)
    return b"".join(before.tobytes() + line for before, line in zip(prefixes, lines, strict=True))


@cache
def _weight_slots(decimals: int) -> npt.NDArray[np.uint64]:
    """`,  0.1234`: every weight from 0 to 1 at this many decimals, one 8-byte slot each."""
    texts = (f"{k / 10**decimals:.{decimals}f}" for k in range(10**decimals + 1))
    return np.frombuffer(b"".join(_slot(text, 8) for text in texts), dtype=np.uint64)


@cache
def _whole_parts(words: int, point: bool) -> tuple[Words, ...]:
    """`, -12.`: whole parts from 0, then negative ones from −0, then null; one word: 0 and 1.

    One table for each word of the slot.
    """
    dot = "." if point else ""
    texts = [f"{n}{dot}" for n in range(LARGEST if words == 2 else 2)]
    if words == 2:
        texts += [f"-{text}" for text in texts] + ["null"]
    slots = b"".join(_slot(text, 4 * words) for text in texts)
    return tuple(np.frombuffer(slots, dtype=np.uint32).reshape(-1, words).T.copy())


@cache
def _fractions(digits: int) -> Words:
    """`3456`: fractions of up to four digits, space-padded behind; then the blank after a null."""
    texts = [f"{n:0{digits}d}".ljust(4) for n in range(10**digits)]
    return np.frombuffer("".join([*texts, "    "]).encode(), dtype=np.uint32)


def _slot(text: str, width: int) -> bytes:
    return b"," + text.rjust(width - 1).encode()
