"""Wiring: the few switches that change the formula of a run. Knows nothing of any one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from model.config import Pairing, RopeScaling


@dataclass(frozen=True, kw_only=True)
class RopeWiring:
    """What this run changes about rotation; None leaves the model's own.

    `offset` is added to every position (positions count from it instead of from 0).
    """

    base: float | None = None
    pairing: Pairing | None = None
    scaling: RopeScaling | Literal["none"] | None = None
    offset: int = 0

    @property
    def changes(self) -> bool:
        return self != RopeWiring()


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """One run's formula. The default is the model as it was trained.

    `causal` False lets every query see every key; `score_scale` replaces 1/√d_head (1 means no
    scale); `positions` "none" drops position vectors and rotation; `residual` False lets each
    sublayer's write replace the stream instead of adding to it.
    """

    causal: bool = True
    score_scale: float | None = None
    positions: Literal["model", "none"] = "model"
    rope: RopeWiring = field(default_factory=RopeWiring)
    residual: bool = True


MODEL_WIRING = Wiring()
