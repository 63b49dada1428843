"""Measures against numbers worked by hand, on models whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import train_tokenizer
from model.training.evaluate import (
    HeldOut,
    attention_patterns,
    held_out_loss,
    induction_scores,
    log_likelihoods,
    previous_token_scores,
    template_accuracy,
)
from model.training.tokens import TokenSource


def even_model(vocab_size: int = 8, n_ctx: int = 4) -> GPT:
    """A model that finds every token equally likely, and every position worth the same look."""
    config = GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=vocab_size, n_ctx=n_ctx)
    model = GPT(config)
    with torch.no_grad():
        model.unembed.weight.zero_()
        for matrix in (model.blocks[0].attn.q, model.blocks[0].attn.k):
            matrix.weight.zero_()
    return model


def source(documents: list[list[int]], sizes: list[int], held: list[int]) -> TokenSource:
    starts = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
    return TokenSource(
        "toy", np.concatenate(documents).astype(np.uint16), starts,
        np.array(sizes), np.setdiff1d(np.arange(len(documents)), held), np.array(held, dtype=int),
    )  # fmt: skip


def test_bits_per_byte_by_hand() -> None:
    """ln 8 = 2.0794 nats a token are 3 bits; 5 tokens of 3 bits over 12 bytes are 1.25."""
    toy = source([[1, 2, 3], [4, 5]], [7, 5], held=[0, 1])
    measured = held_out_loss(even_model(), toy, 0, max_tokens=100)
    assert measured is not None
    assert (measured.tokens, measured.bytes) == (5, 12)
    assert measured.nats_per_token == pytest.approx(2.0794415)
    assert measured.bits_per_byte == pytest.approx(1.25)


def test_held_out_alone_is_measured_and_no_more_than_asked() -> None:
    toy = source([[1] * 9, [2, 3], [4, 5], [6, 7]], [90, 4, 4, 4], held=[1, 2, 3])
    measured = held_out_loss(even_model(), toy, 0, max_tokens=4)
    assert measured is not None and (measured.tokens, measured.bytes) == (4, 8)


def test_nothing_held_out_is_no_measure() -> None:
    assert held_out_loss(even_model(), source([[1]], [1], held=[]), 0, max_tokens=9) is None


def test_held_out_counts() -> None:
    assert HeldOut(nats=4 * math.log(2), tokens=2, bytes=8).bits_per_byte == 0.5


def test_long_document_is_read_in_windows_with_every_token_counted_once() -> None:
    """Against one document at a time, window by window, written out."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=20, n_ctx=4), seed=3)
    documents = [[5, 6, 7, 8, 9, 10, 11], [3], [4, 5, 6, 7]]
    expected = []
    for document in documents:
        read, total = [0, *document], 0.0
        for start in range(0, len(document), 4):
            window = read[start : start + 4][: len(document) - start]
            log_p = model(torch.tensor([window])).log_softmax(-1)[0]
            total += sum(float(log_p[i, read[start + i + 1]].detach()) for i in range(len(window)))
        expected.append(total)
    assert log_likelihoods(model, documents, 0) == pytest.approx(expected, rel=1e-5)


def test_patterns_are_those_of_the_layers_in_order() -> None:
    model = GPT(GPTConfig(n_layer=3, d_model=8, n_head=2, vocab_size=20, n_ctx=8), seed=1)
    patterns = attention_patterns(model, torch.arange(6)[None])
    assert patterns.shape == (3, 1, 2, 6, 6)
    assert torch.allclose(patterns.sum(-1), torch.ones(3, 1, 2, 6))


def test_head_that_looks_everywhere_has_the_scores_of_chance() -> None:
    """Even attention: p[q, any] = 1 / (q + 1), so both scores are means of those."""
    model = even_model(vocab_size=20, n_ctx=16)
    induction = induction_scores(model, 0, period=8, rows=2)
    assert induction.flatten().tolist() == pytest.approx(
        [sum(1 / (q + 1) for q in range(8, 16)) / 8] * 2, rel=1e-5
    )
    previous = previous_token_scores(model, torch.arange(10))
    assert previous.flatten().tolist() == pytest.approx(
        [sum(1 / (q + 1) for q in range(1, 10)) / 9] * 2, rel=1e-5
    )


def test_head_that_looks_one_back_scores_one() -> None:
    """Learned positions as rotations of a clock: the key's hand is the query's, one tick on."""
    n_ctx = 8
    config = GPTConfig(
        n_layer=1, d_model=2, n_head=1, vocab_size=9, n_ctx=n_ctx, positions="learned",
        norm="rmsnorm", norm_bias=False, qkv_bias=False,
    )  # fmt: skip
    model = GPT(config)
    angle = torch.arange(n_ctx) * (2 * math.pi / n_ctx)
    tick = 2 * math.pi / n_ctx
    with torch.no_grad():
        model.embed.weight.zero_()
        assert model.pos_embed is not None
        model.pos_embed.weight.copy_(torch.stack([angle.cos(), angle.sin()], 1))
        turn = torch.tensor([[math.cos(tick), -math.sin(tick)], [math.sin(tick), math.cos(tick)]])
        model.blocks[0].attn.q.weight.copy_(300 * torch.eye(2))
        model.blocks[0].attn.k.weight.copy_(turn)
    scores = previous_token_scores(model, torch.arange(n_ctx))
    assert float(scores[0, 0]) == pytest.approx(1.0, abs=1e-3)


def test_model_without_preference_is_right_by_length_of_nouns_only() -> None:
    """Equal likelihood for every token: a tie is no success."""
    tokenizer = train_tokenizer(["the cat 猫"] * 4, 280)
    model = even_model(vocab_size=280, n_ctx=128)
    for language in ("en", "zh"):
        accuracy = template_accuracy(model, tokenizer, language, count=60)  # type: ignore[arg-type]
        assert 0.2 < accuracy < 0.7
