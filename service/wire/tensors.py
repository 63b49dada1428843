"""Named tensors on the wire: nested JSON, base64, sparse rows, safetensors.

Knows nothing of where the numbers come from, nor of HTTP.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from model.sites import Axis
from service.schemas.reading import Format
from service.wire.decimals import Nested, nested_size
from service.wire.parts import Chunk, Part

Array = npt.NDArray[np.float32] | npt.NDArray[np.float16]
_NUMPY = orjson.OPT_SERIALIZE_NUMPY
_NUMBERS = 1 << 18  # that orjson writes in one call
_BASE64_PIECE = 3 << 15  # whole groups of three bytes, so that the pieces join


class NotFiniteError(ValueError):
    """A number that JSON cannot hold; the message names the tensor and the place."""


@dataclass(frozen=True, eq=False)
class NamedTensor:
    """Values with what they are: `coords` holds the true indices of axes not taken whole.

    `weights`: they are attention weights, so between 0 and 1 unless an edit put others there.
    """

    name: str
    site: str
    axes: tuple[Axis, ...]
    coords: Mapping[Axis, list[int]]
    values: Array

    @property
    def weights(self) -> bool:
        return self.site == "attn.pattern"

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The least and the largest value, NaN where there is one; looked for once."""
        if not self.values.size:
            return 0.0, 0.0
        return float(self.values.min()), float(self.values.max())

    def head(self) -> dict[str, Any]:
        """All that is said about it in JSON, but the numbers."""
        return {
            "name": self.name,
            "site": self.site,
            "axes": self.axes,
            "shape": self.values.shape,
            "coords": self.coords,
            "dtype": str(self.values.dtype),
        }


def json_parts(tensor: NamedTensor, form: Format) -> list[Part]:
    """One tensor as a JSON object, its numbers yet to be written where their size is known.

    Raises NotFiniteError for NaN or +∞ in nested and sparse form; base64 carries every bit.
    """
    head = {**tensor.head(), "encoding": form.encoding}
    if form.encoding == "base64":
        return [_open(head, "data"), b'"', Base64(tensor.values), b'"}']
    require_json_numbers(tensor)
    if form.encoding == "sparse":
        parts: list[Part] = [orjson.dumps(head)[:-1]]
        for key, values in sparse_rows(tensor, form).items():
            parts += [b',"' + key.encode() + b'":', *_exact(values)]
        return [*parts, b"}"]
    return [_open(head, "data"), *_nested(tensor, form), b"}"]


def require_json_numbers(tensor: NamedTensor) -> None:
    """Raises NotFiniteError for a NaN or +∞, which have no JSON; −∞ is written as null."""
    values = tensor.values
    if tensor.extremes[1] < np.inf:  # NaN compares false
        return
    place = np.argwhere(np.isnan(values) | np.isposinf(values))[0]
    where = dict(zip(tensor.axes, place.tolist(), strict=True))
    raise NotFiniteError(
        f"{tensor.name} holds {float(values[tuple(place)])} at {where}, which JSON cannot say; "
        "ask for base64 or safetensors to see it"
    )


def _nested(tensor: NamedTensor, form: Format) -> list[Part]:
    values = np.ascontiguousarray(tensor.values, dtype=np.float32)
    if form.exact:
        return _exact(values)
    return [Nested(values, form.decimals, weights=tensor.weights, extremes=tensor.extremes)]


def _exact(values: npt.NDArray[Any]) -> list[Part]:
    """Nested arrays of the shortest texts that give each number back, in pieces: while orjson
    writes, the interpreter's lock is held, and with it the event loop."""
    if values.size <= _NUMBERS:
        return [orjson.dumps(values, option=_NUMPY)]
    parts: list[Part] = [b"["]
    if values.ndim > 1:
        for number, row in enumerate(values):
            parts += [b","] * (number > 0) + _exact(row)
    else:
        for start in range(0, len(values), _NUMBERS):
            text = orjson.dumps(values[start : start + _NUMBERS], option=_NUMPY)[1:-1]
            parts += [b","] * (start > 0) + [text]
    return [*parts, b"]"]


class Base64:
    """The little-endian bytes of values, in base64."""

    def __init__(self, values: Array) -> None:
        self._values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        self.n_bytes = -(-self._values.nbytes // 3) * 4

    def pieces(self) -> Iterator[Chunk]:
        raw = self._values.reshape(-1).view(np.uint8).data
        for start in range(0, len(raw), _BASE64_PIECE):
            yield base64.b64encode(raw[start : start + _BASE64_PIECE])


def sparse_rows(tensor: NamedTensor, form: Format) -> dict[str, npt.NDArray[Any]]:
    """Rows over the last axis, the weights kept and the mass of those left out.

    Kept are weights that are not 0, at least `threshold`, and the `keys_per_row` heaviest (the
    earlier key where two are equal). Nothing is renormalised. Keys are in rising order.
    """
    values = np.asarray(tensor.values, dtype=np.float32)
    rows = values.reshape(-1, values.shape[-1])
    keep = rows != 0
    if form.threshold is not None:
        keep &= rows >= form.threshold
    if form.keys_per_row is not None and form.keys_per_row < rows.shape[1]:
        heaviest = np.argsort(-rows, axis=1, kind="stable")[:, : form.keys_per_row]
        among = np.zeros_like(keep)
        np.put_along_axis(among, heaviest, True, axis=1)
        keep &= among
    kept = np.where(keep, rows, 0)
    dropped = rows.sum(axis=1, dtype=np.float64) - kept.sum(axis=1, dtype=np.float64)
    true_keys = np.asarray(tensor.coords.get(tensor.axes[-1], range(rows.shape[1])))
    numbers = rows[keep]
    if not form.exact:
        numbers = np.round(numbers.astype(np.float64), form.decimals)
    return {
        "row_offsets": np.concatenate(([0], np.cumsum(keep.sum(axis=1)))),
        "keys": true_keys[np.nonzero(keep)[1]],
        "values": numbers,
        "dropped_mass": np.round(dropped, 8),
    }


def json_tensors(tensors: Sequence[NamedTensor], form: Format) -> list[Part]:
    """The tensors by name, as the text of one JSON object, in parts."""
    parts: list[Part] = [b"{"]
    for number, tensor in enumerate(tensors):
        parts.append((b"," if number else b"") + orjson.dumps(tensor.name) + b":")
        parts.extend(json_parts(tensor, form))
    return [*parts, b"}"]


def json_answer(answer: dict[str, Any], tensors: list[Part]) -> list[Part]:
    """An answer with its tensors, as json_tensors gives them, under the key `tensors`."""
    return [_open(answer, "tensors"), *tensors, b"}"]


def safetensors_answer(answer: dict[str, Any], tensors: Sequence[NamedTensor]) -> list[Part]:
    """The safetensors format: the tensors, widest dtype first, handed on and not copied. The
    answer, as JSON with the tensors' descriptions, is the metadata's one key."""
    described = {**answer, "tensors": {tensor.name: tensor.head() for tensor in tensors}}
    ordered = sorted(tensors, key=lambda tensor: -tensor.values.dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": {"answer": orjson.dumps(described).decode()}}
    offset = 0
    bodies: list[Part] = []
    for tensor in ordered:
        values = np.ascontiguousarray(tensor.values)
        header[tensor.name] = {
            "dtype": {4: "F32", 2: "F16"}[values.dtype.itemsize],
            "shape": values.shape,
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
        bodies.append(values.reshape(-1).view(np.uint8).data)
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little") + head, *bodies]


def _open(head: dict[str, Any], key: str) -> bytes:
    return orjson.dumps(head)[:-1] + b',"' + key.encode() + b'":'


def json_size(shape: tuple[int, ...], form: Format, *, weights: bool, hidden: int = 0) -> int:
    """Bytes of a tensor's numbers in this form; `hidden` of them are known to be 0 or null.

    Fixed decimals and base64 are known to the byte. The shortest exact text of a number is 11 bytes
    on average, a weight's 12.2. Sparse rows are counted as if nothing were left out.
    """
    count = prod(shape)
    if form.encoding == "base64":
        return -(-count * (2 if form.dtype == "float16" else 4) // 3) * 4
    if form.exact or form.encoding == "sparse":
        return round((count - hidden) * (12.2 if weights else 11) + hidden * (4 if weights else 5))
    return nested_size(shape, form.decimals, weights=weights)
