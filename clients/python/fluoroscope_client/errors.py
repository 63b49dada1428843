"""What can go wrong, as one tree of exceptions. Knows nothing of how requests are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FluoroscopeError(Exception):
    """Everything that this client raises about the server; wrong arguments are Python's own."""


class ConnectError(FluoroscopeError):
    """No answer came: the server is not there, or the connection broke."""


class TimedOut(ConnectError):
    """No answer came within the client's timeout."""


class AnswerError(FluoroscopeError):
    """An answer came that is not what the contract promises; nothing of it is used."""


class ProblemError(FluoroscopeError):
    """The server refused (RFC 9457), with its own words and numbers.

    `errors` holds `{detail, pointer}` for each fault that has a place in the request; `limit` and
    `actual` are the number allowed and the number sent, where the problem is one of size;
    `request_id` finds the request in the server's log; `retry_after` is in seconds.
    """

    def __init__(
        self, status: int, said: Mapping[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(status, dict(said), retry_after)  # so that it can be pickled
        self.status = status
        self.type = str(said.get("type", "about:blank"))
        self.title = str(said.get("title", ""))
        self.detail = str(said.get("detail", ""))
        found = said.get("errors")
        self.errors: list[dict[str, str]] = found if isinstance(found, list) else []
        self.limit: float | None = said.get("limit")
        self.actual: float | None = said.get("actual")
        self.request_id: str | None = said.get("instance")
        self.retry_after = retry_after

    def __str__(self) -> str:
        words = ": ".join(part for part in (self.title, self.detail) if part)
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.status} {words}{request}"


class InvalidRequest(ProblemError):
    """4xx: the request cannot be answered as it is."""


class Unauthorized(ProblemError):
    """401, 403: the server asks for a key, or for another one."""


class TooBusy(ProblemError):
    """429: as many requests run and wait as the server takes on."""


class ServerError(ProblemError):
    """5xx: the fault is the server's."""


class NotReady(ServerError):
    """503: the model is loading, broken or draining, or the run passed its deadline."""


def problem(status: int, said: Mapping[str, Any], retry_after: float | None) -> ProblemError:
    """The exception of a refusing status."""
    exact: dict[int, type[ProblemError]] = {
        401: Unauthorized,
        403: Unauthorized,
        429: TooBusy,
        503: NotReady,
    }
    usual = (
        ServerError if status >= 500 else InvalidRequest if 400 <= status < 500 else ProblemError
    )
    return exact.get(status, usual)(status, said, retry_after)
