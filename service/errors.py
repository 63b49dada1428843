"""One table from domain errors to RFC 9457 problems, and the handlers that write them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.checkpoints.native import CheckpointError
from model.config import ConfigError
from model.edit import EditError
from model.frame import WiringError
from model.gpt import ContextError
from model.sampling import SamplingError
from model.selection import SelectionError
from model.sites import SiteError
from model.tokenizer import TokenizerError
from service.validation import findings
from service.wire.negotiation import NotAcceptableError
from service.wire.tensors import NotFiniteError

PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "urn:fluoroscope:problem:"
log = logging.getLogger("fluoroscope")

# slug: status, title. docs/problems.md explains each; a test holds the two together.
PROBLEMS: dict[str, tuple[int, str]] = {
    "not-json": (400, "The body is not JSON"),
    "host-not-allowed": (400, "This host name is not served here"),
    "bad-request": (400, "The request is not HTTP as this server speaks it"),
    "key-required": (401, "A key is required"),
    "not-found": (404, "There is nothing at this address"),
    "method-not-allowed": (405, "This address does not take this method"),
    "not-acceptable": (406, "None of the accepted forms is offered"),
    "body-timeout": (408, "The body took too long to arrive"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body must be application/json"),
    "invalid-request": (422, "The request does not fit the schema"),
    "invalid-text": (422, "The text or the token ids cannot be read"),
    "text-too-long": (422, "The text is too long"),
    "too-many-tokens": (422, "There are too many tokens"),
    "no-tokens": (422, "There are no tokens to run"),
    "no-tokenizer": (422, "This model has no tokenizer"),
    "invalid-selection": (422, "A selection does not fit"),
    "invalid-site": (422, "A site does not exist here"),
    "invalid-edit": (422, "An edit does not fit"),
    "invalid-wiring": (422, "The wiring does not fit this model"),
    "invalid-sampling": (422, "No token can be chosen this way"),
    "invalid-config": (422, "No model can have this configuration"),
    "answer-too-large": (422, "The answer would be too large"),
    "not-finite": (422, "The run gave numbers that JSON cannot hold"),
    "too-busy": (429, "The server has as much to do as it takes on"),
    "headers-too-large": (431, "The headers are too large"),
    "internal-error": (500, "The server failed"),
    "not-ready": (503, "The model is not ready"),
    "shutting-down": (503, "The server is shutting down"),
    "out-of-memory": (503, "The device's memory ran out"),
    "deadline-passed": (503, "The run passed its deadline"),
}


class Problem(Exception):
    """A problem to answer with, by its slug. `detail` holds numbers, never the prompt."""

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        limit: float | None = None,
        actual: float | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.slug, self.detail = slug, detail
        self.limit, self.actual = limit, actual
        self.errors, self.headers = errors, dict(headers or {})


_DOMAIN: dict[type[Exception], str] = {
    TokenizerError: "invalid-text",
    ContextError: "too-many-tokens",
    SelectionError: "invalid-selection",
    SiteError: "invalid-site",
    EditError: "invalid-edit",
    WiringError: "invalid-wiring",
    SamplingError: "invalid-sampling",
    ConfigError: "invalid-config",
    CheckpointError: "not-ready",
    NotAcceptableError: "not-acceptable",
    NotFiniteError: "not-finite",
}
_STATUS = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "unsupported-media-type",
    429: "too-busy",
    503: "not-ready",
}
_UNREADABLE = (UnicodeDecodeError, RecursionError, ValueError)


def as_problem(error: Exception) -> Problem:
    """The problem that an error is answered with; what is not in the table is ours: a 500."""
    if isinstance(error, Problem):
        return error
    for kind, slug in _DOMAIN.items():
        if isinstance(error, kind):
            if isinstance(error, SelectionError):
                return Problem(slug, str(error), limit=error.limit, actual=error.actual)
            return Problem(slug, str(error))
    if isinstance(error, RequestValidationError):
        return _validation_problem(error)
    if isinstance(error, HTTPException):
        if error.status_code == 400 and isinstance(error.__cause__, _UNREADABLE):
            return Problem("not-json", _unreadable(error.__cause__))
        slug = _STATUS.get(error.status_code, "bad-request")
        return Problem(slug, PROBLEMS[slug][1], headers=error.headers)
    return Problem("internal-error", "the error is in the server's log under this request's id")


def _validation_problem(error: RequestValidationError) -> Problem:
    found = error.errors()
    for item in found:
        if item["type"] == "json_invalid":
            at = item["loc"][-1]
            return Problem("not-json", f"at character {at}: {item['ctx']['error']}")
    errors = findings(found, error.body)
    first = errors[0]
    where = f"{first['pointer']}: " if first["pointer"] else ""
    return Problem("invalid-request", f"{where}{first['detail']}", errors=errors)


def _unreadable(cause: BaseException) -> str:
    """Why a body that the parser gave up on is no JSON that this server reads."""
    if isinstance(cause, UnicodeDecodeError):
        return f"byte {cause.start} is not UTF-8"
    if isinstance(cause, RecursionError):
        return "it is nested too deeply"
    return "it holds a number of too many digits"


def problem_response(problem: Problem, request_id: str) -> Response:
    content = problem_content(problem, request_id)
    return Response(
        orjson.dumps(content, default=str),
        status_code=content["status"],
        headers={"cache-control": "no-store", **problem.headers},
        media_type=PROBLEM_JSON,
    )


def problem_content(problem: Problem, request_id: str) -> dict[str, Any]:
    """What RFC 9457 says of a problem, as JSON can hold it."""
    status, title = PROBLEMS[problem.slug]
    content: dict[str, Any] = {
        "type": TYPE_PREFIX + problem.slug,
        "title": title,
        "status": status,
        "detail": problem.detail,
        "instance": request_id,
        "errors": list(problem.errors),
    }
    if problem.limit is not None:
        content["limit"] = problem.limit
    if problem.actual is not None:
        content["actual"] = problem.actual
    return content


def install(app: FastAPI) -> None:
    """Answer every error of a route as problem+json."""

    async def handle(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        request.state.problem = problem.slug  # for whoever counts refusals
        request_id = getattr(request.state, "request_id", "")
        return problem_response(problem, request_id)

    for kind in (Problem, RequestValidationError, HTTPException, *_DOMAIN):
        app.add_exception_handler(kind, handle)
