"""Numbers as fixed-decimal JSON text at memory speed. Knows nothing of tensors' names or HTTP.

Every number is one slot of the same width: a comma, spaces, the whole part with its point and
sign, the fraction. A row of slots, and the brackets before it, is one gather from a small table of
ready bytes, so that the work is a few passes over memory and the size is known beforehand.
Shapes: R rows, S numbers a row, P table entries of the brackets before a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

GROUP = 4  # digits of the fraction in one table
LARGEST = 10_000  # whole parts from here on are not in the table: those numbers go the slow way
_CHUNK = 1 << 14  # numbers written at a time, so that what lies between stays in the cache

# A float64 of this size has no room for a fraction: adding it rounds half to even, and the sum's
# low bits are the rounded number. Much cheaper than rint and a conversion.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = np.float64(_SHIFT).view(np.int64)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[Any]  # ready bytes, as whole uint32 or uint64


def write_nested(values: Floats, decimals: int, *, weights: bool) -> Iterator[bytes | memoryview]:
    """`values` as nested JSON arrays, each number rounded half to even at `decimals` digits.

    −∞ becomes null; NaN and +∞ must not occur. `weights` says that the values are expected to be
    between 0 and 1, which makes slots narrower; it is checked, not trusted.
    """
    if values.ndim < 1 or 0 in values.shape:
        yield orjson.dumps(values.tolist())
        return
    rows = values.reshape(-1, values.shape[-1])
    kinds, kind = _brackets(values.shape)
    narrow = weights and bool(rows.min() >= 0 and rows.max() <= 1)
    slots: _WeightSlots | _NumberSlots = (
        _WeightSlots(decimals)
        if narrow and 0 < decimals <= GROUP
        else _NumberSlots(decimals, narrow=narrow)
    )
    line = _Line(slots, kinds, rows.shape[1])
    # One buffer for all: memory touched for the first time costs more than what is written in it,
    # and numpy asks for huge pages.
    out = np.empty((len(rows), line.n_bytes), dtype=np.uint8)
    for start in range(0, len(rows), line.at_once):
        part = slice(start, start + line.at_once)
        if line.write(rows[part], kind[part], out[part]):
            yield out[part].reshape(-1).data
        else:
            yield _write_slowly(rows[part], decimals, kinds[kind[part]])
    yield b"]" * values.ndim


def nested_size(shape: tuple[int, ...], decimals: int, *, weights: bool) -> int:
    """Bytes that write_nested gives for values under LARGEST in magnitude."""
    if not shape or 0 in shape:
        return 2
    slot = (4 if weights else 8) + -(-decimals // GROUP) * 4
    rows = prod(shape[:-1])
    return rows * (_bracket_width(len(shape)) + shape[-1] * slot) + len(shape)


def _bracket_width(depth: int) -> int:
    """Room for `]],[[` of the deepest step between rows, in whole uint64."""
    return -(-max(2 * depth - 1, depth) // 8) * 8


def _brackets(shape: tuple[int, ...]) -> tuple[Bytes, npt.NDArray[np.intp]]:
    """What can stand before a row (kinds, bytes), and which of it does before each (R,)."""
    depth = len(shape)
    width = _bracket_width(depth)
    texts = [(b"]" * n + b"," + b"[" * n).rjust(width) for n in range(1, depth)]
    texts.append((b"[" * depth).rjust(width))
    rows = np.arange(prod(shape[:-1]))
    kind = np.zeros(len(rows), dtype=np.intp)
    for axis in range(1, depth - 1):
        kind += rows % prod(shape[axis:-1]) == 0
    kind[0] = depth - 1
    return np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(depth, width), kind


class _WeightSlots:
    """`,  0.1234`: numbers from 0 to 1 at one to four decimals, one table entry of 8 bytes each."""

    words = 1
    blank = 0.0

    def __init__(self, decimals: int) -> None:
        self.table: Table = _weight_slots(decimals)
        self.blank_index = np.zeros(1, dtype=np.int64)
        self._power = 10.0**decimals

    def look_up(self, rows: Floats, index: Indices) -> bool:
        """Which entries make each number's text, into index (R, S, words)."""
        scaled = np.multiply(rows, self._power, dtype=np.float64)
        scaled += _SHIFT
        np.subtract(scaled.view(np.int64), _SHIFT_BITS, out=index[..., 0])
        return True


class _NumberSlots:
    """`, -12.34567 `: numbers under LARGEST in magnitude, one table entry for each 4 bytes."""

    def __init__(self, decimals: int, *, narrow: bool) -> None:
        digits = [min(GROUP, decimals - start) for start in range(0, decimals, GROUP)]
        wholes = _whole_parts(1 if narrow else 2, decimals > 0)
        tables = [*wholes, *(_fractions(n) for n in digits)]
        self.table: Table = np.concatenate(tables)
        self.words = len(tables)
        self.blank = 0.0 if narrow else -np.inf
        self._signed = not narrow
        self._starts = np.cumsum([0, *map(len, tables[:-1])])
        self._n_wholes = len(wholes)
        self._power = 10.0**decimals
        self._units = [10.0 ** sum(digits[n + 1 :]) for n in range(len(digits))]
        entries = [0] * self.words
        if self._signed:
            entries = [2 * LARGEST] * len(wholes) + [10**n for n in digits]
        self.blank_index = self._starts + entries

    def look_up(self, rows: Floats, index: Indices) -> bool:
        """The same; False where a number is too large for the table."""
        rest = np.multiply(rows, self._power, dtype=np.float64)
        np.abs(rest, out=rest)
        null = np.isinf(rest) if rest.max(initial=0.0) == np.inf else None
        if null is not None:
            rest[null] = 0.0
        rest += _SHIFT
        rest -= _SHIFT
        if rest.max(initial=0.0) >= LARGEST * self._power:
            return False
        whole = _take_whole(rest, self._power)
        if self._signed:
            whole += np.multiply(np.signbit(rows), LARGEST, dtype=np.int64)
        for word in range(self._n_wholes):
            np.add(whole, self._starts[word], out=index[..., word])
        for word, unit in enumerate(self._units, self._n_wholes):
            np.add(_take_whole(rest, unit), self._starts[word], out=index[..., word])
        if null is not None:
            index[null] = self.blank_index
        return True


def _take_whole(rest: Doubles, unit: float) -> Indices:
    """rest // unit as integers, and rest left as rest % unit. Both are whole, rest under 2^51.

    The quotient is at least 1/2 unit from where half a unit up or down would round it wrongly, so
    the error of multiplying by 1/unit does not matter.
    """
    whole = rest * (1 / unit)
    whole -= 0.5 - 0.5 / unit
    whole += _SHIFT
    integer = whole.view(np.int64) - _SHIFT_BITS
    if unit > 1:
        whole -= _SHIFT
        whole *= unit
        rest -= whole
    return integer


class _Line:
    """A row of slots with the brackets before it: one index into one table of both."""

    def __init__(self, slots: _WeightSlots | _NumberSlots, kinds: Bytes, width: int) -> None:
        self._slots = slots
        entry = slots.table.dtype
        self._table = np.concatenate((slots.table, kinds.reshape(-1).view(entry)))
        self._before = kinds.shape[1] // entry.itemsize  # P
        entries = np.arange(len(slots.table), len(self._table))
        self._kinds = entries.reshape(len(kinds), self._before)
        n_entries = self._before + width * slots.words
        self.n_bytes = n_entries * entry.itemsize
        self.at_once = max(1, _CHUNK // width)
        self._index = np.empty((self.at_once, n_entries), dtype=np.int64)

    def write(self, rows: Floats, kind: npt.NDArray[np.intp], text: Bytes) -> bool:
        """Rows into text (R, n_bytes). False where a number needs another way of writing."""
        index = self._index[: len(rows)]
        index[:, : self._before] = self._kinds[kind]
        numbers = index[:, self._before :].reshape(*rows.shape, self._slots.words)
        # A causal map ends in columns that hold nothing but 0, or −∞: no need to work them out.
        filled = np.flatnonzero(rows.max(axis=0) > self._slots.blank)
        end = filled[-1] + 1 if len(filled) else 0
        numbers[:, end:] = self._slots.blank_index
        if not self._slots.look_up(rows[:, :end], numbers[:, :end]):
            return False
        self._table.take(index, out=text.view(self._table.dtype), mode="clip")  # "raise" copies
        text[:, self._before * self._table.itemsize] = ord(" ")  # no comma before the first
        return True


def _write_slowly(rows: Floats, decimals: int, before: Bytes) -> bytes:
    """Any magnitude: shortest text of the rounded double, through orjson."""
    rounded = np.round(rows.astype(np.float64), decimals)
    lines = (orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for row in rounded)
    return b"".join(prefix.tobytes() + line for prefix, line in zip(before, lines, strict=True))


@cache
def _weight_slots(decimals: int) -> npt.NDArray[np.uint64]:
    """`,  0.1234`: every weight from 0 to 1 at this many decimals."""
    texts = (f"{k / 10**decimals:.{decimals}f}" for k in range(10**decimals + 1))
    return np.frombuffer(b"".join(_slot(text, 8) for text in texts), dtype=np.uint64)


@cache
def _whole_parts(words: int, point: bool) -> tuple[npt.NDArray[np.uint32], ...]:
    """`, -12.`: whole parts from 0, then negative ones from −0, then null; one word: 0 and 1.

    One table for each word of the text.
    """
    dot = "." if point else ""
    texts = [f"{n}{dot}" for n in range(LARGEST if words == 2 else 2)]
    if words == 2:
        texts += [f"-{text}" for text in texts] + ["null"]
    slots = b"".join(_slot(text, 4 * words) for text in texts)
    return tuple(np.frombuffer(slots, dtype=np.uint32).reshape(-1, words).T.copy())


@cache
def _fractions(digits: int) -> npt.NDArray[np.uint32]:
    """`3456`: fractions of up to four digits, space-padded behind; then the blank after a null."""
    texts = [f"{n:0{digits}d}".ljust(4) for n in range(10**digits)]
    return np.frombuffer("".join([*texts, "    "]).encode(), dtype=np.uint32)


def _slot(text: str, width: int) -> bytes:
    return b"," + text.rjust(width - 1).encode()
