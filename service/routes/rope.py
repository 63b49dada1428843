"""Rotary positions: two vectors turned, frequencies side by side, the loaded model's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from starlette.responses import Response

from service import labs, labs_on_model
from service.inspector import inspector_of
from service.lab_run import admitted
from service.routes.lab_response import lab_response
from service.routes.responses import PROBLEMS_OF_A_GET, PROBLEMS_OF_A_POST, PROBLEMS_OF_A_RUN
from service.schemas.rope import (
    FrequenciesAnswer,
    FrequenciesRequest,
    ModelRopeAnswer,
    RotateAnswer,
    RotateRequest,
)
from service.wire.printed import printed

router = APIRouter(tags=["rope"])


@router.post(
    "/v1/rope/rotate",
    operation_id="rope_rotate",
    summary="q at m and k at n: every angle, matrix and product, and what their dot depends on",
    response_model=RotateAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def rotate(
    http: Request,
    asked: Annotated[
        RotateRequest,
        Body(
            openapi_examples={
                "20 degrees a position": {"value": {}},
                "a slider": {"value": {"positions": [{"m": 3, "n": n} for n in range(4)]}},
                "four dimensions": {
                    "value": {
                        "q": [1, 0, 1, 0],
                        "k": [0.5, 0.5, 1, 0],
                        "base": 100,
                        "pairing": "half",
                        "positions": [{"m": 5, "n": 2}],
                    }
                },
                "from the model": {
                    "value": {"model": {"layer": 0, "head": 0, "query": -1, "key": 0}}
                },
            }
        ),
    ],
) -> Response:
    """A list of positions in one request, so that a slider needs one. `difference` is unrounded."""
    if asked.model is not None:
        fields = await labs_on_model.rotate_on_model(http, asked, asked.model)
    else:
        inspector = inspector_of(http)
        limits = labs.limits_of(inspector.settings)
        turned, _ = await admitted(http, lambda stopped: labs.rotate_lab(asked, limits))
        fields = await inspector.off_loop(printed, turned, asked.decimals)
    return await lab_response(http, fields)


@router.post(
    "/v1/rope/frequencies",
    operation_id="rope_frequencies",
    summary="The ladder of frequencies, and its stretched forms side by side",
    response_model=FrequenciesAnswer,
    responses=PROBLEMS_OF_A_POST,
)
async def frequencies(
    http: Request,
    asked: Annotated[
        FrequenciesRequest,
        Body(
            openapi_examples={
                "all kinds by 4": {"value": {}},
                "Llama 3.2": {
                    "value": {
                        "base": 500000,
                        "context": 131072,
                        "scalings": [
                            {"kind": "none"},
                            {"kind": "llama3", "factor": 32, "original_context": 8192},
                        ],
                    }
                },
            }
        ),
    ],
) -> Response:
    """Numbers are as float64 has them: the slowest pairs are far below any fixed decimals."""
    inspector = inspector_of(http)
    return await lab_response(
        http,
        await inspector.off_loop(labs.frequencies_lab, asked, labs.limits_of(inspector.settings)),
    )


@router.get(
    "/v1/model/rope",
    operation_id="model_rope",
    summary="How the loaded model rotates its queries and keys",
    response_model=ModelRopeAnswer,
    responses={**PROBLEMS_OF_A_GET, 422: PROBLEMS_OF_A_POST[422]},
)
async def model_rope(
    http: Request,
    context: Annotated[
        int | None, Query(ge=1, description="tokens of a run; default: the model's longest")
    ] = None,
) -> Response:
    """`positions` other than "rope" says that this model does not rotate; the rest is then null."""
    inspector = inspector_of(http)
    fields = await inspector.off_loop(labs_on_model.rope_of_model, inspector, context)
    return await lab_response(http, fields)
