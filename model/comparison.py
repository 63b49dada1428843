"""How an edited run differs from the plain one, by its logits. Shapes: T position, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.reading import RunCancelled


@dataclass(frozen=True)
class RankChange:
    """Ranks count from 1, the likeliest token."""

    position: int
    id: int
    rank_before: int
    rank_after: int


@dataclass(frozen=True)
class Comparison:
    """By position: KL(before ‖ after) in nats, and the largest change of a logit; +∞ where a logit
    went to −∞.

    `rank_changes` holds, for each position, the likeliest token of either run where its rank moved.
    """

    kl_nats: list[float]
    max_logit_change: list[float]
    rank_changes: list[RankChange]


def compare_logits(
    before: Tensor, after: Tensor, *, stopped: Callable[[], bool] = lambda: False
) -> Comparison:
    """Both (T, V). Row by row in float64, so that nothing of size T · V is made beside them.

    Raises RunCancelled once `stopped` says so.
    """
    kl_nats, largest, changes = [], [], []
    for position, (plain, edited) in enumerate(zip(before, after, strict=True)):
        if stopped():
            raise RunCancelled
        if torch.equal(plain, edited):
            kl_nats.append(0.0)
            largest.append(0.0)
            continue
        log_p, log_q = plain.double().log_softmax(-1), edited.double().log_softmax(-1)
        p = log_p.exp()
        terms = torch.where(p > 0, p * (log_p - log_q), 0.0)  # what cannot come adds nothing
        kl_nats.append(max(float(terms.sum()), 0.0))
        changed = torch.where(edited == plain, 0.0, edited - plain)  # also −∞ that stayed
        largest.append(float(changed.abs().amax()))
        for token in sorted({int(plain.argmax()), int(edited.argmax())}):
            ranks = [1 + int((row > row[token]).sum()) for row in (plain, edited)]
            if ranks[0] != ranks[1]:
                changes.append(RankChange(position, token, ranks[0], ranks[1]))
    return Comparison(kl_nats, largest, changes)
