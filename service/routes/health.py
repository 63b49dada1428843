"""Whether the process runs, and whether the model answers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.errors import Problem
from service.inspector import Inspector
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
    """503 with the reason while the model loads, is broken or hangs; busy is ready."""
    inspector: Inspector | None = getattr(http.app.state, "inspector", None)
    reason = "the model is loading" if inspector is None else await inspector.why_not_ready()
    if reason is not None or inspector is None:
        raise Problem("not-ready", reason or "")
    return Health(status="ready", model=inspector.opened.id)
