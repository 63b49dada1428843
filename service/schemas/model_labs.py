"""Labs on the running model on the wire: one block, order, the five mistakes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.schemas.base import Index, Wire
from service.schemas.labs import Decimals, LabText, OnModel, SentenceWire, Vector
from service.schemas.reading import TokenId


class BlockLabRequest(LabText):
    layer: Index = 0
    position: Index = -1
    top: Annotated[int, Field(strict=True, description="strongest neurons to tell")] = 10
    decimals: Decimals = 10


class VectorReport(Wire):
    values: Vector
    mean: float
    variance: float = Field(description="divides by the width")
    norm: float


class NormReport(Wire):
    """Before the norm, before its gain and bias, and after."""

    kind: Literal["layernorm", "rmsnorm"]
    scale: float = Field(description="what the norm divides by")
    before: VectorReport
    normalized: VectorReport = Field(description="layernorm: mean 0 and variance 1, but for eps")
    mean_square: float = Field(description="of normalized; rmsnorm: 1, but for eps")
    out: VectorReport


class NeuronReport(Wire):
    index: int
    pre: float
    post: float
    write_norm: float = Field(
        description="|post| times the length of the neuron's column of W_down"
    )


class BlockLabAnswer(OnModel):
    """resid_mid = resid_pre + attn_out, resid_post = resid_mid + mlp_out; a parallel block has no
    resid_mid and adds both at once."""

    tokens: list[str]
    layer: int
    position: int
    parallel: bool
    resid_pre: VectorReport
    ln1: NormReport
    attn_out: VectorReport
    resid_mid: VectorReport | None
    ln2: NormReport
    neurons: list[NeuronReport] = Field(description="by the length of what each writes")
    active_neurons: int = Field(description="with post > 0")
    mlp_out: VectorReport
    resid_post: VectorReport
    attn_sum_error: float | None
    mlp_sum_error: float


class OrderLabRequest(Wire):
    """Two inputs of the same tokens in another order; by default 猫追老鼠 and 老鼠追猫."""

    texts: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    token_ids: (
        Annotated[
            list[Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]],
            Field(min_length=2, max_length=2),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.texts is not None and self.token_ids is not None:
            raise ValueError("give one of texts and token_ids")
        return self


class OrderCaseWire(Wire):
    """The outputs (ln_final.out) of both inputs under one wiring, token by token."""

    positions: Literal["model", "none"]
    causal: bool
    differences: Vector = Field(description="largest change of each token's output, first's order")
    largest_difference: float
    magnitude: float = Field(description="the larger of 1 and the largest output")
    same_set: bool = Field(description="largest_difference ≤ tolerance × magnitude")


class OrderLabAnswer(OnModel):
    texts: list[str]
    tokens: list[list[str]]
    second_ids: list[int]
    matches: list[int] = Field(description="where each token of the first stands in the second")
    tolerance: float
    cases: list[OrderCaseWire]


class DiagnosticsRequest(LabText):
    """At least 3 tokens. Takes seconds the first time a text is asked about."""


class NumberWire(Wire):
    id: str
    says: SentenceWire
    now: float
    mistake: float


class SymptomWire(SentenceWire):
    measured: bool
    shown: bool | None = Field(description="whether the numbers bear it; null: not measured")


class MistakeWire(Wire):
    id: Literal["no_mask", "no_scale", "no_position", "no_residual", "uneven_heads"]
    title: SentenceWire
    wiring: dict[str, Any] | None = Field(
        description="the mistake as `wiring` of any inspecting route; null where none makes it"
    )
    numbers: list[NumberWire] = Field(description="as the model is, and with the mistake made")
    symptom: SymptomWire
    note: SentenceWire
    error: str | None = Field(description="what the configuration answers, where it refuses")


class DiagnosticsAnswer(OnModel):
    tokens: list[str]
    cached: bool = Field(description="worked out for an earlier request")
    mistakes: list[MistakeWire]
