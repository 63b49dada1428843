"""The labs on the running model's own vectors: one head, all heads of a layer, rotation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request

from model.gpt import GPT
from model.labs.attention import attend
from model.labs.frequencies import default_distances, of_model
from model.labs.from_model import UnturnedPair, layer_vectors, unturned_pair
from model.labs.given import LabLimits, index_of
from model.labs.heads import together
from model.labs.rotation import turn
from service.inspection import identity
from service.inspector import Inspector, inspector_of
from service.lab_run import Stopped, on_model, read_input
from service.labs import (
    Fields,
    attention_fields,
    heads_fields,
    ladder_fields,
    limits_of,
    places_of,
    refusals,
)
from service.schemas import labs as wire
from service.schemas.rope import ModelPairSource, RotateRequest
from service.wire.printed import printed


async def attention_on_model(
    http: Request, asked: wire.AttentionLabRequest, source: wire.ModelHeadSource
) -> Fields:
    """One head by hand, from its own q, k and v, held against its own pattern."""
    given = await read_input(http, source)
    limits = limits_of(inspector_of(http).settings)
    if asked.query is not None:
        with refusals():
            index_of("query", asked.query, len(given.ids))

    def work(model: GPT, stopped: Stopped) -> Fields:
        head = index_of("head", source.head, model.config.n_head)
        taken = layer_vectors(
            model, given.ids, source.layer, tokens=given.tokens, stopped=stopped, limits=limits
        )
        causal = asked.causal is not False
        steps = attend(
            taken.heads[head],
            scaled=asked.scaled,
            causal=causal,
            query=asked.query,
            scale=taken.scale,
            window=taken.window,
        )
        error = None
        if asked.scaled and causal:
            own = taken.patterns[head][list(steps.queries)]
            error = float(np.abs(own - steps.pattern).max())
        report = {"kind": "model", "name": None, "layer": taken.layer, "head": head}
        return attention_fields(steps, report, asked.decimals, model_error=error)

    fields, whose = await on_model(http, given, work, under="/source")
    return {**fields, **whose}


async def heads_on_model(
    http: Request, asked: wire.HeadsLabRequest, source: wire.ModelLayerSource
) -> Fields:
    """All heads of a layer by hand, held against the layer's own attn_out."""
    given = await read_input(http, source)
    limits = limits_of(inspector_of(http).settings)
    if asked.position is not None:
        with refusals():
            index_of("position", asked.position, len(given.ids))

    def work(model: GPT, stopped: Stopped) -> Fields:
        taken = layer_vectors(
            model, given.ids, source.layer, tokens=given.tokens, stopped=stopped, limits=limits
        )
        causal = asked.causal is not False
        lab = together(
            taken.heads,
            position=-1 if asked.position is None else asked.position,
            output=taken.output,
            scaled=asked.scaled,
            causal=causal,
            scale=taken.scale,
            window=taken.window,
            limits=LabLimits(dimensions=len(taken.output.w_o)),
        )
        error = None
        if asked.scaled and causal and lab.attn_out is not None:
            error = float(np.abs(taken.attn_out - lab.attn_out).max())
        report = {"kind": "model", "name": None, "layer": taken.layer, "head": None}
        return heads_fields(lab, report, asked, model_error=error)

    fields, whose = await on_model(http, given, work, under="/source")
    return {**fields, **whose}


async def rotate_on_model(http: Request, asked: RotateRequest, source: ModelPairSource) -> Fields:
    """The model's own q and k, turned to any places: their dot knows only m − n."""
    given = await read_input(http, source)
    limits = limits_of(inspector_of(http).settings)

    def work(model: GPT, stopped: Stopped) -> Fields:
        pair = unturned_pair(
            model,
            given.ids,
            layer=source.layer,
            head=source.head,
            query=source.query,
            key=source.key,
            stopped=stopped,
            limits=limits,
        )
        return _turn_pair(asked, pair, given.tokens)

    turned, whose = await on_model(http, given, work, under="/model")
    inspector = inspector_of(http)
    fields = await inspector.off_loop(printed, turned, asked.decimals)
    base = inspector.opened.model.config.rope_base
    return {**whose, **fields, "degrees_per_position": None, "base": base}


def _turn_pair(asked: RotateRequest, pair: UnturnedPair, tokens: list[str]) -> Fields:
    here, there = pair.query, pair.key
    places = places_of(asked, [(here, there), (here + 10, there + 10), (here + 1, there)])
    limits = LabLimits(dimensions=len(pair.q))

    def turned(positions: Sequence[tuple[int, int]]) -> Any:
        return turn(
            pair.q,
            pair.k,
            positions,
            pair.frequencies,
            pairing=pair.pairing,
            shift=asked.shift,
            attention_factor=pair.attention_factor,
            limits=limits,
        )

    with refusals():
        lab = turned(places)
    size = float(np.linalg.norm(pair.q) * np.linalg.norm(pair.k)) or 1.0
    own = turned([(here, there)]).steps[0].dot
    report = {
        "layer": pair.layer,
        "head": pair.head,
        "query": here,
        "key": there,
        "tokens": [tokens[here], tokens[there]],
        "dot": pair.dot,
        "dot_error": abs(own - pair.dot) / size,
    }
    return {**vars(lab), "pair": report}


def rope_of_model(inspector: Inspector, context: int | None) -> Fields:
    """The loaded model's rotation. No run of it is needed."""
    config = inspector.opened.model.config
    fields: Fields = {
        "model": identity(inspector),
        "positions": config.positions,
        "d_head": config.d_head,
        **dict.fromkeys(("rotary_dim", "pairing", "base", "context", "distances", "ladder")),
    }
    if config.positions != "rope":
        return fields
    with refusals():
        ladder = of_model(config, context)
    context = config.n_ctx if context is None else context
    fields |= {
        "rotary_dim": config.rotary_dim,
        "pairing": config.rope_pairing,
        "base": config.rope_base,
        "context": context,
        "distances": default_distances(context),
        "ladder": ladder_fields(ladder),
    }
    result: Fields = printed(fields, None)
    return result
