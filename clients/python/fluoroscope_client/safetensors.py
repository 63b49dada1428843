"""The safetensors format, read by hand and never trusted. Knows nothing of the server.

A body is 8 bytes (the header's length, little-endian), the header as JSON, and the numbers.
https://huggingface.co/docs/safetensors#format
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fluoroscope_client.answers import json_object
from fluoroscope_client.errors import AnswerError

Floats = npt.NDArray[np.floating[Any]]
_DTYPES: dict[str, np.dtype[np.floating[Any]]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
}


def read(body: bytes) -> tuple[dict[str, Floats], dict[str, Any]]:
    """The arrays by name, and the metadata. The arrays are read-only views of `body`.

    Raises AnswerError where the header promises anything that the body does not hold: the
    numbers must fill the body from its first byte to its last, without gap or overlap.
    """
    if len(body) < 8:
        raise AnswerError(f"a safetensors body of {len(body)} bytes has no header")
    length = int.from_bytes(body[:8], "little")
    if length > len(body) - 8:
        raise AnswerError(f"the header claims {length} bytes; {len(body) - 8} are there")
    header = json_object(body[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise AnswerError("the header's __metadata__ is no object")
    data = memoryview(body)[8 + length :]
    spans = {name: _span(name, said) for name, said in header.items()}
    filled = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != filled:
            raise AnswerError(f"{name} begins at byte {begin}; the numbers before end at {filled}")
        filled = end
    if filled != len(data):
        raise AnswerError(f"the tensors take {filled} bytes; the body has {len(data)}")
    return {name: _array(name, said, data, spans[name]) for name, said in header.items()}, metadata


def _span(name: str, said: Any) -> tuple[int, int]:
    match said:
        case {"dtype": str(), "shape": list(shape), "data_offsets": [begin, end]} if all(
            type(number) is int and number >= 0 for number in (*shape, begin, end)
        ):
            if begin > end:
                raise AnswerError(f"{name} ends at byte {end}, before its begin {begin}")
            return begin, end
    raise AnswerError(f"{name} has no dtype, shape and data_offsets that can be read")


def _array(name: str, said: dict[str, Any], data: memoryview, span: tuple[int, int]) -> Floats:
    dtype = _DTYPES.get(said["dtype"])
    if dtype is None:
        raise AnswerError(f"{name} is {said['dtype']}; this client reads {', '.join(_DTYPES)}")
    size = prod(said["shape"]) * dtype.itemsize
    if size != span[1] - span[0]:
        raise AnswerError(
            f"{name} of shape {said['shape']} takes {size} bytes; {span[1] - span[0]} are given"
        )
    try:
        flat: Floats = np.frombuffer(data[span[0] : span[1]], dtype=dtype)
        return flat.reshape(tuple(said["shape"]))
    except (ValueError, OverflowError) as error:  # numpy takes fewer axes than JSON can say
        raise AnswerError(f"{name}: {error}") from error
