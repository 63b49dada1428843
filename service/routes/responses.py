"""What the OpenAPI document says of answers that are written as bytes."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.errors import PROBLEM_JSON, PROBLEMS
from service.schemas.model import ProblemAnswer
from service.wire.negotiation import JSON, SAFETENSORS, VARY

Responses = dict[int | str, dict[str, Any]]


def _problems(*statuses: int) -> Responses:
    titles: dict[int, list[str]] = {}
    for status, title in PROBLEMS.values():
        titles.setdefault(status, []).append(title)
    return {
        status: {
            "description": " · ".join(titles[status]),
            "model": ProblemAnswer,
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}},
        }
        for status in statuses
    }


PROBLEMS_OF_A_GET = _problems(401, 503)
PROBLEMS_OF_A_POST = _problems(400, 401, 408, 413, 415, 422, 503)
PROBLEMS_OF_A_RUN = {**PROBLEMS_OF_A_POST, **_problems(406, 429)}


def reading_responses(model: type[BaseModel]) -> Responses:
    return {
        200: {
            "model": model,
            "description": "The reading. As safetensors: the tensors by name, and the rest of "
            "the answer as JSON under the metadata key `answer`.",
            "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}},
        }
    }


def json_response(content: Any) -> Response:
    """Plain JSON at once, for answers that need no check on the way out."""
    return Response(
        orjson.dumps(content),
        media_type=JSON,
        headers={"cache-control": "no-store", "vary": VARY},
    )
