"""Metrics, for Prometheus to scrape."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.observability import METRICS_TYPE, Metrics
from service.routes.responses import PROBLEMS_OF_A_GET

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Durations, queue, memory and refusals as Prometheus reads them",
    response_class=Response,
    responses={
        200: {"content": {METRICS_TYPE: {"schema": {"type": "string"}}}},
        401: PROBLEMS_OF_A_GET[401],
    },
)
async def metrics(http: Request) -> Response:
    """Routes by their templates; no prompt, path or query string is part of it."""
    kept: Metrics = http.app.state.metrics
    return Response(kept.exposition(), media_type=METRICS_TYPE)
