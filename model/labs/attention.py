"""Attention by hand: every number between q, k, v and the output, in float64.

Vaswani et al. 2017, eq. 1: softmax(q kᵀ / √D) v. Knows nothing of a running model.
Shapes: T token, Q query asked for, S key, C width of x, D width of q and k, E width of v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.labs.given import (
    LAB_LIMITS,
    Array,
    LabLimits,
    Rows,
    index_of,
    matrix,
    sequence,
    token_names,
)

# Above this many numbers the single products are left out, unless one query was asked for.
MOST_PRODUCTS = 65_536


@dataclass(frozen=True, eq=False)
class Vectors:
    """What attention starts from: q and k (T, D), v (T, E)."""

    tokens: tuple[str, ...]
    q: Array
    k: Array
    v: Array


def given_vectors(
    q: Rows,
    k: Rows,
    v: Rows,
    *,
    tokens: Sequence[str] | None = None,
    limits: LabLimits = LAB_LIMITS,
) -> Vectors:
    """q and k of one shape, v with a row for each token. Raises LabError for any other."""
    q = sequence("q", q, limits)
    k = sequence("k", k, limits, rows=len(q), columns=q.shape[1])
    v = sequence("v", v, limits, rows=len(q))
    return Vectors(token_names(tokens, len(q)), q, k, v)


def project(
    x: Rows,
    w_q: Rows,
    w_k: Rows,
    w_v: Rows,
    *,
    tokens: Sequence[str] | None = None,
    limits: LabLimits = LAB_LIMITS,
) -> Vectors:
    """q = x·W_q, k = x·W_k, v = x·W_v: x (T, C), W_q and W_k (C, D), W_v (C, E)."""
    x = sequence("x", x, limits)
    width = x.shape[1]
    w_q = matrix("w_q", w_q, limits, rows=width)
    w_k = matrix("w_k", w_k, limits, rows=width, columns=w_q.shape[1])
    w_v = matrix("w_v", w_v, limits, rows=width)
    return Vectors(token_names(tokens, len(x)), x @ w_q, x @ w_k, x @ w_v)


@dataclass(frozen=True, eq=False)
class QuerySteps:
    """One query's attention, step by step, in the order in which it is worked out."""

    query: int
    products: Array  # (S, D): q_i · k_i before any sum
    dots: Array  # (S,): their sums
    scores: Array  # (S,): dots × scale
    masked_scores: Array  # (S,): −∞ where the mask forbids
    row_max: float
    exps: Array  # (S,): exp(masked_scores − row_max)
    row_sum: float
    pattern: Array  # (S,): exps / row_sum
    weighted_v: Array  # (S, E): pattern × v
    z: Array  # (E,): the sum of weighted_v over the keys


def attend_row(
    query: int, q: Array, k: Array, v: Array, *, scale: float, hidden: NDArray[np.bool_]
) -> QuerySteps:
    """What one query gathers: q (D,), k (S, D), v (S, E), hidden (S,) True where it must not look.

    The matrix is made of these rows, so both have the same bits. A row that sees nothing has
    pattern 0 and z 0.
    """
    products = q * k
    dots = products.sum(axis=1)
    scores = dots * scale
    masked_scores = np.where(hidden, -np.inf, scores)
    row_max = masked_scores.max()
    exps = np.zeros_like(scores) if hidden.all() else np.exp(masked_scores - row_max)
    row_sum = exps.sum()
    pattern = exps / (row_sum or 1.0)
    weighted_v = pattern[:, None] * v
    return QuerySteps(
        query=query,
        products=products,
        dots=dots,
        scores=scores,
        masked_scores=masked_scores,
        row_max=float(row_max),
        exps=exps,
        row_sum=float(row_sum),
        pattern=pattern,
        weighted_v=weighted_v,
        z=weighted_v.sum(axis=0),
    )


def hidden_keys(
    query: int, n_tokens: int, *, causal: bool, window: int | None = None
) -> NDArray[np.bool_]:
    """Where the mask forbids `query` to look: later keys, and those before the window."""
    keys = np.arange(n_tokens)
    if not causal:
        return np.zeros(n_tokens, dtype=bool)
    hidden: NDArray[np.bool_] = keys > query
    return hidden if window is None else hidden | (keys <= query - window)


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The rows of the queries asked for, one below the other.

    `products` (Q, S, D) and `weighted_v` (Q, S, E) are None where they would be many and more
    than one query was asked for. `top_keys` and `top_weights` (Q,) are the largest of each row;
    `entropy_nats` (Q,) is −Σ p ln p, 0 where one key takes all.
    """

    tokens: tuple[str, ...]
    queries: tuple[int, ...]
    scaled: bool
    causal: bool
    scale: float
    q: Array
    k: Array
    v: Array
    products: Array | None
    dots: Array  # (Q, S), and so on to pattern
    scores: Array
    masked_scores: Array
    row_max: Array  # (Q,)
    exps: Array
    row_sum: Array  # (Q,)
    pattern: Array
    weighted_v: Array | None
    z: Array  # (Q, E)
    top_keys: tuple[int, ...]
    top_weights: Array
    entropy_nats: Array


def attend(
    vectors: Vectors,
    *,
    scaled: bool = True,
    causal: bool = False,
    query: int | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> AttentionSteps:
    """Every step for one query, or for all of them.

    `scaled` False leaves the scale out; `scale` is what a model has in the place of 1/√D, and
    `window` how many keys, itself included, its mask lets a query look back on. Raises LabError
    for a query outside the tokens.
    """
    n_tokens, d_head = vectors.q.shape
    factor = (d_head**-0.5 if scale is None else scale) if scaled else 1.0
    queries = range(n_tokens) if query is None else [index_of("query", query, n_tokens)]
    rows = [
        attend_row(
            index,
            vectors.q[index],
            vectors.k,
            vectors.v,
            scale=factor,
            hidden=hidden_keys(index, n_tokens, causal=causal, window=window),
        )
        for index in queries
    ]
    pattern = np.stack([row.pattern for row in rows])
    widest = max(d_head, vectors.v.shape[1])
    all_products = query is not None or n_tokens * n_tokens * widest < MOST_PRODUCTS
    return AttentionSteps(
        tokens=vectors.tokens,
        queries=tuple(queries),
        scaled=scaled,
        causal=causal,
        scale=factor,
        q=vectors.q,
        k=vectors.k,
        v=vectors.v,
        products=np.stack([row.products for row in rows]) if all_products else None,
        dots=np.stack([row.dots for row in rows]),
        scores=np.stack([row.scores for row in rows]),
        masked_scores=np.stack([row.masked_scores for row in rows]),
        row_max=np.array([row.row_max for row in rows]),
        exps=np.stack([row.exps for row in rows]),
        row_sum=np.array([row.row_sum for row in rows]),
        pattern=pattern,
        weighted_v=np.stack([row.weighted_v for row in rows]) if all_products else None,
        z=np.stack([row.z for row in rows]),
        top_keys=tuple(int(key) for key in pattern.argmax(axis=1)),
        top_weights=pattern.max(axis=1),
        entropy_nats=row_entropy(pattern),
    )


def row_entropy(pattern: Array) -> Array:
    """−Σ p ln p over the last axis, in nats, with 0 ln 0 = 0."""
    logs = np.log(pattern, out=np.zeros_like(pattern), where=pattern > 0)
    entropy: Array = 0.0 - (pattern * logs).sum(axis=-1)
    return entropy
