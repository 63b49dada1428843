"""Tensors on the wire: exact JSON, base64, sparse rows, safetensors give the same numbers back."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from safetensors.numpy import load

from service.schemas.reading import Format
from service.wire.parts import pieces_of, size_of
from service.wire.tensors import (
    NamedTensor,
    NotFiniteError,
    json_parts,
    safetensors_answer,
    sparse_rows,
)
from tests.answers import array, ask, exact, refused, safetensors, single, strict_json

TEXT = "The cat chased the mouse because it was hungry."
PATH = "/v1/attention"
FLOATS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
    elements=st.floats(width=32, allow_nan=False).filter(lambda x: x != float("inf")),
)
PATTERNS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=3, max_side=6),
    elements=st.floats(0, 1, width=32) | st.sampled_from([0.0, 0.25]),
)
AXES: tuple[Any, ...] = ("layer", "head", "query", "key")


def tensor(values: NDArray[Any], coords: Any = None, site: str = "attn.pattern") -> NamedTensor:
    return NamedTensor("t", site, AXES[4 - values.ndim :], coords or {}, values)


def as_json(values: NDArray[Any], **form: Any) -> Any:
    return strict_json(text_of(values, **form))


def text_of(values: NDArray[Any], **form: Any) -> bytes:
    parts = json_parts(tensor(values), Format(**form))
    text = b"".join(pieces_of(parts))
    assert len(text) == size_of(parts)
    return text


@given(values=FLOATS)
def test_exact_text_gives_the_float32_back(values: NDArray[np.float32]) -> None:
    found = single(as_json(values, exact=True))
    assert found.tobytes() == values.tobytes() or np.array_equal(found, values)


@given(values=FLOATS)
def test_exact_text_is_the_shortest(values: NDArray[np.float32]) -> None:
    text = text_of(values, exact=True)
    numbers = text[text.index(b'"data":') + 7 : -1].decode().strip("[]")
    ours = [part.strip("[] ") for part in numbers.split(",")]
    for written, value in zip(ours, values.reshape(-1), strict=True):
        if written != "null":
            digits = len(written.partition("e")[0].lstrip("-0.").replace(".", "").rstrip("0"))
            shortest = np.format_float_scientific(value, unique=True).partition("e")[0]
            assert digits <= len(shortest.lstrip("-0.").replace(".", "").rstrip("0"))


@pytest.mark.parametrize("kind", ["<f4", "<f2"])
def test_base64_is_little_endian_bytes_of_the_dtype(kind: str) -> None:
    values = np.array([[1.5, -np.inf], [np.nan, 2.0**-20]], dtype=kind)
    found = as_json(values, encoding="base64")
    assert base64.b64decode(found["data"]) == values.tobytes()
    assert found["dtype"] == {"<f4": "float32", "<f2": "float16"}[kind]
    if kind == "<f4":
        assert found["data"] == "AADAPwAAgP8AAMB/AACANQ=="  # by struct.pack("<4f")


@given(
    values=PATTERNS,
    keys_per_row=st.none() | st.integers(1, 7),
    threshold=st.none() | st.floats(0, 1),
)
def test_sparse_rows_hold_the_heaviest_and_account_for_the_rest(
    values: NDArray[np.float32], keys_per_row: int | None, threshold: float | None
) -> None:
    form = {"encoding": "sparse", "keys_per_row": keys_per_row, "threshold": threshold}
    found = as_json(values, exact=True, **form)
    kept = array(found).astype(np.float32)
    rows, out = values.reshape(-1, values.shape[-1]), kept.reshape(-1, values.shape[-1])
    for row, sent, dropped in zip(rows, out, found["dropped_mass"], strict=True):
        at = np.nonzero(sent)[0]
        assert np.array_equal(sent[at], row[at])  # never renormalised
        assert dropped == pytest.approx(
            float(row.sum(dtype=np.float64) - sent.sum(dtype="f8")), abs=1e-7
        )
        left_out = np.setdiff1d(np.nonzero(row)[0], at)
        if keys_per_row is not None:
            assert len(at) <= keys_per_row
        for key in left_out:
            light = threshold is not None and row[key] < threshold
            assert light or (len(at) == keys_per_row and row[key] <= row[at].min())
        if threshold is not None:
            assert (row[at] >= threshold).all()


def test_sparse_keys_are_true_positions_in_rising_order() -> None:
    values = np.array([[0.5, 0.0, 0.125, 0.375]], dtype=np.float32)
    found = sparse_rows(
        tensor(values, {"key": [3, 9, 4, 11]}), Format(encoding="sparse", keys_per_row=2)
    )
    assert found["keys"].tolist() == [3, 11]
    assert found["values"].tolist() == [0.5, 0.375]
    assert found["row_offsets"].tolist() == [0, 2]
    assert found["dropped_mass"].tolist() == [0.125]


def test_weight_at_the_very_threshold_is_kept() -> None:
    values = np.array([[0.1, 0.0999, 0.8]], dtype=np.float32)
    found = sparse_rows(tensor(values), Format(encoding="sparse", threshold=0.1))
    assert found["keys"].tolist() == [0, 2]


def test_of_equal_weights_the_earlier_key_is_kept() -> None:
    values = np.full((1, 4), 0.25, dtype=np.float32)
    assert sparse_rows(tensor(values), Format(encoding="sparse", keys_per_row=2))[
        "keys"
    ].tolist() == [0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_json_cannot_say_is_refused_with_its_place(value: float) -> None:
    values = np.zeros((2, 3), dtype=np.float32)
    values[1, 2] = value
    for form in ({}, {"exact": True}, {"encoding": "sparse"}):
        with pytest.raises(NotFiniteError, match=r"t holds (nan|inf) at {'query': 1, 'key': 2}"):
            as_json(values, **form)


def test_safetensors_library_reads_ours_widest_first_with_the_answer_inside() -> None:
    half = np.arange(3, dtype=np.float16)
    wide = np.arange(4, dtype=np.float32).reshape(2, 2).T  # not contiguous
    tensors = [
        NamedTensor("half", "embed", ("position",), {}, half),
        NamedTensor("wide", "embed", ("position", "d_model"), {}, wide),
    ]
    body = b"".join(bytes(chunk) for chunk in safetensors_answer({"猫": 1}, tensors))
    found = load(body)
    assert np.array_equal(found["half"], half) and found["half"].dtype == np.float16
    assert np.array_equal(found["wide"], wide)
    size = int.from_bytes(body[:8], "little")
    assert (8 + size) % 8 == 0
    header = json.loads(body[8 : 8 + size])
    answer = json.loads(header["__metadata__"]["answer"])
    assert answer["猫"] == 1
    assert answer["tensors"]["half"]["axes"] == ["position"]
    assert header["wide"]["data_offsets"] == [0, 16]
    assert header["half"]["data_offsets"] == [16, 22]


def test_every_form_of_an_answer_holds_the_same_numbers(family: str, clients: Any) -> None:
    client = clients[family]
    body: dict[str, Any] = {"text": TEXT, "layers": [1], "heads": [0, 2]}
    whole = exact(client, PATH, "attn.pattern", **body)

    def form(**asked: Any) -> Any:
        return array(ask(client, PATH, **body, format=asked)["tensors"]["attn.pattern"])

    assert np.array_equal(form(encoding="base64"), whole)
    assert np.array_equal(form(encoding="sparse", exact=True).astype(np.float32), whole)
    assert np.array_equal(form(encoding="base64", dtype="float16"), whole.astype(np.float16))
    assert np.array_equal(safetensors(client, PATH, **body)[1]["attn.pattern"], whole)
    half = safetensors(client, PATH, **body, format={"dtype": "float16"})[1]["attn.pattern"]
    assert half.dtype == np.float16 and np.array_equal(half, whole.astype(np.float16))
    for decimals in range(9):
        assert np.array_equal(form(decimals=decimals), np.round(whole.astype(np.float64), decimals))


def test_bytes_come_with_the_same_description_as_json(client: TestClient) -> None:
    body: dict[str, Any] = {"text": TEXT, "layers": [2, 0], "stages": ["pattern", "dots"]}
    said = safetensors(client, PATH, **body)[0]["tensors"]
    plain = ask(client, PATH, **body)["tensors"]
    assert said == {
        name: {key: tensor[key] for key in tensor if key not in ("data", "encoding")}
        for name, tensor in plain.items()
    }
    assert said["attn.dots"]["coords"] == {"layer": [2, 0]}


def test_nested_numbers_come_from_float32_whatever_the_dtype_asked_for(
    client: TestClient,
) -> None:
    body: dict[str, Any] = {"text": TEXT, "layers": [0], "heads": [0]}
    answer = ask(client, PATH, **body, format={"exact": True, "dtype": "float16"})
    tensor = answer["tensors"]["attn.pattern"]
    assert tensor["dtype"] == "float32"
    assert np.array_equal(single(tensor), exact(client, PATH, "attn.pattern", **body))


def test_probabilities_come_from_float32_logits_whatever_the_dtype_asked_for(
    client: TestClient,
) -> None:
    form = {"encoding": "base64", "dtype": "float16"}
    plain = ask(client, "/v1/logits", text=TEXT, compare=True)
    half = ask(client, "/v1/logits", text=TEXT, compare=True, full=True, format=form)
    assert half["predictions"] == plain["predictions"]
    assert half["comparison"]["max_logit_change"] == [0.0] * len(plain["tokens"])


def test_sparse_rows_of_what_is_no_pattern_are_refused(client: TestClient) -> None:
    form = {"encoding": "sparse"}
    for stage in ("masked_scores", "dots"):
        problem = refused(client, PATH, "invalid-request", text=TEXT, stages=[stage], format=form)
        assert problem["errors"] == [
            {
                "detail": f"sparse rows are for attn.pattern, not for attn.{stage}",
                "pointer": "/format/encoding",
            }
        ]
    captures = [{"site": "attn.pattern", "reduce": "stats"}]
    refused(client, "/v1/inspect", "invalid-request", text=TEXT, captures=captures, format=form)
    # Where the body is binary the encoding of JSON says nothing.
    safetensors(client, PATH, text=TEXT, stages=["dots"], format=form)


def test_sparse_fields_without_sparse_are_refused(client: TestClient) -> None:
    for form in ({"keys_per_row": 3}, {"threshold": 0.1, "encoding": "base64"}):
        problem = refused(client, PATH, "invalid-request", text=TEXT, format=form)
        assert problem["errors"][0]["pointer"] == "/format"


@pytest.mark.parametrize(
    ("form", "pointer"),
    [
        ({"decimals": 9}, "/format/decimals"),
        ({"decimals": -1}, "/format/decimals"),
        ({"decimals": 2.0}, "/format/decimals"),
        ({"encoding": "csv"}, "/format/encoding"),
        ({"dtype": "float64"}, "/format/dtype"),
        ({"encoding": "sparse", "keys_per_row": 0}, "/format/keys_per_row"),
        ({"encoding": "sparse", "threshold": 1.5}, "/format/threshold"),
    ],
)
def test_form_that_is_not_offered_is_pointed_at(
    form: dict[str, Any], pointer: str, client: TestClient
) -> None:
    problem = refused(client, PATH, "invalid-request", text=TEXT, format=form)
    assert problem["errors"][0]["pointer"] == pointer
