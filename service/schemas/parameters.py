"""Parameters on the wire: what is in a model and what it costs; one tensor's numbers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from service.schemas.base import Wire
from service.schemas.reading import ModelIdentity, RopeScalingWire, Tensor

MAX_LAYERS, MAX_HEADS, MAX_SIZE = 1024, 1024, 10**8
MAX_NODES = 100_000
MAX_CONFIGS = 16

Layers = Annotated[int, Field(strict=True, ge=1, le=MAX_LAYERS)]
Heads = Annotated[int, Field(strict=True, ge=1, le=MAX_HEADS)]
Size = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
Context = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Depth = Annotated[int, Field(ge=0, le=8)]


class ConfigWire(Wire):
    """The choices of a GPT. What is left out is the preset's; without a preset n_layer, d_model,
    n_head, vocab_size and n_ctx are needed, and the rest follows from them."""

    n_layer: Layers | None = None
    d_model: Size | None = None
    n_head: Heads | None = None
    vocab_size: Size | None = None
    n_ctx: Size | None = None
    n_kv_head: Heads | None = None
    d_head: Size | None = None
    d_mlp: Size | None = None
    positions: Literal["rope", "learned", "none"] | None = None
    rope_pairing: Literal["interleaved", "half"] | None = None
    rope_base: Annotated[float, Field(gt=1)] | None = None
    rope_scaling: RopeScalingWire | None = None
    rotary_dim: Size | None = None
    norm: Literal["layernorm", "rmsnorm"] | None = None
    norm_eps: Annotated[float, Field(gt=0)] | None = None
    norm_bias: bool | None = None
    qk_norm: bool | None = None
    activation: Literal["gelu", "gelu_tanh", "swiglu"] | None = None
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    tied: bool | None = None
    score_scale: float | None = None
    window: Size | None = None
    windowed_layers: (
        Annotated[
            list[Annotated[int, Field(strict=True, ge=0)]],
            Field(max_length=MAX_LAYERS),
        ]
        | None
    ) = None
    parallel_residual: bool | None = None


class Candidate(Wire):
    """A preset, a config, or a preset with some of its fields changed."""

    name: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="of the column in a comparison"
    )
    preset: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="GET /v1/presets lists them", examples=["gpt2"]
    )
    config: ConfigWire | None = None

    @model_validator(mode="before")
    @classmethod
    def _spelled_short(cls, value: Any) -> Any:
        """A preset's name alone, or a config alone, are read as what they are."""
        if isinstance(value, str):
            return {"preset": value}
        if isinstance(value, dict) and value and not value.keys() & cls.model_fields.keys():
            return {"config": value}
        return value


class ParametersRequest(Wire):
    """One model by `preset` and `config`, or several by `configs`."""

    preset: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    config: ConfigWire | None = None
    configs: Annotated[list[Candidate], Field(min_length=2, max_length=MAX_CONFIGS)] | None = Field(
        None, description="side by side, with ratios to the first"
    )
    context: Context | None = Field(None, description="tokens that costs are for; default ≤ 1024")
    depth: Depth | None = Field(None, description="levels of the tree; default: all")
    explain: bool = False

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        one = self.preset is not None or self.config is not None
        if one == (self.configs is not None):
            raise ValueError("give preset, config or both for one model, or configs for several")
        if self.configs is not None and (self.explain or self.depth is not None):
            raise ValueError("explain and depth go with one model, not with configs")
        return self


class InTwoLanguages(Wire):
    en: str
    zh: str


class FormulaReport(Wire):
    """A number and how it comes about."""

    count: int
    formula: str = Field(description="in symbols, which `legend` explains")
    symbols: dict[str, int]
    worked: str = Field(description="the sum with numbers, and its result")


class TreeNode(FormulaReport):
    """Its children add up to it. A tied unembedding counts 0 and names where it is stored."""

    id: str
    kind: str
    tied_to: str | None
    children: list[TreeNode]


class TensorReport(Wire):
    name: str
    shape: list[int]
    axes: list[str] = Field(description="head*d_head: head by head, d_head rows each")
    dtype: str
    count: int
    bytes: int
    tied_to: str | None = Field(description="stored as this other tensor, not a second time")
    component: Literal["embedding", "positions", "attention", "feed_forward", "norm", "unembedding"]
    layer: int | None


class Totals(Wire):
    unique: int
    with_ties_twice: int
    without_embeddings: int
    as_nanogpt: int
    as_transformerlens: int


class WorkReport(Wire):
    """2 FLOPs a multiply-add of a matrix multiplication; nothing else is counted."""

    total: FormulaReport
    by_component: dict[str, FormulaReport]


class FlopsReport(Wire):
    token: WorkReport = Field(description="the last token of the context, keys and values kept")
    prompt: WorkReport = Field(description="all tokens, counting the pairs that the mask leaves")
    prompt_square: WorkReport = Field(description="all tokens, every query with every key")
    training_token: FormulaReport = Field(description="forward and backward: 6·M + 12·L·H·D·T")
    training_sequence: FormulaReport
    multiplying_parameters: FormulaReport = Field(description="M of the training formula")


class BytesReport(Wire):
    """Everything but `weights` and `kv_cache`, which name their dtype, is in float32."""

    weights: dict[str, FormulaReport]
    kv_cache: dict[str, FormulaReport]
    attention_maps: FormulaReport
    attention_results: FormulaReport
    logits: FormulaReport
    gradients: FormulaReport
    optimizer: FormulaReport = Field(description="AdamW's two moments")


class ShareReport(Wire):
    context: int
    flops: int
    shares: dict[str, float] = Field(description="of one token's forward FLOPs; they add up to 1")


class CostsReport(Wire):
    context: int
    flops: FlopsReport
    bytes: BytesReport
    shares: list[ShareReport] = Field(description="as the context grows")
    balance: int | None = Field(
        description="the context at which looking back costs a token as much as the feed-forward"
    )


class ParameterChecks(Wire):
    """The same count by separate ways: the tree's leaves, the tensors' shapes, the loaded model."""

    leaves: int
    tensors: int
    held: int | None = Field(description="what the loaded model holds; null without one")
    exact: bool
    differences: list[str]


class ParametersAnswer(Wire):
    kind: Literal["report"]
    model: ModelIdentity | None = None
    config: dict[str, Any]
    totals: Totals
    totals_explained: dict[str, InTwoLanguages]
    tensors: list[TensorReport]
    tree: TreeNode
    costs: CostsReport
    checks: ParameterChecks
    legend: dict[str, InTwoLanguages]
    explain: InTwoLanguages | None = None


class ComparisonRow(Wire):
    name: str
    values: list[int]
    ratios: list[float | None] = Field(description="to the first; null where the first is 0")


class ComparisonAnswer(Wire):
    kind: Literal["comparison"]
    names: list[str]
    configs: list[dict[str, Any]]
    context: int
    changed: dict[str, list[Any]] = Field(description="the fields that are not the same everywhere")
    rows: list[ComparisonRow]


AnyParametersAnswer = TypeAliasType(
    "AnyParametersAnswer",
    Annotated[ParametersAnswer | ComparisonAnswer, Field(discriminator="kind")],
)


class PresetReport(Wire):
    name: str
    parameters: int
    totals: Totals
    config: dict[str, Any]


class PresetsAnswer(Wire):
    presets: list[PresetReport]


class ParametersQuery(Wire):
    context: Context | None = Field(None, description="tokens that costs are for; default ≤ 1024")
    depth: Depth | None = Field(None, description="levels of the tree; default: all")
    explain: bool = Field(False, description="add the derivation in words, in both languages")


class TensorQuery(Wire):
    """What to look at of one tensor, and how. Rows and columns are written as Python slices them:
    `0:8`, `::4`, `-1`, or a list, `3,1,7`."""

    rows: Annotated[str, Field(max_length=4096)] | None = None
    columns: Annotated[str, Field(max_length=4096)] | None = None
    head: Annotated[int, Field(ge=-MAX_HEADS, lt=MAX_HEADS)] | None = Field(
        None, description="its share of W_q, W_k, W_v or W_o; on k and v the head that it reads"
    )
    kv_head: Annotated[int, Field(ge=-MAX_HEADS, lt=MAX_HEADS)] | None = None
    reduce: Literal["mean", "max", "stride"] | None = Field(
        None, description="a picture of at most max_rows × max_columns cells"
    )
    max_rows: Annotated[int, Field(ge=1, le=4096)] = 64
    max_columns: Annotated[int, Field(ge=1, le=4096)] = 64
    bins: Annotated[int, Field(ge=1, le=4096)] = 64
    encoding: Literal["nested", "base64"] = "nested"
    decimals: Annotated[int, Field(ge=0, le=8)] = 6
    exact: bool = False
    dtype: Literal["float32", "float16"] = "float32"

    @property
    def shows_values(self) -> bool:
        asked = (self.rows, self.columns, self.head, self.kv_head, self.reduce)
        return any(part is not None for part in asked)


class Statistics(Wire):
    """Over the finite values of what was selected; null where there are none."""

    count: int
    mean: float | None
    std: float | None = Field(description="of the population")
    min: float | None
    max: float | None
    norm: float | None = Field(description="root of the summed squares")
    fraction_zero: float
    any_nan: bool
    nan_count: int
    infinite_count: int


class Histogram(Wire):
    edges: list[float] = Field(description="one more than counts")
    counts: list[int]


class Picture(Wire):
    """How the values were reduced: each cell stands for so many entries along each axis."""

    reduce: Literal["mean", "max", "stride"]
    cell: list[int]


class TensorAnswer(Wire):
    """Statistics of the tensor, or of the part asked for; values where a part was asked for."""

    model: ModelIdentity
    tensor: TensorReport
    selected: dict[str, int] = Field(description="the head, where one was asked for")
    statistics: Statistics
    histogram: Histogram
    picture: Picture | None
    tensors: dict[str, Tensor]
