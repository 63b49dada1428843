"""The GPT: embedding, blocks, unembedding. Knows nothing of text or HTTP.

Shapes: B row of the batch, T position, C d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model.block import Block
from model.cache import Cache
from model.config import GPTConfig
from model.frame import Frame
from model.norm import make_norm
from model.tap import NO_TAP, EndOfRun, Tap
from model.wiring import MODEL_WIRING, Wiring


class ContextError(ValueError):
    """More tokens than the model's context holds, or none at all."""


class GPT(nn.Module):
    """A GPT with random weights drawn from `seed`; a checkpoint's loader replaces them."""

    def __init__(self, config: GPTConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.positions == "learned"
        self.pos_embed = nn.Embedding(config.n_ctx, config.d_model) if learned else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_final = make_norm(config, "ln_final")
        self.unembed = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.unembed.weight = self.embed.weight
        self.initialize(seed)

    def initialize(self, seed: int) -> None:
        """GPT-2's start: weights N(0, 0.02), biases 0, writes into the residual / √(2 n_layer)."""
        if self.embed.weight.is_meta:
            return
        draw = torch.Generator(device=self.embed.weight.device).manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                writes = name.endswith(("attn.o.weight", "mlp.down.weight"))
                std = 0.02 / (2 * self.config.n_layer) ** 0.5 if writes else 0.02
                nn.init.normal_(weight, std=std, generator=draw)

    def forward(
        self,
        ids: Tensor,
        *,
        tap: Tap = NO_TAP,
        wiring: Wiring = MODEL_WIRING,
        unembed: Sequence[int] | None = None,
        cache: Cache | None = None,
    ) -> Tensor | None:
        """ids (B, T) -> logits (B, T, V), or (B, n, V) for the n of the T in `unembed`.

        With a cache the ids follow the positions that it holds, and their own are added to it. None
        where the tap ended the run early: nothing after that point was computed. Raises
        ContextError, and WiringError where the wiring does not fit the model.
        """
        n_tokens = ids.shape[1] + (0 if cache is None else cache.n_tokens)
        if not 1 <= n_tokens <= self.config.n_ctx:
            raise ContextError(f"{n_tokens} tokens; the context holds 1 to {self.config.n_ctx}")
        weight = self.embed.weight
        frame = Frame.make(
            self.config, wiring, n_tokens, device=weight.device, dtype=weight.dtype, cache=cache
        )
        try:
            x = tap("embed", self.embed(ids))  # (B, T, C)
            if self.pos_embed is not None and wiring.positions == "model":
                x = x + tap("pos_embed", self.pos_embed(frame.positions)[None])
            for layer, block in enumerate(self.blocks):
                x = block(x, frame, tap.at(layer))
            if cache is not None:
                cache.n_tokens = n_tokens
            x = self.ln_final(x, tap)
            if unembed is not None:
                x = x[:, list(unembed)]
            return tap("logits", self.unembed(x))
        except EndOfRun:
            return None
