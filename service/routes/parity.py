"""Whether the running model computes what it should."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.parity import parity_fields
from service.routes.responses import PROBLEMS_OF_A_GET, PROBLEMS_OF_A_RUN
from service.schemas.parity import ParityAnswer

router = APIRouter(tags=["model"])


@router.get(
    "/v1/model/parity",
    operation_id="model_parity",
    summary="The largest error against float64 values, and that a wrong formula would show",
    responses={**PROBLEMS_OF_A_GET, 429: PROBLEMS_OF_A_RUN[429]},
)
async def model_parity(http: Request) -> ParityAnswer:
    """Against values stored with the checkpoint, or recomputed from the same weights by other code.
    The first request takes about as long as a run of 32 tokens in float64 on the processor; a model
    too large for the server's deadline is checked by `fluoroscope check-model`."""
    return ParityAnswer(**await parity_fields(http))
