"""The two optimizers of a run and the schedule of their learning rates.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) on the matrices of the
blocks: momentum, then the update is made orthogonal by Newton-Schulz steps. AdamW (Loshchilov &
Hutter 2019) on the embedding, the unembedding, norms and biases.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from model.training.config import TrainConfig


class Optimizers:
    """Muon and AdamW stepped together; `set_scale` moves both learning rates."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            in_block = name.startswith("blocks.") and parameter.ndim == 2
            (matrices if in_block else rest).append(parameter)
        self.muon = torch.optim.Muon(
            matrices,
            lr=config.muon_lr,
            weight_decay=config.weight_decay,
            momentum=0.95,
            ns_steps=config.ns_steps,
        )
        self.adam = torch.optim.AdamW(
            rest, lr=config.adam_lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
        )
        self._rates = ((self.muon, config.muon_lr), (self.adam, config.adam_lr))

    def set_scale(self, scale: float) -> None:
        """Multiply the configured learning rates by `scale`."""
        for optimizer, rate in self._rates:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale

    def step(self) -> None:
        """Update every parameter from its gradient and drop the gradients."""
        for optimizer, _ in self._rates:
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes back."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state of the same model."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def scale_at(step: int, progress: float, *, warmup_steps: int, decay: float) -> float:
    """The learning-rate factor: up over `warmup_steps`, flat, then straight down to 0.

    `progress` is the fraction of the run that is done; the last `decay` of it is the way down
    (the trapezoid of Hägele et al. 2024, arXiv:2405.18392).
    """
    up = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    down = min(1.0, (1.0 - progress) / decay) if decay else 1.0
    return up * max(0.0, down)
