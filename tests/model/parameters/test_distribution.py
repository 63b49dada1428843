"""Statistics and histograms, against torch and numpy on the whole tensor at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import model.parameters.distribution as distribution
from model.parameters import ParameterError, histogram, statistics


def test_statistics_worked_by_hand() -> None:
    found = statistics(torch.tensor([[3.0, 0.0], [-1.0, 2.0]]))
    assert found.count == 4
    assert found.mean == 1.0
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 4 + 1) / 4))
    assert (found.min, found.max) == (-1.0, 3.0)
    assert found.norm == pytest.approx(math.sqrt(14))
    assert found.fraction_zero == 0.25
    assert not found.any_nan


def test_large_tensor_read_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(301, 40, generator=torch.Generator().manual_seed(0))
    whole, bins = statistics(values), histogram(values, 16)
    monkeypatch.setattr(distribution, "_CHUNK", 100)
    parts = statistics(values)
    assert parts.mean == pytest.approx(whole.mean, rel=1e-12)
    assert parts.std == pytest.approx(whole.std, rel=1e-12)
    assert (parts.min, parts.max) == (whole.min, whole.max)
    assert histogram(values, 16) == bins
    exact = values.double()
    assert whole.mean == pytest.approx(exact.mean().item(), rel=1e-12)
    assert whole.std == pytest.approx(exact.std(correction=0).item(), rel=1e-12)
    assert whole.norm == pytest.approx(exact.norm().item(), rel=1e-12)


def test_small_spread_around_a_large_mean_is_kept() -> None:
    """In one pass, mean of squares minus square of the mean, this would be noise."""
    values = torch.tensor([1e8, 1e8 + 8, 1e8 + 16, 1e8 + 24])
    assert statistics(values).std == pytest.approx(math.sqrt(80))


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    values = torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0, 0.0])
    found = statistics(values)
    assert (found.nan_count, found.infinite_count, found.any_nan) == (1, 2, True)
    assert (found.mean, found.min, found.max) == (pytest.approx(4 / 3), 0.0, 3.0)
    assert found.fraction_zero == 1 / 6
    assert sum(histogram(values, 3).counts) == 3


def test_nothing_finite_has_no_statistics_and_no_bins() -> None:
    found = statistics(torch.full((2, 2), math.nan))
    assert (found.mean, found.std, found.min, found.max, found.norm) == (None,) * 5
    assert found.nan_count == 4
    bins = histogram(torch.full((2,), math.inf))
    assert (bins.edges, bins.counts) == ((), ())


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50),
    bins=st.integers(1, 20),
)
@settings(deadline=None)
def test_histogram_is_numpys_and_loses_no_value(values: list[float], bins: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    found = histogram(tensor, bins)
    counts, edges = np.histogram(tensor.double().numpy(), bins)
    assert found.counts == tuple(counts)
    assert found.edges == pytest.approx(tuple(edges))
    assert sum(found.counts) == len(values)


def test_equal_values_fall_into_one_bin() -> None:
    found = histogram(torch.ones(7), 4)
    assert found.edges == (0.5, 0.75, 1.0, 1.25, 1.5)
    assert found.counts == (0, 0, 7, 0)


def test_bfloat16_is_read_as_it_is() -> None:
    values = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    assert statistics(values).max == values.double().max().item() != 0.2


def test_histogram_without_bins_is_refused() -> None:
    with pytest.raises(ParameterError, match="bins is 0"):
        histogram(torch.ones(2), 0)
