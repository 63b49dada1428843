"""What a head's pattern says, as numbers and as one sentence that those numbers bear.

Shapes: T token, Q query, S key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from model.labs.attention import row_entropy
from model.labs.given import Array

Habit = Literal["spread", "previous", "sink", "self"]

# A row this close to the greatest possible entropy has no favourites: of six keys, one may have
# at most twice an even share.
EVEN = 0.95
TIE = 1e-12


@dataclass(frozen=True)
class Sentence:
    """The same sentence twice."""

    zh: str
    en: str


@dataclass(frozen=True)
class Link:
    """One weight of the pattern."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Readings:
    """One head's numbers, all means over rows of the pattern.

    `strongest` is the largest weight with key ≠ query and query ≥ 1 (row 0 is always 1 under the
    mask), None for one token; `ties` counts the weights as large as that one, itself included.
    `previous_token` and `sink` are the weights on the token before and on the first, over query
    ≥ 1; `self_weight` is the weight on the query itself; `spread` is the entropy as a part of the
    greatest possible one, over rows that see more than one key. `habit` is what the head does as
    a whole, None where no number is clear enough to say.
    """

    strongest: Link | None
    ties: int
    previous_token: float | None
    sink: float | None
    self_weight: float
    spread: float | None
    habit: Habit | None


def read_pattern(pattern: Array, *, causal: bool) -> Readings:
    """The readings of a whole pattern (Q, S) with Q = S.

    A habit must be more than half of the way from an even spread under the same mask to all of
    the weight: in a short text an even spread alone puts half of it on the token before.
    """
    n_tokens = len(pattern)
    visible = np.arange(1, n_tokens + 1) if causal else np.full(n_tokens, n_tokens)
    self_weight = float(pattern.diagonal().mean())
    if n_tokens == 1:
        return Readings(None, 0, None, None, self_weight, None, None)
    previous = float(pattern.diagonal(-1).mean())
    sink = float(pattern[1:, 0].mean())
    several = visible > 1
    spread = float((row_entropy(pattern)[several] / np.log(visible[several])).mean())

    even = 1 / visible
    later = float(even[1:].mean())
    claims: list[tuple[float, float, Habit]] = [(self_weight, float(even.mean()), "self")]
    if n_tokens > 2:  # of two tokens, the one before is the first
        claims += [(previous, later, "previous"), (sink, later, "sink")]
    borne = [(value, habit) for value, floor, habit in claims if value > (1 + floor) / 2]
    habit = "spread" if spread >= EVEN else max(borne)[1] if borne else None

    strongest, ties = strongest_link(pattern)
    return Readings(strongest, ties, previous, sink, self_weight, spread, habit)


def strongest_link(pattern: Array) -> tuple[Link, int]:
    """The largest weight with key ≠ query and query ≥ 1, and how many are as large."""
    links = pattern.copy()
    links[0] = -1.0
    np.fill_diagonal(links, -1.0)
    query, key = np.unravel_index(int(links.argmax()), links.shape)
    weight = float(links[query, key])
    return Link(int(query), int(key), weight), int((links >= weight - TIE).sum())


def sentence_of(readings: Readings, tokens: Sequence[str]) -> Sentence:
    """The strongest link and, where one is clear, the habit."""
    if readings.strongest is None:
        return Sentence(
            "只有一个词，它只能看自己。", "There is one token, and it sees only itself."
        )
    zh, en = _link_words(readings.strongest, readings.ties, tokens)
    if readings.habit is not None:
        value = {
            "spread": readings.spread,
            "previous": readings.previous_token,
            "sink": readings.sink,
            "self": readings.self_weight,
        }[readings.habit]
        assert value is not None  # a habit is read from a number
        habit_zh, habit_en = _HABIT_WORDS[readings.habit]
        zh += "；" + habit_zh.format(_part(value))
        en += "; " + habit_en.format(_part(value))
    return Sentence(zh + "。", en + ".")


_HABIT_WORDS: dict[Habit, tuple[str, str]] = {
    "spread": (
        "整体上看得很散，熵是最大可能值的 {}",
        "as a whole it looks almost evenly around, with {} of the greatest possible entropy",
    ),
    "previous": (
        "从第二个词起，平均有 {} 的权重落在前一个词上",
        "from the second token on, {} of the weight on average goes to the token just before",
    ),
    "sink": (
        "从第二个词起，平均有 {} 的权重落在第一个词上",
        "from the second token on, {} of the weight on average goes to the first token",
    ),
    "self": ("平均有 {} 的权重留给了自己", "on average a token keeps {} of its weight for itself"),
}


def _link_words(link: Link, ties: int, tokens: Sequence[str]) -> tuple[str, str]:
    weight = _part(link.weight)
    if ties > 1:
        return (
            f"没有哪条连线最强：有 {ties} 条并列，权重都是 {weight}",
            f"No single link is strongest: {ties} share the largest weight, {weight}",
        )
    query, key = label(link.query, tokens), label(link.key, tokens)
    return (
        f"最强的连线是「{query}」→「{key}」，权重 {weight}",
        f"The strongest link is “{query}” → “{key}”, with weight {weight}",
    )


def label(index: int, tokens: Sequence[str]) -> str:
    """A token as a sentence can show it; its index behind it where the token occurs twice."""
    shown = tokens[index].strip() or repr(tokens[index])[1:-1].replace(" ", "␣")
    same = sum(token.strip() == tokens[index].strip() for token in tokens)
    return f"{shown}[{index}]" if same > 1 else shown


def _part(value: float) -> str:
    """Three decimals; 0.000 and 1.000 only where they are exact."""
    return f"{value if value in (0.0, 1.0) else min(max(value, 0.001), 0.999):.3f}"
