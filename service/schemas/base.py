"""What every wire type shares: strictness, and the spelling of selections."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

UNKNOWN = 8  # fields over those that an object can have that are told one by one


class Wire(BaseModel):
    """A type on the wire. Unknown fields are refused, so that a typo is never silently ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, ser_json_inf_nan="null")

    @model_validator(mode="before")
    @classmethod
    def _no_flood_of_fields(cls, value: Any) -> Any:
        """A body can hold 100,000 unknown fields: told one by one they keep the event loop."""
        if cls.model_config.get("extra") == "forbid" and isinstance(value, dict):
            known = len(cls.model_fields)
            if len(value) > known + UNKNOWN:
                raise PydanticCustomError(
                    "too_many_fields",
                    "there are {given} fields; there can be at most {known}",
                    {"given": len(value), "known": known},
                )
        return value


# In JSON true and false are words of their own: "no" and 0 are typos.
Switch = Annotated[bool, Field(strict=True)]
Index = Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)]


class SpanSelection(Wire):
    """Evenly spaced indices, as Python's slices count them."""

    start: Index | None = None
    stop: Index | None = None
    step: Index = 1


# Long lists stop at their first fault (fail_fast): a body can hold 200,000 of them, and telling
# each would keep the event loop for seconds.
Selection = Annotated[
    Literal["all"]
    | Annotated[list[Index], Field(min_length=1, max_length=65536, fail_fast=True)]
    | SpanSelection,
    Field(
        description='"all", a list of indices in the order wanted (negative ones count from the '
        "end, duplicates are refused), or {start, stop, step}",
        examples=["all", [0, 2], [-1], {"start": 0, "stop": 4}],
    ),
]
