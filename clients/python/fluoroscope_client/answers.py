"""What the server says of a run beside its tensors, key by key as on the wire."""

from __future__ import annotations

import json
from typing import Any, Literal, TypedDict

from fluoroscope_client.errors import AnswerError


class Sentence(TypedDict):
    """The same in Chinese and English."""

    zh: str
    en: str


class ModelIdentity(TypedDict):
    id: str
    weights_sha256: str
    trained: bool
    dtype: str
    device: str
    server_version: str


class Token(TypedDict):
    """Ends are exclusive. `char_*` cut Python strings, `utf16_*` JavaScript's, `byte_*` UTF-8.

    `display` shows a character that several tokens share whole on the first of them; the others
    are its `continuation` and have the same `group`. Special tokens have no offsets.
    """

    index: int
    id: int
    raw: str
    text: str
    display: str
    bytes_hex: str
    byte_start: int | None
    byte_end: int | None
    char_start: int | None
    char_end: int | None
    utf16_start: int | None
    utf16_end: int | None
    group: int
    continuation: bool
    special: bool


class EditReport(TypedDict):
    """How many values the edit touched, and the norm of the change."""

    op: Literal["zero", "block", "scale", "add", "set", "mean", "patch"]
    site: str
    values_touched: int
    change_norm: float


class RopeScalingNumbers(TypedDict, total=False):
    factor: float
    original_context: int | None
    low_freq_factor: float
    high_freq_factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float | None


class RopeScalingReport(RopeScalingNumbers):
    kind: Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3"]


class RopeReport(TypedDict, total=False):
    base: float | None
    pairing: Literal["half", "interleaved"] | None
    scaling: RopeScalingReport | None
    offset: int


class WiringReport(TypedDict, total=False):
    """The formula that this run used."""

    causal: bool
    score_scale: float | None
    residual: bool
    positions: Literal["model", "none"]
    rope: RopeReport


class InputReport(TypedDict):
    text: str | None
    bos_added: bool
    n_tokens: int
    wiring: WiringReport
    edits: list[EditReport]


class BasicChecks(TypedDict):
    """From the unrounded numbers of the run. None: the run computed no attention row."""

    row_sum_error: float | None
    future_mass: float | None
    empty_rows: int
    finite: bool


class Checks(BasicChecks, total=False):
    """The last three come with `checks_level="full"`."""

    residual_sum_error: float | None
    head_sum_error: float | None
    logits_error: float | None


class NextToken(TypedDict):
    """The token that really follows; rank 1 is the likeliest."""

    id: int
    text: str | None
    rank: int
    logprob: float | None


class TopToken(TypedDict):
    id: int
    text: str | None
    logit: float | None
    logprob: float | None
    probability: float


class Prediction(TypedDict):
    position: int
    next: NextToken | None
    top: list[TopToken]
    entropy_nats: float
    logsumexp: float


class CellErrors(TypedDict):
    """How far the model's own numbers are from these; `dot` as a part of the magnitude, `score`
    of magnitude × scale."""

    dot: float
    score: float
    weight: float


class Cell(TypedDict):
    """One number of a map taken apart, in float64: dot = Σ products, score = dot × scale,
    exp = exp(score − row_max) or 0 where masked, weight = exp / row_sum."""

    layer: int
    head: int
    kv_head: int
    query: int
    key: int
    rot_q: list[float]
    rot_k: list[float]
    products: list[float]
    magnitude: float
    dot: float
    scale: float
    score: float
    masked: bool
    row_max: float | None
    exp: float
    row_sum: float
    weight: float
    v: list[float]
    weighted_v: list[float]
    errors: CellErrors


class RankChange(TypedDict):
    position: int
    id: int
    text: str | None
    rank_before: int
    rank_after: int


class Comparison(TypedDict):
    """This run against the same input without edits and wiring, by position."""

    kl_nats: list[float | None]
    max_logit_change: list[float | None]
    rank_changes: list[RankChange]


class Estimate(TypedDict):
    n_tokens: int
    layers_run: int
    tensor_floats: int
    tensor_bytes: int
    json_bytes: int
    flops: int


class Timing(TypedDict):
    """Milliseconds. `queue`: waiting for the device; `encode`: writing the tensors."""

    queue: float
    tokenize: float
    forward: float
    encode: float


def json_object(text: bytes | str) -> dict[str, Any]:
    """The JSON object that an answer holds. Raises AnswerError where it holds none."""
    try:
        said = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the answer is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise AnswerError(f"the answer is a JSON {type(said).__name__}, not an object")
    return said


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
