"""POST /v1/logits: what the model expects next, at chosen positions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.base import Selection, Switch, Wire
from service.schemas.reading import InspectingRequest, ReadingAnswer


class LogitsRequest(InspectingRequest):
    positions: Selection = Field(default_factory=lambda: [-1])
    top: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        10, description="likeliest tokens to list for each position"
    )
    full: Switch = Field(False, description="give every logit of the positions, as tensor `logits`")


class NextToken(Wire):
    """The token that really follows, and how the model ranked it (1 is the likeliest)."""

    id: int
    text: str | None
    rank: int
    logprob: float | None = Field(description="null: −∞, as an edit can make it")


class TopToken(Wire):
    id: int
    text: str | None
    logit: float | None = Field(description="null: −∞, as an edit can make it")
    logprob: float | None = Field(description="null: −∞")
    probability: float


class Prediction(Wire):
    position: int
    next: NextToken | None = Field(description="null at the last position")
    top: list[TopToken]
    entropy_nats: float
    logsumexp: float


class LogitsAnswer(ReadingAnswer):
    predictions: list[Prediction]
