"""Log lines as text or as JSON, each with its request's id. Knows nothing of what a request said.

An error's own words may quote a prompt, so a trace shows types and places and leaves them out.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
_Fault = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Withheld(Exception):
    """An error by its type and trace alone."""


def withheld(error: BaseException) -> Withheld:
    """The error without its words, and so for all that led to it."""
    if isinstance(error, Withheld):
        return error
    bare = Withheld(type(error).__name__).with_traceback(error.__traceback__)
    if error.__cause__ is not None:
        bare.__cause__ = withheld(error.__cause__)
    elif error.__context__ is not None and not error.__suppress_context__:
        bare.__context__ = withheld(error.__context__)
    return bare


class WithRequestId(logging.Filter):
    """Lets every record through, with the id of the request in whose context it was made."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = REQUEST_ID.get()
        return True


class TextForm(logging.Formatter):
    """`2031-05-04 10:11:12,345 INFO fluoroscope [id] what happened`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(tag)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "")
        record.tag = f" [{request_id}]" if request_id else ""
        record.exc_text = None  # as another form may have kept it, words and all
        return super().format(record)

    def formatException(self, ei: _Fault) -> str:  # noqa: N802 (logging's name)
        if ei[1] is None:
            return ""
        bare = withheld(ei[1])
        return super().formatException((Withheld, bare, bare.__traceback__))


class JsonForm(TextForm):
    """One JSON object a line; what a record holds as `fields` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_config(form: Literal["text", "json"], level: str) -> dict[str, Any]:
    """For logging.config: everything to stderr in one form, other libraries from WARNING on."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request": {"()": WithRequestId}},
        "formatters": {"line": {"()": JsonForm if form == "json" else TextForm}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "filters": ["request"],
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "fluoroscope": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
        },
    }
