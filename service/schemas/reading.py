"""The common pieces of every inspecting route: the input, the switches, and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from service.schemas.arrays import Numbers
from service.schemas.base import Selection, Switch, Wire

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=65536, fail_fast=True)]
Number = Annotated[float, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-/]+$")]


class Format(Wire):
    """How the numbers of an answer are written. The numbers themselves are not touched."""

    encoding: Literal["nested", "base64", "sparse"] = "nested"
    decimals: Annotated[int, Field(strict=True, ge=0, le=8)] = Field(
        4, description="digits behind the point in nested and sparse JSON"
    )
    exact: Switch = Field(
        False, description="write the shortest text that gives the float32 back; overrides decimals"
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="of base64 and safetensors; nested JSON is always from float32"
    )
    keys_per_row: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        None, description="sparse: at most this many keys a row, the heaviest"
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="sparse: leave out weights below this"
    )

    @model_validator(mode="after")
    def _sparse_fields_need_sparse(self) -> Self:
        given = self.keys_per_row is not None or self.threshold is not None
        if given and self.encoding != "sparse":
            raise ValueError('keys_per_row and threshold go with encoding "sparse"')
        return self


class RopeScalingWire(Wire):
    """A stretch of the rotary frequencies; "none" drops the model's own."""

    kind: Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3"]
    factor: Annotated[float, Field(ge=1)] = 1.0
    original_context: Annotated[int, Field(ge=1)] | None = None
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    attention_factor: Annotated[float, Field(gt=0)] | None = None


class RopeWiringWire(Wire):
    base: Annotated[float, Field(gt=1)] | None = None
    pairing: Literal["half", "interleaved"] | None = None
    scaling: RopeScalingWire | None = None
    offset: Annotated[int, Field(strict=True, ge=-(10**6), le=10**6)] = 0


class WiringWire(Wire):
    """This run with the formula changed. The default is the model as it was trained."""

    causal: Switch = True
    score_scale: Number | None = Field(
        None, description="instead of 1/√d_head; 1 leaves the scale out, null is the model's own"
    )
    residual: Switch = True
    positions: Literal["model", "none"] = "model"
    rope: RopeWiringWire = Field(default_factory=RopeWiringWire)


class Selections(Wire):
    """The axes that a site can be selected on; those it lacks are refused by name."""

    layers: Selection | None = None
    heads: Selection | None = None
    kv_heads: Selection | None = None
    positions: Selection | None = None
    queries: Selection | None = None
    keys: Selection | None = None


class Capture(Selections):
    """Values to bring back: a site (or its TransformerLens name) and a selection of it."""

    site: Name
    name: Name | None = Field(None, description="of the tensor in the answer; default: the site")
    reduce: Literal["stats", "head_mean", "head_max"] | None = Field(
        None,
        description='"stats": mean, variance, norm, min, max over the last axis; "head_mean" and '
        '"head_max" take the head axis out',
    )


class _Edit(Selections):
    site: Name


class ZeroEdit(_Edit):
    op: Literal["zero"]


class BlockEdit(Selections):
    """Attention knockout: the masked score becomes −∞, the other keys share the row again."""

    op: Literal["block"]
    site: Literal["attn.masked_scores"] = "attn.masked_scores"


class ScaleEdit(_Edit):
    op: Literal["scale"]
    by: Number


class AddEdit(_Edit):
    op: Literal["add"]
    value: Numbers = Field(description="a number, or an array of the selection's shape")


class SetEdit(_Edit):
    op: Literal["set"]
    value: Numbers = Field(description="a number, or an array of the selection's shape")


class MeanEdit(_Edit):
    """Each value becomes the mean over positions (over queries at attention cells)."""

    op: Literal["mean"]
    over: Literal["selected", "all"] = "selected"


class PatchSource(Wire):
    """The other input, run first. `positions` (queries at attention cells) default to the same."""

    text: str | None = None
    token_ids: TokenIds | None = None
    positions: Selection | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("give exactly one of text and token_ids")
        return self


class PatchEdit(_Edit):
    op: Literal["patch"]
    source: PatchSource


Edit = Annotated[
    ZeroEdit | BlockEdit | ScaleEdit | AddEdit | SetEdit | MeanEdit | PatchEdit,
    Field(discriminator="op"),
]


class Input(Wire):
    """Exactly one of `text` and `token_ids`."""

    text: str | None = Field(None, examples=["The cat chased the mouse."])
    token_ids: TokenIds | None = None
    add_bos: Switch | None = Field(
        None, description="default: what the tokenizer wants for text, false for token_ids"
    )
    parse_special: Switch = Field(
        False, description="true reads a text that spells a special token as that token"
    )

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("give exactly one of text and token_ids")
        return self


class RunRequest(Input):
    """What every run of the model takes beside its own question."""

    tokens: Literal["full", "ids", "none"] = "full"
    wiring: WiringWire = Field(default_factory=WiringWire)
    edits: Annotated[list[Edit], Field(max_length=256)] = Field(default_factory=list)
    dry_run: Switch = Field(False, description="only the estimate: nothing is run")
    format: Format = Field(default_factory=Format)


class InspectingRequest(RunRequest):
    """What every inspecting route takes beside its own question."""

    compare: Switch = Field(
        False, description="run the same input without edits and wiring too, and compare the logits"
    )
    checks_level: Literal["basic", "full"] = "basic"


class ModelIdentity(Wire):
    id: str
    weights_sha256: str
    trained: bool
    dtype: str
    device: str
    server_version: str


class EditReport(Wire):
    """The edit as asked, its own fields and all, and what it did."""

    model_config = ConfigDict(extra="allow")

    op: Literal["zero", "block", "scale", "add", "set", "mean", "patch"]
    site: str
    values_touched: int
    change_norm: float = Field(description="root of the summed squares of the change, −∞ left out")


class InputReport(Wire):
    text: str | None
    bos_added: bool
    n_tokens: int
    wiring: WiringWire
    edits: list[EditReport]


class Token(Wire):
    index: int
    id: int
    raw: str = Field(description="the vocabulary's own spelling")
    text: str = Field(description="this token decoded alone")
    display: str = Field(description="what a person should see here")
    bytes_hex: str
    byte_start: int | None
    byte_end: int | None
    char_start: int | None
    char_end: int | None
    utf16_start: int | None = Field(description="as JavaScript strings count")
    utf16_end: int | None
    group: int = Field(description="the same for tokens that share a character")
    continuation: bool = Field(description="whether the token begins inside a character")
    special: bool


class _TensorHead(Wire):
    name: str
    site: str
    axes: list[str]
    shape: list[int]
    coords: dict[str, list[int]] = Field(description="true indices; an axis left out is whole")
    dtype: Literal["float32", "float16"]


class NestedTensor(_TensorHead):
    encoding: Literal["nested"]
    data: list[Any] = Field(description="nested arrays of numbers; −∞ is null")


class Base64Tensor(_TensorHead):
    encoding: Literal["base64"]
    data: str = Field(description="little-endian bytes of dtype, C order")


class SparseTensor(_TensorHead):
    encoding: Literal["sparse"]
    row_offsets: list[int] = Field(description="rows in C order of shape[:-1]; one more than rows")
    keys: list[int] = Field(description="true key positions")
    values: list[float]
    dropped_mass: list[float] = Field(description="a row's weight that was left out")


Tensor = Annotated[NestedTensor | Base64Tensor | SparseTensor, Field(discriminator="encoding")]


class Checks(Wire):
    """Taken from the unrounded numbers of the run, over every attention row that was computed."""

    row_sum_error: float | None = Field(description="largest |row sum − 1|; null: no row computed")
    future_mass: float | None = Field(description="largest weight of a row on later positions")
    empty_rows: int = Field(description="rows with every key masked: pattern 0")
    finite: bool = Field(
        description="no NaN or ∞ in tensors and checks, but for −∞ in masked scores"
    )
    residual_sum_error: float | None = Field(
        None, description="full: largest |embed + all writes − last residual|"
    )
    head_sum_error: float | None = Field(
        None, description="full: largest |heads' results + bias − attn_out|"
    )
    logits_error: float | None = Field(
        None, description="full: largest |unembed(ln_final(last residual)) − logits|"
    )


class RankChange(Wire):
    position: int
    id: int
    text: str | None
    rank_before: int
    rank_after: int


class Comparison(Wire):
    """This run against the same input without edits and wiring, by position."""

    kl_nats: list[float | None] = Field(
        description="KL(plain ‖ this run); null: without bound, where this run leaves a token at −∞"
    )
    max_logit_change: list[float | None] = Field(description="null: to −∞")
    rank_changes: list[RankChange] = Field(
        description="for each position the likeliest token of either run, where its rank moved"
    )


class Estimate(Wire):
    n_tokens: int
    layers_run: int
    tensor_floats: int
    tensor_bytes: int = Field(description="exact, in the dtype asked for")
    json_bytes: int = Field(
        description="of the tensors' numbers in the form asked for, within 10 %; sparse: at most"
    )
    flops: int


class Timing(Wire):
    """Milliseconds. `queue`: waiting for the device; `encode`: writing the tensors.

    The last key of a JSON answer. The header Server-Timing says the same, but for the `encode` of
    an answer over 16 MiB, whose numbers are written while it is sent.
    """

    queue: float
    tokenize: float
    forward: float
    encode: float


class ReadingAnswer(Wire):
    """The envelope of every inspecting route."""

    model: ModelIdentity
    input: InputReport
    tokens: list[Token] | list[int]
    tensors: dict[str, Tensor]
    checks: Checks
    comparison: Comparison | None = None
    estimate: Estimate | None = None
    timing_ms: Timing
