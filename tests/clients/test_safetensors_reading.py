"""The client's safetensors reader against the format's own library, and against lies."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fluoroscope_client import FluoroscopeError
from fluoroscope_client.safetensors import read
from hypothesis import given
from hypothesis import strategies as st

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F16", "shape": [3], "data_offsets": [16, 22]},
}
DATA = bytes(range(22))


def body_of(header: Any, data: bytes = DATA, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(text) if length is None else length
    return claimed.to_bytes(8, "little") + text + data


def test_reads_what_the_library_writes() -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "pattern": draw.standard_normal((2, 3, 4)).astype(np.float32),
        "half": draw.standard_normal(5).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "one": np.array(-np.inf, np.float32),
    }
    found, metadata = read(safetensors.numpy.save(arrays, {"answer": "{}"}))
    assert metadata == {"answer": "{}"}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_arrays_are_views_of_the_body_and_cannot_be_written() -> None:
    body = body_of(GOOD)
    arrays, _ = read(body)
    whole = np.frombuffer(body, np.uint8)
    for array in arrays.values():
        assert np.shares_memory(array, whole)
        assert not array.flags.writeable


def changed(name: str, **parts: Any) -> dict[str, Any]:
    return {**GOOD, name: {**GOOD[name], **parts}}


LIES = {
    "no body": b"",
    "shorter than its length field": b"\x01\x00\x00",
    "header longer than the body": body_of(GOOD, length=10**6),
    "header of 2^64 - 1 bytes": body_of(GOOD, length=2**64 - 1),
    "header cut in the middle": body_of(GOOD, length=20),
    "header of another encoding": body_of(b'{"\xff": {}}', b""),
    "header that is a list": body_of([1, 2]),
    "header nested without end": body_of(b"[" * 100_000, b""),
    "metadata that is text": body_of({"__metadata__": "answer", **GOOD}),
    "tensor that is a number": body_of({**GOOD, "c": 3}),
    "tensor without a shape": body_of({"a": {"dtype": "F32", "data_offsets": [0, 22]}}),
    "offsets past the end": body_of(changed("b", data_offsets=[16, 400], shape=[192])),
    "offsets that overlap": body_of(changed("b", data_offsets=[14, 22], shape=[4])),
    "the same numbers twice": body_of({**GOOD, "c": GOOD["b"]}),
    "a gap before a tensor": body_of(changed("b", data_offsets=[18, 22], shape=[2])),
    "a gap at the start": body_of({"b": GOOD["b"]}),
    "numbers that no tensor owns": body_of(GOOD, DATA + b"\x00"),
    "offsets the wrong way round": body_of(changed("a", data_offsets=[16, 0])),
    "negative offsets": body_of(changed("a", data_offsets=[-16, 0])),
    "offsets that are true and false": body_of(changed("a", data_offsets=[False, True])),
    "one offset": body_of(changed("a", data_offsets=[0])),
    "a shape that takes more": body_of(changed("a", shape=[2, 3])),
    "a shape that takes less": body_of(changed("a", shape=[2])),
    "a negative shape": body_of(changed("a", shape=[-2, -2])),
    "a fractional shape": body_of(changed("a", shape=[2.0, 2])),
    "a shape of 100 axes": body_of(changed("a", shape=[2, 2, *[1] * 98])),
    "an empty shape past all integers": body_of(
        {**GOOD, "c": {"dtype": "F32", "shape": [0, 2**80], "data_offsets": [22, 22]}}
    ),
    "a type that numpy lacks": body_of(changed("b", dtype="BF16")),
    "a type that is none": body_of(changed("b", dtype=16)),
}


@pytest.mark.parametrize("body", LIES.values(), ids=LIES.keys())
def test_lie_is_an_error_of_the_client(body: bytes) -> None:
    with pytest.raises(FluoroscopeError):
        read(body)


def test_the_body_behind_the_lies_is_good() -> None:
    arrays, metadata = read(body_of(GOOD))
    assert arrays["a"].tobytes() + arrays["b"].tobytes() == DATA
    assert metadata == {}


@given(st.data())
def test_any_damage_is_an_error_of_the_client_or_harmless(data: st.DataObject) -> None:
    body = bytearray(body_of(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    try:
        arrays, _ = read(bytes(body[:cut]))
    except FluoroscopeError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(body)
