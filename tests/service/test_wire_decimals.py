"""Fixed-decimal JSON: every number is the float32 rounded half to even, in every parser."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from service.wire.decimals import LARGEST, Nested, nested_size
from tests.answers import strict_json

EDGES = [
    *(0.0, -0.0, 1.0, -1.0, 0.99996, 0.999951, 0.00005, 0.000050001, 0.5, 0.125, 0.0625),
    *(1e-45, -1e-45, 1.17549435e-38, 1e-8, -4.9e-9, 9999.0, 9999.9999, -9999.9995, 1234.5678),
    float("-inf"),
]
DECIMALS = st.integers(0, 8)


def written(values: NDArray[np.float32], decimals: int, *, weights: bool) -> bytes:
    nested = Nested(values, decimals, weights=weights)
    text = b"".join(nested.pieces())
    assert len(text) == nested.n_bytes
    assert b"".join(nested.pieces()) == text
    return text


def rounded(value: float, decimals: int) -> float | None:
    """Half to even on the exact value of the float32, by decimal arithmetic."""
    if value == float("-inf"):
        return None
    unit = Decimal(1).scaleb(-decimals)
    return float(Decimal(value).quantize(unit, rounding=ROUND_HALF_EVEN))


def expected(values: NDArray[np.float32], decimals: int) -> Any:
    flat = [rounded(float(value), decimals) for value in values.reshape(-1)]
    return np.array(flat, dtype=object).reshape(values.shape).tolist()


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)


WEIGHTS = arrays.arrays(
    np.float32, shapes(), elements=st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0, 0.99996])
)
NUMBERS = arrays.arrays(
    np.float32,
    shapes(),
    elements=st.floats(-9_999, 9_999, width=32) | st.sampled_from(EDGES).map(np.float32),
)
ANY = arrays.arrays(
    np.float32,
    shapes(),
    elements=st.floats(width=32, allow_nan=False).filter(lambda x: x != float("inf"))
    | st.sampled_from(EDGES).map(np.float32),
)


@given(values=WEIGHTS, decimals=DECIMALS)
def test_weights_are_rounded_half_to_even(values: NDArray[np.float32], decimals: int) -> None:
    assert strict_json(written(values, decimals, weights=True)) == expected(values, decimals)


@given(values=NUMBERS, decimals=DECIMALS, weights=st.booleans())
def test_numbers_are_rounded_half_to_even(
    values: NDArray[np.float32], decimals: int, weights: bool
) -> None:
    text = written(values, decimals, weights=weights)
    assert strict_json(text) == expected(values, decimals)


@given(values=ANY, decimals=DECIMALS)
def test_numbers_of_any_size_are_within_half_a_unit_and_their_own_precision(
    values: NDArray[np.float32], decimals: int
) -> None:
    found = strict_json(written(values, decimals, weights=False))
    found = np.array(found, dtype=object).reshape(-1).tolist()
    for ours, value in zip(found, values.reshape(-1).tolist(), strict=True):
        if value == float("-inf"):
            assert ours is None
        else:
            assert abs(ours - value) <= 0.5000001 * 10.0**-decimals + 1e-15 * abs(value)


@given(values=NUMBERS, decimals=DECIMALS)
def test_parsers_agree(values: NDArray[np.float32], decimals: int) -> None:
    text = written(values, decimals, weights=False)
    assert orjson.loads(text) == json.loads(text)


@pytest.mark.parametrize("decimals", range(9))
@pytest.mark.parametrize("value", EDGES)
def test_edge_value(value: float, decimals: int) -> None:
    values = np.array([[value, 0.25], [0.75, value]], dtype=np.float32)
    for weights in (True, False):
        text = written(values, decimals, weights=weights)
        assert strict_json(text) == expected(values, decimals)


@pytest.mark.parametrize(("value", "digits"), [(0.5, "0"), (1.5, "2"), (2.5, "2"), (0.125, "0.12")])
def test_ties_go_to_the_even_digit(value: float, digits: str) -> None:
    decimals = len(digits.partition(".")[2])
    text = written(np.array([value], dtype=np.float32), decimals, weights=False)
    assert text.replace(b" ", b"") == f"[{digits}]".encode()


def test_numbers_are_written_out_to_the_last_decimal_but_for_zeros_that_end_all_rows() -> None:
    values = np.array([[1, 0, 0], [0.5, 0.25, 0]], dtype=np.float32)
    text = written(values, 4, weights=True)
    assert text.replace(b" ", b"") == b"[[1.0000,0.0000,0],[0.5000,0.2500,0]]"


@pytest.mark.parametrize(("site_like", "number", "blanks"), [("weights", 8, 2), ("scores", 12, 5)])
def test_what_a_causal_map_hides_takes_little_room(
    site_like: str, number: int, blanks: int
) -> None:
    """256 × 256: four pieces of 64 rows, their numbers end at column 64, 128, 192, 256."""
    hidden = np.triu(np.ones((256, 256), dtype=bool), 1)
    values = np.full((2, 3, 256, 256), 0.25, dtype=np.float32)
    values[..., hidden] = 0 if site_like == "weights" else -np.inf
    text = written(values, 4, weights=site_like == "weights")
    slots = 64 * (64 + 128 + 192 + 256)
    brackets = 8 * 256  # `]],[[` and the like, in whole words of 8
    one_map = brackets + number * slots + blanks * (256 * 256 - slots)
    assert len(text) == 6 * one_map + len("]]]]")
    assert strict_json(text) == expected(values, 4)


@given(values=WEIGHTS | NUMBERS, decimals=DECIMALS, weights=st.booleans())
def test_size_is_estimated_from_the_shape_alone(
    values: NDArray[np.float32], decimals: int, weights: bool
) -> None:
    as_weights = weights and values.min() >= 0 and values.max() <= 1
    values = np.where(np.abs(values) < LARGEST - 1, values, np.float32(0.5))
    text = written(values, decimals, weights=as_weights)
    assert len(text) <= nested_size(values.shape, decimals, weights=as_weights)
    values[..., -1] = 0.5  # nothing to save behind the last number
    text = written(values, decimals, weights=as_weights)
    assert len(text) == nested_size(values.shape, decimals, weights=as_weights)


@pytest.mark.parametrize("shape", [(1, 1), (3, 16_384), (40_000, 1), (2, 17_000), (7, 83, 90)])
def test_pieces_of_a_large_array_join_seamlessly(shape: tuple[int, ...]) -> None:
    values = np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found = np.array(strict_json(written(values, 8, weights=True)))
    assert found.shape == shape
    assert np.abs(found - values).max() < 0.51e-8


def test_numbers_past_the_tables_are_written_exactly_rounded() -> None:
    values = np.array([[LARGEST, -LARGEST, 1e5 + 0.25, -np.inf], [1e30, -3e38, 0.5, 1]], "f4")
    found = strict_json(written(values, 1, weights=False))
    assert found[0] == [10_000.0, -10_000.0, 100_000.2, None]
    assert found[1] == [float(np.float32(1e30)), float(np.float32(-3e38)), 0.5, 1.0]


def test_large_negative_behind_minus_infinity_is_not_lost() -> None:
    values = np.array([[-np.inf, -123_456.5]], dtype=np.float32)
    assert strict_json(written(values, 2, weights=False)) == [[None, -123_456.5]]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_empty_array_is_empty_lists(shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, dtype=np.float32)
    assert strict_json(written(values, 4, weights=True)) == values.tolist()
