"""Numbers as fixed-decimal JSON text at memory speed. Knows nothing of tensors' names or HTTP.

Every number is one slot of the same width: a comma, spaces, the whole part with its point and
sign, the fraction. A row of slots, and the brackets before it, is one gather from a small table of
ready bytes, so that the work is a few passes over memory and the size is known beforehand. The
zeros that end the rows of a causal map take two bytes each.
Shapes: R rows, S numbers a row, P table entries of the brackets before a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from service.wire.parts import Chunk

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


class Nested:
    """`values` as nested JSON arrays, each number rounded half to even at `decimals` digits.

    The size is known before a number is written, and the pieces are made as they are asked for.
    −∞ becomes null; NaN and +∞ must not occur. `weights` says that the values are expected to be
    between 0 and 1, which makes slots narrower; it is checked, not trusted. `extremes` are the
    least and the largest of the values, where they are known.
    """

    def __init__(
        self,
        values: Floats,
        decimals: int,
        *,
        weights: bool,
        extremes: tuple[float, float] | None = None,
    ) -> None:
        self._shape, self._decimals = values.shape, decimals
        self._ready: list[Chunk] | None = None
        if values.ndim < 1 or 0 in values.shape:
            self._ready = [orjson.dumps(values.tolist())]
            self.n_bytes = len(self._ready[0])
            return
        self._rows = values.reshape(-1, values.shape[-1])
        low, high = extremes or (float(values.min()), float(values.max()))
        narrow = weights and low >= 0 and high <= 1
        slots: _WeightSlots | _NumberSlots = (
            _WeightSlots(decimals)
            if narrow and 0 < decimals <= GROUP
            else _NumberSlots(decimals, narrow=narrow)
        )
        self._kinds, self._kind = _brackets(values.shape)
        self._line = _Line(slots, self._kinds, values.shape[-1])
        if low == -np.inf:
            low = float(np.nanmin(np.where(np.isneginf(values), np.nan, values), initial=0.0))
        self._at_a_time = 4
        if max(-low, high) < LARGEST - 1:
            self._blocks = list(self._cut(slots.blank))
            self.n_bytes = values.ndim + sum(
                len(rows) * self._line.n_bytes(end) for rows, end in self._blocks
            )
        else:  # how long such a number's text is shows only when it is written
            self._blocks = [(rows, values.shape[-1]) for rows, _ in self._cut(slots.blank)]
            self._at_a_time = 1
            self._ready = list(self._written())
            self.n_bytes = sum(memoryview(piece).nbytes for piece in self._ready)

    def pieces(self) -> Iterator[Chunk]:
        """The text, in order. Each piece is memory of its own."""
        return iter(self._ready) if self._ready is not None else self._written()

    def _cut(self, blank: float) -> Iterator[tuple[range, int]]:
        """Rows to write at a time, and the column from which on all of them hold `blank` alone.

        A causal map ends in zeros, or −∞: they need no working out, and less room. No piece goes
        over the border between two maps, so that the columns of zeros show.
        """
        n_rows, width = self._rows.shape
        whole = self._shape[-2] if len(self._shape) > 1 else 1
        at_once = max(1, _CHUNK // width)
        step = at_once // whole * whole or whole
        border = n_rows // step * step
        start = 0
        for rows in (self._rows[:border].reshape(-1, step, width), self._rows[None, border:]):
            cuts = range(0, rows.shape[1], at_once)
            ends = [_ends(rows[:, cut : cut + at_once], blank).tolist() for cut in cuts]
            for of_step in zip(*ends, strict=True):
                for cut, end in zip(cuts, of_step, strict=True):
                    yield range(start + cut, start + min(cut + at_once, rows.shape[1])), end
                start += rows.shape[1]

    def _written(self) -> Iterator[Chunk]:
        for start in range(0, len(self._blocks), self._at_a_time):
            yield self._piece(self._blocks[start : start + self._at_a_time])
        yield b"]" * len(self._shape)

    def _piece(self, blocks: list[tuple[range, int]]) -> Chunk:
        sizes = [len(rows) * self._line.n_entries(end) for rows, end in blocks]
        text = np.empty(sum(sizes), dtype=self._line.entry)
        parts = np.split(text, np.cumsum(sizes)[:-1])
        for (rows, end), part in zip(blocks, parts, strict=True):
            at = slice(rows.start, rows.stop)
            if not self._line.write(self._rows[at], self._kind[at], end, part):
                # Then it is the only one: see _at_a_time.
                before = self._kinds[self._kind[at]]
                return _write_slowly(self._rows[at], self._decimals, before)
        return text.view(np.uint8).data


def _ends(rows: Floats, blank: float) -> npt.NDArray[np.intp]:
    """Of each of rows (N, R, S): from which column on they all hold `blank` or less alone."""
    filled = rows.max(axis=1) > blank
    ends: npt.NDArray[np.intp] = filled.shape[1] - filled[:, ::-1].argmax(axis=1)
    return np.where(filled.any(axis=1), ends, 0)


def nested_size(shape: tuple[int, ...], decimals: int, *, weights: bool) -> int:
    """Bytes that Nested comes to at most, for values under LARGEST in magnitude.

    Less only by what the zeros save that end every row of a causal map.
    """
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
    blank, blank_text = 0.0, b"0"

    def __init__(self, decimals: int) -> None:
        self.table: Table = _weight_slots(decimals)
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
        self.blank, self.blank_text = (0.0, b"0") if narrow else (-np.inf, b"null")
        self._signed = not narrow
        self._starts = np.cumsum([0, *map(len, tables[:-1])])
        self._n_wholes = len(wholes)
        self._power = 10.0**decimals
        self._units = [10.0 ** sum(digits[n + 1 :]) for n in range(len(digits))]
        entries = [0] * self.words
        if self._signed:
            entries = [2 * LARGEST] * len(wholes) + [10**n for n in digits]
        self._null_index = self._starts + entries

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
            index[null] = self._null_index
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
    """A row of slots with the brackets before it: one index into one table of both.

    After the slots come the blanks: what ends the row alike in all rows that are written together,
    four of them in the room of fewer slots.
    """

    def __init__(self, slots: _WeightSlots | _NumberSlots, kinds: Bytes, width: int) -> None:
        self._slots, self._width = slots, width
        entry = self.entry = slots.table.dtype
        four = b"".join(b"," + slots.blank_text for _ in range(4))
        texts = [four, *(four[: n * len(four) // 4] for n in (1, 2, 3))]
        texts = [text.ljust(-(-len(text) // entry.itemsize) * entry.itemsize) for text in texts]
        parts = [slots.table, kinds.reshape(-1).view(entry)]
        parts += [np.frombuffer(text, dtype=entry) for text in texts]
        self._table = np.concatenate(parts)
        starts = np.cumsum([0, *map(len, parts)])
        kinds_at, *blanks_at = (np.arange(start, stop) for start, stop in pairwise(starts[1:]))
        self._kinds = kinds_at.reshape(len(kinds), -1)
        self._fours = np.tile(blanks_at[0], width // 4)
        self._fewer = [blanks_at[0][:0], *blanks_at[1:]]
        self._four = len(blanks_at[0])  # entries of four blanks

    def n_bytes(self, end: int) -> int:
        """Of a row with `end` slots, blanks behind them."""
        return self.n_entries(end) * self.entry.itemsize

    def n_entries(self, end: int) -> int:
        n_blanks = self._width - end
        blanks = n_blanks // 4 * self._four + len(self._fewer[n_blanks % 4])
        return self._kinds.shape[1] + end * self._slots.words + blanks

    def write(self, rows: Floats, kind: npt.NDArray[np.intp], end: int, text: Table) -> bool:
        """The rows into text. False where a number needs another way of writing."""
        first, last = self._kinds.shape[1], self._kinds.shape[1] + end * self._slots.words
        index = np.empty((len(rows), self.n_entries(end)), dtype=np.int64)
        index[:, :first] = self._kinds[kind]
        numbers = index[:, first:last].reshape(len(rows), end, self._slots.words)
        if not self._slots.look_up(rows[:, :end], numbers):
            return False
        fours, fewer = divmod(self._width - end, 4)
        middle = last + fours * self._four
        index[:, last:middle] = self._fours[: middle - last]
        index[:, middle:] = self._fewer[fewer]
        self._table.take(index, out=text.reshape(index.shape), mode="clip")  # "raise" copies
        lines = text.view(np.uint8).reshape(len(rows), -1)
        lines[:, first * self.entry.itemsize] = ord(" ")  # no comma before the first
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
