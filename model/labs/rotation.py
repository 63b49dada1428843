"""The rotation lab: two vectors turned to positions m and n, and what their dot then depends on.

The turning itself is `model.rope`'s. Su et al. 2021 (RoFormer), eqs. 13–16: only m − n is left in
the dot. Knows nothing of a running model. Shapes: N step, P pair, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from model import rope
from model.config import Pairing
from model.labs.frequencies import check_base
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits, Row, vector, whole

FARTHEST = 10_000_000
# A step says some 16 numbers a pair, so that this many are 8 MB in memory and more as text.
MOST_PAIRS = 32_768
MOST_STEPS = 1024


@dataclass(frozen=True)
class Shifted:
    """The same two vectors at other positions; `difference` is their dot less the step's."""

    m: int
    n: int
    dot: float
    difference: float


@dataclass(frozen=True, eq=False)
class Step:
    """One place on the slider: q at position m, k at position n.

    `matrices_m` (P, 2, 2) hold [[cos, −sin], [sin, cos]] of `angles_m` (P,), in radians;
    `products_q` (P, 2, 2) are each matrix's numbers times the pair's, whose rows add up to the
    turned pair in `rot_q` (D,). `shift_both` moves both vectors, `shift_m` only q.
    """

    m: int
    n: int
    angles_m: Array
    angles_n: Array
    matrices_m: Array
    matrices_n: Array
    products_q: Array
    products_k: Array
    rot_q: Array
    rot_k: Array
    dot: float
    closed_form: float
    closed_form_error: float
    shift_both: Shifted
    shift_m: Shifted


@dataclass(frozen=True, eq=False)
class RotationLab:
    """All steps. `dimensions` says which two numbers of a vector each pair is.

    `pairs_q` and `pairs_k` (P, 2) are those numbers before any turn; `norms_q`, `norms_k` and `phi`
    (P,) are each pair's lengths and its angle(q) − angle(k); `frequencies` (P,) are radians a
    position.
    """

    pairing: Pairing
    frequencies: Array
    attention_factor: float
    dimensions: tuple[tuple[int, int], ...]
    q: Array
    k: Array
    pairs_q: Array
    pairs_k: Array
    norms_q: Array
    norms_k: Array
    phi: Array
    unrotated_dot: float
    shift: int
    steps: tuple[Step, ...] = ()


def frequencies_of(
    size: int, *, degrees_per_position: float | None = None, base: float | None = None
) -> Array:
    """Radians a position for each pair of a vector of `size` numbers, (P,).

    Two numbers turn by `degrees_per_position`; more of them by the ladder of `base`. Raises
    LabError for an odd size, for both, for none, and for degrees on more than one pair.
    """
    if size % 2:
        raise LabError("q", f"q has {size} numbers; RoPE turns pairs, so it must be an even number")
    if (degrees_per_position is None) == (base is None):
        raise LabError("base", "give exactly one of degrees_per_position and base")
    if degrees_per_position is not None:
        if size != 2:
            raise LabError(
                "degrees_per_position",
                f"degrees_per_position turns one pair; q has {size // 2}: give base instead",
            )
        if not abs(degrees_per_position) <= 360:
            raise LabError(
                "degrees_per_position",
                f"degrees_per_position is {degrees_per_position}; allowed are -360 to 360",
            )
        return np.array([math.radians(degrees_per_position)])
    assert base is not None
    check_base(base)
    ladder: Array = rope.inverse_frequencies(size, base)[0].numpy()
    return ladder


def turn(
    q: Row,
    k: Row,
    positions: Sequence[tuple[int, int]],
    frequencies: Array,
    *,
    pairing: Pairing = "interleaved",
    shift: int = 1,
    attention_factor: float = 1.0,
    limits: LabLimits = LAB_LIMITS,
) -> RotationLab:
    """q at m and k at n for every (m, n) of `positions`; numbers past the last pair stay.

    `attention_factor` multiplies cos and sin, as YaRN has it.

    Raises LabError for vectors of unequal size, positions outside ±FARTHEST, and more steps than
    MOST_STEPS or than hold MOST_PAIRS pairs.
    """
    q = vector("q", q, limits)
    k = vector("k", k, limits, size=len(q))
    most = min(MOST_STEPS, MOST_PAIRS // len(frequencies))
    if not 1 <= len(positions) <= most:
        raise LabError(
            "positions", f"positions has {len(positions)} entries; allowed are 1 to {most}"
        )
    whole("shift", shift, -FARTHEST, FARTHEST)
    for m, n in positions:
        whole("m", m, -FARTHEST, FARTHEST)
        whole("n", n, -FARTHEST, FARTHEST)
    dimensions = _dimensions(len(frequencies), pairing)
    pairs_q, pairs_k = q[np.array(dimensions)], k[np.array(dimensions)]  # (P, 2)
    phi = np.arctan2(pairs_q[:, 1], pairs_q[:, 0]) - np.arctan2(pairs_k[:, 1], pairs_k[:, 0])
    lab = RotationLab(
        pairing=pairing,
        frequencies=frequencies,
        attention_factor=attention_factor,
        dimensions=dimensions,
        q=q,
        k=k,
        pairs_q=pairs_q,
        pairs_k=pairs_k,
        norms_q=np.hypot(*pairs_q.T),
        norms_k=np.hypot(*pairs_k.T),
        phi=phi,
        unrotated_dot=dot(q, k),
        shift=shift,
    )
    return replace(lab, steps=_steps(lab, np.array(positions)))


def _dimensions(n_pairs: int, pairing: Pairing) -> tuple[tuple[int, int], ...]:
    if pairing == "interleaved":
        return tuple((2 * pair, 2 * pair + 1) for pair in range(n_pairs))
    return tuple((pair, pair + n_pairs) for pair in range(n_pairs))


def _steps(lab: RotationLab, positions: NDArray[np.int64]) -> tuple[Step, ...]:
    """All steps at once: positions (N, 2) of m and n."""
    shifted = positions + lab.shift
    rot_q, matrices_m = _turned(lab, lab.q, positions[:, 0])
    rot_k, matrices_n = _turned(lab, lab.k, positions[:, 1])
    moved_q, _ = _turned(lab, lab.q, shifted[:, 0])
    moved_k, _ = _turned(lab, lab.k, shifted[:, 1])
    steps = []
    for at, (m, n) in enumerate(positions.tolist()):
        now, closed_form = dot(rot_q[at], rot_k[at]), _closed_form(lab, m - n)
        both, one = dot(moved_q[at], moved_k[at]), dot(moved_q[at], rot_k[at])
        steps.append(
            Step(
                m=m,
                n=n,
                angles_m=m * lab.frequencies,
                angles_n=n * lab.frequencies,
                matrices_m=matrices_m[at],
                matrices_n=matrices_n[at],
                products_q=matrices_m[at] * lab.pairs_q[:, None, :],
                products_k=matrices_n[at] * lab.pairs_k[:, None, :],
                rot_q=rot_q[at],
                rot_k=rot_k[at],
                dot=now,
                closed_form=closed_form,
                closed_form_error=now - closed_form,
                shift_both=Shifted(m + lab.shift, n + lab.shift, both, both - now),
                shift_m=Shifted(m + lab.shift, n, one, one - now),
            )
        )
    return tuple(steps)


def _turned(lab: RotationLab, x: Array, positions: NDArray[np.int64]) -> tuple[Array, Array]:
    """x (D,) at each position (N, D), and the matrices that turn its pairs (N, P, 2, 2)."""
    cos, sin = rope.rotation_tables(
        torch.from_numpy(positions), torch.from_numpy(lab.frequencies), lab.attention_factor
    )
    turned = rope.rotate(torch.from_numpy(x).expand(len(positions), -1), cos, sin, lab.pairing)
    matrices = torch.stack((cos, -sin, sin, cos), dim=-1).view(*cos.shape, 2, 2)
    return turned.numpy(), matrices.numpy()


def _closed_form(lab: RotationLab, distance: int) -> float:
    """Σ |q||k| cos(φ + (m − n) · f) over the pairs, and the numbers that do not turn."""
    lengths = lab.attention_factor**2 * lab.norms_q * lab.norms_k
    turned = lengths * np.cos(lab.phi + distance * lab.frequencies)
    rest = lab.q[2 * len(turned) :] * lab.k[2 * len(turned) :]
    return math.fsum((*turned, *rest))


def dot(q: Array, k: Array) -> float:
    """q · k, the sum rounded once: no order of adding to explain in a last digit."""
    return math.fsum(q * k)
