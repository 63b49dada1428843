"""One inspecting request from its schema to its bytes: plan, admit, run, encode.

Every inspecting route comes through here; a route adds only its captures and its own keys.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from model.checks import Checks
from model.edit import Edit
from model.tokenizer import Token, Tokenizer
from service import __version__
from service.cost import Cost, cost, kept_bytes
from service.inspector import Finish, Inspected, Inspector, inspector_of
from service.plan import Plan, make_plan
from service.predictions import token_text
from service.schemas import reading as wire
from service.schemas.reading import Capture, Format, InspectingRequest
from service.wire import negotiation
from service.wire.body import ChunkedBody
from service.wire.leaving import until_gone
from service.wire.parts import Chunk, Part, pieces_of, size_of
from service.wire.tensors import (
    NamedTensor,
    json_answer,
    json_tensors,
    safetensors_answer,
)

AT_ONCE = 16 << 20  # bytes of text that are written before the answer starts
NO_CHECKS = {"row_sum_error": None, "future_mass": None, "empty_rows": 0, "finite": True}


async def answer(
    http: Request,
    asked: InspectingRequest,
    captures: Sequence[Capture],
    *,
    finish: Finish | None = None,
    hidden: frozenset[str] = frozenset(),
    extra: dict[str, Any] | None = None,
) -> Response:
    """The whole way of one request. `finish` adds the route's own keys, made on the device from
    the captured tensors; the captures named in `hidden` are for it alone.

    Raises Problem and the domain's errors, which the handlers turn into problem+json.
    """
    inspector = inspector_of(http)
    media_type = negotiation.media_type(http.headers.get("accept"))
    coding = negotiation.coding(http.headers.get("accept-encoding"))
    timing = {"queue": 0.0, "tokenize": 0.0, "forward": 0.0}

    def plan_it() -> tuple[Plan, Cost, list[dict[str, Any]] | list[int]]:
        if not asked.dry_run:
            inspector.admission.require_room()
        plan = make_plan(
            inspector.opened,
            inspector.settings,
            asked,
            captures,
            hidden=hidden,
            in_bytes=media_type != negotiation.JSON,
        )
        return plan, cost(plan, inspector.opened.model.config), tokens_of(inspector, plan)

    plan, estimated, tokens = await inspector.stage("tokenize", timing, plan_it)
    head = head_of(inspector, plan, tokens)
    head.update(extra or {})
    if asked.dry_run:
        head["checks"] = NO_CHECKS
        head["estimate"] = dataclasses.asdict(estimated)
        parts = _encode(head, None, asked, negotiation.JSON, timing)
        return respond(parts, negotiation.JSON, coding, timing)
    async with AsyncExitStack() as stack:
        held = _answer_bytes(estimated, asked, media_type)
        beside = kept_bytes(plan, inspector.opened.model.config)
        await stack.enter_async_context(inspector.admission.answer_bytes(held, beside=beside))
        inspected, measured = await until_gone(http.receive, inspector.inspect(plan, finish))
        timing.update(queue=measured.queue, forward=measured.forward)
        parts = await inspector.off_loop(
            _encode, head, inspected, asked, media_type, timing, inspector.opened.tokenizer
        )
        response = respond(parts, media_type, coding, timing)
        stack.callback(_count_encoding, inspector, timing)
        response.when_sent(stack.pop_all())
        return response


def _count_encoding(inspector: Inspector, timing: Mapping[str, float]) -> None:
    if "encode" in timing:  # not where a large answer broke off
        inspector.observe("encode", timing["encode"] / 1e3)


def tokens_of(inspector: Inspector, plan: Plan) -> list[dict[str, Any]] | list[int]:
    kind = plan.request.tokens
    if kind == "none":
        return []
    tokenizer = inspector.opened.tokenizer
    if kind == "ids" or tokenizer is None:
        return list(plan.ids)
    return [token_fields(token) for token in tokenizer.tokens(plan.encoded)]


def token_fields(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in token.__slots__}


def identity(inspector: Inspector) -> dict[str, Any]:
    """Which model answered: enough to know whether two answers come from the same weights."""
    opened = inspector.opened
    weight = opened.model.embed.weight
    return {
        "id": opened.id,
        "weights_sha256": opened.weights_sha256,
        "trained": opened.trained,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
        "server_version": __version__,
    }


def head_of(
    inspector: Inspector, plan: Plan, tokens: list[dict[str, Any]] | list[int]
) -> dict[str, Any]:
    asked = plan.request
    has_text = asked.text is not None or inspector.opened.tokenizer is not None
    return {
        "model": identity(inspector),
        "input": {
            "text": plan.encoded.text if has_text else None,
            "bos_added": plan.encoded.bos_added,
            "n_tokens": len(plan.ids),
            "wiring": asked.wiring.model_dump(),
            "edits": [],
        },
        "tokens": tokens,
    }


def _encode(
    head: dict[str, Any],
    inspected: Inspected | None,
    asked: InspectingRequest,
    media_type: str,
    timing: dict[str, float],
    tokenizer: Tokenizer | None = None,
) -> list[Part]:
    """The body in parts. A small one is written at once, which adds `encode` to timing; a large one
    is written while it is sent."""
    tensors: list[NamedTensor] = []
    if inspected is not None:
        _say_what_was_found(head, inspected, asked, tokenizer)
        tensors = inspected.tensors
    if media_type != negotiation.JSON:
        start = time.perf_counter()
        head["timing_ms"] = rounded({**timing, "encode": 0.0})
        parts = safetensors_answer(head, tensors)
        timing["encode"] = (time.perf_counter() - start) * 1e3
        return parts
    text = _TimedText(tensors, asked.format, timing)
    parts = json_answer(head, [text])
    if text.n_bytes > AT_ONCE:
        return parts
    return list(pieces_of(parts))


class _TimedText:
    """The tensors' text, then timing_ms with the milliseconds that writing it took, which `timing`
    has as well once all is written."""

    def __init__(self, tensors: list[NamedTensor], form: Format, timing: dict[str, float]) -> None:
        start = time.perf_counter()
        self._parts = json_tensors(tensors, form)
        self._timing, self._known = timing, dict(timing)
        self._encode_ms = (time.perf_counter() - start) * 1e3
        self.n_bytes = size_of(self._parts) + len(self._end())

    def pieces(self) -> Iterator[Chunk]:
        pieces = pieces_of(self._parts)
        while True:
            start = time.perf_counter()
            piece = next(pieces, None)
            self._encode_ms += (time.perf_counter() - start) * 1e3
            if piece is None:
                break
            yield piece
        self._timing["encode"] = self._encode_ms
        yield self._end()

    def _end(self) -> bytes:
        """Of the same length whatever `encode` came to be."""
        said = orjson.dumps(rounded(self._known))[:-1]
        return b',"timing_ms":%s,"encode":%12.3f}' % (said, self._encode_ms)


def _say_what_was_found(
    head: dict[str, Any],
    inspected: Inspected,
    asked: InspectingRequest,
    tokenizer: Tokenizer | None,
) -> None:
    head["input"]["edits"] = edit_reports(asked.edits, inspected.edits)
    head.update(inspected.extra)
    full = asked.checks_level == "full"
    head["checks"] = check_fields(inspected.checks, inspected.finite, full=full)
    if inspected.comparison is not None:
        comparison = dataclasses.asdict(inspected.comparison)
        for change in comparison["rank_changes"]:
            change["text"] = token_text(tokenizer, change["id"])
        head["comparison"] = comparison


def edit_reports(asked: Sequence[wire.Edit], done: Sequence[Edit]) -> list[dict[str, Any]]:
    """The edits as asked, and what they did."""
    return [
        {
            **edit.model_dump(exclude_none=True),
            "values_touched": made.values_touched,
            "change_norm": made.change_norm,
        }
        for edit, made in zip(asked, done, strict=True)
    ]


def check_fields(checks: Checks, finite: bool, *, full: bool = False) -> dict[str, Any]:
    fields = dataclasses.asdict(checks)
    if not full:
        fields = {name: fields[name] for name in ("row_sum_error", "future_mass", "empty_rows")}
    return {**fields, "finite": finite}


def rounded(timing: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in timing.items()}


def _answer_bytes(estimated: Cost, asked: InspectingRequest, media_type: str) -> int:
    """What the answer holds in memory at once: the tensors and, in JSON, their text."""
    text = estimated.json_bytes if media_type == negotiation.JSON else 0
    return estimated.tensor_bytes + text


def respond(
    parts: list[Part], media_type: str, coding: negotiation.Coding, timing: dict[str, float]
) -> ChunkedBody:
    response = ChunkedBody(parts, media_type, coding)
    response.headers["cache-control"] = "no-store"
    response.headers["vary"] = negotiation.VARY
    response.headers["server-timing"] = ", ".join(
        f"{name};dur={value:.3f}" for name, value in timing.items()
    )
    return response
