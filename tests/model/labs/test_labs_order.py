"""Order and the five mistakes: what must be 0 is 0, what must differ differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model.config import GPTConfig
from model.gpt import GPT
from model.labs.diagnostics import diagnose
from model.labs.fresh import block_weights, learn_one_text, similarity
from model.labs.given import LabError
from model.labs.mistake_words import MISTAKES, NUMBERS
from model.labs.order import compare_order, match
from model.reading import RunCancelled
from model.wiring import Wiring

Make = Callable[[str], GPT]
CAT_CHASES_MOUSE = [10, 11, 12, 13]
MOUSE_CHASES_CAT = [12, 13, 11, 10]
KINDS = ["course", "grouped", "learned", "windowed", "parallel"]


@pytest.mark.parametrize("kind", KINDS)
def test_compare_order_is_a_set_only_without_positions_and_mask(
    make_model: Make, kind: str
) -> None:
    lab = compare_order(make_model(kind), CAT_CHASES_MOUSE, MOUSE_CHASES_CAT)
    assert lab.matches == (3, 2, 0, 1)
    same = {(case.positions, case.causal): case.same_set for case in lab.cases}
    assert same == {
        ("none", False): True,
        ("none", True): False,
        ("model", False): False,
        ("model", True): False,
    }
    for case in lab.cases:
        assert case.largest_difference == max(case.differences)
        assert case.same_set or case.largest_difference > 0.01


def test_match_takes_equal_tokens_in_order() -> None:
    assert match([7, 5, 7, 5], [5, 5, 7, 7]) == (2, 0, 3, 1)


def test_compare_order_refuses_other_tokens(make_model: Make) -> None:
    with pytest.raises(LabError, match="2 of the first's 3 are not in the second, 1 of the"):
        compare_order(make_model("course"), [1, 2, 2], [1, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_diagnose_measures_all_five(make_model: Make, kind: str) -> None:
    found = {mistake.id: mistake for mistake in diagnose(make_model(kind), [5, 6, 7, 8, 9, 5, 6])}
    assert list(found) == list(MISTAKES)
    numbers = {
        (mistake.id, number.id): number for mistake in found.values() for number in mistake.numbers
    }
    assert all(number.id in NUMBERS for number in numbers.values())

    leak = numbers["no_mask", "future_leak"]
    assert leak.now == 0.0
    assert leak.mistake > 0.01
    assert not found["no_mask"].measured
    assert found["no_mask"].shown is None

    order = numbers["no_position", "order_difference"]
    assert order.now > 1e-3
    assert order.mistake <= 1e-5
    assert found["no_position"].shown

    gradient = numbers["no_scale", "softmax_gradient"]
    weight = numbers["no_scale", "largest_weight"]
    bears = weight.mistake > weight.now and gradient.mistake < gradient.now
    assert found["no_scale"].shown == bears

    assert numbers["uneven_heads", "width_left_over"].now == 0
    assert numbers["uneven_heads", "width_left_over"].mistake > 0
    error = found["uneven_heads"].error
    assert error is not None
    assert "32" in error
    assert str(int(numbers["uneven_heads", "n_head"].mistake)) in error


def test_diagnose_does_not_touch_the_model(make_model: Make) -> None:
    model = make_model("course")
    before = [weight.clone() for weight in model.parameters()]
    with torch.inference_mode():  # as the service calls it
        diagnose(model, [1, 2, 3, 4])
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None


def test_diagnose_stops_when_told(make_model: Make) -> None:
    with pytest.raises(RunCancelled):
        diagnose(make_model("course"), [1, 2, 3], stopped=lambda: True)
    with pytest.raises(LabError, match="the text has 2 tokens; at least 3 are needed"):
        diagnose(make_model("course"), [1, 2])


def test_learn_one_text_lowers_the_loss_and_needs_the_residual(make_model: Make) -> None:
    config = replace(make_model("course").config, n_layer=6)
    runs = [
        learn_one_text(
            config, [3, 1, 4, 1, 5, 9, 2, 6], Wiring(residual=kept), device=torch.device("cpu")
        )
        for kept in (True, False)
    ]
    kept, cut = runs
    assert kept.vocab_size == 7  # the text's own tokens
    assert kept.last_loss < kept.first_loss
    assert cut.last_loss > kept.last_loss
    assert cut.similarity > kept.similarity
    assert len(kept.layer_gradients) == 6
    assert kept.qk_gradient > 0


def test_learn_one_text_same_seed_same_numbers(make_model: Make) -> None:
    config = make_model("grouped").config
    device = torch.device("cpu")
    assert learn_one_text(config, [1, 2, 3], Wiring(), device=device, steps=2) == learn_one_text(
        config, [1, 2, 3], Wiring(), device=device, steps=2
    )


def test_learn_one_text_takes_adams_steps(make_model: Make) -> None:
    """The loss after five steps against torch's own optimizer on the same draw."""
    config = make_model("course").config
    ids = [1, 2, 3, 1, 2]
    run = learn_one_text(config, ids, Wiring(), device=torch.device("cpu"), steps=5)
    model = GPT(replace(config, vocab_size=3), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    compact = torch.tensor([[0, 1, 2, 0, 1]])
    losses = []
    for _ in range(6):
        logits = model(compact)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], compact[0, 1:])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert run.first_loss == pytest.approx(losses[0], rel=1e-6)
    assert run.last_loss == pytest.approx(losses[5], rel=1e-4)
    assert losses[5] < losses[0]


def test_learn_one_text_refuses_big_blocks() -> None:
    small = GPTConfig(n_layer=2, d_model=32, n_head=4, vocab_size=9, n_ctx=8)
    assert block_weights(small) == sum(w.numel() for w in GPT(small).blocks.parameters())
    big = GPTConfig(n_layer=12, d_model=768, n_head=12, vocab_size=50257, n_ctx=1024)
    assert block_weights(big) == 12 * (12 * 768**2 + 13 * 768)
    with pytest.raises(LabError, match="the blocks have 85054464 weights; at most 30000000"):
        learn_one_text(big, [1, 2, 3], Wiring(), device=torch.device("cpu"))


def test_similarity_of_equal_and_orthogonal_vectors() -> None:
    assert similarity(torch.ones(3, 4)) == pytest.approx(1)
    assert similarity(torch.eye(3)) == pytest.approx(0)
    assert similarity(torch.tensor([[1.0, 0], [1, 0], [0, 1]])) == pytest.approx(1 / 3)
