"""What the server says about itself: the model, its sites, and how it reads text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from service.schemas.base import Switch, Wire
from service.schemas.reading import ModelIdentity, Token, TokenId


class TokenizerReport(Wire):
    kind: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    normalizes: bool
    special_tokens: dict[str, int]


class ModelAnswer(ModelIdentity):
    source: str
    format: str
    notes: list[str]
    config: dict[str, Any] = Field(description="every architectural choice")
    parameters: int = Field(description="each counted once, ties too")
    kv_head_of_head: list[int] = Field(description="for each query head the kv head it reads")
    tokenizer: TokenizerReport | None
    limits: dict[str, float]
    formats: list[str] = Field(
        description="media types that every route whose answer holds tensors can be asked for by "
        "Accept, the default first; every other route of /v1 answers JSON alone"
    )
    stream_formats: list[str] = Field(
        description="media types that POST /v1/generate alone can be asked for as well: each step "
        "comes as soon as it is made"
    )


class SiteReport(Wire):
    site: str
    axes: list[str]
    shape: str = Field(description="symbolic: L layer, H head, K kv head, T position, Q query, …")
    layered: bool
    present: bool = Field(description="whether this model has it")
    editable: bool
    aliases: list[str] = Field(description="TransformerLens' names; {layer} stands for the layer")
    meaning: str


class SitesAnswer(Wire):
    sites: list[SiteReport]


class TokenizeRequest(Wire):
    text: str = Field(examples=["The cat chased the mouse."])
    add_bos: Switch | None = None
    parse_special: Switch = False


class TokenizeAnswer(Wire):
    text: str
    n_tokens: int
    token_ids: list[int]
    bos_added: bool
    tokens: list[Token]


class DetokenizeRequest(Wire):
    token_ids: Annotated[list[TokenId], Field(max_length=65536, fail_fast=True)]


class DetokenizeAnswer(Wire):
    text: str
    n_tokens: int


class Health(Wire):
    status: str
    reason: str | None = None
    model: str | None = None


class ProblemItem(Wire):
    detail: str
    pointer: str


class ProblemAnswer(Wire):
    """RFC 9457. `instance` is the request's id; docs/problems.md explains each type."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemItem]
    limit: float | None = None
    actual: float | None = None
