"""Whether the process runs, and whether the model answers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.draining import shutting_down
from service.errors import Problem
from service.inspector import inspector_of
from service.routes.responses import PROBLEMS_OF_A_GET
from service.schemas.model import Health

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", operation_id="live", summary="The process runs")
async def live() -> Health:
    """200 as long as the event loop turns, also while the model loads."""
    return Health(status="live")


@router.get(
    "/ready",
    operation_id="ready",
    summary="The model answers",
    responses={503: PROBLEMS_OF_A_GET[503]},
)
async def ready(http: Request) -> Health:
    """503 with the reason while the model loads, is broken or hangs, or the server is shutting
    down; busy is ready."""
    if http.app.state.draining.is_set():
        raise shutting_down()
    inspector = inspector_of(http)
    reason = await inspector.why_not_ready()
    if reason is not None:
        raise Problem("not-ready", reason)
    return Health(status="ready", model=inspector.opened.id)
