"""One number of an attention map, taken apart."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from service.cell import HIDDEN, cell_captures, take_cell
from service.inspection import answer
from service.inspector import inspector_of
from service.routes.responses import PROBLEMS_OF_A_RUN, reading_responses
from service.schemas.cell import CellAnswer, CellRequest

router = APIRouter(tags=["inspect"], responses=PROBLEMS_OF_A_RUN)


@router.post(
    "/v1/attention/cell",
    operation_id="attention_cell",
    summary="One number of an attention map: its products, softmax and value",
    responses=reading_responses(CellAnswer),
)
async def attention_cell(
    http: Request,
    asked: Annotated[
        CellRequest,
        Body(
            openapi_examples={
                "what 它 takes from 猫": {
                    "value": {
                        "text": "猫追老鼠，因为它饿了。",
                        "layer": 0,
                        "head": 0,
                        "query": 7,
                        "key": 0,
                    }
                }
            }
        ),
    ],
) -> Response:
    """Worked out again in float64 from the model's own rot_q, rot_k and v; `errors` says how far
    the model's own numbers are from these. An edit at a stage in between shows there."""
    inspector = inspector_of(http)
    config = inspector.opened.model.config
    return await answer(
        http,
        asked,
        cell_captures(asked, config),
        finish=take_cell(asked, config),
        hidden=HIDDEN,
        extra={"cell": None},
    )
