"""The running model's parity: taken once and kept, since the weights do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request

from model.checkpoints.open import OpenedModel
from model.parity import parity
from service.inspection import identity
from service.inspector import inspector_of
from service.wire.leaving import until_gone


class KeptParity:
    """The report of the process's one model, None until it was asked for.

    Only the inference thread takes it, so two requests at once still take it once.
    """

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None

    def take(self, opened: OpenedModel, stopped: Callable[[], bool]) -> None:
        if self.report is None:
            self.report = parity(opened, stopped=stopped).to_dict()


async def parity_fields(http: Request) -> dict[str, Any]:
    """Whose report it is and the report; admitted like a run where it is still to be taken."""
    inspector = inspector_of(http)
    kept: KeptParity = http.app.state.parity
    if kept.report is None:
        await until_gone(
            http.receive, inspector.on_device(lambda stopped: kept.take(inspector.opened, stopped))
        )
    assert kept.report is not None
    return {"model": identity(inspector), **kept.report}
