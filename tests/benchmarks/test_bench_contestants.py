"""The benchmarks compare the same work: peers give our maps, the untapped copy our logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import untapped
from benchmarks.rows import generation
from benchmarks.sizes import Size, prepare, token_ids
from model.capture import Capture
from model.checkpoints.open import open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.reading import read
from model.sites import SITES

GATE = 2e-5
T = 12


@pytest.fixture
def tiny(tmp_path: Path) -> Size:
    transformers = pytest.importorskip("transformers")

    def untrained() -> torch.nn.Module:
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=50
        )
        return transformers.GPT2LMHeadModel(config)

    return Size("tiny", "", 2, 4, 50, untrained, tmp_path)


@pytest.mark.parametrize("expert", [False, True])
@pytest.mark.parametrize("name", ["transformers", "transformer_lens"])
def test_peers_give_our_maps(name: str, expert: bool, tiny: Size) -> None:
    pytest.importorskip(name, reason="the peers live in the environment of the benchmarks")
    from benchmarks.peers import PEERS

    ids = token_ids(T, tiny.vocabulary)
    folder = prepare(tiny)
    model = open_model(str(folder), device=torch.device("cpu"), dtype=torch.float32).model
    every = Capture.resolve(SITES["attn.pattern"], {}, model.config, T)
    ours = read(model, ids, [every]).tensors["attn.pattern"]
    theirs = torch.cat(PEERS[name](tiny)(torch.tensor([ids]), expert))
    assert (theirs - ours).abs().max() <= GATE
    assert ours.max() > 2 / T  # far from uniform, where any two would agree


def test_generation_gives_the_peers_ids(tiny: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the peer")
    monkeypatch.setattr(generation, "NEW", 3)
    contestants = generation.work(tiny)
    ids = token_ids(T, tiny.vocabulary)
    generation.require_same_ids(contestants, ids)
    assert all(len(run(ids)) == 3 for run in contestants.values())
    contestants["transformers"] = lambda ids: [1, 2, 3]
    with pytest.raises(AssertionError, match=r"transformers gives \[1, 2, 3\]"):
        generation.require_same_ids(contestants, ids)


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_untapped_copy_gives_our_bits(positions: str) -> None:
    config = GPTConfig(
        n_layer=2, d_model=32, n_head=4, vocab_size=50, n_ctx=16, positions=positions
    )
    model = GPT(config).eval()
    untapped.require_same_logits(model, torch.tensor([token_ids(T, 50)]))


def test_untapped_copy_is_noticed_where_it_is_none() -> None:
    config = GPTConfig(
        n_layer=2, d_model=32, n_head=4, vocab_size=50, n_ctx=16, parallel_residual=True
    )
    with pytest.raises(AssertionError):
        untapped.require_same_logits(GPT(config).eval(), torch.tensor([token_ids(T, 50)]))
