"""A Reading read off answers of both forms, and off answers that break the contract. No server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fluoroscope_client import AnswerError
from fluoroscope_client.reading import JSON, SAFETENSORS, read_reading

HEAD: dict[str, Any] = {
    "name": "attn.masked_scores",
    "site": "attn.masked_scores",
    "axes": ["layer", "query", "key"],
    "shape": [1, 2, 2],
    "coords": {"layer": [3], "query": [0, 4]},
    "dtype": "float32",
}
NUMBERS = [[[0.5, None], [1.25, -2.0]]]
ANSWER: dict[str, Any] = {
    "model": {"id": "tiny"},
    "input": {"n_tokens": 5},
    "tokens": [{"id": 7, "display": "猫"}],
    "checks": {"finite": True},
    "timing_ms": {"forward": 1.0},
    "tensors": {"attn.masked_scores": {**HEAD, "encoding": "nested", "data": NUMBERS}},
}


def as_json(**changes: Any) -> bytes:
    return json.dumps({**ANSWER, **changes}).encode()


def as_safetensors(**changes: Any) -> bytes:
    said = {**ANSWER, "tensors": {"attn.masked_scores": HEAD}, **changes}
    span = {"dtype": "F32", "shape": HEAD["shape"], "data_offsets": [0, 16]}
    metadata = {"answer": json.dumps(said)}
    header = json.dumps({"__metadata__": metadata, "attn.masked_scores": span}).encode()
    values = np.array([0.5, -np.inf, 1.25, -2.0], "<f4")
    return len(header).to_bytes(8, "little") + header + values.tobytes()


@pytest.mark.parametrize(
    ("media_type", "body"), [(JSON, as_json()), (SAFETENSORS, as_safetensors())]
)
def test_both_forms_give_the_same_reading(media_type: str, body: bytes) -> None:
    reading = read_reading(media_type, body)
    tensor = reading["attn.masked_scores"]
    expected = np.array([[[0.5, -np.inf], [1.25, -2.0]]], np.float32)
    np.testing.assert_array_equal(tensor.values, expected)
    assert tensor.dtype == np.float32
    assert not tensor.values.flags.writeable
    assert tensor.axes == ("layer", "query", "key")
    assert tensor.coords == {"layer": (3,), "query": (0, 4)}
    assert tensor.sel(layer=3, query=-1, key=0).values == 1.25
    assert reading.token_ids == [7]
    assert reading.tokens[0]["display"] == "猫"
    assert (reading.predictions, reading.comparison, reading.estimate) == ([], None, None)
    assert repr(reading).splitlines() == [
        "Reading of 5 tokens by tiny",
        "  attn.masked_scores (layer × 1 [3] · query × 2 [0, 4] · key × 2) float32",
    ]


def test_tokens_as_ids_leave_the_full_ones_empty() -> None:
    reading = read_reading(JSON, as_json(tokens=[7, 8]))
    assert (reading.tokens, reading.token_ids) == ([], [7, 8])
    nothing = read_reading(JSON, as_json(tokens=[]))
    assert (nothing.tokens, nothing.token_ids) == ([], [])


def test_keys_of_a_newer_server_do_no_harm() -> None:
    read_reading(JSON, as_json(weather="fine"))


def tensors(**changes: Any) -> dict[str, Any]:
    return {"attn.masked_scores": {**ANSWER["tensors"]["attn.masked_scores"], **changes}}


BROKEN = {
    "not JSON": b"<html>",
    "a NaN": as_json().replace(b"0.5", b"NaN"),
    "no object": b"[]",
    "no tokens": as_json(tokens=None),
    "no tensors": as_json(tensors=None),
    "tensors that are numbers": as_json(tensors={"a": 1}),
    "a number of tokens in words": as_json(input={"n_tokens": "five"}),
    "uneven arrays": as_json(tensors=tensors(data=[[[1.0], [1.0, 2.0]]])),
    "arrays of text": as_json(tensors=tensors(data=[[["a", "b"], ["c", "d"]]])),
    "arrays of another shape": as_json(tensors=tensors(shape=[1, 4, 2])),
    "an unknown encoding": as_json(tensors=tensors(encoding="telegraph")),
    "too few axes": as_json(tensors=tensors(axes=["query", "key"])),
    "an axis twice": as_json(tensors=tensors(axes=["key", "query", "key"])),
    "coordinates of another length": as_json(tensors=tensors(coords={"query": [0, 1, 2]})),
    "coordinates that are a list": as_json(tensors=tensors(coords=[1])),
    "coordinates of no axis": as_json(tensors=tensors(coords={"head": [0]})),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_broken_json_answer_is_refused(body: bytes) -> None:
    with pytest.raises(AnswerError):
        read_reading(JSON, body)


@pytest.mark.parametrize("said", [None, {}, {"other": HEAD}])
def test_safetensors_answer_must_tell_of_just_its_tensors(said: Any) -> None:
    with pytest.raises(AnswerError, match=r"tensors|holds"):
        read_reading(SAFETENSORS, as_safetensors(tensors=said))


def test_answer_of_another_type_is_refused() -> None:
    with pytest.raises(AnswerError, match="text/html"):
        read_reading("text/html", as_json())
