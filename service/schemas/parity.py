"""GET /v1/model/parity: how far the model's numbers are from float64 ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.schemas.base import Wire
from service.schemas.reading import ModelIdentity


class DeviationWire(Wire):
    """The largest difference; null where the model's numbers are not finite."""

    absolute: float | None
    relative: float | None = Field(
        description="to the largest magnitude of what is compared, where that is over 1"
    )


class DeviationsWire(Wire):
    logits: DeviationWire
    patterns: DeviationWire


class ParityAnswer(Wire):
    """Two runs of one fixed input against float64 numbers: the model's own, and the control, whose
    formula was made wrong and which must miss the gate."""

    model: ModelIdentity
    against: Literal["golden", "reference"] = Field(
        description="golden: numbers stored with this checkpoint; reference: made now, in float64, "
        "of the same weights by other code"
    )
    made_with: str = Field(description="what computed the float64 numbers")
    golden_ignored: str | None = Field(description="why stored numbers were not used")
    n_tokens: int = Field(description="of the fixed input")
    rows: int = Field(description="of the logits and of each map, counted from the end")
    maps: int = Field(description="attention maps that were compared, all layers together")
    dtype: str
    deviations: DeviationsWire
    gate: float | None = Field(
        description="what the relative deviations may be; null in bfloat16, which is only reported"
    )
    within_gate: bool | None
    control: str = Field(description="what was made wrong in the control")
    control_deviations: DeviationsWire
    control_missed: bool | None = Field(description="whether it missed ten times the gate")
    passed: bool | None = Field(description="within the gate, and the control missed it")
    seconds: float = Field(description="that the comparison took; it is made once a process")
