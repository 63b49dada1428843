"""Frame: what all layers of one call share, made once. Knows nothing of weights.

Shapes: B row of the batch, K key/value head, T position of this run, Q query (the same), S key:
the positions kept from earlier steps, then those of this run, D rotary_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.cache import Cache
from model.config import GPTConfig, Pairing
from model.rope import inverse_frequencies, rotate, rotation_tables
from model.wiring import Wiring


class WiringError(ValueError):
    """A wiring that this model cannot run under."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Positions, rotation tables and masks of one call.

    `cos` and `sin` are None where nothing is rotated; `hidden[window]` (Q, S) is True where a
    query must not look.
    """

    config: GPTConfig
    wiring: Wiring
    positions: Tensor  # (T,) as rotation and position vectors count them
    hidden: dict[int | None, Tensor]  # by window: (Q, S) bool
    cos: Tensor | None  # (S, D/2)
    sin: Tensor | None
    pairing: Pairing
    score_scale: float
    cache: Cache | None

    @classmethod
    def make(
        cls,
        config: GPTConfig,
        wiring: Wiring,
        n_tokens: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        cache: Cache | None = None,
    ) -> Frame:
        """Of a text of n_tokens, those in the cache included.

        Raises WiringError for rotary fields on a model that does not rotate.
        """
        require_fitting(config, wiring)
        rope = wiring.rope
        n_kept = 0 if cache is None else cache.n_tokens
        positions = torch.arange(n_tokens) + rope.offset
        cos = sin = None
        if config.positions == "rope" and wiring.positions == "model":
            scaling = config.rope_scaling if rope.scaling is None else rope.scaling
            frequencies, factor = inverse_frequencies(
                config.rotary_dim,
                rope.base or config.rope_base,
                None if scaling == "none" else scaling,
                n_tokens=n_tokens,
            )
            # float64 on the CPU, then one small copy: exact on devices without float64 as well.
            precision = torch.float64 if dtype == torch.float64 else torch.float32
            cos, sin = (
                table.to(device=device, dtype=precision, non_blocking=True)
                for table in rotation_tables(positions, frequencies, factor)
            )
        scale = config.score_scale if wiring.score_scale is None else wiring.score_scale
        return cls(
            config=config,
            wiring=wiring,
            positions=positions[n_kept:].to(device, non_blocking=True),
            hidden=_hidden(config, wiring, n_kept, n_tokens, device),
            cos=cos,
            sin=sin,
            pairing=rope.pairing or config.rope_pairing,
            score_scale=config.d_head**-0.5 if scale is None else scale,
            cache=cache,
        )

    def with_kept(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, K, T, D) behind the layer's kept ones -> (B, K, S, D); kept in turn."""
        return (k, v) if self.cache is None else self.cache.extend(layer, k, v)

    def rotate(self, x: Tensor) -> Tensor:
        """x (…, T or S, d_head) turned to its positions, the last ones of the text; as it is where
        nothing is rotated."""
        if self.cos is None or self.sin is None:
            return x
        n = x.shape[-2]
        return rotate(x, self.cos[-n:], self.sin[-n:], self.pairing)


def require_fitting(config: GPTConfig, wiring: Wiring) -> None:
    """Raises WiringError for rotary fields on a model that does not rotate."""
    if wiring.rope.changes and config.positions != "rope":
        raise WiringError(
            f"wiring.rope was given, but this model's positions are {config.positions!r}"
        )


def _hidden(
    config: GPTConfig, wiring: Wiring, n_kept: int, n_tokens: int, device: torch.device
) -> dict[int | None, Tensor]:
    """For each window in use, where query q must not see key k: k > q, or k ≤ q − window.

    Without the causal mask the window, too, is open: every query sees every key.
    """
    if not wiring.causal:
        return {}
    order = torch.arange(n_tokens, device=device)
    query, key = order[n_kept:, None], order[None, :]
    windows = {config.window_of(layer) for layer in range(config.n_layer)}
    return {
        window: (key > query) if window is None else (key > query) | (key <= query - window)
        for window in windows
    }
