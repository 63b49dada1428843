"""The heads lab: the course's three heads, the mixing by hand, sentences true to the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.labs.attention import Vectors, given_vectors, project
from model.labs.examples import example
from model.labs.given import LabError
from model.labs.heads import HeadsTogether, given_output, together
from model.labs.readings import label, read_pattern, sentence_of

WORDS = ("猫", "追", "老鼠", "因为", "它", "饿了")


def six_words(*, causal: bool) -> HeadsTogether:
    words = example("six-words")
    heads = [project(words.x, h.w_q, h.w_k, h.w_v, tokens=words.tokens) for h in words.heads]
    output = given_output(words.w_o, words.b_o, rows=6)
    return together(heads, position=words.position, output=output, causal=causal)


def links(lab: HeadsTogether) -> list[str]:
    found = []
    for head in lab.heads:
        assert head.readings.strongest is not None and head.readings.ties == 1
        link = head.readings.strongest
        found.append(f"{lab.tokens[link.query]}→{lab.tokens[link.key]}")
    return found


def test_together_course_example_has_the_course_links() -> None:
    assert links(six_words(causal=False)) == ["它→猫", "追→老鼠", "饿了→它"]
    assert links(six_words(causal=True)) == ["它→猫", "追→猫", "饿了→它"]


def test_together_sentences_change_with_the_mask() -> None:
    free, masked = six_words(causal=False).heads[1], six_words(causal=True).heads[1]
    assert free.sentence.zh == "最强的连线是「追」→「老鼠」，权重 0.902。"
    assert free.sentence.en == "The strongest link is “追” → “老鼠”, with weight 0.902."
    assert masked.sentence.zh == "最强的连线是「追」→「猫」，权重 0.743。"
    assert masked.sentence.en == "The strongest link is “追” → “猫”, with weight 0.743."


def test_together_mixes_what_each_head_writes() -> None:
    """Two heads of one token, z = (2, 3) and (5): attn_out is 2·row 0 + 3·row 1 + 5·row 2 + b."""
    heads = [
        given_vectors([[1.0]], [[1.0]], [[2.0, 3.0]]),
        given_vectors([[1.0, 0.0]], [[0.0, 1.0]], [[5.0]]),
    ]
    output = given_output([[1, 0], [0, 1], [10, 100]], [0.5, -0.5], rows=3)
    lab = together(heads, position=0, output=output)
    assert lab.attn_out is not None and lab.mixing_error is not None
    np.testing.assert_array_equal(lab.concatenation, [[2, 3, 5]])
    np.testing.assert_array_equal(lab.attn_out, [[52.5, 502.5]])
    first, second = lab.heads
    assert first.writes is not None and second.writes is not None
    np.testing.assert_array_equal(first.writes, [2, 3])
    assert first.write_norm == pytest.approx(13**0.5)
    np.testing.assert_array_equal(second.writes, [50, 500])
    assert lab.mixing_error == 0
    assert first.sentence.en == "There is one token, and it sees only itself."


def test_together_without_w_o_stops_at_the_concatenation() -> None:
    lab = together([given_vectors([[1.0]], [[1.0]], [[2.0]])], position=0)
    assert lab.attn_out is None and lab.heads[0].writes is None
    np.testing.assert_array_equal(lab.heads[0].brings_z, [2])


def test_together_results_add_up_to_attn_out() -> None:
    lab = six_words(causal=True)
    assert lab.attn_out is not None and lab.b_o is not None and lab.mixing_error is not None
    assert lab.mixing_error < 1e-15
    summed = lab.b_o + sum(head.result for head in lab.heads if head.result is not None)
    np.testing.assert_allclose(summed, lab.attn_out, atol=1e-15)


def test_together_refuses() -> None:
    one, two = (Vectors(("a",) * n, *np.ones((3, n, 4))) for n in (1, 2))
    with pytest.raises(LabError, match="heads has 0 entries"):
        together([], position=0)
    with pytest.raises(LabError, match=r"heads\[1\] has 2 tokens; heads\[0\] has 1"):
        together([one, two], position=0)
    with pytest.raises(LabError, match="position is 2; allowed are -2 to 1"):
        together([two], position=2)
    with pytest.raises(
        LabError, match="concatenate to 1028 numbers a token; allowed are 1 to 1024"
    ):
        together([one] * 257, position=0)
    with pytest.raises(LabError, match="w_o has 2 rows; it must have 4"):
        given_output([[1], [1]], None, rows=4)
    with pytest.raises(LabError, match="b_o has 2 numbers; it must have 1"):
        given_output([[1]], [1, 2], rows=1)


def test_read_pattern_even_causal_rows() -> None:
    """An even pattern over 8 tokens: the values that facts on readings give for it."""
    even = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
    readings = read_pattern(even, causal=True)
    assert readings.previous_token == pytest.approx(0.245408, abs=5e-7)
    assert readings.sink == pytest.approx(0.245408, abs=5e-7)
    assert readings.spread == pytest.approx(1.0, abs=1e-15)
    assert readings.habit == "spread"
    assert readings.strongest is not None and readings.strongest.weight == 0.5
    assert readings.ties == 1


def test_read_pattern_finds_each_habit_and_says_its_number() -> None:
    n = 6
    previous = 0.9 * np.eye(n, k=-1) + 0.1 * np.eye(n)
    previous[0] = np.eye(n)[0]
    sink = 0.1 * np.eye(n)
    sink[:, 0] += 0.9
    own = np.eye(n)
    for pattern, habit, number in (
        (previous, "previous", 0.9),
        (sink, "sink", 0.9),
        (own, "self", 1.0),
    ):
        readings = read_pattern(pattern, causal=True)
        assert readings.habit == habit
        sentence = sentence_of(readings, WORDS)
        assert f"{number:.3f}" in sentence.zh and f"{number:.3f}" in sentence.en


def test_sentence_of_tied_links_names_none() -> None:
    even = np.full((3, 3), 1 / 3)
    readings = read_pattern(even, causal=False)
    sentence = sentence_of(readings, "abc")
    assert readings.ties == 4
    assert sentence.en.startswith("No single link is strongest: 4 share the largest weight, 0.333;")
    assert sentence.zh.startswith("没有哪条连线最强：有 4 条并列，权重都是 0.333；")


def test_read_pattern_two_tokens_claims_no_habit_of_looking_back() -> None:
    """Of two tokens the one before is the first: neither name would be borne by the number."""
    readings = read_pattern(np.array([[1.0, 0.0], [0.99, 0.01]]), causal=True)
    assert readings.habit is None


def test_label_tells_equal_tokens_apart() -> None:
    assert label(0, ["the", " cat", " the"]) == "the[0]"
    assert label(1, ["the", " cat", " the"]) == "cat"
    assert label(0, ["\n", "a"]) == "\\n"


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 9), sharp=st.floats(0.0, 12.0), seed=st.integers(0, 10**6), mask=st.booleans()
)
def test_sentence_of_any_pattern_is_borne_by_it(
    n: int, sharp: float, seed: int, mask: bool
) -> None:
    """Reads the sentence back: the pair it names is the largest cell, its weight that cell's."""
    q, k, v = np.random.default_rng(seed).standard_normal((3, n, 4))
    lab = together([given_vectors(q * sharp, k, v)], position=0, causal=mask)
    pattern, head = lab.heads[0].steps.pattern, lab.heads[0]
    cells = {(i, j): pattern[i, j] for i in range(1, n) for j in range(n) if i != j}
    best = max(cells.values())
    named = re.search(r"“(\d)” → “(\d)”, with weight (\d\.\d+)", head.sentence.en)
    if named is None:
        assert sum(value >= best - 1e-12 for value in cells.values()) > 1
    else:
        assert cells[int(named[1]), int(named[2])] == best
        assert float(named[3]) == pytest.approx(best, abs=1e-3)
        assert f"「{named[1]}」→「{named[2]}」，权重 {named[3]}" in head.sentence.zh
    if "on average goes to the first token" in head.sentence.en:
        assert pattern[1:, 0].mean() > 0.5
    if "just before" in head.sentence.en:
        assert np.mean([pattern[i, i - 1] for i in range(1, n)]) > 0.5
    if "for itself" in head.sentence.en:
        assert np.mean([pattern[i, i] for i in range(n)]) > 0.5
