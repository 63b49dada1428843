"""Cache: keys and values kept between generation steps. Knows nothing of attention or sampling.

Kept as edited, before q/k norm and rotation, so that nothing about positions is baked in.
Shapes: B row of the batch, K key/value head, S positions kept so far, T new ones, D d_head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import GPTConfig


class Cache:
    """Keys and values of every layer for the first `n_tokens` positions of one text."""

    def __init__(self, config: GPTConfig) -> None:
        self.n_tokens = 0
        self._config = config
        self._layers: list[Tensor | None] = [None] * config.n_layer  # (2, B, K, room, D)

    @property
    def n_bytes(self) -> int:
        """What the buffers take, their spare room included."""
        return sum(kept.nbytes for kept in self._layers if kept is not None)

    @staticmethod
    def bytes_for(config: GPTConfig, n_tokens: int, dtype: torch.dtype) -> int:
        """An upper bound of n_bytes once n_tokens are kept."""
        raise NotImplementedError

    def copy(self) -> Cache:
        """Another cache that goes its own way from here."""
        raise NotImplementedError
