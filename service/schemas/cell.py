"""POST /v1/attention/cell: one number of a map, taken apart."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.schemas.base import Index, Wire
from service.schemas.labs import Vector
from service.schemas.reading import InspectingRequest, ReadingAnswer


class CellRequest(InspectingRequest):
    layer: Index
    head: Index
    query: Index
    key: Index
    tokens: Literal["full", "ids", "none"] = "ids"


class CellErrors(Wire):
    """How far the model's own numbers are from these."""

    dot: float = Field(description="as a part of magnitude")
    score: float = Field(description="as a part of magnitude × scale")
    weight: float = Field(description="absolute")


class CellReport(Wire):
    """From the model's rot_q, rot_k and v, in float64 and unrounded: dot = Σ products,
    score = dot × scale, exp = exp(score − row_max) or 0 where masked, weight = exp / row_sum."""

    layer: int
    head: int
    kv_head: int
    query: int
    key: int
    rot_q: Vector
    rot_k: Vector
    products: Vector
    magnitude: float = Field(description="Σ |q_i k_i|")
    dot: float
    scale: float
    score: float
    masked: bool
    row_max: float | None = Field(description="null where every key is masked")
    exp: float
    row_sum: float
    weight: float
    v: Vector
    weighted_v: Vector
    errors: CellErrors


class CellAnswer(ReadingAnswer):
    cell: CellReport | None = Field(description="null in a dry run")
