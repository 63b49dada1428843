"""What the server says of parameters and their cost, key by key as on the wire."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fluoroscope_client.answers import ModelIdentity, Sentence


class Totals(TypedDict):
    unique: int
    with_ties_twice: int
    without_embeddings: int
    as_nanogpt: int
    as_transformerlens: int


class TensorReport(TypedDict):
    """`tied_to`: stored as this other tensor, not a second time."""

    name: str
    shape: list[int]
    axes: list[str]
    dtype: str
    count: int
    bytes: int
    tied_to: str | None
    component: Literal["embedding", "positions", "attention", "feed_forward", "norm", "unembedding"]
    layer: int | None


class Formula(TypedDict):
    """A number and how it comes about; `worked` is the sum with numbers, and its result."""

    count: int
    formula: str
    symbols: dict[str, int]
    worked: str


class TreeNode(Formula):
    """Its children add up to it."""

    id: str
    kind: str
    tied_to: str | None
    children: list[TreeNode]


class Work(TypedDict):
    """2 FLOPs a multiply-add of a matrix multiplication; nothing else is counted."""

    total: Formula
    by_component: dict[str, Formula]


class Flops(TypedDict):
    """`token`: the last of the context, keys and values kept; `prompt`: the pairs the mask leaves;
    `prompt_square`: every query with every key."""

    token: Work
    prompt: Work
    prompt_square: Work
    training_token: Formula
    training_sequence: Formula
    multiplying_parameters: Formula


class Bytes(TypedDict):
    """Of `weights` and `kv_cache` by dtype; the rest in float32."""

    weights: dict[str, Formula]
    kv_cache: dict[str, Formula]
    attention_maps: Formula
    attention_results: Formula
    logits: Formula
    gradients: Formula
    optimizer: Formula


class Share(TypedDict):
    """`shares` of one token's forward FLOPs add up to 1."""

    context: int
    flops: int
    shares: dict[str, float]


class Costs(TypedDict):
    """`balance`: the context at which looking back costs a token as much as the feed-forward."""

    context: int
    flops: Flops
    bytes: Bytes
    shares: list[Share]
    balance: int | None


class ParameterChecks(TypedDict):
    """The same count by separate ways: the tree's leaves, the tensors' shapes, the loaded model."""

    leaves: int
    tensors: int
    held: int | None
    exact: bool
    differences: list[str]


class Explained(TypedDict, total=False):
    """`model`: whose they are, where one is loaded; `explain`: the derivation, if asked for."""

    model: ModelIdentity | None
    explain: Sentence | None


class Parameters(Explained):
    kind: Literal["report"]
    config: dict[str, Any]
    totals: Totals
    totals_explained: dict[str, Sentence]
    tensors: list[TensorReport]
    tree: TreeNode
    costs: Costs
    checks: ParameterChecks
    legend: dict[str, Sentence]


class ComparisonRow(TypedDict):
    """`ratios` to the first; None where that is 0."""

    name: str
    values: list[int]
    ratios: list[float | None]


class ParametersCompared(TypedDict):
    """`changed`: the fields of the configs that are not the same everywhere."""

    kind: Literal["comparison"]
    names: list[str]
    configs: list[dict[str, Any]]
    context: int
    changed: dict[str, list[Any]]
    rows: list[ComparisonRow]


class Preset(TypedDict):
    name: str
    parameters: int
    totals: Totals
    config: dict[str, Any]


class Statistics(TypedDict):
    """Over the finite values of what was selected; None where there are none. `std` is that of
    the population, `norm` the root of the summed squares."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    fraction_zero: float
    any_nan: bool
    nan_count: int
    infinite_count: int


class Histogram(TypedDict):
    """One edge more than counts."""

    edges: list[float]
    counts: list[int]


class Picture(TypedDict):
    """How the values were reduced: each cell stands for so many entries along each axis."""

    reduce: Literal["mean", "max", "stride"]
    cell: list[int]
