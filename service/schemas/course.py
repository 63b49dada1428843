"""GET /v1/course: every experiment, pitfall and step as a request, with what to look at in it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.schemas.base import Wire
from service.schemas.labs import SentenceWire

Op = Literal["equals", "at_least", "at_most", "above", "below", "between"]


class Pointer(Wire):
    """Another number of the same answer."""

    pointer: str


class Observation(Wire):
    """Whether a number of the answer is what `says` claims."""

    pointer: str = Field(description="JSON pointer (RFC 6901) into the answer")
    op: Op
    value: Any = Field(
        description='what to compare with: a JSON value, two bounds for "between", or {"pointer"}'
    )
    says: SentenceWire


class CourseItem(Wire):
    """One thing to try. `body` is null for a GET."""

    id: str
    kind: Literal["experiment", "pitfall", "step"]
    title: SentenceWire
    method: Literal["GET", "POST"]
    path: str
    body: dict[str, Any] | None
    observe: list[Observation]
    available: bool = Field(description="whether the loaded model can show it")
    missing: str | None = Field(None, description="what it lacks, where it cannot")


class CourseAnswer(Wire):
    items: list[CourseItem]
