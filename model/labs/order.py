"""Does the model see order? Two inputs of the same tokens, with and without positions and mask.

Attention alone treats its keys as a set: without positions and without the mask, each token's
output is the same wherever it stands (Vaswani et al. 2017, section 3.5).
Shapes: T token, C d_model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from model.gpt import GPT
from model.labs.from_model import Stopped, captured, check_tokens, to_float64
from model.labs.given import LAB_LIMITS, Array, LabError, LabLimits
from model.reading import read
from model.wiring import Wiring

SAME = 1e-5
Positions = Literal["model", "none"]


@dataclass(frozen=True)
class OrderCase:
    """One wiring. `differences` (T,) by token of the first input: the largest change of its output.

    `same_set` says whether all are within SAME times `magnitude`, the larger of 1 and the largest
    output: then the second input gave the same set of outputs, in another order.
    """

    positions: Positions
    causal: bool
    differences: tuple[float, ...]
    largest_difference: float
    magnitude: float
    same_set: bool


@dataclass(frozen=True)
class OrderLab:
    """`matches[i]` is where the i-th token of the first input stands in the second."""

    matches: tuple[int, ...]
    cases: tuple[OrderCase, ...]


def compare_order(
    model: GPT,
    first: Sequence[int],
    second: Sequence[int],
    *,
    stopped: Stopped = lambda: False,
    limits: LabLimits = LAB_LIMITS,
) -> OrderLab:
    """The outputs (ln_final.out) of both under each of the four wirings.

    Equal tokens are matched in the order in which they come. Raises LabError where the inputs are
    not the same tokens.
    """
    check_tokens(len(first), limits)
    check_tokens(len(second), limits)
    matches = match(first, second)
    return OrderLab(
        matches,
        tuple(
            _case(model, first, second, matches, positions, causal, stopped)
            for positions in _POSITIONS
            for causal in (False, True)
        ),
    )


_POSITIONS: tuple[Positions, ...] = ("none", "model")


def match(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """For each token of the first its place in the second. Raises LabError for other tokens."""
    extra = Counter(first) - Counter(second)
    missing = Counter(second) - Counter(first)
    if extra or missing:
        raise LabError(
            "texts",
            f"the texts must have the same tokens: {extra.total()} of the first's {len(first)} "
            f"are not in the second, {missing.total()} of the second's {len(second)} not in the "
            "first",
        )
    places: dict[int, list[int]] = {}
    for index in reversed(range(len(second))):
        places.setdefault(second[index], []).append(index)
    return tuple(places[token].pop() for token in first)


def _case(
    model: GPT,
    first: Sequence[int],
    second: Sequence[int],
    matches: tuple[int, ...],
    positions: Positions,
    causal: bool,
    stopped: Stopped,
) -> OrderCase:
    wiring = Wiring(positions=positions, causal=causal)
    one, other = (_outputs(model, ids, wiring, stopped) for ids in (first, second))
    differences = np.abs(one - other[list(matches)]).max(axis=1)
    magnitude = max(1.0, float(np.abs(one).max()))
    largest = float(differences.max())
    return OrderCase(
        positions=positions,
        causal=causal,
        differences=tuple(differences.tolist()),
        largest_difference=largest,
        magnitude=magnitude,
        same_set=largest <= SAME * magnitude,
    )


def _outputs(model: GPT, ids: Sequence[int], wiring: Wiring, stopped: Stopped) -> Array:  # (T, C)
    capture = captured(model, "ln_final.out", len(ids))
    return to_float64(
        read(model, ids, [capture], wiring=wiring, stopped=stopped).tensors[capture.name]
    )
