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
    if draw is not None and not 0 <= draw < 1:
        raise SamplingError(f"draw is {draw}; it must be at least 0 and under 1")
    logits = logits.detach().to("cpu", torch.float64)
    largest = float(logits.amax())  # NaN where any of them is
    if not isfinite(largest):
        raise SamplingError(f"the largest logit is {largest}: no token can be chosen by it")
    greedy = sampling.temperature == 0
    warmth = 1.0 if greedy else sampling.temperature
    # Not divided by their sum yet: equal logits at the top weigh exactly 1, and add up exactly.
    weights = ((logits - largest) / warmth).exp()  # (V,)
    total = float(weights.sum())

    ids = _ranked(logits, weights, sampling, top, draw)  # (N,)
    sums = weights[ids].cumsum(0)
    n_kept, top_k_cut, top_p_cut = 1, None, None
    if not greedy:
        n_kept, top_k_cut, top_p_cut = _cuts(sums, total, len(logits), sampling)
    is_whole = n_kept == len(logits)
    mass = total if is_whole else float(sums[n_kept - 1])
    kept = (weights if is_whole else weights[ids[:n_kept]]) / mass
    cumulative = (sums[:n_kept] / mass).clamp(max=1.0)

    place = 0 if greedy else None
    if not greedy and draw is not None:
        # Rounding may leave the last sum under 1 and the draw above it.
        last = int((weights[ids[:n_kept]] > 0).sum()) - 1
        place = min(int(torch.searchsorted(cumulative, draw, right=True)), last)

    def candidate(place: int) -> Candidate:
        token = int(ids[place])
        logit = float(logits[token])
        is_kept = place < n_kept
        return Candidate(
            id=token,
            rank=place + 1,
            logit=logit,
            scaled=None if greedy else logit / warmth,
            uncut=float(weights[token]) / total,
            cut_by=None if is_kept else _cut_by(place, greedy, top_k_cut),
            probability=float(weights[token]) / mass if is_kept else 0.0,
            cumulative=float(cumulative[place]) if is_kept else 1.0,
        )

    shown = list(range(min(top, len(logits))))
    if place is not None and place >= len(shown):
        shown.append(place)
    return Choice(
        candidates=[candidate(place) for place in shown],
        drawn=None if place is None else int(ids[place]),
        n_kept=n_kept,
        top_k_cut=top_k_cut,
        top_p_cut=top_p_cut,
        entropy_nats=float(torch.special.entr(kept).sum()),
        draw=None if greedy else draw,
    )


def _ranked(
    logits: Tensor, weights: Tensor, sampling: Sampling, top: int, draw: float | None
) -> Tensor:
    """The first ids by rank (N,): as many as the settings, the table and the draw need.

    Sorting a whole vocabulary costs ten times the rest of a choice, and the likeliest few hundred
    tokens nearly always hold the mass that is asked for.
    """
    count = max(top, sampling.top_k or 64)
    share = 0.0
    if sampling.top_k is None and sampling.temperature != 0:
        share = draw or 0.0
        if sampling.top_p is not None and sampling.top_p < 1:
            share = sampling.top_p
    total = float(weights.sum())
    while True:
        ids = _first(logits, count)
        # Added up as it will be: in another order a sum is a hair more or less.
        if len(ids) == len(logits) or float(weights[ids].cumsum(0)[-1]) / total > share:
            return ids
        count *= 8


def _first(logits: Tensor, count: int) -> Tensor:
    """The ids of at least `count` largest logits, largest first, equal ones in order of id."""
    if count >= len(logits):
        return logits.sort(descending=True, stable=True).indices
    floor = logits.topk(count).values[-1]
    ids = (logits >= floor).nonzero().flatten()
    return ids[logits[ids].sort(descending=True, stable=True).indices]


def _cuts(
    sums: Tensor, total: float, n_vocab: int, sampling: Sampling
) -> tuple[int, Cut | None, Cut | None]:
    """How many ranks are kept, and where either cut fell.

    `sums` (N,): weights summed down the ranks, `total` that of all of them.
    """

    def mass_of(n_kept: int) -> float:
        return total if n_kept == n_vocab else float(sums[n_kept - 1])

    n_kept, top_k_cut, top_p_cut = n_vocab, None, None
    if sampling.top_k is not None:
        n_kept = min(sampling.top_k, n_vocab)
        top_k_cut = Cut(n_kept, mass_of(n_kept) / total)
    if sampling.top_p is not None:
        met = mass_of(n_kept)
        if sampling.top_p < 1:
            # Kept: every rank before which less than top_p was gathered, so always the first.
            gathered = sums[:n_kept] / met
            n_kept = min(int((gathered < sampling.top_p).sum()) + 1, n_kept)
        top_p_cut = Cut(n_kept, mass_of(n_kept) / met)
    return n_kept, top_k_cut, top_p_cut


def _cut_by(place: int, greedy: bool, top_k_cut: Cut | None) -> CutBy:
    if greedy:
        return "greedy"
    return "top_k" if top_k_cut is not None and place >= top_k_cut.rank else "top_p"
