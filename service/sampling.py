"""POST /v1/sample: one row of logits, and what each setting would choose from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
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
from model.sampling import Sampling, choose
from service.choices import ROW_BYTES, choice_fields
from service.inspection import identity, until_gone
from service.inspector import Inspector, inspector_of, require_finite
from service.plan import Plan, make_plan
from service.schemas import reading as wire
from service.schemas.generation import SampleRequest
from service.wire import negotiation
from service.wire.body import ChunkedBody


async def answer_sample(http: Request, asked: SampleRequest) -> Response:
    """At most one run of the model. Raises Problem and the domain's errors."""
    inspector = inspector_of(http)
    held = len(asked.settings) * (asked.top + 4) * ROW_BYTES
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(inspector.admission.answer_bytes(held))
        place: dict[str, int | None] = {"n_tokens": None, "position": None}
        if asked.logits is not None:
            logits = await inspector.off_loop(_given, asked.logits)
        else:
            plan = await inspector.off_loop(_plan, inspector, asked)
            logits, _ = await until_gone(
                http, inspector.on_device(partial(_run, inspector.opened.model, plan))
            )
            n_tokens = len(plan.ids)
            place = {"n_tokens": n_tokens, "position": asked.position % n_tokens}
        body = await inspector.off_loop(_body, inspector, asked, logits, place)
        coding = negotiation.coding(http.headers.get("accept-encoding"))
        response = ChunkedBody([body], negotiation.JSON, coding)
        response.headers["cache-control"] = "no-store"
        response.headers["vary"] = negotiation.VARY
        response.when_sent(stack.pop_all())
        return response


def _given(logits: Sequence[float | None]) -> Tensor:
    """null is −∞, as in every answer."""
    numbers = [float("-inf") if logit is None else logit for logit in logits]
    return torch.tensor(numbers, dtype=torch.float64)  # (V,)


def _plan(inspector: Inspector, asked: SampleRequest) -> Plan:
    given = ("text", "token_ids", "add_bos", "parse_special")
    run = wire.InspectingRequest.model_construct(**{name: getattr(asked, name) for name in given})
    position = wire.Capture(site="logits", positions=[asked.position])
    return make_plan(inspector.opened, inspector.settings, run, [position])


def _run(model: GPT, plan: Plan, stopped: Callable[[], bool]) -> Tensor:
    logits = read(model, plan.ids, plan.captures, stopped=stopped).tensors["logits"][0]
    require_finite(logits)
    return logits.cpu()  # (V,)


def _body(
    inspector: Inspector, asked: SampleRequest, logits: Tensor, place: dict[str, int | None]
) -> bytes:
    opened = inspector.opened
    # Of given logits it can only be guessed whose vocabulary they are over.
    known = len(logits) == opened.model.config.vocab_size
    draw = None if asked.seed is None else Random(asked.seed).random()
    choices = []
    for setting in asked.settings:
        choice = choose(logits, Sampling(**setting.model_dump()), top=asked.top, draw=draw)
        fields = choice_fields(choice, opened.tokenizer if known else None)
        choices.append({**setting.model_dump(), **fields, "drawn": choice.drawn})
    head: dict[str, Any] = {"model": identity(inspector), **place, "vocab_size": len(logits)}
    return orjson.dumps({**head, "choices": choices})
