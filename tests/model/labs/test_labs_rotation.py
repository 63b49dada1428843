"""The rotation lab: matrices by hand, the closed form, and dots that only m − n moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import Pairing
from model.labs.examples import (
    ROTATION_DEGREES,
    ROTATION_K,
    ROTATION_POSITIONS,
    ROTATION_Q,
)
from model.labs.given import LabError
from model.labs.rotation import RotationLab, frequencies_of, turn

TWENTY = frequencies_of(2, degrees_per_position=20.0)


def course(*positions: tuple[int, int], shift: int = 1) -> RotationLab:
    return turn(ROTATION_Q, ROTATION_K, positions, TWENTY, shift=shift)


def test_turn_a_quarter_worked_by_hand() -> None:
    """90° a position: (3, 4) at 1 is (−4, 3), (1, 2) at 2 is (−1, −2); their dot is 4 − 6."""
    lab = turn([3, 4], [1, 2], [(1, 2)], frequencies_of(2, degrees_per_position=90.0))
    step = lab.steps[0]
    np.testing.assert_allclose(step.matrices_m, [[[0, -1], [1, 0]]], atol=1e-15)
    np.testing.assert_allclose(step.matrices_n, [[[-1, 0], [0, -1]]], atol=1e-15)
    np.testing.assert_allclose(step.products_q, [[[0, -4], [3, 0]]], atol=1e-15)
    np.testing.assert_allclose(step.rot_q, [-4, 3], atol=1e-15)
    np.testing.assert_allclose(step.rot_k, [-1, -2], atol=1e-15)
    assert step.dot == pytest.approx(-2, abs=1e-14)
    assert lab.unrotated_dot == 11
    assert lab.norms_q[0] == 5


def test_turn_course_example_at_twenty_degrees() -> None:
    """cos 60° and sin 60° for q at 3; the raw doubles that the course's page warns of."""
    first, second, equal = course(*ROTATION_POSITIONS).steps
    half, root = 0.5, math.sqrt(3) / 2
    np.testing.assert_allclose(first.matrices_m[0], [[half, -root], [root, half]], rtol=1e-15)
    np.testing.assert_allclose(first.rot_q, [half - root / 2, root + half / 2], rtol=1e-14)
    # Published doubles; the last bits are the processor's own.
    assert first.dot == pytest.approx(0.047977561246758324, abs=5e-16)
    assert second.dot == pytest.approx(0.047977561246758366, abs=5e-16)
    assert f"{first.dot:.10f}" == f"{second.dot:.10f}"
    # φ = 26.565…° + 20.556…°, m − n = 2.
    phi = math.degrees(math.atan2(0.5, 1) - math.atan2(-0.3, 0.8))
    expected = math.sqrt(1.25 * 0.73) * math.cos(math.radians(phi + 40))
    assert first.dot == pytest.approx(expected, abs=1e-15)
    assert first.closed_form == pytest.approx(expected, abs=1e-15)
    assert ROTATION_DEGREES == 20
    assert equal.dot == pytest.approx(0.65, abs=1e-15)


def test_turn_shift_of_one_vector_changes_what_shift_of_both_keeps() -> None:
    step = course((3, 1), shift=4).steps[0]
    assert (step.shift_both.m, step.shift_both.n) == (7, 5)
    assert abs(step.shift_both.difference) < 1e-15
    assert (step.shift_m.m, step.shift_m.n) == (7, 1)
    assert step.shift_m.difference == pytest.approx(
        course((7, 1)).steps[0].dot - step.dot, abs=1e-16
    )
    assert abs(step.shift_m.difference) > 0.1


@pytest.mark.parametrize(
    ("pairing", "dimensions"),
    [("interleaved", ((0, 1), (2, 3), (4, 5))), ("half", ((0, 3), (1, 4), (2, 5)))],
)
def test_turn_pairs_the_dimensions_it_names(
    pairing: Pairing, dimensions: tuple[tuple[int, int], ...]
) -> None:
    """base 1000 over 6 numbers: radians a position 1, 0.1, 0.01, each turned by its own matrix."""
    q, k = np.arange(1.0, 7.0), np.array([2.0, -1.0, 0.5, 3.0, 1.0, -2.0])
    lab = turn(q, k, [(5, 3)], frequencies_of(6, base=1000.0), pairing=pairing)
    assert lab.dimensions == dimensions
    step = lab.steps[0]
    for pair, (a, b) in enumerate(dimensions):
        angle = 5 * 10.0**-pair
        turned = [
            q[a] * math.cos(angle) - q[b] * math.sin(angle),
            q[a] * math.sin(angle) + q[b] * math.cos(angle),
        ]
        np.testing.assert_allclose([step.rot_q[a], step.rot_q[b]], turned, atol=1e-13)
        assert step.angles_m[pair] == pytest.approx(angle, rel=1e-14)
    assert step.dot == pytest.approx(step.closed_form, abs=1e-13)


def test_turn_products_add_up_to_the_rotated_pair() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 64))
    lab = turn(q, k, [(123, 7), (0, 5)], frequencies_of(64, base=1e4), pairing="half")
    for step in lab.steps:
        for products, rotated in ((step.products_q, step.rot_q), (step.products_k, step.rot_k)):
            pairs = rotated[np.array(lab.dimensions)]
            np.testing.assert_allclose(products.sum(axis=2), pairs, atol=1e-15)


def test_turn_leaves_numbers_past_the_last_pair() -> None:
    """A model that turns only the first rotary_dim of a head: the rest meets unturned."""
    q, k = [1.0, 0.0, 3.0, 4.0], [1.0, 0.0, 2.0, 0.5]
    step = turn(q, k, [(1, 0)], frequencies_of(2, degrees_per_position=90.0)).steps[0]
    np.testing.assert_allclose(step.rot_q, [0, 1, 3, 4], atol=1e-15)
    assert step.dot == pytest.approx(8, abs=1e-14)
    assert step.closed_form == pytest.approx(8, abs=1e-14)


def test_turn_wrong_pairing_is_another_dot() -> None:
    q, k = np.random.default_rng(1).standard_normal((2, 8))
    ladder = frequencies_of(8, base=1e4)
    dots = {
        pairing: turn(q, k, [(9, 2)], ladder, pairing=pairing).steps[0].dot
        for pairing in ("interleaved", "half")
    }
    assert abs(dots["interleaved"] - dots["half"]) > 0.01


@settings(max_examples=300, deadline=None)
@given(
    m=st.integers(0, 100_000),
    n=st.integers(0, 100_000),
    shift=st.integers(0, 100_000),
    half=st.integers(1, 512),
    pairing=st.sampled_from(["interleaved", "half"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_turn_shift_both_changes_nothing(
    m: int, n: int, shift: int, half: int, pairing: Pairing, seed: int
) -> None:
    q, k = np.random.default_rng(seed).standard_normal((2, 2 * half))
    ladder = frequencies_of(2 * half, base=10_000.0)
    step = turn(q, k, [(m, n)], ladder, pairing=pairing, shift=shift).steps[0]
    farthest = max(1, m + shift, n + shift)
    bound = 1e-15 * farthest * float(np.linalg.norm(q) * np.linalg.norm(k))
    assert abs(step.shift_both.difference) <= bound
    assert abs(step.closed_form_error) <= bound


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 10_000), half=st.integers(1, 64), seed=st.integers(0, 2**32 - 1))
def test_turn_equal_positions_keep_the_dot(position: int, half: int, seed: int) -> None:
    q, k = np.random.default_rng(seed).standard_normal((2, 2 * half))
    lab = turn(q, k, [(position, position)], frequencies_of(2 * half, base=10_000.0))
    bound = 1e-15 * max(1, position) * float(np.linalg.norm(q) * np.linalg.norm(k))
    assert abs(lab.steps[0].dot - float(q @ k)) <= bound


def test_turn_list_of_positions_equals_one_by_one() -> None:
    places = [(m, n) for m in range(6) for n in range(6)]
    together = course(*places)
    for place, step in zip(places, together.steps, strict=True):
        alone = course(place).steps[0]
        assert (step.m, step.n) == place
        assert step.dot == pytest.approx(alone.dot, abs=1e-15)  # the vectorised last bit may differ
        np.testing.assert_allclose(step.rot_q, alone.rot_q, atol=1e-15)


def test_frequencies_of_refuses() -> None:
    with pytest.raises(LabError, match="q has 3 numbers; RoPE turns pairs"):
        frequencies_of(3, base=1e4)
    with pytest.raises(LabError, match="base is 1; it must be over 1"):
        frequencies_of(4, base=1)
    with pytest.raises(LabError, match="base is nan"):
        frequencies_of(4, base=math.nan)
    with pytest.raises(LabError, match="exactly one of"):
        frequencies_of(2)
    with pytest.raises(LabError, match="exactly one of"):
        frequencies_of(2, base=1e4, degrees_per_position=20)
    with pytest.raises(LabError, match="turns one pair; q has 2"):
        frequencies_of(4, degrees_per_position=20)
    with pytest.raises(LabError, match="degrees_per_position is nan; allowed are -360 to 360"):
        frequencies_of(2, degrees_per_position=math.nan)


def test_turn_refuses() -> None:
    with pytest.raises(LabError, match="k has 3 numbers; it must have 2"):
        turn([1, 2], [1, 2, 3], [(0, 0)], TWENTY)
    with pytest.raises(LabError, match=r"q\[1\] is nan"):
        turn([1, math.nan], [1, 2], [(0, 0)], TWENTY)
    with pytest.raises(LabError, match="m is 10000001; allowed are -10000000 to 10000000"):
        course((10_000_001, 0))
    with pytest.raises(LabError, match="positions has 0 entries; allowed are 1 to 1024"):
        course()
    with pytest.raises(LabError, match="positions has 65 entries; allowed are 1 to 64"):
        turn([0] * 1024, [0] * 1024, [(0, 0)] * 65, frequencies_of(1024, base=1e4))
    with pytest.raises(LabError, match="q has 1026 numbers; allowed are 1 to 1024"):
        turn([0] * 1026, [0] * 1026, [(0, 0)], TWENTY)
