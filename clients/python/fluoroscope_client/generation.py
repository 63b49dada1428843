"""A generation as it comes: steps, what goes before and after them, and how they are read.

Knows no connections: `streams.py` feeds it events, and an answer in one piece is the same events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluoroscope_client.answers import Checks, Timing, Token, json_object
from fluoroscope_client.answers_of_generation import (
    Candidate,
    Cut,
    Done,
    GeneratedSample,
    GenerateEstimate,
    Meta,
    StepToken,
)
from fluoroscope_client.asking import SAFETENSORS
from fluoroscope_client.errors import AnswerError, ConnectError, problem
from fluoroscope_client.labels import CONTINUED
from fluoroscope_client.reading import labels, read_answer, read_tokens, tensors_of
from fluoroscope_client.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Prompt:
    """The prompt, run once for all samples, and the values traced in it."""

    tokens: list[Token]
    token_ids: list[int]
    tensors: dict[str, Tensor]
    checks: Checks
    timing_ms: Timing


@dataclass(frozen=True, eq=False)
class Step:
    """One token chosen. `text` is what is new of the sample's text; all together are the text.

    `tensors` are of the run that led to this choice, whose newest position is `position` − 1;
    step 0 has none, since the prompt has them.
    """

    sample: int
    step: int
    position: int
    token: StepToken
    text: str | None
    candidates: list[Candidate]
    n_kept: int
    top_k_cut: Cut | None
    top_p_cut: Cut | None
    entropy_nats: float
    draw: float | None
    tensors: dict[str, Tensor]
    checks: Checks | None
    timing_ms: Timing

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name. Raises KeyError."""
        return self.tensors[name]

    def __repr__(self) -> str:
        drawn = next((row for row in self.candidates if row["drawn"]), None)
        chance = "" if drawn is None else f" ({drawn['probability']:.3f})"
        return f"Step {self.sample}.{self.step}: {self.token['display']!r}{chance}"


class Progress:
    """What is known so far of a generation: `meta` and `prompt` before the first step, `done`
    after the last.
    """

    def __init__(self) -> None:
        self.meta: Meta | None = None
        self.prompt: Prompt | None = None
        self.done: Done | None = None
        self._labels: list[str] = []

    @property
    def samples(self) -> list[GeneratedSample]:
        """The finished samples: their whole texts, and why each ended. Empty before the end."""
        return [] if self.done is None else self.done["samples"]

    def take(self, name: str, said: Mapping[str, Any]) -> Step | None:
        """One event. Raises what an `error` event tells; events of a newer server do no harm."""
        try:
            if name == "step":
                return self._step(said)
            if name == "meta":
                self.meta = {key: said[key] for key in Meta.__annotations__}  # type: ignore[assignment]
            elif name == "prompt":
                self.prompt = self._prompt(said)
            elif name == "done":
                self.done = {key: said[key] for key in Done.__annotations__}  # type: ignore[assignment]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AnswerError(f"the {name} of the answer lacks a part: {error!r}") from error
        if name == "error":
            raise problem(int(said.get("status", 500)), said, None)
        return None

    def take_text(self, name: str, data: str) -> Step | None:
        """One event of a stream."""
        return self.take(name, json_object(data))

    def check_ended(self) -> None:
        """Raises ConnectError where the last event is missing."""
        if self.done is None:
            raise ConnectError("the stream was cut before its end")

    def _prompt(self, said: Mapping[str, Any]) -> Prompt:
        tokens, ids = read_tokens(said["tokens"])
        self._labels = labels(tokens)
        n_tokens = None if self.meta is None else int(self.meta["input"]["n_tokens"])
        return Prompt(
            tokens=tokens,
            token_ids=ids,
            tensors=tensors_of(said["tensors"], n_tokens, self._labels),
            checks=said["checks"],
            timing_ms=said["timing_ms"],
        )

    def _step(self, said: Mapping[str, Any]) -> Step:
        plain = {name: said[name] for name in Step.__annotations__ if name != "tensors"}
        position = int(said["position"])
        before = self._labels[:position]
        if len(before) == position:  # otherwise the prompt's tokens were not asked for
            self._labels = [*before, said["token"]["display"] or CONTINUED]
        return Step(tensors=tensors_of(said["tensors"], position, before), **plain)


@dataclass(frozen=True, eq=False)
class Completion:
    """A generation in one piece; of a dry run only `meta` and `estimate` are there."""

    meta: Meta
    prompt: Prompt | None
    steps: list[Step]
    done: Done | None
    estimate: GenerateEstimate | None

    @property
    def samples(self) -> list[GeneratedSample]:
        """The samples: their whole texts, and why each ended."""
        return [] if self.done is None else self.done["samples"]

    def __repr__(self) -> str:
        texts = [f"  {sample['text']!r} ({sample['reason']})" for sample in self.samples]
        return "\n".join([f"Completion of {len(self.steps)} steps", *texts])


def read_completion(media_type: str, body: bytes) -> Completion:
    """The Completion in an answer of either form. Raises AnswerError."""
    said = read_answer(media_type, body)
    progress = Progress()
    try:
        if media_type == SAFETENSORS:
            _share_out(said)
        progress.take("meta", said["meta"])
        if said["prompt"] is not None:
            progress.take("prompt", said["prompt"])
        steps = [progress.take("step", step) for step in said["steps"]]
        if said["done"] is not None:
            progress.take("done", said["done"])
    except (AttributeError, KeyError, TypeError) as error:
        raise AnswerError(f"the answer lacks a part: {error!r}") from error
    assert progress.meta is not None
    return Completion(
        meta=progress.meta,
        prompt=progress.prompt,
        steps=[step for step in steps if step is not None],
        done=progress.done,
        estimate=said.get("estimate"),
    )


def _share_out(said: Mapping[str, Any]) -> None:
    """Tensors of a safetensors answer, which stand together, put where a JSON answer has them."""
    parts = {"prompt": said["prompt"]} if said["prompt"] else {}
    parts.update({f"step/{step['sample']}/{step['step']}": step for step in said["steps"]})
    for full_name, head in said["tensors"].items():
        part = next((part for part in parts if full_name.startswith(f"{part}/")), None)
        if part is None:
            raise AnswerError(f"{full_name} belongs to no part of the answer")
        parts[part]["tensors"][full_name.removeprefix(f"{part}/")] = head
