"""The forms in which a generation leaves: events as they come, or one answer once it is over."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from service.cost import kept_bytes
from service.errors import as_problem, log, problem_content
from service.generating import Event, Generating, meta_fields
from service.generation import GenerationCost, GenerationPlan, generation_cost, plan_generation
from service.inspection import respond
from service.inspector import Inspector, inspector_of
from service.logs import withheld
from service.schemas.generation import GenerateRequest
from service.schemas.reading import Format
from service.wire import negotiation
from service.wire.body import ChunkedBody
from service.wire.events import EventStream, event_text
from service.wire.leaving import until_gone
from service.wire.parts import Part, pieces_of
from service.wire.tensors import NamedTensor, json_answer, json_tensors, safetensors_answer

FORMS = (negotiation.JSON, negotiation.EVENTS, negotiation.SAFETENSORS)


async def answer_generation(http: Request, asked: GenerateRequest) -> Response:
    """The whole way of one generation. The prompt is run before anything is said, so that what is
    wrong with it has a status of its own; what goes wrong later is a stream's last event.

    Raises Problem and the domain's errors, which the handlers turn into problem+json.
    """
    inspector = inspector_of(http)
    media_type = negotiation.media_type(http.headers.get("accept"), FORMS)
    timing: dict[str, float] = {}

    def plan_it() -> tuple[GenerationPlan, GenerationCost]:
        if not asked.dry_run:
            inspector.admission.require_room(generation=True)
        opened = inspector.opened
        in_bytes = media_type == negotiation.SAFETENSORS
        planned = plan_generation(opened, inspector.settings, asked, in_bytes=in_bytes)
        return planned, generation_cost(planned, opened)

    planned, estimated = await inspector.stage("tokenize", timing, plan_it)
    if asked.dry_run:
        answer: dict[str, Any] = {
            "meta": meta_fields(inspector, planned, None),
            "prompt": None,
            "steps": [],
            "done": None,
            "estimate": estimated.estimate(),
        }
        return _whole(http, [orjson.dumps(answer)], negotiation.JSON, timing)
    async with AsyncExitStack() as stack:
        admission = inspector.admission
        await stack.enter_async_context(admission.generation())
        beside = estimated.beside(media_type)
        beside += kept_bytes(planned.plan, inspector.opened.model.config)
        held = estimated.held(media_type)
        await stack.enter_async_context(admission.answer_bytes(held, beside=beside))
        stream_it = media_type == negotiation.EVENTS
        # Whoever waits for one piece is given it, as any answer that is under way.
        stop = http.app.state.draining.is_set if stream_it else lambda: False
        generating = Generating(inspector, planned, timing["tokenize"], stop)
        await until_gone(http.receive, generating.start())
        if stream_it:
            stream = EventStream(
                _events(http, generating, asked.format), patience=inspector.settings.run_seconds
            )
            stream.headers["cache-control"] = "no-store"
            stream.headers["vary"] = negotiation.VARY
            stream.when_sent(stack.pop_all())
            return stream
        collect = as_json if media_type == negotiation.JSON else as_safetensors
        parts = await until_gone(http.receive, collect(inspector, generating, asked.format))
        response = _whole(http, parts, media_type, generating.spent)
        response.when_sent(stack.pop_all())
        return response


def _whole(
    http: Request, parts: list[Part], media_type: str, spent: dict[str, float]
) -> ChunkedBody:
    coding = negotiation.coding(http.headers.get("accept-encoding"))
    return respond(parts, media_type, coding, spent)


async def _events(
    http: Request, generating: Generating, form: Format
) -> AsyncGenerator[bytes, None]:
    """Each event's text. An error, too late for a status, is the last."""

    def write(event: Event) -> bytes:
        return event_text(event.name, _json(event, form))

    try:
        async with aclosing(generating.events(write)) as events:
            async for text in events:
                yield text
    except Exception as error:
        problem = as_problem(error)
        request_id = getattr(http.state, "request_id", "")
        http.state.problem = problem.slug  # for whoever counts refusals
        if problem.slug == "internal-error":
            log.error("request %s failed", request_id, exc_info=withheld(error))
        content = problem_content(problem, request_id)
        yield event_text("error", orjson.dumps(content, default=str))


async def as_json(inspector: Inspector, generating: Generating, form: Format) -> list[Part]:
    """Every event under its name, the steps in a list."""
    texts: dict[str, list[bytes]] = {"meta": [], "prompt": [], "step": [], "done": []}
    async with aclosing(generating.events(lambda event: (event.name, _json(event, form)))) as all_:
        async for name, text in all_:
            texts[name].append(text)
    steps = [part for text in texts["step"] for part in (b",", text)][1:]
    return [
        b'{"meta":',
        *texts["meta"],
        b',"prompt":',
        *texts["prompt"],
        b',"steps":[',
        *steps,
        b'],"done":',
        *texts["done"],
        b',"estimate":null}',
    ]


async def as_safetensors(inspector: Inspector, generating: Generating, _: Format) -> list[Part]:
    """The same, and every tensor apart, named by where it belongs."""
    answer: dict[str, Any] = {"meta": None, "prompt": None, "steps": [], "done": None}
    tensors: list[NamedTensor] = []

    def write(event: Event) -> tuple[Event, orjson.Fragment]:
        if event.tensors is not None:
            event.content["tensors"] = {}
        return event, orjson.Fragment(_text(event.content))  # far less than the objects

    async with aclosing(generating.events(write)) as events:
        async for event, text in events:
            if event.name == "step":
                answer["steps"].append(text)
                place = f"step/{event.content['sample']}/{event.content['step']}"
            else:
                answer[event.name] = text
                place = event.name
            named = event.tensors or []
            tensors += [replace(tensor, name=f"{place}/{tensor.name}") for tensor in named]
    answer["estimate"] = None

    def put_together() -> list[Part]:
        start = time.perf_counter()
        parts = safetensors_answer(answer, tensors)
        generating.note_encoding((time.perf_counter() - start) * 1e3)
        return parts

    return await inspector.off_loop(put_together)


def _json(event: Event, form: Format) -> bytes:
    """An event's data on one line; `encode` is how long its tensors took to write."""
    if event.tensors is None:
        return _text(event.content)
    start = time.perf_counter()
    written = b"".join(pieces_of(json_tensors(event.tensors, form)))
    event.content["timing_ms"]["encode"] = round((time.perf_counter() - start) * 1e3, 3)
    return b"".join(pieces_of(json_answer(event.content, [written])))


def _text(content: dict[str, Any]) -> bytes:
    """JSON in memory of its own size: what orjson gives lies in a buffer of up to twice as much."""
    return bytes(memoryview(orjson.dumps(content)))
