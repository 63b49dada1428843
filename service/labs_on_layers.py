"""The labs on what the running model's layers do: one block, order, the five mistakes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from fastapi import Request

from model.gpt import GPT
from model.labs.block import look_at_block
from model.labs.diagnostics import Mistake, diagnose
from model.labs.examples import ORDER_TEXTS
from model.labs.mistake_words import MISTAKES, NUMBERS
from model.labs.order import SAME, compare_order
from service.inspection import identity
from service.inspector import inspector_of
from service.lab_run import LabInput, Stopped, on_model, read_input, read_one
from service.labs import Fields, limits_of
from service.schemas.model_labs import BlockLabRequest, DiagnosticsRequest, OrderLabRequest
from service.wire.printed import printed


async def block_lab(http: Request, asked: BlockLabRequest) -> Fields:
    """One block at one position."""
    given = await read_input(http, asked)
    limits = limits_of(inspector_of(http).settings)

    def work(model: GPT, stopped: Stopped) -> Fields:
        lab = look_at_block(
            model,
            given.ids,
            asked.layer,
            asked.position,
            top=asked.top,
            stopped=stopped,
            limits=limits,
        )
        fields: Fields = printed(lab, asked.decimals)
        return fields

    fields, whose = await on_model(http, given, work)
    return {**whose, "tokens": given.tokens, **fields}


async def order_lab(http: Request, asked: OrderLabRequest) -> Fields:
    """The same tokens in another order, with and without positions and mask."""
    texts = asked.texts or list(ORDER_TEXTS)
    if asked.token_ids is None:
        inputs = [await read_one(http, text, None) for text in texts]
    else:
        inputs = [await read_one(http, None, ids) for ids in asked.token_ids]
        texts = ["".join(given.tokens) for given in inputs]
    limits = limits_of(inspector_of(http).settings)
    first, second = inputs

    def work(model: GPT, stopped: Stopped) -> Fields:
        fields: Fields = printed(
            compare_order(model, first.ids, second.ids, stopped=stopped, limits=limits), None
        )
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
    limits = limits_of(inspector_of(http).settings)
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
        http,
        given,
        lambda model, stopped: diagnose(model, given.ids, stopped=stopped, limits=limits),
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
