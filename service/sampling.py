"""POST /v1/sample: one row of logits, and what each setting would choose from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import orjson
import torch
from fastapi import Request
from starlette.responses import Response
from torch import Tensor

from model.gpt import GPT
from model.reading import read
from model.sampling import Choice, Sampling, choose
from service.choices import ROW_BYTES, choice_fields
from service.inspection import identity, respond
from service.inspector import Inspector, inspector_of, require_finite
from service.plan import Plan, make_plan
from service.schemas import reading as wire
from service.schemas.generation import SampleRequest
from service.wire import negotiation
from service.wire.leaving import until_gone


@dataclass(frozen=True)
class Chosen:
    """What each of the settings makes of one row of logits."""

    vocab_size: int
    choices: list[Choice]


async def answer_sample(http: Request, asked: SampleRequest) -> Response:
    """At most one run of the model. Raises Problem and the domain's errors."""
    inspector = inspector_of(http)
    held = len(asked.settings) * (asked.top + 4) * ROW_BYTES
    timing = {"queue": 0.0}
    work: Callable[[Callable[[], bool]], Chosen]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(inspector.admission.answer_bytes(held))
        place: dict[str, int | None] = {"n_tokens": None, "position": None}
        if asked.logits is not None:
            work = partial(_choose_of_given, asked, asked.logits)
        else:
            plan = await inspector.stage("tokenize", timing, _plan, inspector, asked)
            work = partial(_choose_of_run, asked, inspector.opened.model, plan)
            n_tokens = len(plan.ids)
            place = {"n_tokens": n_tokens, "position": asked.position % n_tokens}
        chosen, measured = await until_gone(http.receive, inspector.on_device(work))
        timing.update(queue=measured.queue, forward=measured.forward)
        body = await inspector.stage("encode", timing, _body, inspector, asked, chosen, place)
        coding = negotiation.coding(http.headers.get("accept-encoding"))
        response = respond([body], negotiation.JSON, coding, timing)
        response.when_sent(stack.pop_all())
        return response


def _plan(inspector: Inspector, asked: SampleRequest) -> Plan:
    inspector.admission.require_room()
    given = ("text", "token_ids", "add_bos", "parse_special")
    run = wire.InspectingRequest.model_construct(**{name: getattr(asked, name) for name in given})
    position = wire.Capture(site="logits", positions=[asked.position])
    return make_plan(inspector.opened, inspector.settings, run, [position])


def _choose_of_given(
    asked: SampleRequest, given: Sequence[float | None], stopped: Callable[[], bool]
) -> Chosen:
    """null is −∞, as in every answer. On the inference thread too: see Inspector.open."""
    numbers = [float("-inf") if logit is None else logit for logit in given]
    return _choose(asked, torch.tensor(numbers, dtype=torch.float64))  # (V,)


def _choose_of_run(
    asked: SampleRequest, model: GPT, plan: Plan, stopped: Callable[[], bool]
) -> Chosen:
    logits = read(model, plan.ids, plan.captures, stopped=stopped).tensors["logits"][0]
    require_finite(logits)
    return _choose(asked, logits.cpu())  # (V,)


def _choose(asked: SampleRequest, logits: Tensor) -> Chosen:
    draw = None if asked.seed is None else Random(asked.seed).random()
    choices = [
        choose(logits, Sampling(**setting.model_dump()), top=asked.top, draw=draw)
        for setting in asked.settings
    ]
    return Chosen(len(logits), choices)


def _body(
    inspector: Inspector, asked: SampleRequest, chosen: Chosen, place: dict[str, int | None]
) -> bytes:
    opened = inspector.opened
    # Of given logits it can only be guessed whose vocabulary they are over.
    known = chosen.vocab_size == opened.model.config.vocab_size
    choices = [
        {
            **setting.model_dump(),
            **choice_fields(choice, opened.tokenizer if known else None),
            "drawn": choice.drawn,
        }
        for setting, choice in zip(asked.settings, chosen.choices, strict=True)
    ]
    head: dict[str, Any] = {
        "model": identity(inspector),
        **place,
        "vocab_size": chosen.vocab_size,
    }
    return orjson.dumps({**head, "choices": choices})
