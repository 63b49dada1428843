"""Why ÷√d: random queries and keys of growing size, and what the softmax makes of their dots.

Vaswani et al. 2017, footnote 4: the dot of two vectors with independent components of mean 0 and
variance 1 has variance d. Knows nothing of a model. Shapes: N pair, R row, S key, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from model.labs.attention import row_entropy
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits, whole

HEAD_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ROWS = 256
# About a second of drawing.
MOST_NUMBERS = 2**26
_CHUNK = 2**20


@dataclass(frozen=True)
class Softened:
    """Dots at one scale: their variance, and the softmax over rows of them, means over ROWS rows.

    `variance_error` is one standard error of the variance; `expected_variance` is d unscaled and 1
    scaled. `gradient_norm` is the Frobenius norm of ∂softmax/∂scores = diag(p) − p pᵀ, which goes
    to 0 as one key takes all.
    """

    scale: float
    variance: float
    variance_error: float
    expected_variance: float
    entropy_nats: float
    largest_weight: float
    gradient_norm: float


@dataclass(frozen=True)
class HeadSize:
    """One head size, the same dots twice: as they are and ÷√d."""

    d_head: int
    unscaled: Softened
    scaled: Softened


@dataclass(frozen=True)
class ScalingLab:
    """All head sizes. `greatest_entropy_nats` is that of an even row, ln `keys`."""

    seed: int
    samples: int
    keys: int
    rows: int
    greatest_entropy_nats: float
    sizes: tuple[HeadSize, ...]


def scaling(
    head_sizes: Sequence[int] = HEAD_SIZES,
    *,
    samples: int = 4096,
    keys: int = 16,
    seed: int = 0,
    limits: LabLimits = LAB_LIMITS,
) -> ScalingLab:
    """Draw `samples` pairs q, k and ROWS rows of `keys` keys for each head size.

    Each size has its own stream of numbers, so it gives the same answer in any list. Raises
    LabError for sizes outside the limits and for more drawing than MOST_NUMBERS.
    """
    whole("samples", samples, 2, MOST_NUMBERS)
    whole("keys", keys, 2, limits.tokens)
    whole("seed", seed, 0, 2**63 - 1)
    if not head_sizes:
        raise LabError("head_sizes", "head_sizes has 0 entries; there must be at least 1")
    for size in head_sizes:
        whole("head_sizes", size, 1, limits.dimensions)
    drawn = sum(head_sizes) * (2 * samples + ROWS * (1 + keys))
    if drawn > MOST_NUMBERS:
        raise LabError(
            "samples",
            f"these head sizes, samples and keys draw {drawn} random numbers; "
            f"at most {MOST_NUMBERS} are allowed",
        )
    return ScalingLab(
        seed=seed,
        samples=samples,
        keys=keys,
        rows=ROWS,
        greatest_entropy_nats=float(np.log(keys)),
        sizes=tuple(_measure(size, samples, keys, seed) for size in head_sizes),
    )


def _measure(d_head: int, samples: int, keys: int, seed: int) -> HeadSize:
    draw = np.random.default_rng([seed, d_head])
    dots = np.concatenate(list(_dots_of_pairs(draw, samples, d_head)))  # (N,)
    rows = np.concatenate(list(_dots_of_rows(draw, keys, d_head)))  # (R, S)
    return HeadSize(
        d_head=d_head,
        unscaled=_soften(dots, rows, d_head, scale=1.0, expected=float(d_head)),
        scaled=_soften(dots, rows, d_head, scale=d_head**-0.5, expected=1.0),
    )


def _dots_of_pairs(draw: np.random.Generator, samples: int, d_head: int) -> Iterator[Array]:
    for start, stop in _chunks(samples, 2 * d_head):
        q, k = draw.standard_normal((2, stop - start, d_head))
        yield (q * k).sum(axis=-1)


def _dots_of_rows(draw: np.random.Generator, keys: int, d_head: int) -> Iterator[Array]:
    for start, stop in _chunks(ROWS, (1 + keys) * d_head):
        q = draw.standard_normal((stop - start, 1, d_head))
        k = draw.standard_normal((stop - start, keys, d_head))
        yield (q * k).sum(axis=-1)


def _chunks(count: int, numbers_each: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // numbers_each)
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _soften(dots: Array, rows: Array, d_head: int, *, scale: float, expected: float) -> Softened:
    scores = rows * scale
    exps = np.exp(scores - scores.max(axis=1, keepdims=True))
    pattern = exps / exps.sum(axis=1, keepdims=True)
    # A product of two standard normals has kurtosis 9, so a sum of d of them has 3 + 6/d.
    relative = np.sqrt(2 / (len(dots) - 1) + 6 / d_head / len(dots))
    return Softened(
        scale=scale,
        variance=float((dots * scale).var(ddof=1)),
        variance_error=float(expected * relative),
        expected_variance=expected,
        entropy_nats=float(row_entropy(pattern).mean()),
        largest_weight=float(pattern.max(axis=1).mean()),
        gradient_norm=float(gradient_norm(pattern).mean()),
    )


def gradient_norm(pattern: Array) -> Array:
    """‖diag(p) − p pᵀ‖ (Frobenius) of each row of a pattern (…, S) -> (…)."""
    squares = (pattern**2).sum(axis=-1)
    cubes = (pattern**3).sum(axis=-1)
    norm: Array = np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0.0))
    return norm
