"""The course's own inputs: what each lab answers to when it is given nothing. Numbers only.

Six words, so few that every product fits on a page. The vectors are made by hand, not learned.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.labs.given import LabError

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadWeights:
    """One head's projections, each (C, D)."""

    w_q: Table
    w_k: Table
    w_v: Table


@dataclass(frozen=True)
class Example:
    """Words with vectors for the attention lab (q, k, v) and for the heads lab (x and the rest).

    `position` is the word to look from: 它, "it".
    """

    tokens: tuple[str, ...]
    position: int
    q: Table
    k: Table
    v: Table
    x: Table
    heads: tuple[HeadWeights, ...]
    w_o: Table
    b_o: tuple[float, ...]


# 它 asks for an animal that acts: its dots are 6, 1, 2.5, 0.5, 1, 0. Unscaled, 6 against 2.5 takes
# .95 of the row; halved by √4 it leaves room for the others.
_Q = (
    (1.0, 0.0, 1.0, 0.0),
    (1.0, 0.5, 1.0, 0.0),
    (0.5, 1.0, 1.0, 0.0),
    (0.0, 0.0, 0.5, 1.0),
    (2.0, 2.0, 0.0, 1.0),
    (1.0, 1.0, 0.0, 1.0),
)
_K = (
    (1.5, 1.5, 0.0, 0.0),
    (0.0, 0.5, 2.0, 0.0),
    (1.5, 0.0, 0.5, -0.5),
    (0.0, 0.0, 0.0, 0.5),
    (0.5, 0.0, 0.0, 0.0),
    (0.0, -0.5, 0.5, 1.0),
)
_V = (
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.5, 0.0, 0.5, 0.0),
    (0.0, 0.0, 0.0, 1.0),
    (0.0, 0.0, 0.5, 0.5),
    (0.0, 0.5, 0.0, 1.0),
)

# What the six numbers of a word say: animal, small, action, pronoun, state, link between clauses.
_X = (
    (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    (0.5, 0.0, 0.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
)
# A pronoun asks for an animal, rather not a small one.
_REFERENT = HeadWeights(
    w_q=((0.0, 1.0), (0.0, 0.5), (0.5, 0.0), (3.5, 0.0), (0.5, 1.0), (0.0, 0.0)),
    w_k=((1.5, 0.5), (-1.0, 0.0), (0.0, 0.5), (0.0, -0.5), (0.0, 0.0), (0.5, 0.0)),
    w_v=((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
)
# An action asks for what it is done to: a small animal. Under the mask only the cat is there yet.
_OBJECT = HeadWeights(
    w_q=((0.5, 0.0), (0.0, 1.0), (3.0, 0.0), (0.0, 1.0), (0.0, 0.5), (1.0, 0.0)),
    w_k=((0.5, 0.0), (1.5, 0.0), (0.0, 0.5), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0)),
    w_v=((0.5, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
)
# A state asks for the pronoun that is in it.
_SUBJECT = HeadWeights(
    w_q=((0.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.5, 0.5), (3.0, 0.0), (1.0, 0.0)),
    w_k=((0.0, 0.5), (0.0, 0.0), (0.5, 0.0), (2.0, 0.0), (0.5, 0.0), (0.0, 0.5)),
    w_v=((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)),
)
_W_O = (
    (1.0, 0.0, 0.0, 0.5, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.5, 1.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 0.5, 0.0, 0.5, 0.0),
    (0.0, 0.0, 0.0, 1.0, 0.5, 0.0),
    (0.0, 0.0, 0.0, 0.0, 1.0, 0.5),
)
_B_O = (0.1, 0.0, 0.0, 0.0, 0.0, -0.1)


def _six_words(*tokens: str) -> Example:
    heads = (_REFERENT, _OBJECT, _SUBJECT)
    return Example(tokens, 4, _Q, _K, _V, _X, heads, _W_O, _B_O)


EXAMPLES = {
    "six-words": _six_words("猫", "追", "老鼠", "因为", "它", "饿了"),
    "six-words-en": _six_words("cat", "chases", "mouse", "because", "it", "hungry"),
}


def example(name: str) -> Example:
    """Raises LabError for a name that is not in EXAMPLES."""
    if name not in EXAMPLES:
        raise LabError("name", f"there is no example {name!r}; there are {sorted(EXAMPLES)}")
    return EXAMPLES[name]


# The rotation lab: 20 degrees a position; two places of the same distance, then an equal one.
ROTATION_Q = (1.0, 0.5)
ROTATION_K = (0.8, -0.3)
ROTATION_DEGREES = 20.0
ROTATION_POSITIONS = ((3, 1), (7, 5), (4, 4))

# What the labs on a running model read: the six words as a sentence.
TEXT = "猫追老鼠，因为它饿了。"
# The order lab: the same characters, two meanings.
ORDER_TEXTS = ("猫追老鼠", "老鼠追猫")
