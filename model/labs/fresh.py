"""The same architecture before training: gradients, and the first steps of learning one text.

Knows nothing of a running model's weights. Shapes: T token, C d_model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy, normalize

from model.config import GPTConfig
from model.gpt import GPT
from model.labs.from_model import Stopped
from model.labs.given import LabError
from model.parameters import inventory
from model.reading import RunCancelled
from model.tap import Tap
from model.wiring import Wiring

# Of the blocks: forward, backward and Adam's two moments stay within seconds and half a gigabyte.
MOST_WEIGHTS = 30_000_000
STEPS = 15
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class FreshRun:
    """Freshly drawn weights under one wiring, and `steps` steps of learning one text.

    Before any step: `layer_gradients`, the norm of ∂loss/∂resid_pre at each layer, from the first;
    `qk_gradient`, that of all query and key weights; `similarity`, the mean cosine between the
    tokens' vectors after the last block. `first_loss` and `last_loss` in nats a token.
    """

    steps: int
    vocab_size: int
    layer_gradients: tuple[float, ...]
    qk_gradient: float
    similarity: float
    first_loss: float
    last_loss: float


def block_weights(config: GPTConfig) -> int:
    """How many weights all blocks of a config have."""
    return sum(tensor.count for tensor in inventory(config) if tensor.layer is not None)


def learn_one_text(
    config: GPTConfig,
    ids: Sequence[int],
    wiring: Wiring,
    *,
    device: torch.device,
    steps: int = STEPS,
    seed: int = 0,
    stopped: Stopped = lambda: False,
) -> FreshRun:
    """Draw weights from `seed` and learn to continue `ids`, in float32 with Adam.

    The vocabulary is cut to the text's own tokens: the blocks are what is looked at. Raises
    LabError for fewer than 3 tokens and more than MOST_WEIGHTS, RunCancelled once stopped.
    """
    if len(ids) < 3:
        raise LabError("text", f"the text has {len(ids)} tokens; learning it needs at least 3")
    weights = block_weights(config)
    if weights > MOST_WEIGHTS:
        raise LabError(
            "model", f"the blocks have {weights} weights; at most {MOST_WEIGHTS} are drawn anew"
        )
    with torch.inference_mode(False), torch.enable_grad():
        kinds, compact = torch.unique(torch.tensor(list(ids)), return_inverse=True)
        model = GPT(dataclasses.replace(config, vocab_size=len(kinds)), seed=seed).to(device)
        return _learn(model, compact.to(device)[None], wiring, steps, stopped)


def _learn(model: GPT, ids: Tensor, wiring: Wiring, steps: int, stopped: Stopped) -> FreshRun:
    optimizer = _Adam(list(model.parameters()))
    watch = _Watch()
    losses = []
    for step in range(steps + 1):
        if stopped():
            raise RunCancelled
        logits = model(ids, wiring=wiring, tap=watch) if step == 0 else model(ids, wiring=wiring)
        assert logits is not None  # neither tap ends a run
        loss = cross_entropy(logits[0, :-1], ids[0, 1:])
        losses.append(float(loss.detach()))
        if step < steps:
            model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if step == 0:
                layer_gradients = watch.gradients()
                qk_gradient = _norm_of_gradients(model)
            optimizer.step()
    return FreshRun(
        steps=steps,
        vocab_size=model.config.vocab_size,
        layer_gradients=layer_gradients,
        qk_gradient=qk_gradient,
        similarity=similarity(watch.last),
        first_loss=losses[0],
        last_loss=losses[-1],
    )


class _Adam:
    """Kingma and Ba 2015, algorithm 1. torch's own takes seconds to import its compiler first."""

    def __init__(self, weights: list[Parameter]) -> None:
        self._moments = [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        first_part, second_part = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        for weight, first, second in self._moments:
            if weight.grad is None:
                continue
            first.lerp_(weight.grad, 1 - 0.9)
            second.lerp_(weight.grad.square(), 1 - 0.999)
            size = (second / second_part).sqrt_().add_(1e-8)
            weight.sub_(first / first_part / size, alpha=LEARNING_RATE)


class _Watch(Tap):
    """Keeps the residual stream's gradients, and what leaves the last block."""

    def __init__(self) -> None:
        self._streams: list[Tensor] = []
        self._last: Tensor | None = None

    def __call__(self, site: str, value: Tensor) -> Tensor:
        if site == "resid_pre":
            value.retain_grad()
            self._streams.append(value)
        elif site == "resid_post":
            self._last = value.detach()
        return value

    @property
    def last(self) -> Tensor:
        assert self._last is not None
        return self._last[0]

    def gradients(self) -> tuple[float, ...]:
        norms = []
        for stream in self._streams:
            assert stream.grad is not None
            norms.append(float(stream.grad.norm()))
        return tuple(norms)


def _norm_of_gradients(model: GPT) -> float:
    squares = [
        weight.grad.square().sum()
        for name, weight in model.named_parameters()
        if weight.grad is not None and name.endswith(("attn.q.weight", "attn.k.weight"))
    ]
    return float(torch.stack(squares).sum().sqrt())


def similarity(vectors: Tensor) -> float:
    """Mean cosine between the vectors (T, C) of two different tokens."""
    directions = normalize(vectors.double(), dim=-1)
    n_tokens = len(directions)
    cosines = directions @ directions.T
    return float((cosines.sum() - cosines.trace()) / (n_tokens * (n_tokens - 1)))
