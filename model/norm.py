"""LayerNorm and RMSNorm, written out by hand. Shapes: T position, C the normed dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import GPTConfig
from model.tap import NO_TAP, Tap


def _wide(x: Tensor) -> Tensor:
    """At least float32: means of a thousand bfloat16 squares would lose most of their digits."""
    return x if x.dtype == torch.float64 else x.float()


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + eps) · weight + bias, in float32. Ba et al. 2016, eq. 3.

    `name` is the norm's place in the vocabulary of sites: ln1, ln2 or ln_final.
    """

    def __init__(self, width: int, eps: float, *, bias: bool = True, name: str = "") -> None:
        super().__init__()
        self.eps = eps
        self.sites = (f"{name}.scale", f"{name}.normalized", f"{name}.out")
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, tap: Tap = NO_TAP) -> Tensor:  # (…, T, C) -> (…, T, C)
        wide = _wide(x)
        centred = wide - wide.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)  # (…, T, 1)
        scale = tap(self.sites[0], (variance + self.eps).sqrt())
        normalized = tap(self.sites[1], (centred / scale).to(x.dtype))
        out = normalized * self.weight
        return tap(self.sites[2], out if self.bias is None else out + self.bias)


class RMSNorm(nn.Module):
    """x / √(mean of squares + eps) · weight, in float32. Zhang and Sennrich 2019, eq. 4."""

    def __init__(self, width: int, eps: float, *, name: str = "") -> None:
        super().__init__()
        self.eps = eps
        self.sites = (f"{name}.scale", f"{name}.normalized", f"{name}.out")
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, tap: Tap = NO_TAP) -> Tensor:  # (…, T, C) -> (…, T, C)
        wide = _wide(x)
        scale = tap(self.sites[0], (wide.square().mean(-1, keepdim=True) + self.eps).sqrt())
        normalized = tap(self.sites[1], (wide / scale).to(x.dtype))
        return tap(self.sites[2], normalized * self.weight)


def make_norm(config: GPTConfig, name: str) -> LayerNorm | RMSNorm:
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, config.norm_eps, name=name)
    return LayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias, name=name)
