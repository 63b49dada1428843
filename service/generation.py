"""A generation planned: what is asked resolved against the model, and what it will take.

Nothing is run here; whatever does not fit is refused here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from math import prod
from typing import Any

from model.cache import Cache
from model.capture import STATS, Capture
from model.checkpoints.open import OpenedModel
from model.config import GPTConfig
from model.generation import Generation
from model.sampling import Sampling
from service.choices import ROW_BYTES
from service.cost import block_weights, cost
from service.errors import Problem
from service.plan import Plan, make_plan
from service.schemas import reading as wire
from service.schemas.generation import GenerateEstimate, GenerateRequest
from service.settings import Settings
from service.wire.negotiation import EVENTS, SAFETENSORS
from service.wire.tensors import json_size

NEXT = "next logits"  # no client can name a capture so
_LAST_LOGITS = wire.Capture.model_construct(site="logits", positions=[-1], name=NEXT)
SEEDS = 2**31  # a seed that nobody chose is one of these


@dataclass(frozen=True)
class GenerationPlan:
    """One prompt's run and the choices after it, resolved."""

    plan: Plan
    request: GenerateRequest
    sampling: Sampling
    seed: int
    stop_ids: frozenset[int]
    max_new_tokens: int
    room: int  # tokens that the context still holds after the prompt
    keeps: bool  # whether keys and values are kept
    keeps_on: bool  # whether they still are where the text ends

    @property
    def traces_prompt(self) -> bool:
        return self.request.trace is not None and self.request.trace.prompt

    @property
    def max_steps(self) -> int:
        """Of one sample: the last token needs no room, since nothing is run after it."""
        return min(self.max_new_tokens, self.room + 1)

    def says(self) -> dict[str, Any]:
        """The schema `SamplingReport`."""
        asked = self.request
        return {
            "temperature": asked.temperature,
            "top_k": asked.top_k,
            "top_p": asked.top_p,
            "max_new_tokens": self.max_new_tokens,
            "n": asked.n,
            "seed": self.seed,
            "stop": asked.stop,
            "stop_ids": sorted(self.stop_ids),
            "top": asked.top,
        }


@dataclass(frozen=True)
class GenerationCost:
    """The schema `GenerateEstimate`. Beside it, in bytes: what is said about the steps, and the
    largest event, its tensors and their text."""

    n_tokens: int
    max_steps: int
    tensor_floats: int
    tensor_bytes: int
    json_bytes: int
    cache_bytes: int
    flops: int
    said_bytes: int
    largest_event: int

    def estimate(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in GenerateEstimate.model_fields}

    def held(self, media_type: str) -> int:
        """What the answer holds at once in this form."""
        if media_type == EVENTS:
            return self.largest_event
        if media_type == SAFETENSORS:
            return self.tensor_bytes + self.said_bytes
        return self.json_bytes + self.largest_event

    def beside(self, media_type: str) -> int:
        """What is held until it is put together: keys and values, and what is said of the steps,
        which safetensors has once more as text and once more as a text within that."""
        return self.cache_bytes + (2 * self.said_bytes if media_type == SAFETENSORS else 0)


def plan_generation(
    opened: OpenedModel, settings: Settings, request: GenerateRequest, *, in_bytes: bool
) -> GenerationPlan:
    """Tokenize and resolve. Every ValueError raised here is the client's fault and says so."""
    config, tokenizer = opened.model.config, opened.tokenizer
    sampling = Sampling(temperature=request.temperature, top_k=request.top_k, top_p=request.top_p)
    most = settings.max_new_tokens
    asked = request.max_new_tokens
    if asked is not None and asked > most:
        raise _refused(
            "/max_new_tokens", f"{asked} new tokens were asked for; at most {most}", most, asked
        )
    if request.stop and tokenizer is None:
        raise Problem("no-tokenizer", f"{opened.id} has no tokenizer: stop with stop_ids instead")
    stop_ids = request.stop_ids
    if stop_ids is None:
        end = None if tokenizer is None else tokenizer.eos_id
        stop_ids = [] if end is None or end >= config.vocab_size else [end]
    for place, token_id in enumerate(stop_ids):
        if token_id >= config.vocab_size:
            largest = config.vocab_size - 1
            raise _refused(
                f"/stop_ids/{place}",
                f"{token_id} is no token of this model, 0 to {largest}",
                largest,
                token_id,
            )
    captures = [] if request.trace is None else request.trace.captures
    run = wire.InspectingRequest.model_construct(
        **{name: getattr(request, name) for name in wire.RunRequest.model_fields}
    )
    plan = make_plan(
        opened,
        settings,
        run,
        [*captures, _LAST_LOGITS],
        hidden=frozenset({NEXT}),
        in_bytes=in_bytes,
    )
    max_new_tokens = min(settings.new_tokens, most) if asked is None else asked
    text = Generation(opened.model, plan.ids, edits=plan.plain_edits, wiring=plan.wiring)
    return GenerationPlan(
        plan,
        request,
        sampling,
        seed=secrets.randbelow(SEEDS) if request.seed is None else request.seed,
        stop_ids=frozenset(stop_ids),
        max_new_tokens=max_new_tokens,
        room=text.room,
        keeps=text.keeps,
        keeps_on=text.keeps_at(text.n_tokens + min(max_new_tokens - 1, text.room)),
    )


def _refused(pointer: str, detail: str, limit: int, actual: int) -> Problem:
    return Problem(
        "invalid-request",
        f"{pointer}: {detail}",
        limit=limit,
        actual=actual,
        errors=[{"detail": detail, "pointer": pointer}],
    )


def generation_cost(planned: GenerationPlan, opened: OpenedModel) -> GenerationCost:
    """At most: as if every sample went on to its last step. The prompt's part is exact."""
    config, plan, asked = opened.model.config, planned.plan, planned.request
    n_tokens = len(plan.ids)
    runs = planned.max_steps - 1  # a sample's first token is chosen at the end of the prompt
    prompt = cost(plan, config)
    traced = planned.traces_prompt
    floats, text = (prompt.tensor_floats, prompt.json_bytes) if traced else (0, 0)
    largest = floats * plan.dtype.itemsize + text
    # Steps grow evenly, by one key each: their mean is that of the first and the last.
    ends = [_step(plan, config, n_tokens + 1), _step(plan, config, n_tokens + runs)]
    floats += runs * asked.n * (ends[0][0] + ends[1][0]) // 2
    rows = (asked.top + 4) * ROW_BYTES  # and what else a step says
    said = planned.max_steps * asked.n * rows
    text += runs * asked.n * (ends[0][1] + ends[1][1]) // 2 + said
    dtype = opened.model.embed.weight.dtype
    caches = min(asked.n, 2) if planned.keeps else 0
    return GenerationCost(
        n_tokens=n_tokens,
        max_steps=planned.max_steps * asked.n,
        tensor_floats=floats,
        tensor_bytes=floats * plan.dtype.itemsize,
        json_bytes=text,
        cache_bytes=caches * Cache.bytes_for(config, n_tokens + runs, dtype),
        flops=prompt.flops + asked.n * _step_flops(planned, config, runs),
        said_bytes=said,
        largest_event=max(largest, ends[1][0] * plan.dtype.itemsize + ends[1][1] + rows),
    )


def _step(plan: Plan, config: GPTConfig, n_tokens: int) -> tuple[int, int]:
    """Floats, and bytes of their text, of one step that ends at n_tokens; spans with a step are
    counted as if they covered it, and one key beyond: they grow by jumps."""
    floats = text = 0
    for capture in plan.shown:
        if (shape := _newest_shape(capture, config, n_tokens)) is not None:
            floats += prod(shape)
            text += json_size(
                shape, plan.request.format, weights=capture.site.name == "attn.pattern"
            )
    return floats, text


def _newest_shape(capture: Capture, config: GPTConfig, n_tokens: int) -> tuple[int, ...] | None:
    site = capture.site
    if site.along is not None and site.along not in capture.open:
        return None
    sizes = [
        1
        if axis == site.along
        else size
        if index is None
        else len(range(index.start, n_tokens + (index.step if index.step > 1 else 0), index.step))
        if axis in capture.open and isinstance(index, range)
        else len(index)
        for axis, index, size in zip(
            site.axes, capture.indices, site.sizes(config, n_tokens), strict=True
        )
    ]
    if capture.reduce == "stats":
        sizes[-1] = len(STATS)
    elif capture.reduce is not None:
        del sizes[site.axes.index("head")]
    return tuple(sizes)


def _step_flops(planned: GenerationPlan, config: GPTConfig, runs: int) -> int:
    """Of one sample's steps: every matrix once, and the cells of one query; of the whole text each
    time where nothing is kept, if only towards the end."""
    n_tokens = len(planned.plan.ids)
    blocks = config.n_layer * 2 * block_weights(config)
    cells = config.n_layer * 4 * config.n_head * config.d_head
    unembedding = 2 * config.d_model * config.vocab_size
    lengths = range(n_tokens + 1, n_tokens + runs + 1)
    return sum(
        (1 if planned.keeps_on else length) * (blocks + cells * length) + unembedding
        for length in lengths
    )
