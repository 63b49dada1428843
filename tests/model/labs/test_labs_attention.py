"""Attention by hand, against numbers worked out on paper and against a plain softmax formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model.labs.attention import MOST_PRODUCTS, attend, given_vectors, project, row_entropy
from model.labs.examples import example
from model.labs.given import LabError

LN2, LN3 = math.log(2), math.log(3)


def test_attend_two_dimensions_worked_by_hand() -> None:
    """Keys (ln 2, 0), (0, 1), (ln 4, 0), q = (√2, 0): scores ln 2, 0, ln 4, exps 2 : 1 : 4."""
    root = math.sqrt(2)
    vectors = given_vectors(
        q=[[0, 0], [0, 0], [root, 0]],
        k=[[LN2, 0], [0, 1], [2 * LN2, 0]],
        v=[[7, 0], [0, 14], [1, 1]],
    )
    steps = attend(vectors, query=2)
    assert steps.products is not None and steps.weighted_v is not None
    np.testing.assert_allclose(steps.products[0], [[root * LN2, 0], [0, 0], [root * 2 * LN2, 0]])
    np.testing.assert_allclose(steps.dots[0], [root * LN2, 0, root * 2 * LN2], rtol=1e-15)
    np.testing.assert_allclose(steps.scores[0], [LN2, 0, 2 * LN2], rtol=1e-15)
    assert steps.row_max[0] == pytest.approx(2 * LN2, rel=1e-15)
    np.testing.assert_allclose(steps.exps[0], [1 / 2, 1 / 4, 1], rtol=1e-15)
    assert steps.row_sum[0] == pytest.approx(7 / 4, rel=1e-15)
    np.testing.assert_allclose(steps.pattern[0], [2 / 7, 1 / 7, 4 / 7], rtol=1e-15)
    np.testing.assert_allclose(steps.weighted_v[0], [[2, 0], [0, 2], [4 / 7, 4 / 7]], rtol=1e-14)
    np.testing.assert_allclose(steps.z[0], [18 / 7, 18 / 7], rtol=1e-15)
    assert steps.top_keys == (2,)


def test_attend_four_dimensions_worked_by_hand() -> None:
    """q = (2, 2, 2, 2)·ln 3 / 4 against two keys: dots 2 ln 3 and 0, scores halved by √4."""
    vectors = given_vectors(
        q=[[0] * 4, [LN3 / 2] * 4], k=[[1, 1, 1, 1], [1, -1, 1, -1]], v=[[4], [8]]
    )
    scaled = attend(vectors, query=-1)
    np.testing.assert_allclose(scaled.dots[0], [2 * LN3, 0], atol=1e-15)
    np.testing.assert_allclose(scaled.scores[0], [LN3, 0], atol=1e-15)
    np.testing.assert_allclose(scaled.pattern[0], [3 / 4, 1 / 4], rtol=1e-15)
    np.testing.assert_allclose(scaled.z[0], [5], rtol=1e-15)
    # Without ÷√4 the odds are 9 : 1.
    plain = attend(vectors, query=1, scaled=False)
    np.testing.assert_allclose(plain.pattern[0], [9 / 10, 1 / 10], rtol=1e-15)
    assert plain.scale == 1.0
    assert plain.entropy_nats[0] == pytest.approx(
        -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)), rel=1e-14
    )


def test_project_multiplies_row_by_matrix() -> None:
    vectors = project([[1, 2]], w_q=[[1, 10], [3, 30]], w_k=[[2, 0], [0, 2]], w_v=[[1], [1]])
    np.testing.assert_array_equal(vectors.q, [[7, 70]])
    np.testing.assert_array_equal(vectors.k, [[2, 4]])
    np.testing.assert_array_equal(vectors.v, [[3]])


def test_attend_one_query_has_the_bits_of_the_matrix_row() -> None:
    draw = np.random.default_rng(3)
    q, k, v = draw.standard_normal((3, 11, 37))
    for causal in (False, True):
        whole = attend(given_vectors(q, k, v), causal=causal)
        for query in range(11):
            single = attend(given_vectors(q, k, v), causal=causal, query=query)
            for name in ("dots", "scores", "masked_scores", "exps", "pattern", "z", "row_max"):
                row = getattr(whole, name)[query]
                assert np.array_equal(getattr(single, name)[0], row), name


def test_attend_causal_masks_before_the_softmax() -> None:
    draw = np.random.default_rng(4)
    q, k, v = draw.standard_normal((3, 7, 5))
    steps = attend(given_vectors(q, k, v), causal=True)
    future = np.triu(np.ones((7, 7), dtype=bool), 1)
    assert (steps.pattern[future] == 0).all()
    assert np.isneginf(steps.masked_scores[future]).all()
    assert np.isfinite(steps.scores).all()
    np.testing.assert_allclose(steps.pattern.sum(axis=1), 1, atol=4e-16)
    # Keys after the query may hold anything: nothing of them reaches the output.
    other = k.copy()
    other[4:] = 1e6
    changed = attend(given_vectors(q, other, v), causal=True)
    assert np.array_equal(changed.z[:4], steps.z[:4])
    assert not np.allclose(changed.z[4:], steps.z[4:])


def test_attend_huge_scores_stay_finite() -> None:
    steps = attend(given_vectors([[1e30] * 4], [[1e30] * 4], [[1.0]]), scaled=False)
    assert steps.pattern.tolist() == [[1.0]]


def test_attend_leaves_out_products_where_they_are_many() -> None:
    tokens, wide = 64, MOST_PRODUCTS // 64**2
    zeros = np.zeros((tokens, wide))
    assert attend(given_vectors(zeros, zeros, zeros)).products is None
    one = attend(given_vectors(zeros, zeros, zeros), query=0).products
    assert one is not None and one.shape == (1, tokens, wide)
    narrow = np.zeros((tokens, wide - 1))
    assert attend(given_vectors(narrow, narrow, narrow)).products is not None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["six-words", "six-words-en"])
def test_example_collapses_without_the_scale(name: str, causal: bool) -> None:
    words = example(name)
    vectors = given_vectors(words.q, words.k, words.v, tokens=words.tokens)
    assert vectors.q.shape == (6, 4)
    plain = attend(vectors, query=words.position, scaled=False, causal=causal)
    scaled = attend(vectors, query=words.position, causal=causal)
    assert plain.top_keys == scaled.top_keys == (0,)
    assert plain.top_weights[0] >= 0.95
    assert scaled.top_weights[0] <= 0.75
    # By hand: 它's dots are 6, 1, 2.5, 0.5, 1 and 0.
    np.testing.assert_array_equal(plain.dots[0], [6, 1, 2.5, 0.5, 1, 0])


def test_row_entropy_of_certain_and_even_rows() -> None:
    np.testing.assert_allclose(row_entropy(np.array([[1.0, 0, 0], [1 / 3] * 3])), [0, LN3])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": [[1, math.nan], [0, 1]]}, r"q\[0\]\[1\] is nan"),
        ({"k": [[1, 0], [math.inf, 1]]}, r"k\[1\]\[0\] is inf"),
        (
            {"v": [[1e31], [0]]},
            r"v\[0\]\[0\] is 1e\+31; numbers must lie between -1e\+30 and 1e\+30",
        ),
        ({"q": [[1, 2], [3]]}, r"q\[1\] has 1 numbers and q\[0\] has 2"),
        ({"q": [[1, 2]]}, "k has 2 rows, one a token; it must have 1"),
        ({"k": [[1, 2, 3], [4, 5, 6]]}, "k has 3 columns; it must have 2"),
        ({"v": [[1], [2], [3]]}, "v has 3 rows, one a token; it must have 2"),
        ({"q": []}, "q has 1 axes"),
        ({"q": [[], []]}, "q has 0 columns; allowed are 1 to 1024"),
        ({"q": [[0] * 1025] * 2}, "q has 1025 columns; allowed are 1 to 1024"),
        ({"q": [[0, 0]] * 65}, "q has 65 rows, one a token; allowed are 1 to 64"),
        ({"tokens": ["a"]}, "tokens has 1 names for 2 rows"),
        ({"q": [["a", 1], [1, 1]]}, "q is not made of numbers"),
    ],
)
def test_given_vectors_refuses(change: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"q": [[1, 0], [0, 1]], "k": [[1, 0], [0, 1]], "v": [[1], [2]]}
    with pytest.raises(LabError, match=says) as caught:
        given_vectors(**(given | change))  # type: ignore[arg-type]
    assert caught.value.field in ("q", "k", "v", "tokens")


def test_attend_refuses_a_query_outside() -> None:
    vectors = given_vectors([[1.0]], [[1.0]], [[1.0]])
    with pytest.raises(LabError, match="query is 1; allowed are -1 to 0"):
        attend(vectors, query=1)


def test_project_refuses_matrices_of_another_width() -> None:
    with pytest.raises(LabError, match="w_q has 3 rows; it must have 2"):
        project([[1, 2]], [[1], [2], [3]], [[1], [2]], [[1], [2]])
    with pytest.raises(LabError, match="w_k has 2 columns; it must have 1"):
        project([[1, 2]], [[1], [2]], [[1, 1], [2, 2]], [[1], [2]])


def test_example_refuses_an_unknown_name() -> None:
    with pytest.raises(LabError, match="there is no example 'cats'"):
        example("cats")
