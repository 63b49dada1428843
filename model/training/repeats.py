"""Rows in which something is said again: what induction heads learn from.

Random tokens said twice or more, with short and long periods, with and without other tokens
between the copies, from small alphabets, from the whole vocabulary and as often as they occur in
real text, and plain repeats of that. What cannot be predicted (the first copy of random tokens,
the tokens between) is marked so that it gives no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Row = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
Snippet = Callable[[np.random.Generator, int], npt.NDArray[np.integer[Any]]]

SHORTEST, LONGEST = 4, 64
PLAIN_SHARE = 0.2
GAP_SHARE = 0.25
TWICE_SHARE = 0.25
SMALL_SHARE = 0.4
FAMILIAR_SHARE = 0.3


def repeated_row(
    rng: np.random.Generator,
    length: int,
    *,
    vocab_size: int,
    separator: int,
    snippet: Snippet | None = None,
) -> Row:
    """A row of `length` tokens and which of them can be predicted from what stands before.

    `snippet(rng, n)` gives up to n tokens of real text; without it all repeats are random.
    """
    ids: list[npt.NDArray[np.int64]] = []
    known: list[npt.NDArray[np.bool_]] = []
    total = 0
    # Half of the rows begin at once, so that a head needs no separator to work.
    if rng.random() < 0.5:
        ids, known, total = [np.array([separator])], [np.zeros(1, dtype=bool)], 1
    while total < length:
        if snippet is not None and rng.random() < PLAIN_SHARE:
            part = _plain(rng, snippet)
        else:
            part = _random(rng, vocab_size, separator, snippet)
        ids += [part[0], np.array([separator])]
        known += [part[1], np.zeros(1, dtype=bool)]
        total += part[0].size + 1
    return np.concatenate(ids)[:length], np.concatenate(known)[:length]


def random_tokens(
    rng: np.random.Generator, count: int, *, vocab_size: int, separator: int
) -> npt.NDArray[np.int64]:
    """`count` tokens drawn evenly from the vocabulary without the separator."""
    drawn = rng.integers(0, vocab_size - 1, count)
    return drawn + (drawn >= separator)


def _random(
    rng: np.random.Generator, vocab_size: int, separator: int, snippet: Snippet | None
) -> Row:
    """Copies of a random sequence; periods even in their logarithm, so that short ones lead."""
    period = round(float(np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST)))))
    copies = 2 if rng.random() < TWICE_SHARE else int(rng.integers(3, 9))
    alphabet = None
    kind = rng.random()
    if kind < SMALL_SHARE:
        size = int(rng.integers(8, 65))
        alphabet = random_tokens(rng, size, vocab_size=vocab_size, separator=separator)
    elif kind < SMALL_SHARE + FAMILIAR_SHARE and snippet is not None:
        # Tokens that real text knows are told apart long before the rare ones are.
        alphabet = np.concatenate([snippet(rng, 64).astype(np.int64) for _ in range(4)])

    def draw(count: int) -> npt.NDArray[np.int64]:
        if alphabet is None:
            return random_tokens(rng, count, vocab_size=vocab_size, separator=separator)
        return alphabet[rng.integers(0, alphabet.size, count)]

    said = draw(period)
    gapped = rng.random() < GAP_SHARE
    parts, known = [said], [np.zeros(period, dtype=bool)]
    for copy in range(1, copies):
        again = np.ones(period, dtype=bool)
        # Nothing tells where the sequence starts again, unless it did so once before.
        again[0] = copy > 1 and not gapped
        if gapped:
            between = draw(int(rng.integers(1, 33)))
            parts.append(between)
            known.append(np.zeros(between.size, dtype=bool))
        parts.append(said)
        known.append(again)
    return np.concatenate(parts), np.concatenate(known)


def _plain(rng: np.random.Generator, snippet: Snippet) -> Row:
    said = snippet(rng, int(rng.integers(8, LONGEST + 1))).astype(np.int64)
    copies = int(rng.integers(2, 5))
    known = np.ones(said.size * copies, dtype=bool)
    known[0] = False
    return np.tile(said, copies), known
