"""Checks: what a run's own numbers say about it, taken while it runs, from unrounded values.

Shapes: H head, Q query, S key, T position, C d_model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

import torch
from torch import Tensor

from model.gpt import GPT
from model.tap import Observer
from model.wiring import Wiring


@dataclass(frozen=True, kw_only=True)
class Checks:
    """None where the run gave nothing to check. Errors are largest absolute differences."""

    row_sum_error: float | None
    future_mass: float | None
    empty_rows: int
    residual_sum_error: float | None = None
    head_sum_error: float | None = None
    logits_error: float | None = None

    @property
    def finite(self) -> bool:
        """Whether every error is a number: NaN and ∞ in what was checked come through in it."""
        errors = (getattr(self, field.name) for field in fields(self))
        return all(error is None or isfinite(error) for error in errors)


class PatternCheck:
    """Row sums, weight on later positions and empty rows of every pattern that is computed.

    Everything stays on the run's device until `result` is asked for, in memory that is taken once:
    small blocks that outlive a layer, taken in each, would lie between the large ones that it frees
    and keep them from being used again. All patterns of a run have one shape.
    """

    def __init__(self, n_layer: int) -> None:
        self._n_layer = n_layer
        self._met = 0  # patterns
        self._rows: Tensor | None = None  # (2, L, H, Q): their sums, and what lies ahead
        self._future: Tensor | None = None  # (Q, S): 1 at the cells that lie ahead, the same in all

    @property
    def observers(self) -> dict[str, Observer]:
        return {"attn.pattern": self._observe}

    def _observe(self, layer: int | None, pattern: Tensor) -> None:  # (H, Q, S)
        _, queries, keys = pattern.shape
        if self._rows is None:
            self._rows = pattern.new_empty(2, self._n_layer, *pattern.shape[:2])
            if queries > 1:  # no key lies ahead of the newest position
                ones = torch.ones(queries, keys, dtype=pattern.dtype, device=pattern.device)
                self._future = ones.triu(1 + keys - queries)
        sums, ahead = self._rows[:, self._met]
        torch.sum(pattern, -1, out=sums)
        if self._future is not None:
            torch.linalg.vecdot(pattern, self._future, out=ahead)
        self._met += 1

    def result(self) -> tuple[float | None, float | None, int]:
        """Largest |row sum − 1| and future weight of a row, and the number of empty rows."""
        if self._rows is None:
            return None, None, 0
        sums, ahead = self._rows[:, : self._met]
        empty = sums == 0
        # amax propagates NaN, so a row of NaN is seen here as well.
        row_sum_error = float(torch.where(empty, 0, (sums - 1).abs()).amax())
        future_mass = 0.0 if self._future is None else float(ahead.abs().amax())
        return row_sum_error, future_mass, int(empty.sum())


class SumCheck:
    """Whether the parts add up: writes to the residual, heads to attn_out, residual to logits."""

    def __init__(self, model: GPT, wiring: Wiring) -> None:
        self._model = model
        self._wiring = wiring
        self._stream: Tensor | None = None  # (T, C): embedding and all writes so far
        self._heads: Tensor | None = None  # (T, C): the heads' results of this layer
        self._residual: Tensor | None = None
        self._logits: Tensor | None = None
        self._head_sum_error: list[Tensor] = []

    @property
    def observers(self) -> dict[str, Observer]:
        return {
            "embed": self._add,
            "pos_embed": self._add,
            "attn.result": self._sum_heads,
            "attn_out": self._attention,
            "mlp_out": self._add,
            "resid_post": self._keep_residual,
            "logits": self._keep_logits,
        }

    def _add(self, layer: int | None, write: Tensor) -> None:
        self._stream = write.clone() if self._stream is None else self._stream + write

    def _sum_heads(self, layer: int | None, result: Tensor) -> None:  # (H, T, C)
        self._heads = result.sum(0)

    def _attention(self, layer: int | None, attn_out: Tensor) -> None:
        assert self._heads is not None and layer is not None
        bias = dict(self._model.named_parameters()).get(f"blocks.{layer}.attn.o.bias")
        whole = self._heads if bias is None else self._heads + bias
        self._head_sum_error.append((whole - attn_out).abs().amax())
        self._add(layer, attn_out)

    def _keep_residual(self, layer: int | None, residual: Tensor) -> None:
        self._residual = residual

    def _keep_logits(self, layer: int | None, logits: Tensor) -> None:
        self._logits = logits

    def result(self) -> tuple[float | None, float | None, float | None]:
        """Errors of the residual sum (None with the residual off), of the heads, of the logits."""
        assert self._stream is not None and self._residual is not None
        stream = None
        if self._wiring.residual:
            stream = float((self._stream - self._residual).abs().amax())
        heads = float(torch.stack(self._head_sum_error).amax())
        assert self._logits is not None
        again = self._model.unembed(self._model.ln_final(self._residual[None]))[0]
        return stream, heads, float((again - self._logits).abs().amax())
