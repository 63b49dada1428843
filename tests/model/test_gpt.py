"""The whole model: its start, its bounds, and what it has in common with itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from model.config import GPTConfig
from model.gpt import GPT, ContextError

CONFIG = GPTConfig(n_layer=4, d_model=128, n_head=4, vocab_size=500, n_ctx=32)


def test_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = GPT(CONFIG, seed=1), GPT(CONFIG, seed=1), GPT(CONFIG, seed=2)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
    assert not torch.equal(first.embed.weight, other.embed.weight)


def test_weights_start_as_gpt2s_did() -> None:
    model = GPT(CONFIG).requires_grad_(False)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert weight.count_nonzero() == 0, name
        elif weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            writes = name.endswith(("attn.o.weight", "mlp.down.weight"))
            expected = 0.02 / (2 * 4) ** 0.5 if writes else 0.02
            assert float(weight.std()) == pytest.approx(expected, rel=0.05), name
            assert abs(float(weight.mean())) < 0.1 * expected, name


def test_tied_head_is_the_very_embedding() -> None:
    model = GPT(GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=5, n_ctx=4, tied=True))
    assert model.unembed.weight is model.embed.weight
    assert GPT(CONFIG).unembed.weight is not GPT(CONFIG).embed.weight


def test_meta_device_draws_nothing() -> None:
    with torch.device("meta"):
        assert GPT(CONFIG).embed.weight.is_meta


@pytest.mark.parametrize("n_tokens", [1, 64])
def test_shortest_and_longest_text_give_a_row_of_logits_for_each_token(
    n_tokens: int, family: str, models: Mapping[str, GPT]
) -> None:
    ids = torch.arange(n_tokens)[None]
    logits = models[family](ids)
    assert logits is not None
    assert logits.shape == (1, n_tokens, 360)
    assert logits.isfinite().all()


@pytest.mark.parametrize("n_tokens", [0, 65])
def test_no_tokens_or_too_many_are_refused_with_the_numbers(
    n_tokens: int, models: Mapping[str, GPT]
) -> None:
    with pytest.raises(ContextError, match=f"{n_tokens} tokens; the context holds 1 to 64"):
        models["course"](torch.zeros(1, n_tokens, dtype=torch.long))


def test_rows_of_a_batch_are_independent(family: str, models: Mapping[str, GPT]) -> None:
    model = models[family]
    ids = torch.randint(360, (3, 12), generator=torch.Generator().manual_seed(0))
    batch = model(ids)
    for row in range(3):
        alone = model(ids[row : row + 1])
        assert (batch[row] - alone[0]).abs().max() < 2e-5 * max(1.0, float(alone.abs().max()))


def test_positions_unembedded_alone_agree_with_the_whole(models: Mapping[str, GPT]) -> None:
    model = models["course"]
    ids = torch.arange(12)[None]
    whole, some = model(ids), model(ids, unembed=[7, 2])
    assert (some[0] - whole[0, [7, 2]]).abs().max() < 2e-5 * float(whole.abs().max())


def test_positions_make_one_token_differ_from_itself_later(
    family: str, models: Mapping[str, GPT]
) -> None:
    logits = models[family](torch.tensor([[7, 8, 7]]))
    assert (logits[0, 0] - logits[0, 2]).abs().max() > 0.01
