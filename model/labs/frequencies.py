"""The ladder of rotary frequencies, its stretched forms side by side, and what distance does.

The formulas are `model.rope`'s. Knows nothing of a running model. Shapes: P pair, R distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model import rope
from model.config import GPTConfig, RopeScaling
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits, positive, whole

LONGEST = 100_000_000  # positions of a context
MOST_DISTANCES = 1024
MOST_SCALINGS = 16


@dataclass(frozen=True, eq=False)
class Ladder:
    """One scaling's frequencies, fast to slow.

    (P,): `inverse_frequencies` in radians a position; `wavelengths` = 2π/f in positions;
    `turns` over the context; `stretch`, how many times slower than without scaling.
    `reach` is the distance over which the slowest pair turns as far as it does unscaled over
    the context that the scaling says it started from; None where it says none. `by_distance`
    (R,) is the dot of two equal vectors of length 1, all components alike, `distances` apart:
    Σ cos(distance · f) / P times the square of `attention_factor`, which multiplies cos and sin.
    """

    scaling: RopeScaling | None
    inverse_frequencies: Array
    attention_factor: float
    wavelengths: Array
    turns: Array
    stretch: Array
    reach: float | None
    by_distance: Array


@dataclass(frozen=True, eq=False)
class FrequenciesLab:
    """Ladders of one head size and base over one context, side by side."""

    d_head: int
    base: float
    context: int
    distances: tuple[int, ...]
    ladders: tuple[Ladder, ...]


def side_by_side(
    d_head: int,
    base: float,
    context: int,
    scalings: Sequence[RopeScaling | None],
    *,
    distances: Sequence[int] | None = None,
    limits: LabLimits = LAB_LIMITS,
) -> FrequenciesLab:
    """One ladder for each scaling (None is none) of a run over `context` positions.

    Raises LabError for an odd head size, a base of 1 or less, and numbers outside the limits.
    """
    whole("d_head", d_head, 2, limits.dimensions)
    if d_head % 2:
        raise LabError("d_head", f"d_head is {d_head}; RoPE turns pairs, so it must be even")
    check_base(base)
    whole("context", context, 1, LONGEST)
    if not 1 <= len(scalings) <= MOST_SCALINGS:
        raise LabError(
            "scalings", f"scalings has {len(scalings)} entries; allowed are 1 to {MOST_SCALINGS}"
        )
    for scaling in scalings:
        if scaling is not None:
            check_scaling(scaling)
    if distances is None:
        distances = default_distances(context)
    if not 1 <= len(distances) <= MOST_DISTANCES:
        raise LabError(
            "distances",
            f"distances has {len(distances)} entries; allowed are 1 to {MOST_DISTANCES}",
        )
    for distance in distances:
        whole("distances", distance, 0, LONGEST)
    ladders = [_ladder(d_head, base, context, scaling, distances) for scaling in scalings]
    return FrequenciesLab(d_head, base, context, tuple(distances), tuple(ladders))


def of_model(config: GPTConfig, context: int | None = None) -> Ladder:
    """A model's own ladder for runs of `context` tokens, its longest where none is given.

    Raises LabError for a model that does not rotate.
    """
    if config.positions != "rope":
        raise LabError("model", f"this model's positions are {config.positions!r}, not rotary")
    context = whole("context", config.n_ctx if context is None else context, 1, config.n_ctx)
    distances = default_distances(context)
    return _ladder(config.rotary_dim, config.rope_base, context, config.rope_scaling, distances)


def check_base(base: float) -> None:
    """Raises LabError for a base under which no pair turns slower than the one before."""
    if not 1 < base <= 1e12:
        raise LabError("base", f"base is {base}; it must be over 1 and at most 1e+12")


def check_scaling(scaling: RopeScaling) -> None:
    """Raises LabError for numbers that RopeScaling lets pass but no formula can use."""
    positive("factor", scaling.factor, 1e6)
    for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
        positive(name, getattr(scaling, name), 1e6)
    if scaling.beta_slow > scaling.beta_fast:
        raise LabError(
            "beta_slow",
            f"beta_slow is {scaling.beta_slow}; it must be at most beta_fast, {scaling.beta_fast}",
        )
    if scaling.original_context is not None:
        whole("original_context", scaling.original_context, 1, LONGEST)
    if scaling.attention_factor is not None:
        positive("attention_factor", scaling.attention_factor, 1e6)


def default_distances(context: int) -> list[int]:
    """Every distance up to 64, then 64 more that grow by an even ratio to the whole context."""
    near = list(range(min(context, 64) + 1))
    far = np.geomspace(64, max(context, 64), 65)[1:].round().astype(int).tolist()
    return sorted({*near, *(distance for distance in far if distance <= context)})


def _ladder(
    rotary_dim: int,
    base: float,
    context: int,
    scaling: RopeScaling | None,
    distances: Sequence[int],
) -> Ladder:
    found, factor = rope.inverse_frequencies(rotary_dim, base, scaling, n_tokens=context)
    frequencies: Array = found.numpy()
    stretch: Array = rope.inverse_frequencies(rotary_dim, base)[0].numpy() / frequencies
    started = None if scaling is None else scaling.original_context
    angles = np.array(distances, dtype=np.float64)[:, None] * frequencies  # (R, P)
    return Ladder(
        scaling=scaling,
        inverse_frequencies=frequencies,
        attention_factor=factor,
        wavelengths=2 * math.pi / frequencies,
        turns=context * frequencies / (2 * math.pi),
        stretch=stretch,
        reach=None if started is None else started * float(stretch[-1]),
        by_distance=np.cos(angles).mean(axis=1) * factor**2,
    )
