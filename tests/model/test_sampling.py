"""The choice of a token against one written here in plain numpy, and against many draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from model.sampling import Choice, Sampling, SamplingError, choose

INF = math.inf


def reference(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> tuple[list[int], list[float]]:
    """The kept ids by rank and their probabilities, one token after the other."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = [math.exp((logits[token] - max(logits)) / temperature) for token in order]
    kept = min(top_k or len(order), len(order))
    total = math.fsum(weights[:kept])
    if top_p is not None and top_p < 1:
        n = 1
        while n < kept and math.fsum(weights[:n]) / total < top_p:
            n += 1
        kept = n
    total = math.fsum(weights[:kept])
    return order[:kept], [weight / total for weight in weights[:kept]]


def pick(logits: Any, *, top: int = 10**6, draw: float | None = None, **settings: Any) -> Choice:
    return choose(torch.tensor(logits), Sampling(**settings), top=top, draw=draw)


def test_pipeline_worked_by_hand() -> None:
    # Powers of two: at temperature 1 the weights are 8, 4, 2, 1, 1 of 16.
    logits = [math.log(2), math.log(8), 0.0, math.log(4), 0.0]
    choice = choose(
        torch.tensor(logits, dtype=torch.float64),
        Sampling(top_k=4, top_p=0.9),
        top=5,
        draw=0.6,
    )
    assert [c.id for c in choice.candidates] == [1, 3, 0, 2, 4]
    assert [c.rank for c in choice.candidates] == [1, 2, 3, 4, 5]
    assert [c.cut_by for c in choice.candidates] == [None, None, None, "top_p", "top_k"]
    assert [c.uncut for c in choice.candidates] == pytest.approx(
        [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16]
    )
    assert [c.probability for c in choice.candidates] == pytest.approx(
        [8 / 14, 4 / 14, 2 / 14, 0, 0]
    )
    assert [c.cumulative for c in choice.candidates] == pytest.approx([8 / 14, 12 / 14, 1, 1, 1])
    assert choice.top_k_cut is not None and choice.top_p_cut is not None
    assert (choice.top_k_cut.rank, choice.top_k_cut.mass) == (4, pytest.approx(15 / 16))
    # 8 + 4 of 15 are 0.8: under 0.9, so the third is kept as well, and 14 of 15 are reached.
    assert (choice.top_p_cut.rank, choice.top_p_cut.mass) == (3, pytest.approx(14 / 15))
    assert (choice.n_kept, choice.drawn, choice.draw) == (3, 3, 0.6)
    by_hand = -sum(p * math.log(p) for p in (8 / 14, 4 / 14, 2 / 14))
    assert choice.entropy_nats == pytest.approx(by_hand)


def test_temperature_divides_the_logits() -> None:
    choice = pick([1.0, 3.0, 2.0], temperature=0.5)
    assert [c.scaled for c in choice.candidates] == [6.0, 4.0, 2.0]
    total = 1 + math.exp(-2) + math.exp(-4)
    expected = [1 / total, math.exp(-2) / total, math.exp(-4) / total]
    assert [c.probability for c in choice.candidates] == pytest.approx(expected)
    assert choice.drawn is None and choice.draw is None


def test_greedy_takes_the_lowest_id_of_the_largest_and_draws_nothing() -> None:
    choice = pick([0.5, 2.0, -1.0, 2.0], temperature=0, top_k=3, top_p=0.5, draw=0.99)
    assert (choice.drawn, choice.draw, choice.n_kept, choice.entropy_nats) == (1, None, 1, 0.0)
    assert (choice.top_k_cut, choice.top_p_cut) == (None, None)
    first, second = choice.candidates[:2]
    assert (first.id, first.probability, first.cut_by) == (1, 1.0, None)
    assert (second.id, second.probability, second.cut_by) == (3, 0.0, "greedy")
    assert second.scaled is None and second.uncut == first.uncut
    assert sum(c.uncut for c in choice.candidates) == pytest.approx(1)


@pytest.mark.parametrize("top", [0, 3, 10**6])
@pytest.mark.parametrize("kind", ["distinct", "many ties", "all equal", "one towers"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, None),
        (0.7, 5, None),
        (1.3, None, 0.9),
        (1.0, None, 0.9999),
        (1.0, None, 1.0),
        (2.5, 40, 0.5),
        (0.05, 3, 0.05),
        (1.0, 10**6, 1e-9),
    ],
)
def test_kept_tokens_and_probabilities_are_the_references(
    kind: str, temperature: float, top_k: int | None, top_p: float | None, top: int
) -> None:
    draw = np.random.default_rng(4)
    logits = {
        "distinct": draw.normal(0, 2, 700),
        "many ties": draw.integers(0, 6, 700),
        "all equal": np.zeros(700),
        "one towers": np.where(np.arange(700) == 333, 50.0, draw.normal(0, 1, 700)),
    }[kind].astype(np.float32)
    kept, probabilities = reference(logits.tolist(), temperature, top_k, top_p)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    shown = pick(logits, top=700, **settings)
    assert shown.n_kept == len(kept)
    assert [c.id for c in shown.candidates if c.cut_by is None] == kept
    np.testing.assert_allclose(
        [c.probability for c in shown.candidates[: len(kept)]],
        probabilities,
        rtol=1e-9,
        atol=1e-300,
    )
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p)
    assert shown.entropy_nats == pytest.approx(entropy, abs=1e-9)
    # Equal ones by a division, so that a draw on the very border between two is told as well.
    n_kept, equal = len(kept), len(set(probabilities)) == 1
    cumulative = np.arange(1, n_kept + 1) / n_kept if equal else np.cumsum(probabilities)
    for u in (0.0, 0.3, 0.77, 0.999):
        choice = pick(logits, top=top, draw=u, **settings)
        assert choice.drawn == kept[int(np.argmax(cumulative > u))]
        assert choice.drawn in {c.id for c in choice.candidates}
        assert len(choice.candidates) <= min(top, 700) + 1
        assert (choice.n_kept, choice.draw) == (len(kept), u)


# Upper 0.001 points of chi-square (Pearson and Hartley, table 8), by degrees of freedom.
CHI_SQUARE_999 = {6: 22.458, 7: 24.322, 11: 31.264}


@pytest.mark.parametrize(
    ("settings", "n_kept"),
    [
        ({}, 12),
        ({"temperature": 0.6, "top_k": 8}, 8),
        ({"temperature": 1.5, "top_p": 0.6}, 7),
    ],
)
def test_frequencies_of_many_draws_are_the_probabilities(
    settings: dict[str, Any], n_kept: int
) -> None:
    logits = torch.tensor([0.1 * (at % 5) - 0.07 * at for at in range(12)])
    shown = choose(logits, Sampling(**settings), top=12, draw=None)
    assert shown.n_kept == n_kept
    uniform = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
    counts = np.zeros(12)
    for u in uniform.tolist():
        drawn = choose(logits, Sampling(**settings), top=1, draw=u).drawn
        assert drawn is not None
        counts[drawn] += 1
    kept = [c for c in shown.candidates if c.cut_by is None]
    assert sum(counts[c.id] for c in kept) == 20_000
    expected = np.array([20_000 * c.probability for c in kept])
    assert expected.min() > 100

    def statistic(expected: Any) -> float:
        seen = np.array([counts[c.id] for c in kept])
        return float(((seen - expected) ** 2 / expected).sum())

    assert statistic(expected) < CHI_SQUARE_999[n_kept - 1]
    # Control: uniform probabilities are told apart.
    assert statistic(np.full(n_kept, 20_000 / n_kept)) > CHI_SQUARE_999[n_kept - 1]


def test_large_vocabulary_gives_the_same_whatever_is_shown() -> None:
    logits = torch.randn(50_257, generator=torch.Generator().manual_seed(2))
    order = np.argsort(-logits.double().numpy(), kind="stable")
    weights = np.exp(logits.double().numpy()[order])
    cumulative = np.cumsum(weights / weights.sum())
    for u in (0.0, 1e-4, 0.5, 0.97, 0.9999999, 1 - 2**-53):
        choice = choose(logits, Sampling(), top=3, draw=u)
        place = min(int(np.searchsorted(cumulative, u, side="right")), 50_256)
        assert choice.drawn == order[place]
        assert choice.candidates[-1].rank == max(3, place + 1)
        assert [c.id for c in choice.candidates[:3]] == order[:3].tolist()


def test_border_on_a_rounding_error_is_the_same_whatever_is_shown() -> None:
    # Where the likeliest 64 end, added one by one or in another order: a hair apart.
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(200, generator=generator, dtype=torch.float64)
        weights = (logits - logits.amax()).exp()
        likeliest = weights.sort(descending=True).values[:64]
        for mass in (likeliest.sum(), likeliest.cumsum(0)[-1]):
            border = float(mass) / float(weights.sum())
            for u in (math.nextafter(border, 0), border, math.nextafter(border, 1)):
                few, all_ = (
                    choose(logits, Sampling(top_p=u), top=top, draw=None) for top in (0, 200)
                )
                assert few.n_kept == all_.n_kept and few.n_kept in (64, 65)
                drawn = {choose(logits, Sampling(), top=t, draw=u).drawn for t in (0, 200)}
                assert len(drawn) == 1


def test_impossible_tokens_are_never_drawn() -> None:
    for u in (0.0, 0.5, 1 - 2**-53):
        choice = pick([-INF, 1.0, -INF, 1.0, -1e6], draw=u)
        assert choice.drawn == (1 if u < 0.5 else 3)
    assert choice.candidates[-1].probability == 0 and choice.candidates[-1].logit == -INF


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_logits_without_a_choice_are_refused(bad: float) -> None:
    with pytest.raises(SamplingError, match="the largest logit is"):
        pick([bad, bad if bad == -INF else 1.0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1; it must be 0 \(greedy\) or at least 1e-06"),
        ({"temperature": 1e-7}, "temperature is 1e-07"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": INF}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be over 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"draw": 1.0}, "draw is 1.0; it must be at least 0 and under 1"),
        ({"draw": -0.1}, "draw is -0.1"),
    ],
)
def test_settings_that_make_no_choice_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SamplingError, match=says):
        pick([1.0, 2.0], **settings)
