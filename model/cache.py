"""Cache: keys and values kept between generation steps. Knows nothing of attention or sampling.

Kept as edited, before q/k norm and rotation, so that nothing about positions is baked in.
Shapes: B row of the batch, K key/value head, S positions kept so far, T new ones, D d_head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import GPTConfig

FIRST_ROOM = 64  # positions


class Cache:
    """Keys and values of every layer for the first `n_tokens` positions of one text.

    A run through the model adds its positions layer by layer and counts them once all layers have
    theirs; one that ends before leaves nothing behind that is ever read.
    """

    def __init__(self, config: GPTConfig) -> None:
        self.n_tokens = 0
        self._config = config
        self._layers: list[Tensor | None] = [None] * config.n_layer  # (2, B, K, room, D)

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k and v (B, K, T, D) behind what is kept -> all keys, all values (B, K, S + T, D)."""
        start, stop = self.n_tokens, self.n_tokens + k.shape[2]
        kept = self._layers[layer]
        if kept is None or kept.shape[3] < stop:
            rows, heads, _, d_head = k.shape
            grown = k.new_empty(2, rows, heads, _room(self._config, stop), d_head)
            if kept is not None:
                grown[:, :, :, :start] = kept[:, :, :, :start]
            kept = self._layers[layer] = grown
        kept[0, :, :, start:stop] = k
        kept[1, :, :, start:stop] = v
        if start == 0:  # in their own memory: the same bits as without a cache
            return k, v
        return kept[0, :, :, :stop], kept[1, :, :, :stop]

    def copy(self) -> Cache:
        """Another cache that goes its own way from here."""
        other = Cache(self._config)
        other.n_tokens = self.n_tokens
        other._layers = [None if kept is None else kept.clone() for kept in self._layers]
        return other

    @property
    def n_bytes(self) -> int:
        """What the buffers take, their spare room included."""
        return sum(kept.nbytes for kept in self._layers if kept is not None)

    @staticmethod
    def bytes_for(config: GPTConfig, n_tokens: int, dtype: torch.dtype) -> int:
        """n_bytes of one row once n_tokens are kept; one layer's old half more while it grows."""
        numbers = 2 * config.n_layer * config.n_kv_head * config.d_head
        return numbers * _room(config, n_tokens) * dtype.itemsize


def _room(config: GPTConfig, n_tokens: int) -> int:
    """Positions to make room for: doubled each time, so that a step seldom copies what is kept."""
    room = FIRST_ROOM
    while room < n_tokens:
        room *= 2
    return max(n_tokens, min(room, config.n_ctx))
