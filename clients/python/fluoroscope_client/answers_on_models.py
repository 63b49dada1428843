"""What the server says of itself, its model and its tokenizer, key by key as on the wire."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fluoroscope_client.answers import ModelIdentity, Token


class HealthReason(TypedDict, total=False):
    reason: str | None
    model: str | None


class Health(HealthReason):
    status: str


class TokenizerReport(TypedDict):
    kind: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    normalizes: bool
    special_tokens: dict[str, int]


class Model(ModelIdentity):
    """`kv_head_of_head`: the key/value head that each query head reads. `formats`: media types of
    every answer with tensors; `stream_formats`: those of a generation alone."""

    source: str
    format: str
    notes: list[str]
    config: dict[str, Any]
    parameters: int
    kv_head_of_head: list[int]
    tokenizer: TokenizerReport | None
    limits: dict[str, float]
    formats: list[str]
    stream_formats: list[str]


class Site(TypedDict):
    """`shape` is symbolic: L layer, H head, K kv head, T position, Q query, S key, …"""

    site: str
    axes: list[str]
    shape: str
    layered: bool
    present: bool
    editable: bool
    aliases: list[str]
    meaning: str


class Tokenized(TypedDict):
    text: str
    n_tokens: int
    token_ids: list[int]
    bos_added: bool
    tokens: list[Token]


class Deviation(TypedDict):
    """The largest difference; None where the model's numbers are not finite."""

    absolute: float | None
    relative: float | None


class Deviations(TypedDict):
    logits: Deviation
    patterns: Deviation


class Parity(TypedDict):
    """Against float64 numbers, stored (golden) or made now of the same weights by other code.

    `control`: what was made wrong in the run that has to miss the gate. `gate` is None in
    bfloat16, which is only reported.
    """

    model: ModelIdentity
    against: Literal["golden", "reference"]
    made_with: str
    golden_ignored: str | None
    n_tokens: int
    rows: int
    maps: int
    dtype: str
    deviations: Deviations
    gate: float | None
    within_gate: bool | None
    control: str
    control_deviations: Deviations
    control_missed: bool | None
    passed: bool | None
    seconds: float
