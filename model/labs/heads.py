"""Several heads on the same tokens: what each sees, what each brings, how W_O mixes it.

Vaswani et al. 2017, section 3.2.2. Knows nothing of a running model.
Shapes: T token, C width, H head, D width of one head's q and k, E width of its v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.labs.attention import AttentionSteps, Vectors, attend
from model.labs.given import (
    LAB_LIMITS,
    Array,
    LabError,
    LabLimits,
    Row,
    Rows,
    index_of,
    matrix,
    vector,
)
from model.labs.readings import Readings, Sentence, read_pattern, sentence_of


@dataclass(frozen=True, eq=False)
class Output:
    """How the heads are mixed: W_O (H·E, C) and its bias (C,)."""

    w_o: Array
    b_o: Array


def given_output(
    w_o: Rows, b_o: Row | None, *, rows: int, limits: LabLimits = LAB_LIMITS
) -> Output:
    """W_O with a row for each number of the concatenation; no bias is a bias of 0."""
    weight = matrix("w_o", w_o, limits, rows=rows)
    width = weight.shape[1]
    bias = np.zeros(width) if b_o is None else vector("b_o", b_o, limits, size=width)
    return Output(weight, bias)


@dataclass(frozen=True, eq=False)
class Head:
    """One head. What it brings to the chosen token is `brings_z` (E,), after W_O `writes` (C,).

    `write_norm` is the length of `writes`; both are None where there is no W_O.
    """

    steps: AttentionSteps
    readings: Readings
    sentence: Sentence
    brings_z: Array
    result: Array | None  # (T, C): z through its own rows of W_O
    writes: Array | None
    write_norm: float | None


@dataclass(frozen=True, eq=False)
class HeadsTogether:
    """All heads. attn_out = concatenation · W_O + b_o = Σ results + b_o, (T, C).

    `mixing_error` is the largest difference between those two ways of adding up; all three are
    None where there is no W_O. `position` is the chosen token.
    """

    tokens: tuple[str, ...]
    causal: bool
    scaled: bool
    scale: float
    position: int
    heads: tuple[Head, ...]
    concatenation: Array  # (T, H·E)
    b_o: Array | None
    attn_out: Array | None
    mixing_error: float | None


def together(
    heads: Sequence[Vectors],
    *,
    position: int,
    output: Output | None = None,
    scaled: bool = True,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    limits: LabLimits = LAB_LIMITS,
) -> HeadsTogether:
    """Every head on the same tokens, then the concatenation and its mixing.

    `position` is the token of which is said what each head brings to it. Raises LabError for no
    heads, heads of unequal numbers of tokens, too wide a concatenation, a position outside.
    """
    position = index_of("position", position, _tokens_of(heads, limits))
    steps = [
        attend(each, scaled=scaled, causal=causal, scale=scale, window=window) for each in heads
    ]
    concatenation = np.concatenate([each.z for each in steps], axis=1)
    results = _results(steps, output)
    attn_out = mixing_error = None
    if output is not None:
        attn_out = concatenation @ output.w_o + output.b_o
        summed = sum(result for result in results if result is not None) + output.b_o
        mixing_error = float(np.abs(attn_out - summed).max())
    return HeadsTogether(
        tokens=steps[0].tokens,
        causal=causal,
        scaled=scaled,
        scale=steps[0].scale,
        position=position,
        heads=tuple(
            _head(each, result, position) for each, result in zip(steps, results, strict=True)
        ),
        concatenation=concatenation,
        b_o=None if output is None else output.b_o,
        attn_out=attn_out,
        mixing_error=mixing_error,
    )


def _tokens_of(heads: Sequence[Vectors], limits: LabLimits) -> int:
    if not heads:
        raise LabError("heads", "heads has 0 entries; there must be at least 1")
    n_tokens = len(heads[0].q)
    for index, vectors in enumerate(heads):
        if len(vectors.q) != n_tokens:
            raise LabError(
                "heads", f"heads[{index}] has {len(vectors.q)} tokens; heads[0] has {n_tokens}"
            )
    width = sum(vectors.v.shape[1] for vectors in heads)
    if width > limits.dimensions:
        raise LabError(
            "heads",
            f"heads concatenate to {width} numbers a token; allowed are 1 to {limits.dimensions}",
        )
    return n_tokens


def _results(steps: list[AttentionSteps], output: Output | None) -> list[Array | None]:
    """Each head's own write into the residual stream: its z through its own rows of W_O."""
    if output is None:
        return [None] * len(steps)
    ends = np.cumsum([each.z.shape[1] for each in steps])[:-1]
    shares = np.split(output.w_o, ends, axis=0)
    return [each.z @ share for each, share in zip(steps, shares, strict=True)]


def _head(steps: AttentionSteps, result: Array | None, position: int) -> Head:
    readings = read_pattern(steps.pattern, causal=steps.causal)
    writes = None if result is None else result[position]
    return Head(
        steps=steps,
        readings=readings,
        sentence=sentence_of(readings, steps.tokens),
        brings_z=steps.z[position],
        result=result,
        writes=writes,
        write_norm=None if writes is None else float(np.linalg.norm(writes)),
    )
