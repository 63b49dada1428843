"""What the server says of rotary positions, key by key as on the wire."""

from __future__ import annotations

from typing import Literal, TypedDict

from fluoroscope_client.answers import ModelIdentity, RopeScalingReport
from fluoroscope_client.answers_of_labs import Matrix, OnModel, Stack, Vector

Pairing = Literal["interleaved", "half"]


class RotateShift(TypedDict):
    """`difference`: this dot less the step's, unrounded."""

    m: int
    n: int
    dot: float
    difference: float


class RotateStep(TypedDict):
    """Pair by pair: the matrix of the angle, its numbers times the pair's, and the rows' sums."""

    m: int
    n: int
    angles_m: Vector
    angles_n: Vector
    matrices_m: Stack
    matrices_n: Stack
    products_q: Stack
    products_k: Stack
    rot_q: Vector
    rot_k: Vector
    dot: float
    closed_form: float
    closed_form_error: float
    shift_both: RotateShift
    shift_m: RotateShift


class Pair(TypedDict):
    """Where the model's q and k come from, and its own dot of them there."""

    layer: int
    head: int
    query: int
    key: int
    tokens: list[str]
    dot: float
    dot_error: float


class PairOfModel(OnModel, total=False):
    pair: Pair | None


class Rotated(PairOfModel):
    """`dimensions`: which two numbers each pair is; `phi`: angle(q) − angle(k) of each pair."""

    pairing: Pairing
    degrees_per_position: float | None
    base: float | None
    attention_factor: float
    dimensions: list[list[int]]
    frequencies: Vector
    q: Vector
    k: Vector
    pairs_q: Matrix
    pairs_k: Matrix
    norms_q: Vector
    norms_k: Vector
    phi: Vector
    unrotated_dot: float
    shift: int
    steps: list[RotateStep]


class Ladder(TypedDict):
    """One value a pair, fast to slow, unrounded: radians a position, wavelengths in positions,
    turns over the context. `by_distance`: the dot of two equal vectors of length 1."""

    scaling: RopeScalingReport
    inverse_frequencies: Vector
    attention_factor: float
    wavelengths: Vector
    turns: Vector
    stretch: Vector
    reach: float | None
    by_distance: Vector


class Frequencies(TypedDict):
    d_head: int
    base: float
    context: int
    distances: list[int]
    ladders: list[Ladder]


class ModelRope(TypedDict):
    """All but the first fields are None where the model does not rotate."""

    model: ModelIdentity
    positions: Literal["rope", "learned", "none"]
    d_head: int
    rotary_dim: int | None
    pairing: Pairing | None
    base: float | None
    context: int | None
    distances: list[int] | None
    ladder: Ladder | None
