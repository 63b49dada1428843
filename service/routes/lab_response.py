"""How the labs' answers leave: one JSON body, compressed where it is large."""

from __future__ import annotations

from contextlib import AsyncExitStack

from fastapi import Request
from starlette.responses import Response

from service.inspector import inspector_of
from service.labs import Fields
from service.wire import negotiation
from service.wire.body import ChunkedBody
from service.wire.printed import dump


async def lab_response(http: Request, fields: Fields) -> Response:
    """The bytes count against the answers that are being sent until these are."""
    inspector = inspector_of(http)
    body = await inspector.off_loop(dump, fields)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(inspector.admission.answer_bytes(len(body)))
        coding = negotiation.coding(http.headers.get("accept-encoding"))
        response = ChunkedBody([body], negotiation.JSON, coding)
        if http.method != "GET":
            response.headers["cache-control"] = "no-store"
            response.headers["vary"] = negotiation.VARY
        response.when_sent(stack.pop_all())
        return response
