"""POST /v1/inspect: any sites in one run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.reading import Capture, InspectingRequest


class InspectRequest(InspectingRequest):
    captures: Annotated[list[Capture], Field(min_length=1, max_length=256)]
