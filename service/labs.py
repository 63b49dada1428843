"""The labs' questions, resolved: a request becomes a call into `model.labs`, its result JSON.

Knows nothing of HTTP. What needs the running model is in `service.labs_on_model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

from model.config import RopeScaling
from model.labs.attention import AttentionSteps, Vectors, attend, given_vectors, project
from model.labs.examples import (
    ROTATION_DEGREES,
    ROTATION_K,
    ROTATION_POSITIONS,
    ROTATION_Q,
    example,
)
from model.labs.frequencies import Ladder, side_by_side
from model.labs.given import LabError, LabLimits
from model.labs.heads import HeadsTogether, Output, given_output, together
from model.labs.rotation import frequencies_of, turn
from model.labs.scaling import HEAD_SIZES, scaling
from service.errors import Problem
from service.schemas import labs as wire
from service.schemas.reading import RopeScalingWire
from service.schemas.rope import FrequenciesRequest, RotateRequest
from service.settings import Settings
from service.wire.printed import printed

Fields = dict[str, Any]
NO_MODEL = {"model": None, "token_ids": None, "timing_ms": None}
BASE = 10_000.0
SIDE_BY_SIDE: tuple[RopeScaling | None, ...] = (
    None,
    RopeScaling(kind="linear", factor=4.0, original_context=2048),
    RopeScaling(kind="ntk", factor=4.0, original_context=2048),
    RopeScaling(kind="dynamic", factor=4.0, original_context=2048),
    RopeScaling(kind="yarn", factor=4.0, original_context=2048),
    RopeScaling(kind="llama3", factor=4.0, original_context=2048),
)


def limits_of(settings: Settings) -> LabLimits:
    return LabLimits(dimensions=settings.lab_dimensions, tokens=settings.lab_tokens)


@contextmanager
def refusals(under: str = "") -> Iterator[None]:
    """A lab's own error as a problem that points at the field at fault."""
    try:
        yield
    except LabError as error:
        where = {"detail": str(error), "pointer": f"{under}/{error.field}"}
        raise Problem("invalid-request", str(error), errors=[where]) from error


GivenAttention = wire.ExampleSource | wire.VectorsSource | wire.ProjectionsSource


def attention_lab(
    asked: wire.AttentionLabRequest, source: GivenAttention, limits: LabLimits
) -> Fields:
    """Attention by hand on given vectors."""
    with refusals("/source"):
        vectors = _vectors(source, limits)
    with refusals():
        steps = attend(vectors, scaled=asked.scaled, causal=bool(asked.causal), query=asked.query)
    return attention_fields(steps, _report(source), asked.decimals)


def _vectors(source: GivenAttention, limits: LabLimits) -> Vectors:
    if source.kind == "example":
        words = example(source.name)
        return given_vectors(words.q, words.k, words.v, tokens=words.tokens)
    if source.kind == "vectors":
        return given_vectors(source.q, source.k, source.v, tokens=source.tokens, limits=limits)
    if source.kind == "projections":
        weights = (source.w_q, source.w_k, source.w_v)
        return project(source.x, *weights, tokens=source.tokens, limits=limits)
    assert_never(source)


def attention_fields(
    steps: AttentionSteps, source: Fields, decimals: int, *, model_error: float | None = None
) -> Fields:
    fields: Fields = {**NO_MODEL, "source": source, **vars(steps), "model_error": model_error}
    return _printed(fields, decimals)


GivenHeads = wire.ExampleSource | wire.VectorsHeadsSource | wire.ProjectionsHeadsSource


def heads_lab(asked: wire.HeadsLabRequest, source: GivenHeads, limits: LabLimits) -> Fields:
    """Several heads on given vectors."""
    with refusals("/source"):
        heads, output, position = _heads(source, limits)
    with refusals():
        lab = together(
            heads,
            position=position if asked.position is None else asked.position,
            output=output,
            scaled=asked.scaled,
            causal=bool(asked.causal),
            limits=limits,
        )
    return heads_fields(lab, _report(source), asked)


def _heads(source: GivenHeads, limits: LabLimits) -> tuple[list[Vectors], Output | None, int]:
    """The heads, how they are mixed, and the token to look from where none is asked for."""
    if source.kind == "example":
        words = example(source.name)
        heads = [project(words.x, h.w_q, h.w_k, h.w_v, tokens=words.tokens) for h in words.heads]
        output = given_output(words.w_o, words.b_o, rows=len(words.w_o))
        return heads, output, words.position
    if source.kind == "vectors":
        heads = [
            given_vectors(h.q, h.k, h.v, tokens=source.tokens, limits=limits) for h in source.heads
        ]
    elif source.kind == "projections":
        heads = [project(source.x, h.w_q, h.w_k, h.w_v, tokens=source.tokens) for h in source.heads]
    else:
        assert_never(source)
    width = sum(head.v.shape[1] for head in heads)
    if source.w_o is None:
        return heads, None, -1
    return heads, given_output(source.w_o, source.b_o, rows=width, limits=limits), -1


def heads_fields(
    lab: HeadsTogether,
    source: Fields,
    asked: wire.HeadsLabRequest,
    *,
    model_error: float | None = None,
) -> Fields:
    heads = [
        {
            "head": index,
            **{name: getattr(head.steps, name) for name in ("q", "k", "v", "pattern", "z")},
            "readings": head.readings,
            "sentence": head.sentence,
            "brings_z": head.brings_z,
            "writes": head.writes,
            "write_norm": head.write_norm,
            "result": head.result if asked.results else None,
        }
        for index, head in enumerate(lab.heads)
    ]
    fields: Fields = {**NO_MODEL, "source": source, **vars(lab)}
    fields |= {"heads": heads, "model_error": model_error}
    return _printed(fields, asked.decimals)


def _report(source: GivenAttention | GivenHeads) -> Fields:
    name = source.name if source.kind == "example" else None
    return {"kind": source.kind, "name": name, "layer": None, "head": None}


def scaling_lab(asked: wire.ScalingLabRequest, limits: LabLimits) -> Fields:
    """Why ÷√d."""
    with refusals():
        lab = scaling(
            HEAD_SIZES if asked.head_sizes is None else asked.head_sizes,
            samples=asked.samples,
            keys=asked.keys,
            seed=asked.seed,
            limits=limits,
        )
    return _printed(lab, asked.decimals)


def rotate_lab(asked: RotateRequest, limits: LabLimits) -> Fields:
    """Two given vectors, turned with torch; to be printed elsewhere, which takes longer."""
    q = list(ROTATION_Q) if asked.q is None else asked.q
    k = list(ROTATION_K) if asked.k is None else asked.k
    degrees, base = asked.degrees_per_position, asked.base
    if degrees is None and base is None:
        degrees, base = (ROTATION_DEGREES, None) if len(q) == 2 else (None, BASE)
    with refusals():
        lab = turn(
            q,
            k,
            places_of(asked, ROTATION_POSITIONS),
            frequencies_of(len(q), degrees_per_position=degrees, base=base),
            pairing=asked.pairing or "interleaved",
            shift=asked.shift,
            limits=limits,
        )
    return {**NO_MODEL, "degrees_per_position": degrees, "base": base, **vars(lab), "pair": None}


def places_of(asked: RotateRequest, default: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where q and k are turned to, (m, n) each."""
    if asked.positions is None:
        return list(default)
    return [(place.m, place.n) for place in asked.positions]


def frequencies_lab(asked: FrequenciesRequest, limits: LabLimits) -> Fields:
    """Ladders side by side, unrounded."""
    scalings = SIDE_BY_SIDE
    if asked.scalings is not None:
        scalings = tuple(
            None if each.kind == "none" else RopeScaling(**each.model_dump())
            for each in asked.scalings
        )
    with refusals():
        lab = side_by_side(
            asked.d_head,
            asked.base,
            asked.context,
            scalings,
            distances=asked.distances,
            limits=limits,
        )
    return _printed({**vars(lab), "ladders": [ladder_fields(each) for each in lab.ladders]}, None)


def ladder_fields(ladder: Ladder) -> Fields:
    """One ladder, its scaling as the wire spells it."""
    scaling = RopeScalingWire(kind="none")
    if ladder.scaling is not None:
        scaling = RopeScalingWire(**vars(ladder.scaling))
    return {**vars(ladder), "scaling": scaling.model_dump()}


def _printed(result: Any, decimals: int | None) -> Fields:
    fields: Fields = printed(result, decimals)
    return fields
