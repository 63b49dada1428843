"""Rows: what is repeated, what is masked, whose turn it is, and going on from a saved place."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.tokenizer import Tokenizer, train_tokenizer
from model.training.batches import NO_TARGET, DocumentStream, Sampler
from model.training.config import Piecewise, Weight, parse_weight
from model.training.corpus import CorpusError
from model.training.repeats import repeated_row
from model.training.tokens import TokenSource, cut_source


def source(documents: list[list[int]], name: str = "s") -> TokenSource:
    return TokenSource(
        name,
        np.concatenate([np.array(d, dtype=np.uint16) for d in documents]),
        np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64),
        np.ones(len(documents), dtype=np.int64),
        np.arange(len(documents)),
        np.arange(0),
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the cat and the dog 猫狗"] * 4, 300)


@pytest.fixture
def texts(tmp_path: Path, tokenizer: Tokenizer) -> dict[str, TokenSource]:
    found = {}
    for name in ("a", "b"):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n<|endoftext|>\n".join(f"{name} text {i}" for i in range(20)))
        found[name] = cut_source(name, path, tokenizer, every=50)
    return found


def sampler(texts: dict[str, TokenSource], tokenizer: Tokenizer, *specs: str) -> Sampler:
    return Sampler(texts, [parse_weight(s) for s in specs], tokenizer, seed=3)


def test_epoch_reads_every_document_once_after_a_separator() -> None:
    documents = [[10 * n + k for k in range(1, n + 2)] for n in range(1, 8)]
    stream = DocumentStream(source(documents), separator=0, seed=1)
    size = sum(len(d) + 1 for d in documents)
    read: list[int] = []
    while len(read) < size:
        row, known = stream.next_row(6)
        assert known.all()
        read += row[:-1].tolist()
    cut = np.split(np.array(read[:size]), np.flatnonzero(np.array(read[:size]) == 0))
    assert sorted(d[1:].tolist() for d in cut if d.size) == sorted(documents)


def test_last_token_of_a_row_is_the_first_of_the_next() -> None:
    stream = DocumentStream(source([[1, 2, 3], [4, 5], [6]]), separator=0, seed=1)
    rows = [stream.next_row(5)[0] for _ in range(8)]
    assert all(a[-1] == b[0] for a, b in pairwise(rows))


def test_epochs_come_in_different_orders() -> None:
    stream = DocumentStream(source([[n] for n in range(1, 50)]), separator=0, seed=1)
    first, second = (stream.next_row(99)[0][1:-1:2] for _ in range(2))
    assert sorted(first) == sorted(second) and first.tolist() != second.tolist()


def test_rows_go_on_exactly_from_a_saved_place(
    texts: dict[str, TokenSource], tokenizer: Tokenizer
) -> None:
    specs = ("a=1", "b=2", "templates=1", "repeats=1")
    whole = sampler(texts, tokenizer, *specs)
    whole.rows(13, 16, 0.0)
    state: dict[str, Any] = whole.state_dict()
    resumed = sampler(texts, tokenizer, *specs)
    resumed.load_state_dict(state)
    for ours, theirs in zip(resumed.rows(30, 16, 0.5), whole.rows(30, 16, 0.5), strict=True):
        assert np.array_equal(ours, theirs)


def test_targets_are_the_tokens_after(texts: dict[str, TokenSource], tokenizer: Tokenizer) -> None:
    ids, targets = sampler(texts, tokenizer, "a=1").rows(4, 16, 0.0)
    assert np.array_equal(ids[:, 1:], targets[:, :-1])


def test_shares_follow_the_weights_and_their_time() -> None:
    weight = parse_weight("repeats=0.25@0.3:0.06")
    assert weight == Weight("repeats", Piecewise(((0.3, 0.25), (1.0, 0.06))))
    assert [weight.share.at(p) for p in (0.0, 0.29, 0.3, 1.0)] == [0.25, 0.25, 0.06, 0.06]


def test_rows_are_shared_out_by_weight(texts: dict[str, TokenSource], tokenizer: Tokenizer) -> None:
    mixed = sampler(texts, tokenizer, "a=3", "b=0@0.5:1")
    end = tokenizer.encode("a b")

    def share_of_b(progress: float) -> float:
        ids, _ = mixed.rows(400, 16, progress)
        return float((ids == end[-1]).any(1).mean())

    assert share_of_b(0.0) == 0
    assert 0.18 < share_of_b(0.9) < 0.32


def test_unknown_source_is_refused_with_the_known(
    texts: dict[str, TokenSource], tokenizer: Tokenizer
) -> None:
    with pytest.raises(CorpusError, match=r"\['c'\]; known are \['a', 'b', 'repeats', 'templates'"):
        sampler(texts, tokenizer, "a=1", "c=1")


def test_weights_that_are_all_zero_are_refused(
    texts: dict[str, TokenSource], tokenizer: Tokenizer
) -> None:
    with pytest.raises(CorpusError, match="all weights are 0 from 40%"):
        sampler(texts, tokenizer, "a=1@0.4:0", "b=0")


def test_known_tokens_of_a_repeat_stood_before() -> None:
    """Every random token that counts continues what came one period earlier."""
    rng = np.random.default_rng(5)
    counted = 0
    for _ in range(200):
        ids, known = repeated_row(rng, 128, vocab_size=6000, separator=0)
        assert ids.shape == known.shape == (128,) and ids.max() < 6000
        assert not known[ids == 0].any()
        counted += int(known.sum())
        for place in np.flatnonzero(known):
            pair = ids[place - 1 : place + 1]
            before = ids[: place + 1 - 1]
            follows = (before[:-1] == pair[0]) & (before[1:] == pair[1])
            assert follows.any()
    assert 0.3 < counted / (200 * 128) < 0.9


def test_plain_repeats_say_real_text_again() -> None:
    rng = np.random.default_rng(0)
    story = np.arange(1000, 1300)

    def snippet(rng: np.random.Generator, count: int) -> Any:
        return story[:count]

    rows = [
        repeated_row(rng, 256, vocab_size=6000, separator=0, snippet=snippet) for _ in range(40)
    ]
    said = [ids for ids, _ in rows if np.isin(ids[:10], story[:9]).sum() >= 8]
    assert said and all(np.sum(ids == 1000) > 1 for ids in said)


def test_first_copy_gives_no_target(texts: dict[str, TokenSource], tokenizer: Tokenizer) -> None:
    _, targets = Sampler({}, [parse_weight("repeats=1")], tokenizer, seed=1).rows(50, 128, 0.0)
    masked = (targets == NO_TARGET).mean()
    assert 0.2 < masked < 0.7
