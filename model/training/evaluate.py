"""What a model has learned: held-out loss, head scores, endings that fit.

Shapes: L layer, H head, Q query position, S key position. Nothing here changes the model or
draws from a global random state, so measuring does not disturb a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT
from model.tap import Tap
from model.training.repeats import random_tokens
from model.training.templates import Language, unseen_pairs
from model.training.tokens import Encoder, TokenSource, end_of_text

ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class HeldOut:
    """The loss on held-out documents: total nats over so many tokens of so many UTF-8 bytes."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Total nats / ln 2 / bytes: comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


def held_out_loss(
    model: GPT,
    source: TokenSource,
    separator: int,
    *,
    max_tokens: int,
    autocast: AbstractContextManager[object] | None = None,
) -> HeldOut | None:
    """Loss on whole held-out documents, as many as fit `max_tokens` but at least one.

    Each document starts after a separator; one longer than the context is read in windows, so
    the first tokens of a later window see only what is in it. None when nothing is held out.
    """
    chosen: list[int] = []
    tokens = 0
    for index in np.random.default_rng(0).permutation(source.held_out):
        size = source.document(int(index)).size
        if chosen and tokens + size > max_tokens:
            break
        chosen.append(int(index))
        tokens += size
    if not chosen:
        return None
    documents = [source.document(index).tolist() for index in chosen]
    nats = -sum(log_likelihoods(model, documents, separator, autocast=autocast))
    return HeldOut(nats, tokens, int(source.sizes[chosen].sum()))


@torch.inference_mode()
def log_likelihoods(
    model: GPT,
    documents: Sequence[Sequence[int]],
    separator: int,
    *,
    autocast: AbstractContextManager[object] | None = None,
) -> list[float]:
    """ln p of each document's tokens after a separator, in nats, in windows of the context."""
    n_ctx = model.config.n_ctx
    windows: list[tuple[int, list[int], list[int]]] = []
    for number, document in enumerate(documents):
        read = [separator, *document[:-1]]
        for start in range(0, len(document), n_ctx):
            end = start + n_ctx
            windows += [(number, read[start:end], list(document[start:end]))]
    windows.sort(key=lambda window: len(window[1]))
    totals = [0.0] * len(documents)
    device = model.embed.weight.device
    for first in range(0, len(windows), ROWS_AT_ONCE):
        group = windows[first : first + ROWS_AT_ONCE]
        width = len(group[-1][1])
        ids = torch.full((len(group), width), separator)
        targets = torch.full((len(group), width), -100)
        for row, (_, read, wanted) in enumerate(group):
            ids[row, : len(read)] = torch.tensor(read)
            targets[row, : len(wanted)] = torch.tensor(wanted)
        with autocast or nullcontext():
            logits = _logits(model, ids.to(device))
        losses = F.cross_entropy(
            logits.float().transpose(1, 2), targets.to(device), reduction="none"
        )  # (rows, width), 0 where there is no target
        for (number, _, _), loss in zip(group, losses.sum(1).tolist(), strict=True):
            totals[number] -= loss
    return totals


class _PatternTap(Tap):
    """Keeps attn.pattern of every layer."""

    def __init__(self) -> None:
        self.patterns: dict[int, Tensor] = {}

    def at(self, layer: int) -> Tap:
        return _LayerPatternTap(self, layer)


class _LayerPatternTap(Tap):
    def __init__(self, whole: _PatternTap, layer: int) -> None:
        self._whole = whole
        self._layer = layer

    def __call__(self, site: str, value: Tensor) -> Tensor:
        if site == "attn.pattern":
            self._whole.patterns[self._layer] = value.detach().float()
        return value

    def wants(self, site: str) -> bool:
        return site == "attn.pattern"


@torch.inference_mode()
def attention_patterns(model: GPT, ids: Tensor) -> Tensor:
    """ids (B, T) -> patterns (L, B, H, Q, S)."""
    tap = _PatternTap()
    model(ids.to(model.embed.weight.device), tap=tap, unembed=[0])
    return torch.stack([tap.patterns[layer] for layer in sorted(tap.patterns)])


def induction_scores(
    model: GPT, separator: int, *, period: int = 32, rows: int = 16, seed: int = 0
) -> Tensor:
    """(L, H): mean p[q, q − period + 1] over the second half of random tokens said twice.

    The score of Olsson et al. 2022 (In-context Learning and Induction Heads): how much a head
    looks at the token after the last occurrence of the present one.
    """
    rng = np.random.default_rng(seed)
    said = np.stack(
        [
            random_tokens(rng, period, vocab_size=model.config.vocab_size, separator=separator)
            for _ in range(rows)
        ]
    )
    patterns = attention_patterns(model, torch.from_numpy(np.tile(said, 2)))
    queries = torch.arange(period, 2 * period)
    return patterns[..., queries, queries - period + 1].mean(dim=(1, 3)).cpu()


def previous_token_scores(model: GPT, ids: Tensor) -> Tensor:
    """ids (T,) -> (L, H): mean p[q, q − 1] over all positions but the first."""
    patterns = attention_patterns(model, ids[None])
    queries = torch.arange(1, ids.numel())
    return patterns[..., queries, queries - 1].mean(dim=(1, 3)).cpu()


def template_accuracy(
    model: GPT,
    tokenizer: Encoder,
    language: Language,
    *,
    count: int = 200,
    form: int = 0,
    autocast: AbstractContextManager[object] | None = None,
) -> float:
    """How often the fitting ending is likelier than the unfitting one, on unseen sentences.

    Both texts share the sentence, so comparing whole texts compares ln p(ending | sentence).
    """
    texts = []
    for pair in unseen_pairs(language, count):
        for noun in (pair.fitting, pair.unfitting):
            text = pair.sentence() + pair.ending(noun, form)
            texts.append(tokenizer.encode(text, add_bos=False))
    scores = log_likelihoods(model, texts, end_of_text(tokenizer), autocast=autocast)
    right = sum(a > b for a, b in zip(scores[::2], scores[1::2], strict=True))
    return right / count


def _logits(model: GPT, ids: Tensor) -> Tensor:
    logits = model(ids)
    assert isinstance(logits, Tensor)
    return logits
