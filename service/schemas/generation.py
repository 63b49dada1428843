"""POST /v1/generate and POST /v1/sample: what is asked, each event, and the answer in one piece."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.schemas.base import Index, Switch, Wire
from service.schemas.reading import (
    Capture,
    Checks,
    InputReport,
    ModelIdentity,
    RunRequest,
    Tensor,
    Timing,
    Token,
    TokenId,
)

Temperature = Annotated[float, Field(strict=True, ge=0, le=100)]
TopK = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
TopP = Annotated[float, Field(strict=True, gt=0, le=1)]
Top = Annotated[int, Field(strict=True, ge=0, le=1000)]
# Whole numbers that every JSON reader keeps exact, with room for one more for each sample.
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**53 - 64)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Reason = Literal["max_new_tokens", "stop_id", "stop_string", "context_full"]


class SamplingSetting(Wire):
    """How a token is chosen from logits, over the whole vocabulary: ÷ temperature, top-k, top-p."""

    temperature: Temperature = Field(
        1.0, description="what the logits are divided by; 0 takes the largest logit (greedy)"
    )
    top_k: TopK | None = Field(None, description="only this many of the largest logits are kept")
    top_p: TopP | None = Field(
        None,
        description="of those, the likeliest until their probabilities reach this sum; the one "
        "that reaches it is kept",
    )


class Trace(Wire):
    """Values to bring back from every run, as in POST /v1/inspect."""

    captures: Annotated[list[Capture], Field(min_length=1, max_length=256)]
    prompt: Switch = Field(True, description="false: of the steps alone, not of the prompt")


class GenerateRequest(SamplingSetting, RunRequest):
    max_new_tokens: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = Field(
        None, description="for each sample; null: the server's default, see GET /v1/model's limits"
    )
    n: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        1, description="samples from one run of the prompt, one after the other"
    )
    seed: Seed | None = Field(
        None,
        description="makes it repeat; sample i draws as seed + i alone would. null: one is chosen, "
        "and said in `meta`",
    )
    stop: Annotated[list[StopString], Field(max_length=16)] = Field(
        default_factory=list,
        description="strings that end a sample, also across tokens; the text ends before them",
    )
    stop_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = Field(
        None,
        description="tokens that end a sample and are no part of its text; null: the tokenizer's "
        "end of text, if it has one",
    )
    top: Top = Field(10, description="rows of the candidates' table for each step")
    trace: Trace | None = None


class SamplingReport(SamplingSetting):
    """As used: what was left to the server is filled in."""

    max_new_tokens: int
    n: int
    seed: int
    stop: list[str]
    stop_ids: list[int]
    top: int


class GenerateMeta(Wire):
    """The first event. `input.edits` counts what the edits did to the prompt."""

    model: ModelIdentity
    input: InputReport
    sampling: SamplingReport
    cache: bool = Field(
        description="whether the first step uses the keys and values of the prompt. false: this "
        "wiring or these edits change what went before with each new token, so the whole text is "
        "run again at each step"
    )
    room: int = Field(
        description="tokens that the context still holds after the prompt; one more can be chosen"
    )


class GeneratePrompt(Wire):
    """The second event: the prompt, run once for all samples."""

    tokens: list[Token] | list[int]
    tensors: dict[str, Tensor]
    checks: Checks
    timing_ms: Timing


class CandidateToken(Wire):
    id: int
    text: str | None
    rank: int = Field(description="1 is the largest logit; of equal ones the lower id comes first")
    logit: float | None = Field(description="null: −∞")
    scaled: float | None = Field(
        description="logit ÷ temperature; null: −∞, or a temperature of 0, which does not divide"
    )
    uncut: float = Field(
        description="softmax of `scaled` over the whole vocabulary, before any cut; at temperature "
        "0 that of the logits"
    )
    cut_by: Literal["greedy", "top_k", "top_p"] | None
    probability: float = Field(description="of being drawn; 0 where cut")
    cumulative: float = Field(description="the probabilities down to here")
    drawn: bool


class Cut(Wire):
    rank: int = Field(description="of the last one kept")
    mass: float = Field(
        description="probability of all kept down to there, before they share what was cut: for "
        "top_k of the whole vocabulary, for top_p of what top_k left"
    )


class Choice(Wire):
    """How one token was chosen, over the whole vocabulary."""

    candidates: list[CandidateToken] = Field(
        description="the first ranks, and the drawn one after them where it is not among them"
    )
    n_kept: int = Field(description="candidates that no cut took, impossible ones included")
    top_k_cut: Cut | None
    top_p_cut: Cut | None
    entropy_nats: float = Field(description="of the distribution that is drawn from")
    draw: float | None = Field(
        description="u in [0, 1): drawn is the first candidate whose cumulative is above it; null "
        "where nothing is left to chance"
    )


class StepToken(Wire):
    """A drawn token as it is known when it is drawn. Its place among the others, and a split
    character whole on its first token, are in `done`."""

    index: int = Field(description="position in prompt and sample together")
    id: int
    raw: str | None = Field(description="the vocabulary's own spelling")
    text: str | None = Field(description="this token decoded alone")
    display: str | None = Field(description="the characters that are complete with this token")
    bytes_hex: str | None
    continuation: bool = Field(description="whether the token begins inside a character")
    special: bool


class GenerateStep(Choice):
    """A token was chosen. `tensors` and `checks` are of the run that led to this choice: its
    newest position is `position` − 1. Step 0 was chosen at the end of the prompt, whose values
    came with it."""

    sample: int
    step: int
    position: int = Field(description="that the drawn token takes")
    token: StepToken
    text: str | None = Field(
        description="what is new of the sample's text, all of them together are the text. What "
        "may yet become a stop string, or is half a character, waits for a later step"
    )
    tensors: dict[str, Tensor]
    checks: Checks | None = Field(description="null in step 0, of which nothing was run")
    timing_ms: Timing


class GeneratedSample(Wire):
    sample: int
    text: str | None = Field(description="without a stop string and what follows it")
    token_ids: list[int] = Field(description="every token drawn, the one that ended it as well")
    tokens: list[Token] | list[int] = Field(
        description="in the form asked for; offsets point into the text of all token_ids"
    )
    reason: Reason
    stop_string: str | None
    stop_id: int | None


class GenerateDone(Wire):
    """The last event."""

    samples: list[GeneratedSample]
    n_steps: int = Field(description="of all samples together")
    timing_ms: Timing = Field(description="of everything, prompt and steps")


class GenerateEstimate(Wire):
    n_tokens: int
    max_steps: int = Field(description="tokens that are chosen at most, of all samples together")
    tensor_floats: int = Field(description="of prompt and all steps, at most")
    tensor_bytes: int
    json_bytes: int = Field(
        description="of the tensors' numbers and of what is said of the steps, at most"
    )
    cache_bytes: int = Field(description="keys and values kept, at most")
    flops: int = Field(description="at most")


class GenerateAnswer(Wire):
    """The events in one piece. As safetensors the tensors are named `prompt/<name>` and
    `step/<sample>/<step>/<name>` and described together under `tensors`."""

    meta: GenerateMeta
    prompt: GeneratePrompt | None = Field(description="null in a dry run, as is done")
    steps: list[GenerateStep]
    done: GenerateDone | None
    estimate: GenerateEstimate | None = Field(None, description="in a dry run alone")


class SampleRequest(Wire):
    """Exactly one of `logits`, `text` and `token_ids`."""

    logits: (
        Annotated[
            list[Annotated[float, Field(strict=True)] | None],
            Field(min_length=1, max_length=2**18, fail_fast=True),
        ]
        | None
    ) = Field(None, description="one for each token of a vocabulary; null is −∞")
    text: str | None = None
    token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    add_bos: Switch | None = None
    parse_special: Switch = False
    position: Index = Field(-1, description="of the text: what comes after it is chosen")
    settings: Annotated[list[SamplingSetting], Field(min_length=1, max_length=64)]
    top: Top = 10
    seed: Seed | None = Field(
        None,
        description="draws a token, as the first step of POST /v1/generate does with this seed; "
        "the same number draws under every setting. null: nothing is drawn",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(given is not None for given in (self.logits, self.text, self.token_ids)) != 1:
            raise ValueError("give exactly one of logits, text and token_ids")
        return self


class SampleChoice(SamplingSetting, Choice):
    """What would be chosen under one of the settings."""

    drawn: int | None = Field(description="null where a draw decides and no seed was given")


class SampleAnswer(Wire):
    model: ModelIdentity
    n_tokens: int | None = Field(description="of the input; null where logits were given")
    position: int | None = Field(description="true index of the position that was asked for")
    vocab_size: int = Field(description="of the logits")
    choices: list[SampleChoice] = Field(description="one for each setting, in their order")
