"""POST /v1/attention: maps of chosen layers and heads, at any stage of the formula."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.schemas.base import Selection
from service.schemas.reading import Capture, InspectingRequest

Stage = Literal["dots", "scores", "masked_scores", "pattern"]


class AttentionRequest(InspectingRequest):
    layers: Selection = "all"
    heads: Selection = "all"
    queries: Selection = "all"
    keys: Selection = "all"
    stages: Annotated[list[Stage], Field(min_length=1, max_length=4)] = Field(
        ["pattern"],
        description="come back as attn.<stage>: rot_q · rot_k, × scale, with −∞ for the future, "
        "softmax",
    )
    aggregate: Literal["mean", "max"] | None = Field(
        None, description="over the chosen heads, whose axis is then gone"
    )

    def captures(self) -> list[Capture]:
        return [
            Capture(
                site=f"attn.{stage}",
                layers=self.layers,
                heads=self.heads,
                queries=self.queries,
                keys=self.keys,
                reduce=None if self.aggregate is None else f"head_{self.aggregate}",
            )
            for stage in self.stages
        ]
