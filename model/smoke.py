"""The course's smoke test: a small batch of random ids through a model once, and what must hold."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from model.gpt import GPT
from model.tap import Tap


@dataclass(frozen=True)
class SmokeReport:
    """`future_mass`: the largest weight on a later position; `row_sum_error`: of |row sum − 1|."""

    parameters: int
    ids_shape: tuple[int, ...]
    logits_shape: tuple[int, ...]
    vocab_size: int
    future_mass: float
    row_sum_error: float
    finite: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """Shapes right, nothing seen of the future, rows sum to 1 within 2e-6, all finite."""
        return (
            self.logits_shape == (*self.ids_shape, self.vocab_size)
            and self.future_mass == 0
            and self.row_sum_error <= 2e-6
            and self.finite
        )


class _Patterns(Tap):
    def __init__(self) -> None:
        self.future_mass: list[Tensor] = []
        self.row_sum_error: list[Tensor] = []

    def __call__(self, site: str, value: Tensor) -> Tensor:
        if site == "attn.pattern":  # (B, H, Q, S)
            self.future_mass.append(value.triu(1).sum(-1).amax())
            self.row_sum_error.append((value.sum(-1) - 1).abs().amax())
        return value


def smoke_test(model: GPT, *, rows: int = 2, n_tokens: int = 32, seed: int = 0) -> SmokeReport:
    """One forward over (rows, n_tokens) random ids, fewer where the context is shorter."""
    config = model.config
    n_tokens = min(n_tokens, config.n_ctx)
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (rows, n_tokens), generator=draw)
    tap = _Patterns()
    start = time.perf_counter()
    with torch.inference_mode():
        logits = model(ids.to(model.embed.weight.device), tap=tap)
        finite = bool(torch.isfinite(logits).all())
    return SmokeReport(
        parameters=sum(weight.numel() for weight in model.parameters()),
        ids_shape=tuple(ids.shape),
        logits_shape=tuple(logits.shape),
        vocab_size=config.vocab_size,
        future_mass=float(torch.stack(tap.future_mass).amax()),
        row_sum_error=float(torch.stack(tap.row_sum_error).amax()),
        finite=finite,
        seconds=time.perf_counter() - start,
    )
