"""The labs on the wire: attention by hand, several heads, why ÷√d. Each answers to `{}`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.schemas.base import Index, Wire
from service.schemas.reading import ModelIdentity, Number, TokenId

Decimals = Annotated[
    int,
    Field(
        strict=True,
        ge=0,
        le=15,
        description="digits behind the point; errors and differences are never rounded",
    ),
]
Row = Annotated[list[Number], Field(fail_fast=True)]
Rows = Annotated[list[Row], Field(fail_fast=True)]
TokenNames = Annotated[list[Annotated[str, Field(max_length=64)]], Field(fail_fast=True)]
Vector = list[float]
Matrix = list[list[float]]
Stack = list[list[list[float]]]


class LabRequest(Wire):
    decimals: Decimals = 10


class LabText(Wire):
    """A text for the running model; without one, the course's: 猫追老鼠，因为它饿了。"""

    text: str | None = None
    token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    add_bos: bool | None = Field(None, description="default: what the tokenizer wants for text")

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.text is not None and self.token_ids is not None:
            raise ValueError("give one of text and token_ids")
        return self


class ExampleSource(Wire):
    """The course's six words."""

    kind: Literal["example"]
    name: Annotated[str, Field(max_length=64)] = Field(
        "six-words", description="six-words or six-words-en"
    )


class VectorsSource(Wire):
    """One row a token."""

    kind: Literal["vectors"]
    tokens: TokenNames | None = None
    q: Rows
    k: Rows
    v: Rows


class ProjectionsSource(Wire):
    """q = x·W_q and so on: x has a row a token, each W a row for each number of x."""

    kind: Literal["projections"]
    tokens: TokenNames | None = None
    x: Rows
    w_q: Rows
    w_k: Rows
    w_v: Rows


class ModelHeadSource(LabText):
    """One head of the running model: its own q, k and v, as they meet."""

    kind: Literal["model"]
    layer: Index = 0
    head: Index = 0


AttentionSource = Annotated[
    ExampleSource | VectorsSource | ProjectionsSource | ModelHeadSource,
    Field(discriminator="kind"),
]
Causal = Annotated[
    bool | None,
    Field(description="hide later keys; default: as the model does, and not on given vectors"),
]


class AttentionLabRequest(LabRequest):
    source: AttentionSource = Field(default_factory=lambda: ExampleSource(kind="example"))
    scaled: bool = Field(True, description="false leaves ÷√d out")
    causal: Causal = None
    query: Index | None = Field(None, description="one query alone; default: all of them")


class VectorsHead(Wire):
    q: Rows
    k: Rows
    v: Rows


class ProjectionsHead(Wire):
    w_q: Rows
    w_k: Rows
    w_v: Rows


class VectorsHeadsSource(Wire):
    kind: Literal["vectors"]
    tokens: TokenNames | None = None
    heads: Annotated[list[VectorsHead], Field(min_length=1, max_length=64)]
    w_o: Rows | None = Field(None, description="a row for each number of the concatenation")
    b_o: Row | None = None


class ProjectionsHeadsSource(Wire):
    kind: Literal["projections"]
    tokens: TokenNames | None = None
    x: Rows
    heads: Annotated[list[ProjectionsHead], Field(min_length=1, max_length=64)]
    w_o: Rows | None = Field(None, description="a row for each number of the concatenation")
    b_o: Row | None = None


class ModelLayerSource(LabText):
    """All heads of one layer of the running model."""

    kind: Literal["model"]
    layer: Index = 0


HeadsSource = Annotated[
    ExampleSource | VectorsHeadsSource | ProjectionsHeadsSource | ModelLayerSource,
    Field(discriminator="kind"),
]


class HeadsLabRequest(LabRequest):
    source: HeadsSource = Field(default_factory=lambda: ExampleSource(kind="example"))
    scaled: bool = Field(True, description="false leaves ÷√d out")
    causal: Causal = None
    position: Index | None = Field(
        None, description="the token to say what each head brings to; default: the last, or 它"
    )
    results: bool = Field(False, description="also each head's write at every token, not only one")


class ScalingLabRequest(LabRequest):
    head_sizes: Annotated[list[Annotated[int, Field(strict=True)]], Field(max_length=64)] | None = (
        Field(None, description="default: 2, 4, … 1024")
    )
    samples: Annotated[int, Field(strict=True, description="pairs q, k for the variance")] = 4096
    keys: Annotated[int, Field(strict=True, description="keys in a row of the softmax")] = 16
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0


class SourceReport(Wire):
    """Where the vectors come from; layer and head are true indices."""

    kind: Literal["example", "vectors", "projections", "model"]
    name: str | None = None
    layer: int | None = None
    head: int | None = None


class LabTiming(Wire):
    """Milliseconds: waiting for the device, and on it."""

    queue: float
    forward: float


class OnModel(Wire):
    """Whose numbers they are; null where no model ran."""

    model: ModelIdentity | None = None
    token_ids: list[int] | None = None
    timing_ms: LabTiming | None = None


class AttentionLabAnswer(OnModel):
    """Row by row: dots = Σ products, scores = dots × scale, masked_scores (−∞ is null),
    exps = exp(masked_scores − row_max), pattern = exps / row_sum, z = Σ weighted_v."""

    source: SourceReport
    tokens: list[str]
    queries: list[int] = Field(description="which rows these are")
    scaled: bool
    causal: bool
    scale: float = Field(description="what dots are multiplied by: 1/√d, or 1 unscaled")
    q: Matrix
    k: Matrix
    v: Matrix
    products: Stack | None = Field(
        description="query × key × d; null for a whole matrix of 65,536 or more"
    )
    dots: Matrix
    scores: Matrix
    masked_scores: list[list[float | None]]
    row_max: Vector
    exps: Matrix
    row_sum: Vector
    pattern: Matrix
    weighted_v: Stack | None = Field(description="pattern × v: query × key × width of v")
    z: Matrix
    top_keys: list[int] = Field(description="the heaviest key of each row")
    top_weights: Vector
    entropy_nats: Vector
    model_error: float | None = Field(
        None, description="largest distance of the model's own pattern from this one"
    )


class SentenceWire(Wire):
    zh: str
    en: str


class LinkWire(Wire):
    query: int
    key: int
    weight: float


class ReadingsWire(Wire):
    """Means over rows. `habit` is what the numbers bear as a whole, null where none is clear."""

    strongest: LinkWire | None = Field(description="largest weight with key ≠ query and query ≥ 1")
    ties: int = Field(description="weights as large as that one, itself included")
    previous_token: float | None
    sink: float | None = Field(description="weight on the first token, over query ≥ 1")
    self_weight: float
    spread: float | None = Field(description="entropy as a part of the greatest possible one")
    habit: Literal["spread", "previous", "sink", "self"] | None


class HeadReport(Wire):
    """`brings_z` is what this head gathered for the chosen token, `writes` the same after W_O."""

    head: int
    q: Matrix
    k: Matrix
    v: Matrix
    pattern: Matrix
    z: Matrix
    readings: ReadingsWire
    sentence: SentenceWire
    brings_z: Vector
    writes: Vector | None
    write_norm: float | None
    result: Matrix | None = Field(description="the write at every token, if asked for")


class HeadsLabAnswer(OnModel):
    """attn_out = concatenation · W_O + b_o = Σ over heads of their results + b_o."""

    source: SourceReport
    tokens: list[str]
    scaled: bool
    causal: bool
    scale: float
    position: int
    heads: list[HeadReport]
    concatenation: Matrix
    b_o: Vector | None
    attn_out: Matrix | None
    mixing_error: float | None = Field(description="largest difference of the two sums")
    model_error: float | None = Field(
        None, description="largest distance of the model's own attn_out from this one"
    )


class SoftenedWire(Wire):
    """Variance over `samples` dots; the rest are means over `rows` softmax rows."""

    scale: float
    variance: float
    variance_error: float = Field(description="one standard error")
    expected_variance: float
    entropy_nats: float
    largest_weight: float
    gradient_norm: float = Field(description="Frobenius norm of ∂softmax/∂scores")


class HeadSizeWire(Wire):
    d_head: int
    unscaled: SoftenedWire
    scaled: SoftenedWire


class ScalingLabAnswer(Wire):
    seed: int
    samples: int
    keys: int
    rows: int
    greatest_entropy_nats: float
    sizes: list[HeadSizeWire]
