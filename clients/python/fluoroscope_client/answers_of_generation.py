"""What the server says while it generates, key by key as on the wire."""

from __future__ import annotations

from typing import Literal, TypedDict

from fluoroscope_client.answers import InputReport, ModelIdentity, Timing, Token


class Setting(TypedDict, total=False):
    temperature: float
    top_k: int | None
    top_p: float | None


class SamplingReport(Setting):
    """As used: what was left to the server is filled in, the seed among it."""

    max_new_tokens: int
    n: int
    seed: int
    stop: list[str]
    stop_ids: list[int]
    top: int


class Meta(TypedDict):
    """`cache`: whether keys and values are kept. `room`: tokens that the context still holds."""

    model: ModelIdentity
    input: InputReport
    sampling: SamplingReport
    cache: bool
    room: int


class Candidate(TypedDict):
    """A token on its way through the choice; rank 1 is the largest logit.

    `scaled` is logit ÷ temperature, `uncut` the softmax of it over the whole vocabulary,
    `probability` that of being drawn (0 where cut), `cumulative` the probabilities down to here.
    None for a logit of −∞, and for `scaled` at temperature 0.
    """

    id: int
    text: str | None
    rank: int
    logit: float | None
    scaled: float | None
    uncut: float
    cut_by: Literal["greedy", "top_k", "top_p"] | None
    probability: float
    cumulative: float
    drawn: bool


class Cut(TypedDict):
    """Where a cut fell: the last rank kept, and the probability of all kept before they share."""

    rank: int
    mass: float


class Choice(TypedDict):
    """`draw` is u in [0, 1): drawn is the first candidate whose cumulative is above it."""

    candidates: list[Candidate]
    n_kept: int
    top_k_cut: Cut | None
    top_p_cut: Cut | None
    entropy_nats: float
    draw: float | None


class StepToken(TypedDict):
    """As known when it is drawn; `display` holds the characters that it completes."""

    index: int
    id: int
    raw: str | None
    text: str | None
    display: str | None
    bytes_hex: str | None
    continuation: bool
    special: bool


class GeneratedSample(TypedDict):
    """`text` is without a stop string and what follows it; `token_ids` are all that were drawn."""

    sample: int
    text: str | None
    token_ids: list[int]
    tokens: list[Token] | list[int]
    reason: Literal["max_new_tokens", "stop_id", "stop_string", "context_full"]
    stop_string: str | None
    stop_id: int | None


class Done(TypedDict):
    samples: list[GeneratedSample]
    n_steps: int
    timing_ms: Timing


class GenerateEstimate(TypedDict):
    """What a generation would take at most."""

    n_tokens: int
    max_steps: int
    tensor_floats: int
    tensor_bytes: int
    json_bytes: int
    cache_bytes: int
    flops: int


class SampleChoice(Setting, Choice):
    """What would be chosen under one setting; `drawn` is None where only a seed could say."""

    drawn: int | None


class Sampled(TypedDict):
    """`choices`: one for each setting, in their order."""

    model: ModelIdentity
    n_tokens: int | None
    position: int | None
    vocab_size: int
    choices: list[SampleChoice]
