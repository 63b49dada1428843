"""The residual block: attention and feed-forward, each behind its norm.

Shapes: B row of the batch, T position, C d_model, F d_mlp.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attention
from model.config import GPTConfig
from model.frame import Frame
from model.norm import make_norm
from model.tap import Tap


class FeedForward(nn.Module):
    """W_down · activation(W_up · x), or gated: W_down · (silu(W_gate · x) × W_up · x)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.activation = config.activation
        bias = config.mlp_bias
        self.gate = nn.Linear(config.d_model, config.d_mlp, bias=bias) if config.gated else None
        self.up = nn.Linear(config.d_model, config.d_mlp, bias=bias)
        self.down = nn.Linear(config.d_mlp, config.d_model, bias=bias)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:  # (B, T, C) -> (B, T, C)
        if self.gate is not None:  # Shazeer 2020, eq. 6
            pre = tap("mlp.pre", self.gate(x))  # (B, T, F)
            pre_linear = tap("mlp.pre_linear", self.up(x))
            post = tap("mlp.post", F.silu(pre) * pre_linear)
        else:
            pre = tap("mlp.pre", self.up(x))  # (B, T, F)
            kind = "tanh" if self.activation == "gelu_tanh" else "none"
            post = tap("mlp.post", F.gelu(pre, approximate=kind))
        return tap("mlp_out", self.down(post))


class Block(nn.Module):
    """One layer: what attention and feed-forward write is added to the residual stream."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.parallel = config.parallel_residual
        self.ln1 = make_norm(config, "ln1")
        self.attn = Attention(config, layer)
        self.ln2 = make_norm(config, "ln2")
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, frame: Frame, tap: Tap) -> Tensor:  # (B, T, C) -> (B, T, C)
        residual = frame.wiring.residual
        resid_pre = tap("resid_pre", x)
        attn_out = self.attn(self.ln1(resid_pre, tap), frame, tap)
        if self.parallel:
            mlp_out = self.mlp(self.ln2(resid_pre, tap), tap)
            written = attn_out + mlp_out
            return tap("resid_post", resid_pre + written if residual else written)
        resid_mid = tap("resid_mid", resid_pre + attn_out if residual else attn_out)
        mlp_out = self.mlp(self.ln2(resid_mid, tap), tap)
        return tap("resid_post", resid_mid + mlp_out if residual else mlp_out)
