"""Rotary positions on the wire: two vectors turned, the ladder of frequencies, the model's own."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.schemas.base import Index, Wire
from service.schemas.labs import LabRequest, LabText, Matrix, OnModel, Row, Stack, Vector
from service.schemas.reading import ModelIdentity, Number, RopeScalingWire

Position = Annotated[int, Field(strict=True)]
Pairing = Literal["interleaved", "half"]


class RotatePlace(Wire):
    """q stands at m, k at n."""

    m: Position
    n: Position


class ModelPairSource(LabText):
    """q of one token and k of another, from the running model before it rotates them."""

    layer: Index = 0
    head: Index = 0
    query: Index = -1
    key: Index = 0


class RotateRequest(LabRequest):
    """Without anything: the course's two vectors in the plane, 20 degrees a position."""

    q: Row | None = Field(None, description="default (1, 0.5)")
    k: Row | None = Field(None, description="default (0.8, −0.3)")
    model: ModelPairSource | None = Field(
        None, description="instead of q and k; pairing and frequencies are then the model's"
    )
    positions: Annotated[list[RotatePlace], Field(fail_fast=True)] | None = Field(
        None, description="one step each; default (3, 1), (7, 5), (4, 4), or where the two stand"
    )
    pairing: Pairing | None = Field(
        None, description="interleaved (default): dimensions 2i, 2i+1; half: i, i + d/2"
    )
    degrees_per_position: Number | None = Field(
        None, description="of one pair; default 20 in the plane"
    )
    base: Number | None = Field(None, description="of the ladder; default 10000 beyond the plane")
    shift: Position = Field(1, description="by how much shift_both and shift_m move")

    @model_validator(mode="after")
    def _whole_question(self) -> Self:
        if (self.q is None) != (self.k is None):
            raise ValueError("give both of q and k, or none")
        if self.degrees_per_position is not None and self.base is not None:
            raise ValueError("give one of degrees_per_position and base")
        given = (self.q, self.pairing, self.degrees_per_position, self.base)
        if self.model is not None and any(value is not None for value in given):
            raise ValueError("q, k, pairing, degrees_per_position and base are the model's")
        return self


class RotateShift(Wire):
    m: int
    n: int
    dot: float
    difference: float = Field(description="this dot less the step's, unrounded")


class RotateStep(Wire):
    """Pair by pair: [[cos, −sin], [sin, cos]] of the angle, its numbers times the pair's
    (products), and the rows' sums in rot_q and rot_k."""

    m: int
    n: int
    angles_m: Vector = Field(description="radians")
    angles_n: Vector
    matrices_m: Stack
    matrices_n: Stack
    products_q: Stack
    products_k: Stack
    rot_q: Vector
    rot_k: Vector
    dot: float
    closed_form: float = Field(description="Σ over pairs of |q||k| cos(φ + (m − n)·f)")
    closed_form_error: float
    shift_both: RotateShift
    shift_m: RotateShift


class PairReport(Wire):
    """Where the model's q and k come from, and its own dot of them there."""

    layer: int
    head: int
    query: int
    key: int
    tokens: list[str]
    dot: float
    dot_error: float = Field(
        description="|that dot less the lab's at (query, key)|, as a part of |q||k|"
    )


class RotateAnswer(OnModel):
    pairing: Pairing
    degrees_per_position: float | None
    base: float | None
    attention_factor: float = Field(description="on cos and sin; 1 without YaRN")
    dimensions: list[tuple[int, int]] = Field(description="which two numbers each pair is")
    frequencies: Vector = Field(description="radians a position, unrounded")
    q: Vector
    k: Vector
    pairs_q: Matrix
    pairs_k: Matrix
    norms_q: Vector
    norms_k: Vector
    phi: Vector = Field(description="angle(q) − angle(k) of each pair, radians")
    unrotated_dot: float
    shift: int
    steps: list[RotateStep]
    pair: PairReport | None = None


class FrequenciesRequest(Wire):
    d_head: Annotated[int, Field(strict=True)] = 64
    base: Number = 10_000.0
    context: Annotated[int, Field(strict=True, description="positions of a run")] = 8192
    scalings: list[RopeScalingWire] | None = Field(
        None, description="default: none and the five kinds by 4, from a context of 2048"
    )
    distances: list[Annotated[int, Field(strict=True)]] | None = Field(
        None, description="default: 0 to 64, then 64 more up to the context"
    )


class RopeLadder(Wire):
    """One value a pair, fast to slow. Nothing is rounded."""

    scaling: RopeScalingWire
    inverse_frequencies: Vector = Field(description="radians a position")
    attention_factor: float = Field(description="on cos and sin")
    wavelengths: Vector = Field(description="2π/f, positions")
    turns: Vector = Field(description="over the context")
    stretch: Vector = Field(description="how many times slower than without scaling")
    reach: float | None = Field(
        description="positions over which the slowest pair turns as far as it does, unscaled, over "
        "original_context; null where the scaling names none"
    )
    by_distance: Vector = Field(
        description="the dot of two equal vectors of length 1, all components alike"
    )


class FrequenciesAnswer(Wire):
    d_head: int
    base: float
    context: int
    distances: list[int]
    ladders: list[RopeLadder]


class ModelRopeAnswer(Wire):
    """The loaded model's rotation; all but the first fields are null where it does not rotate."""

    model: ModelIdentity
    positions: Literal["rope", "learned", "none"]
    d_head: int
    rotary_dim: int | None
    pairing: Pairing | None
    base: float | None
    context: int | None
    distances: list[int] | None
    ladder: RopeLadder | None
