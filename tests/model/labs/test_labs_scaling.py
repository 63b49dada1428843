"""Why ÷√d: the variance against its law, the softmax gradient against a matrix written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model.labs.given import LabError
from model.labs.scaling import HEAD_SIZES, gradient_norm, scaling


def test_scaling_variance_is_d_and_one_within_three_standard_errors() -> None:
    lab = scaling()
    assert [size.d_head for size in lab.sizes] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for size in lab.sizes:
        d = size.d_head
        error = d * math.sqrt(2 / 4095 + 6 / (d * 4096))
        assert abs(size.unscaled.variance - d) < 3 * error
        assert abs(size.scaled.variance - 1) < 3 * error / d
        assert size.unscaled.variance_error == pytest.approx(error, rel=1e-12)
        assert size.unscaled.expected_variance == d
        assert size.scaled.expected_variance == 1


def test_scaling_unscaled_collapses_and_scaled_does_not() -> None:
    lab = scaling()
    first, last = lab.sizes[0], lab.sizes[-1]
    assert last.unscaled.largest_weight > 0.9
    assert last.scaled.largest_weight < 0.3
    assert last.unscaled.gradient_norm < first.unscaled.gradient_norm / 3
    assert last.scaled.gradient_norm == pytest.approx(first.scaled.gradient_norm, rel=0.1)
    assert last.unscaled.entropy_nats < 0.2
    assert last.scaled.entropy_nats > 2.2
    assert lab.greatest_entropy_nats == pytest.approx(math.log(16))


def test_scaling_same_seed_same_numbers_in_any_list() -> None:
    together, alone, other = scaling([8, 64]), scaling([64]), scaling([64], seed=1)
    assert together.sizes[1] == alone.sizes[0]
    assert other.sizes[0] != alone.sizes[0]


def test_scaling_standard_error_is_the_spread_over_seeds() -> None:
    """The law behind `variance_error`, measured: 200 seeds scatter by what it says."""
    found = [scaling([4], samples=500, keys=2, seed=seed).sizes[0].unscaled for seed in range(200)]
    spread = np.std([each.variance for each in found])
    assert spread == pytest.approx(found[0].variance_error, rel=0.2)


def test_gradient_norm_equals_the_matrix_written_out() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    matrix = np.diag(p) - np.outer(p, p)
    assert gradient_norm(p) == pytest.approx(np.linalg.norm(matrix), rel=1e-14)
    assert gradient_norm(np.array([1.0, 0.0])) == 0.0
    # Two keys at one half: [[1, −1], [−1, 1]] / 4.
    assert gradient_norm(np.array([0.5, 0.5])) == pytest.approx(0.5)


def test_scaling_refuses() -> None:
    with pytest.raises(LabError, match="head_sizes is 1025; allowed are 1 to 1024"):
        scaling([1025])
    with pytest.raises(LabError, match="head_sizes is -4; allowed are 1 to 1024"):
        scaling([-4])
    with pytest.raises(LabError, match="head_sizes has 0 entries"):
        scaling([])
    with pytest.raises(LabError, match="keys is 65; allowed are 2 to 64"):
        scaling([2], keys=65)
    with pytest.raises(LabError, match=r"draw \d+ random numbers; at most 67108864 are allowed"):
        scaling(HEAD_SIZES, samples=100_000)
