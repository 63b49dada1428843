"""A lab's result as JSON: float64 rounded at so many decimals, −∞ as null. Knows no lab.

What tells an exact number from a nearly exact one is never rounded: see `stays_exact`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from service.wire.tensors import NotFiniteError

EXACT = frozenset({"difference", "frequencies"})


def stays_exact(name: str) -> bool:
    return name in EXACT or name.endswith("_error")


def printed(value: Any, decimals: int | None, name: str = "") -> Any:
    """Dataclasses, mappings and sequences become plain ones, numbers rounded below them.

    `decimals` None leaves every number as it is. Raises NotFiniteError for NaN and +∞.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {key: printed(item, decimals, key) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {
            field.name: printed(getattr(value, field.name), decimals, field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, list | tuple):
        return [printed(item, decimals, name) for item in value]
    numbers = np.asarray(value, dtype=np.float64, order="C")
    if not (numbers < np.inf).all():  # NaN compares false
        raise NotFiniteError(f"{name} holds a number that JSON cannot say")
    if decimals is not None and not stays_exact(name):
        numbers = numbers.round(decimals) + 0.0  # a rounded −0 is 0
    if isinstance(value, np.ndarray):
        return numbers
    return float(numbers) if np.isfinite(numbers) else None


def dump(fields: Any) -> bytes:
    """The bytes of what `printed` gave; −∞ in an array becomes null."""
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
