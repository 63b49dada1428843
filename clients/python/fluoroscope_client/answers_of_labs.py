"""What the labs and the course say, key by key as on the wire.

Numbers are printed at `decimals`; errors and differences are never rounded.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fluoroscope_client.answers import ModelIdentity, Sentence

Vector = list[float]
Matrix = list[list[float]]
Stack = list[list[list[float]]]


class LabTiming(TypedDict):
    """Milliseconds: waiting for the device, and on it."""

    queue: float
    forward: float


class OnModel(TypedDict, total=False):
    """Whose numbers they are; None or left out where no model ran."""

    model: ModelIdentity | None
    token_ids: list[int] | None
    timing_ms: LabTiming | None


class OfModel(OnModel, total=False):
    """`model_error`: largest distance of the model's own numbers from these."""

    model_error: float | None


class PlaceInModel(TypedDict, total=False):
    name: str | None
    layer: int | None
    head: int | None


class Source(PlaceInModel):
    """Where the vectors come from."""

    kind: Literal["example", "vectors", "projections", "model"]


class AttentionLab(OfModel):
    """Row by row: dots = Σ products, scores = dots × scale, exps = exp(masked_scores − row_max),
    pattern = exps / row_sum, z = Σ weighted_v. A masked score is None.
    """

    source: Source
    tokens: list[str]
    queries: list[int]
    scaled: bool
    causal: bool
    scale: float
    q: Matrix
    k: Matrix
    v: Matrix
    products: Stack | None
    dots: Matrix
    scores: Matrix
    masked_scores: list[list[float | None]]
    row_max: Vector
    exps: Matrix
    row_sum: Vector
    pattern: Matrix
    weighted_v: Stack | None
    z: Matrix
    top_keys: list[int]
    top_weights: Vector
    entropy_nats: Vector


class Link(TypedDict):
    query: int
    key: int
    weight: float


class Readings(TypedDict):
    """Means over rows. `habit` is what the numbers bear as a whole, None where none is clear."""

    strongest: Link | None
    ties: int
    previous_token: float | None
    sink: float | None
    self_weight: float
    spread: float | None
    habit: Literal["spread", "previous", "sink", "self"] | None


class Head(TypedDict):
    """`brings_z` is what this head gathered for the chosen token, `writes` the same after W_O."""

    head: int
    q: Matrix
    k: Matrix
    v: Matrix
    pattern: Matrix
    z: Matrix
    readings: Readings
    sentence: Sentence
    brings_z: Vector
    writes: Vector | None
    write_norm: float | None
    result: Matrix | None


class HeadsLab(OfModel):
    """attn_out = concatenation · W_O + b_o = Σ over heads of their results + b_o."""

    source: Source
    tokens: list[str]
    scaled: bool
    causal: bool
    scale: float
    position: int
    heads: list[Head]
    concatenation: Matrix
    b_o: Vector | None
    attn_out: Matrix | None
    mixing_error: float | None


class Softened(TypedDict):
    """`variance_error` is one standard error; `gradient_norm` of ∂softmax/∂scores."""

    scale: float
    variance: float
    variance_error: float
    expected_variance: float
    entropy_nats: float
    largest_weight: float
    gradient_norm: float


class HeadSize(TypedDict):
    d_head: int
    unscaled: Softened
    scaled: Softened


class ScalingLab(TypedDict):
    seed: int
    samples: int
    keys: int
    rows: int
    greatest_entropy_nats: float
    sizes: list[HeadSize]


class VectorReport(TypedDict):
    """The variance divides by the width."""

    values: Vector
    mean: float
    variance: float
    norm: float


class NormReport(TypedDict):
    """Before the norm, before its gain and bias, and after."""

    kind: Literal["layernorm", "rmsnorm"]
    scale: float
    before: VectorReport
    normalized: VectorReport
    mean_square: float
    out: VectorReport


class Neuron(TypedDict):
    """`write_norm`: |post| times the length of the neuron's column of W_down."""

    index: int
    pre: float
    post: float
    write_norm: float


class BlockLab(OnModel):
    """resid_mid = resid_pre + attn_out, resid_post = resid_mid + mlp_out."""

    tokens: list[str]
    layer: int
    position: int
    parallel: bool
    resid_pre: VectorReport
    ln1: NormReport
    attn_out: VectorReport
    resid_mid: VectorReport | None
    ln2: NormReport
    neurons: list[Neuron]
    active_neurons: int
    mlp_out: VectorReport
    resid_post: VectorReport
    attn_sum_error: float | None
    mlp_sum_error: float


class OrderCase(TypedDict):
    """The outputs of both inputs under one wiring, token by token, in the first one's order."""

    positions: Literal["model", "none"]
    causal: bool
    differences: Vector
    largest_difference: float
    magnitude: float
    same_set: bool


class OrderLab(OnModel):
    """`matches`: where each token of the first stands in the second."""

    texts: list[str]
    tokens: list[list[str]]
    second_ids: list[int]
    matches: list[int]
    tolerance: float
    cases: list[OrderCase]


class NowAndThen(TypedDict):
    """A number as the model is, and with the mistake made."""

    id: str
    says: Sentence
    now: float
    mistake: float


class Symptom(Sentence):
    """`shown`: whether the numbers bear it; None: not measured."""

    measured: bool
    shown: bool | None


class Mistake(TypedDict):
    """`wiring` makes the mistake on any inspecting route; None where none does."""

    id: Literal["no_mask", "no_scale", "no_position", "no_residual", "uneven_heads"]
    title: Sentence
    wiring: dict[str, Any] | None
    numbers: list[NowAndThen]
    symptom: Symptom
    note: Sentence
    error: str | None


class Diagnostics(OnModel):
    tokens: list[str]
    cached: bool
    mistakes: list[Mistake]


class Observation(TypedDict):
    """Whether the number at a JSON pointer of the answer is what `says` claims."""

    pointer: str
    op: Literal["equals", "at_least", "at_most", "above", "below", "between"]
    value: Any
    says: Sentence


class Availability(TypedDict, total=False):
    missing: str | None


class CourseItem(Availability):
    """One thing to try; `missing` is what the loaded model lacks for it, where it does."""

    id: str
    kind: Literal["experiment", "pitfall", "step"]
    title: Sentence
    method: Literal["GET", "POST"]
    path: str
    body: dict[str, Any] | None
    observe: list[Observation]
    available: bool
