"""Two runs compared: divergence, largest change and ranks, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.comparison import compare_logits


def divergence(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """KL(softmax(before) ‖ softmax(after)), as it is defined."""
    p, q = (np.exp(x) / np.exp(x).sum() for x in (before, after))
    return float((p * np.log(p / q)).sum())


def test_two_tokens_worked_by_hand() -> None:
    # p = (1/2, 1/2), q = (3/4, 1/4): KL = ½ ln(2/3) + ½ ln 2 = ½ ln(4/3)
    found = compare_logits(torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3), 0.0]]))
    assert found.kl_nats == [pytest.approx(0.5 * math.log(4 / 3), rel=1e-6)]
    assert found.max_logit_change == [pytest.approx(math.log(3))]
    assert found.rank_changes == []


def test_random_rows_agree_with_numpy() -> None:
    draw = torch.Generator().manual_seed(0)
    before, after = torch.randn(2, 5, 40, generator=draw)
    found = compare_logits(before, after)
    for row, (plain, edited) in enumerate(zip(before.double(), after.double(), strict=True)):
        assert found.kl_nats[row] == pytest.approx(divergence(plain.numpy(), edited.numpy()))
        assert found.max_logit_change[row] == pytest.approx(float((edited - plain).abs().max()))


def test_equal_rows_have_no_divergence_and_no_rank_change() -> None:
    row = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    found = compare_logits(row, row.clone())
    assert found.kl_nats == [0.0, 0.0] and found.max_logit_change == [0.0, 0.0]
    assert found.rank_changes == []


def test_divergence_is_never_below_zero() -> None:
    row = torch.randn(1, 500, generator=torch.Generator().manual_seed(2))
    assert compare_logits(row, row + 1e-7).kl_nats[0] >= 0


def test_ranks_of_either_runs_favourite_are_told_where_they_move() -> None:
    before = torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
    after = torch.tensor([[2.5, 3.0, 2.0, 9.0], [9.0, 3.0, 2.0, 1.0]])
    changes = compare_logits(before, after).rank_changes
    assert [(c.position, c.id, c.rank_before, c.rank_after) for c in changes] == [
        (0, 0, 1, 3),
        (0, 3, 4, 1),
    ]
