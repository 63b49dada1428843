"""The inspecting routes: attention maps, logits, any site. One run of the model each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from service.inspection import answer
from service.inspector import inspector_of
from service.predictions import predictions
from service.routes.responses import PROBLEMS_OF_A_RUN, reading_responses
from service.schemas.attention import AttentionRequest
from service.schemas.inspect import InspectRequest
from service.schemas.logits import LogitsAnswer, LogitsRequest
from service.schemas.reading import Capture, ReadingAnswer

router = APIRouter(tags=["inspect"], responses=PROBLEMS_OF_A_RUN)


@router.post(
    "/v1/attention",
    operation_id="attention",
    summary="Attention maps of chosen layers and heads",
    responses=reading_responses(ReadingAnswer),
)
async def attention(
    http: Request,
    asked: Annotated[
        AttentionRequest,
        Body(
            openapi_examples={
                "one head": {"value": {"text": "The cat sat.", "layers": [0], "heads": [3]}},
                "every map": {"value": {"text": "猫追老鼠，因为它饿了。"}},
            }
        ),
    ],
) -> Response:
    """Only the layers up to the last one asked for are run, and never the unembedding."""
    return await answer(http, asked, asked.captures())


@router.post(
    "/v1/logits",
    operation_id="logits",
    summary="What the model expects next",
    responses=reading_responses(LogitsAnswer),
)
async def logits(
    http: Request,
    asked: Annotated[
        LogitsRequest,
        Body(
            openapi_examples={
                "next token": {"value": {"text": "Once upon a", "top": 5}},
                "every position": {"value": {"text": "Once upon a time", "positions": "all"}},
            }
        ),
    ],
) -> Response:
    """Probabilities are over the whole vocabulary; only the positions asked for are unembedded."""
    opened = inspector_of(http).opened
    capture = Capture(site="logits", positions=asked.positions)
    return await answer(
        http,
        asked,
        [capture],
        finish=predictions(opened.tokenizer, asked),
        hidden=frozenset() if asked.full else frozenset({"logits"}),
        extra={"predictions": []},
    )


@router.post(
    "/v1/inspect",
    operation_id="inspect",
    summary="Any values inside one run",
    responses=reading_responses(ReadingAnswer),
)
async def inspect(
    http: Request,
    asked: Annotated[
        InspectRequest,
        Body(
            openapi_examples={
                "two sites": {
                    "value": {
                        "text": "The cat sat.",
                        "captures": [
                            {"site": "attn.pattern", "layers": [0], "heads": [0]},
                            {"site": "resid_post", "layers": [-1], "reduce": "stats"},
                        ],
                    }
                },
                "without one head": {
                    "value": {
                        "text": "The cat sat.",
                        "captures": [{"site": "logits", "positions": [-1], "name": "next"}],
                        "edits": [{"op": "zero", "site": "attn.z", "layers": [2], "heads": [1]}],
                    }
                },
            }
        ),
    ],
) -> Response:
    """Captures show what edits left; an edit that would change nothing asked for is refused."""
    return await answer(http, asked, asked.captures)
