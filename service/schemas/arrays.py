"""Arrays of numbers in a body. A body can hold half a million: they are checked list by list."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import TypeAliasType

MAX_DEPTH = 4  # no site has more axes
_NUMBERS = {int, float}
Nested = TypeAliasType("Nested", "Annotated[float, Field(strict=True)] | list[Nested]")
Place = tuple[int, ...]


def _check(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    """Finite numbers alone, nested no deeper than a site has axes; tells the first fault."""
    faults = _fault(value, ())
    if faults:
        raise ValidationError.from_exception_data("array", faults)
    return value


def _fault(value: Any, place: Place) -> list[InitErrorDetails]:
    if isinstance(value, list):
        if len(place) == MAX_DEPTH:
            return [_at(place, _TOO_DEEP)]
        if set(map(type, value)) <= _NUMBERS and _all_finite(value):
            return []
        for index, item in enumerate(value):
            if faults := _fault(item, (*place, index)):
                return faults
        return []
    if type(value) not in _NUMBERS:
        return [_at(place, "float_type"), _at(place, "list_type")]
    return [] if _all_finite([value]) else [_at(place, "finite_number")]


def _all_finite(numbers: list[float]) -> bool:
    try:
        return all(map(math.isfinite, numbers))
    except OverflowError:  # an integer beyond every float
        return False


_TOO_DEEP = PydanticCustomError("too_deep", "arrays go at most {most} deep", {"most": MAX_DEPTH})


def _at(place: Place, kind: str | PydanticCustomError) -> InitErrorDetails:
    return {"type": kind, "loc": place, "input": None}


def _as_sent(value: Any) -> Any:
    return value


Numbers = Annotated[Nested, WrapValidator(_check), PlainSerializer(_as_sent)]
