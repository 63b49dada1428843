"""What is in a model and what it costs: the loaded one, a preset, any config; one tensor of it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from model.parameters import ParameterError, compare
from model.presets import PRESETS
from service.errors import Problem
from service.inspection import identity
from service.inspector import inspector_of
from service.parameters import Look, config_of, full_report, named_configs
from service.routes.responses import (
    PROBLEMS_OF_A_GET,
    PROBLEMS_OF_A_POST,
    PROBLEMS_OF_A_RUN,
    Responses,
    reading_responses,
)
from service.schemas.parameters import (
    AnyParametersAnswer,
    ParametersAnswer,
    ParametersQuery,
    ParametersRequest,
    PresetsAnswer,
    TensorAnswer,
    TensorQuery,
)
from service.schemas.reading import Format
from service.wire import negotiation
from service.wire.body import ChunkedBody
from service.wire.parameters import comparison_fields, preset_fields
from service.wire.parts import Part
from service.wire.tensors import (
    NamedTensor,
    json_answer,
    json_size,
    json_tensors,
    safetensors_answer,
)

router = APIRouter(tags=["parameters"])
_INVALID: Responses = {422: PROBLEMS_OF_A_POST[422]}


@router.get(
    "/v1/model/parameters",
    operation_id="model_parameters",
    summary="Every parameter of the loaded model: how many, why, at what cost",
    response_model=ParametersAnswer,
    responses={**PROBLEMS_OF_A_GET, **_INVALID},
)
async def model_parameters(http: Request, asked: Annotated[ParametersQuery, Query()]) -> Response:
    """`tensors` lists what is stored, `tree` shares the same numbers out down to each head;
    `checks` says that both are what the loaded model really holds."""
    inspector = inspector_of(http)
    model = inspector.opened.model
    fields = await inspector.off_loop(
        lambda: full_report(
            model.config,
            context=asked.context,
            depth=asked.depth,
            explained=asked.explain,
            model=model,
        )
    )
    return _json(http, {"model": identity(inspector), **fields})


@router.get(
    "/v1/model/parameters/{name}",
    operation_id="model_tensor",
    summary="One tensor: its numbers' statistics, a slice, a picture",
    responses={
        **PROBLEMS_OF_A_GET,
        **_INVALID,
        404: {**PROBLEMS_OF_A_POST[422], "description": "There is no such tensor"},
        **{status: PROBLEMS_OF_A_RUN[status] for status in (406, 429)},
        **reading_responses(TensorAnswer),
    },
)
async def model_tensor(
    http: Request,
    name: Annotated[
        str,
        Path(
            max_length=256,
            openapi_examples={"queries of layer 0": {"value": "blocks.0.attn.q.weight"}},
        ),
    ],
    asked: Annotated[TensorQuery, Query()],
) -> Response:
    """Statistics are over what is selected: the whole tensor, a head, some rows and columns.
    Values come where any of those, or a reduced picture, is asked for."""
    inspector = inspector_of(http)
    model = inspector.opened.model
    media_type = negotiation.media_type(http.headers.get("accept"))
    look = await inspector.off_loop(Look.plan, model, name, asked)
    form = Format(
        encoding=asked.encoding, decimals=asked.decimals, exact=asked.exact, dtype=asked.dtype
    )
    held = look.count * (2 if asked.dtype == "float16" else 4)
    if media_type == negotiation.JSON and look.shape:
        held += json_size(look.shape, form, weights=False)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(inspector.admission.answer_bytes(held))
        (fields, tensors), _ = await inspector.on_device(lambda _: look.take(model))
        head = {"model": identity(inspector), **fields}
        chunks = await inspector.off_loop(_with_tensors, head, tensors, form, media_type)
        response = _body(http, chunks, media_type)
        response.when_sent(stack.pop_all())
        return response


def _with_tensors(
    head: dict[str, Any], tensors: list[NamedTensor], form: Format, media_type: str
) -> list[Part]:
    if media_type == negotiation.SAFETENSORS:
        return safetensors_answer(head, tensors)
    return json_answer(head, json_tensors(tensors, form))


@router.get(
    "/v1/presets",
    operation_id="presets",
    summary="Named configurations, with their parameter counts",
    response_model=PresetsAnswer,
    responses=PROBLEMS_OF_A_GET,
)
async def presets(http: Request) -> Response:
    """Configurations alone: no weights belong to them."""
    return _json(http, {"presets": [preset_fields(name, c) for name, c in PRESETS.items()]})


@router.post(
    "/v1/parameters",
    operation_id="parameters",
    summary="The same report for any preset or config, or several side by side",
    response_model=AnyParametersAnswer,
    responses=PROBLEMS_OF_A_POST,
)
async def parameters(
    http: Request,
    asked: Annotated[
        ParametersRequest,
        Body(
            openapi_examples={
                "a preset": {"value": {"preset": "gpt2"}},
                "a config": {
                    "value": {
                        "config": {
                            "n_layer": 6,
                            "d_model": 384,
                            "n_head": 6,
                            "vocab_size": 50257,
                            "n_ctx": 1024,
                        },
                        "explain": True,
                    }
                },
                "what if": {
                    "value": {
                        "configs": [
                            {"name": "6 layers", "preset": "course"},
                            {"name": "8 layers", "preset": "course", "config": {"n_layer": 8}},
                        ]
                    }
                },
            }
        ),
    ],
) -> Response:
    """No weights are made, so a model of any size can be asked about. A preset's fields can be
    changed; what follows from them (d_head, d_mlp, …) follows again."""
    fields = await run_in_threadpool(_answer, asked)
    return _json(http, fields, {"cache-control": "no-store", "vary": negotiation.VARY})


def _answer(asked: ParametersRequest) -> dict[str, Any]:
    if asked.configs is None:
        return full_report(
            config_of(asked.preset, asked.config),
            context=asked.context,
            depth=asked.depth,
            explained=asked.explain,
        )
    configs = named_configs(asked.configs)
    try:
        return comparison_fields(compare(configs, asked.context), configs)
    except ParameterError as error:
        raise Problem("invalid-request", str(error)) from error


def _json(http: Request, fields: Any, headers: dict[str, str] | None = None) -> Response:
    try:
        body = orjson.dumps(fields)
    except TypeError:  # a number beyond 64 bits: the FLOPs of a model that nobody can build
        body = json.dumps(fields, ensure_ascii=False).encode()
    response = _body(http, [body], negotiation.JSON)
    response.headers.update(headers or {})
    return response


def _body(http: Request, parts: list[Part], media_type: str) -> ChunkedBody:
    return ChunkedBody(parts, media_type, negotiation.coding(http.headers.get("accept-encoding")))
