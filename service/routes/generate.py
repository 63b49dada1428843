"""Watching the model choose: a text continued, and one choice under many settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from service.generation_forms import answer_generation
from service.routes.responses import PROBLEMS_OF_A_RUN, Responses
from service.sampling import answer_sample
from service.schemas.generation import (
    GenerateAnswer,
    GenerateRequest,
    SampleAnswer,
    SampleRequest,
)
from service.wire.negotiation import EVENTS, SAFETENSORS

router = APIRouter(tags=["generate"], responses=PROBLEMS_OF_A_RUN)

_STREAM: dict[str, Any] = {
    "schema": {
        "type": "string",
        "description": "Server-Sent Events: `meta`, `prompt`, one `step` for each token, then "
        "`done`, or `error` with a problem's fields. The data of each is JSON: what stands under "
        "the same name in the JSON answer (a `step` in `steps`). Comment lines come while nothing "
        "else does.",
    },
    "examples": {
        "two events of many": {
            "value": 'event: meta\ndata: {"model":{"id":"demo"},"room":499}\n\n'
            'event: step\ndata: {"sample":0,"step":0,"text":" girl"}\n\n'
        }
    },
}
_RESPONSES: Responses = {
    200: {
        "model": GenerateAnswer,
        "description": "The events in one piece; or as they come; or as safetensors: the tensors "
        "by name, and the rest of the answer as JSON under the metadata key `answer`.",
        "content": {
            EVENTS: _STREAM,
            SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post(
    "/v1/generate",
    operation_id="generate",
    summary="A text continued, each step open: the choice, and any values inside",
    responses=_RESPONSES,
)
async def generate(
    http: Request,
    asked: Annotated[
        GenerateRequest,
        Body(
            openapi_examples={
                "greedy": {
                    "value": {
                        "text": "Once upon a",
                        "temperature": 0,
                        "max_new_tokens": 8,
                        "top": 3,
                    }
                },
                "drawn, with the attention of one head": {
                    "value": {
                        "text": "猫追老鼠，",
                        "top_p": 0.9,
                        "seed": 7,
                        "max_new_tokens": 8,
                        "trace": {
                            "captures": [{"site": "attn.pattern", "layers": [0], "heads": [0]}]
                        },
                    }
                },
            }
        ),
    ],
) -> Response:
    """Keys and values are kept, so a step costs one token. Each step queues with other requests:
    a long generation holds nobody up. With `Accept: text/event-stream` every step comes as soon as
    it is made."""
    return await answer_generation(http, asked)


@router.post(
    "/v1/sample",
    operation_id="sample",
    summary="What would be chosen next under each of several settings",
    response_model=SampleAnswer,
)
async def sample(
    http: Request,
    asked: Annotated[
        SampleRequest,
        Body(
            openapi_examples={
                "three temperatures": {
                    "value": {
                        "text": "Once upon a",
                        "settings": [{"temperature": 0.5}, {}, {"temperature": 2}],
                        "top": 3,
                    }
                },
                "given logits": {
                    "value": {
                        "logits": [2.0, 1.0, 0.0, None],
                        "settings": [{"top_k": 2}, {"top_p": 0.6}],
                        "seed": 7,
                    }
                },
            }
        ),
    ],
) -> Response:
    """The slider without running again: at most one run, or none where logits are given."""
    return await answer_sample(http, asked)
