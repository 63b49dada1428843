"""Multi-head attention, written out by hand: every stage has its name and passes the tap.

Vaswani et al. 2017, eq. 1: softmax(q kᵀ / √d) v. Shapes: B row of the batch, T position of this
run, C d_model, H query head, K key/value head, D d_head, Q query position, S key position: those
kept from earlier steps, then the T of this run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import GPTConfig
from model.frame import Frame
from model.norm import RMSNorm
from model.tap import Tap


class Attention(nn.Module):
    """One layer's attention: reads ln1.out, returns attn_out."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = config.window_of(layer)
        self.d_head = config.d_head
        self.share = config.n_head // config.n_kv_head  # query heads to one key/value head
        wide, narrow = config.n_head * config.d_head, config.n_kv_head * config.d_head
        self.q = nn.Linear(config.d_model, wide, bias=config.qkv_bias)
        self.k = nn.Linear(config.d_model, narrow, bias=config.qkv_bias)
        self.v = nn.Linear(config.d_model, narrow, bias=config.qkv_bias)
        self.o = nn.Linear(wide, config.d_model, bias=config.o_bias)
        self.q_norm = RMSNorm(config.d_head, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.d_head, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, frame: Frame, tap: Tap) -> Tensor:  # (B, T, C) -> (B, T, C)
        q = tap("attn.q", self.heads(self.q(x)))  # (B, H, T, D)
        k = tap("attn.k", self.heads(self.k(x)))  # (B, K, T, D)
        v = tap("attn.v", self.heads(self.v(x)))  # (B, K, T, D)
        k, v = frame.with_kept(self.layer, k, v)  # (B, K, S, D): S = T where nothing was kept

        rot_q = tap("attn.rot_q", frame.rotate(q if self.q_norm is None else self.q_norm(q)))
        rot_k = tap("attn.rot_k", frame.rotate(k if self.k_norm is None else self.k_norm(k)))

        # One name for the three stages, so that each stage's memory is free for the next but one.
        scores = tap("attn.dots", rot_q @ self.for_queries(rot_k).mT)  # (B, H, Q, S)
        scores = tap("attn.scores", scores * frame.score_scale)
        if frame.wiring.causal:
            scores = torch.where(frame.hidden[self.window], float("-inf"), scores)
        scores = tap("attn.masked_scores", scores)
        pattern = tap("attn.pattern", softmax(scores, may_be_empty=tap.edits))

        z = tap("attn.z", pattern @ self.for_queries(v))  # (B, H, T, D)
        attn_out = self.o(z.transpose(1, 2).flatten(2))  # (B, T, C)
        if tap.wants("attn.result"):
            result = self.results(z)  # (B, H, T, C)
            # Only what the tap changed enters, so that an untouched result adds exactly 0.
            attn_out = attn_out + (tap("attn.result", result) - result).sum(1)
        return tap("attn_out", attn_out)

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · D) -> (B, heads, T, D)"""
        rows, n_tokens, width = x.shape
        return x.view(rows, n_tokens, width // self.d_head, self.d_head).transpose(1, 2)

    def for_queries(self, x: Tensor) -> Tensor:
        """(B, K, T, D) -> (B, H, T, D): each key/value head, repeated for its query heads."""
        return x if self.share == 1 else x.repeat_interleave(self.share, dim=1)

    def results(self, z: Tensor) -> Tensor:
        """Each head's own write: z (B, H, T, D) through its columns of W_O -> (B, H, T, C)."""
        w_o = self.o.weight.T.reshape(z.shape[1], self.d_head, -1)  # (H, D, C)
        return torch.matmul(z, w_o)


def softmax(masked_scores: Tensor, *, may_be_empty: bool) -> Tensor:
    """Over the keys, in float32 at least: (…, Q, S) -> (…, Q, S), in the dtype that came in.

    A row in which every key is masked is all 0 (a softmax would be 0/0). Only an edit can make
    one, so it is looked for only where `may_be_empty`.
    """
    wide = torch.promote_types(masked_scores.dtype, torch.float32)
    pattern = torch.softmax(masked_scores, dim=-1, dtype=wide).to(masked_scores.dtype)
    if may_be_empty:
        empty = torch.isneginf(masked_scores.amax(dim=-1, keepdim=True))  # (…, Q, 1)
        pattern = pattern.masked_fill(empty, 0.0)
    return pattern
