"""What a row gives: measurements in a flat form that JSON, the table and the bars all read."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

COMPARE = {"≤": operator.le, "≥": operator.ge}


@dataclass(frozen=True)
class Bar:
    """A promise, and the number that was measured for it."""

    says: str
    measured: float
    sign: str  # ≤ or ≥
    bound: float

    @property
    def met(self) -> bool:
        return bool(COMPARE[self.sign](self.measured, self.bound))

    def to_dict(self) -> dict[str, Any]:
        return {
            "says": self.says,
            "measured": self.measured,
            "sign": self.sign,
            "bound": self.bound,
            "met": self.met,
        }


@dataclass
class Result:
    """`compared` says in words what stood against what; a measurement is one line of the table."""

    title: str
    compared: list[str]
    measurements: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "compared": self.compared,
            "measurements": self.measurements,
            "bars": [bar.to_dict() for bar in self.bars],
        }
