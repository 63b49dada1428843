"""Sampling: one row of logits to the next token, every stage of the choice kept to be looked at.

logits ÷ temperature → the top_k largest → the smallest head of those that holds top_p of their
mass (Holtzman et al. 2020) → renormalised → the first token whose cumulative probability exceeds
a uniform number. All over the whole vocabulary, in float64. Knows nothing of models or text.

Shapes: V vocabulary, N ranks looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

CutBy = Literal["greedy", "top_k", "top_p"]
LOWEST_TEMPERATURE = 1e-6


class SamplingError(ValueError):
    """Settings that describe no choice, or logits that no token can be chosen by."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; None cuts nothing.

    `temperature` 0 is greedy: the largest logit, the lowest id among equals; nothing is drawn, and
    the cuts change nothing. Otherwise `top_k` cuts first, `top_p` what is left. Equal logits stand
    in the order of their ids, for both cuts.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        warmth = self.temperature
        if not isfinite(warmth) or (warmth != 0 and warmth < LOWEST_TEMPERATURE):
            raise SamplingError(
                f"temperature is {warmth}; it must be 0 (greedy) or at least {LOWEST_TEMPERATURE}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise SamplingError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SamplingError(f"top_p is {self.top_p}; it must be over 0 and at most 1")


@dataclass(frozen=True)
class Candidate:
    """One token on its way through the choice. `rank` 1 has the largest logit.

    `scaled` is logit ÷ temperature (None where greedy); `uncut` its probability before any cut
    (where greedy, the softmax of the logits themselves); `probability` that of the distribution
    drawn from, 0 where `cut_by` says what cut it; `cumulative` the sum of these down to this rank.
    """

    id: int
    rank: int
    logit: float
    scaled: float | None
    uncut: float
    cut_by: CutBy | None
    probability: float
    cumulative: float


@dataclass(frozen=True)
class Cut:
    """Where a cut fell: the last rank that it kept, and the mass kept, before renormalising.

    The mass is of the distribution that the cut met: for top_p, the one that top_k left.
    """

    rank: int
    mass: float


@dataclass(frozen=True)
class Choice:
    """`candidates`: the first ranks, then the drawn token where it is not among them.

    `drawn` is None where no number was given to draw with; `draw` is that number, None where
    greedy; `entropy_nats` is that of the distribution drawn from.
    """

    candidates: list[Candidate]
    drawn: int | None
    n_kept: int
    top_k_cut: Cut | None
    top_p_cut: Cut | None
    entropy_nats: float
    draw: float | None


def choose(logits: Tensor, sampling: Sampling, *, top: int, draw: float | None) -> Choice:
    """logits (V,) to a choice with its `top` first candidates; `draw` is uniform in [0, 1).

    Raises SamplingError for logits with NaN or +∞, or with no finite number at all.
    """
    raise NotImplementedError
