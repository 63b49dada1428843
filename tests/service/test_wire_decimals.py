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

from service.wire.decimals import LARGEST, nested_size, write_nested
from tests.answers import strict_json

EDGES = [
    *(0.0, -0.0, 1.0, -1.0, 0.99996, 0.999951, 0.00005, 0.000050001, 0.5, 0.125, 0.0625),
    *(1e-45, -1e-45, 1.17549435e-38, 1e-8, -4.9e-9, 9999.0, 9999.9999, -9999.9995, 1234.5678),
    float("-inf"),
]
DECIMALS = st.integers(0, 8)


def written(values: NDArray[np.float32], decimals: int, *, weights: bool) -> bytes:
    return b"".join(write_nested(values, decimals, weights=weights))


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


def test_zeros_are_written_out_to_the_last_decimal() -> None:
    text = written(np.array([[1, 0]], dtype=np.float32), 4, weights=True)
    assert text.replace(b" ", b"") == b"[[1.0000,0.0000]]"


@given(values=WEIGHTS | NUMBERS, decimals=DECIMALS, weights=st.booleans())
def test_size_is_known_before_a_number_is_written(
    values: NDArray[np.float32], decimals: int, weights: bool
) -> None:
    as_weights = weights and values.min() >= 0 and values.max() <= 1
    values = np.where(np.abs(values) < LARGEST - 1, values, np.float32(0.5))
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
