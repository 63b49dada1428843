"""The labs that look into the running model: each one question to the inspector's own thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from fastapi import Request

from model.gpt import GPT
from model.labs.attention import attend
from model.labs.block import look_at_block
from model.labs.diagnostics import Mistake, diagnose
from model.labs.examples import ORDER_TEXTS, TEXT
from model.labs.frequencies import default_distances, of_model
from model.labs.fresh import MOST_WEIGHTS, block_weights
from model.labs.from_model import UnturnedPair, layer_vectors, unturned_pair
from model.labs.given import LabLimits, index_of
from model.labs.heads import together
from model.labs.mistake_words import MISTAKES, NUMBERS
from model.labs.order import SAME, compare_order
from model.labs.rotation import turn
from model.tokenizer import Token
from service.course import Need
from service.input import encode_input, require_runnable
from service.inspection import identity, until_gone
from service.inspector import Inspector, Timing, inspector_of
from service.labs import Fields, attention_fields, heads_fields, ladder_fields, places_of, refusals
from service.schemas import labs as wire
from service.schemas.model_labs import BlockLabRequest, DiagnosticsRequest, OrderLabRequest
from service.schemas.rope import ModelPairSource, RotateRequest
from service.wire.printed import printed

T = TypeVar("T")
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class LabInput:
    """Token ids, and how each token is shown."""

    ids: list[int]
    tokens: list[str]


async def read_input(http: Request, asked: wire.LabText) -> LabInput:
    """The text or the ids of a lab's request; the course's sentence where there is neither."""
    text = TEXT if asked.text is None and asked.token_ids is None else asked.text
    return await _read(http, text, asked.token_ids, asked.add_bos)


async def _read(
    http: Request, text: str | None, ids: Sequence[int] | None, add_bos: bool | None = None
) -> LabInput:
    inspector = inspector_of(http)
    opened, settings = inspector.opened, inspector.settings

    def read() -> LabInput:
        encoded = encode_input(opened, settings, text=text, token_ids=ids, add_bos=add_bos)
        require_runnable(encoded, opened, settings)
        if opened.tokenizer is None:
            return LabInput(encoded.ids, [str(token) for token in encoded.ids])
        return LabInput(encoded.ids, _names(opened.tokenizer.tokens(encoded)))

    return await inspector.off_loop(read)


def _names(tokens: Sequence[Token]) -> list[str]:
    """What each token shows; the parts of a split character are counted: 老, 老(2)."""
    names: list[str] = []
    split, part = "", 1
    for token in tokens:
        part = part + 1 if token.continuation else 1
        rest = f"{split}({part})" if token.continuation else ""
        names.append(rest + token.display or token.raw)
        if token.display:
            split, part = token.display[-1], 1
    return names


async def on_model(
    http: Request, given: LabInput, work: Callable[[GPT, Stopped], T], *, under: str = ""
) -> tuple[T, Fields]:
    """Do the work once admitted; its result, and whose numbers these are.

    A lab's own errors become problems that point below `under`.
    """
    inspector = inspector_of(http)
    with refusals(under):
        found, timing = cast(
            tuple[T, Timing],
            await until_gone(
                http, inspector.on_device(lambda stopped: work(inspector.opened.model, stopped))
            ),
        )
    milliseconds = {"queue": timing.queue, "forward": timing.forward}
    return found, {
        "model": identity(inspector),
        "token_ids": given.ids,
        "timing_ms": {name: round(value, 3) for name, value in milliseconds.items()},
    }


async def attention_on_model(
    http: Request, asked: wire.AttentionLabRequest, source: wire.ModelHeadSource
) -> Fields:
    """One head by hand, from its own q, k and v, held against its own pattern."""
    given = await read_input(http, source)
    if asked.query is not None:
        with refusals():
            index_of("query", asked.query, len(given.ids))

    def work(model: GPT, stopped: Stopped) -> Fields:
        head = index_of("head", source.head, model.config.n_head)
        taken = layer_vectors(model, given.ids, source.layer, tokens=given.tokens, stopped=stopped)
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
    if asked.position is not None:
        with refusals():
            index_of("position", asked.position, len(given.ids))

    def work(model: GPT, stopped: Stopped) -> Fields:
        taken = layer_vectors(model, given.ids, source.layer, tokens=given.tokens, stopped=stopped)
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

    def take(model: GPT, stopped: Stopped) -> UnturnedPair:
        return unturned_pair(
            model,
            given.ids,
            layer=source.layer,
            head=source.head,
            query=source.query,
            key=source.key,
            stopped=stopped,
        )

    pair, whose = await on_model(http, given, take, under="/model")
    inspector = inspector_of(http)
    fields = await inspector.off_loop(_turn_pair, asked, pair, given.tokens)
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
    fields: Fields = printed({**vars(lab), "pair": report}, asked.decimals)
    return fields


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


async def block_lab(http: Request, asked: BlockLabRequest) -> Fields:
    """One block at one position."""
    given = await read_input(http, asked)

    def work(model: GPT, stopped: Stopped) -> Fields:
        lab = look_at_block(
            model, given.ids, asked.layer, asked.position, top=asked.top, stopped=stopped
        )
        fields: Fields = printed(lab, asked.decimals)
        return fields

    fields, whose = await on_model(http, given, work)
    return {**whose, "tokens": given.tokens, **fields}


async def order_lab(http: Request, asked: OrderLabRequest) -> Fields:
    """The same tokens in another order, with and without positions and mask."""
    texts = asked.texts or list(ORDER_TEXTS)
    if asked.token_ids is None:
        inputs = [await _read(http, text, None) for text in texts]
    else:
        inputs = [await _read(http, None, ids) for ids in asked.token_ids]
        texts = ["".join(given.tokens) for given in inputs]
    first, second = inputs

    def work(model: GPT, stopped: Stopped) -> Fields:
        fields: Fields = printed(compare_order(model, first.ids, second.ids, stopped=stopped), None)
        return fields

    fields, whose = await on_model(http, first, work)
    return {
        **whose,
        "texts": texts,
        "tokens": [first.tokens, second.tokens],
        "second_ids": second.ids,
        "tolerance": SAME,
        **fields,
    }


def lacks(inspector: Inspector, needs: Sequence[Need]) -> str | None:
    """What the loaded model has not got of what an item of the course needs; None if all."""
    config = inspector.opened.model.config
    has: dict[Need, tuple[Callable[[], bool], str]] = {
        "tokenizer": (
            lambda: inspector.opened.tokenizer is not None,
            "this model has no tokenizer",
        ),
        "rope": (
            lambda: config.positions == "rope",
            f"this model's positions are {config.positions}, not rotary",
        ),
        "positions": (lambda: config.positions != "none", "this model has no positions"),
        "layernorm": (lambda: config.norm == "layernorm", f"this model's norm is {config.norm}"),
        "few_weights": (
            lambda: block_weights(config) <= MOST_WEIGHTS,
            f"its blocks have more than {MOST_WEIGHTS} weights to draw anew",
        ),
    }
    return next((why for there, why in (has[need] for need in needs) if not there()), None)


class Diagnoses:
    """The last few diagnoses, by token ids: the weights do not change while a server runs."""

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[int, ...], tuple[Mistake, ...]] = OrderedDict()

    def get(self, ids: Sequence[int]) -> tuple[Mistake, ...] | None:
        return self._kept.get(tuple(ids))

    def put(self, ids: Sequence[int], found: tuple[Mistake, ...]) -> None:
        self._kept[tuple(ids)] = found
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


async def diagnostics_lab(http: Request, asked: DiagnosticsRequest) -> Fields:
    """The five mistakes, measured once for a text."""
    given = await read_input(http, asked)
    diagnoses: Diagnoses = http.app.state.diagnoses
    known = diagnoses.get(given.ids)
    if known is not None:
        whose: Fields = {
            "model": identity(inspector_of(http)),
            "token_ids": given.ids,
            "timing_ms": None,
        }
        return {**whose, **_diagnosis(given, known, cached=True)}
    found, whose = await on_model(
        http, given, lambda model, stopped: diagnose(model, given.ids, stopped=stopped)
    )
    diagnoses.put(given.ids, found)
    return {**whose, **_diagnosis(given, found, cached=False)}


def _diagnosis(given: LabInput, found: Sequence[Mistake], *, cached: bool) -> Fields:
    mistakes = [_mistake(each) for each in found]
    fields: Fields = printed({"tokens": given.tokens, "cached": cached, "mistakes": mistakes}, None)
    return fields


def _mistake(found: Mistake) -> Fields:
    words = MISTAKES[found.id]
    return {
        "id": found.id,
        "title": words.title,
        "wiring": found.wiring,
        "numbers": [{**vars(number), "says": NUMBERS[number.id]} for number in found.numbers],
        "symptom": {**vars(words.symptom), "measured": found.measured, "shown": found.shown},
        "note": words.note,
        "error": found.error,
    }
