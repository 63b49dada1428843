"""A generation under way: the prompt, then token after token, each step a turn of its own on the
device, so that other requests have theirs in between.

Gives events in their order. Knows nothing of how they are sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from model.checks import Checks
from model.edit import Edit
from model.generation import Advanced, Generation
from model.sampling import Choice, choose
from service.choices import choice_fields
from service.errors import Problem
from service.generation import GenerationPlan
from service.inspection import check_fields, edit_reports, head_of, rounded, tokens_of
from service.inspector import (
    Inspector,
    Timing,
    all_finite,
    named_tensors,
    require_finite,
)
from service.samples import Sample
from service.wire.tensors import NamedTensor

Written = TypeVar("Written")


@dataclass(frozen=True, eq=False)
class Event:
    """`tensors` are still to be written; None where the event has none to speak of."""

    name: str
    content: dict[str, Any]
    tensors: list[NamedTensor] | None = None


Write = Callable[[Event], Written]


@dataclass(frozen=True, eq=False)
class Reached:
    """What one turn on the device gave: a token chosen, and what was seen on the way there."""

    choice: Choice
    tensors: list[NamedTensor]
    checks: Checks | None
    finite: bool = True


class Generating:
    """`start` runs the prompt and chooses the first token; `events` says that and goes on."""

    def __init__(
        self,
        inspector: Inspector,
        planned: GenerationPlan,
        tokenize: float,
        draining: Callable[[], bool],
    ) -> None:
        self._inspector = inspector
        self._planned = planned
        self._draining = draining
        self._tokenizer = inspector.opened.tokenizer
        self.spent = {"queue": 0.0, "tokenize": tokenize, "forward": 0.0, "encode": 0.0}
        self._first: tuple[Reached, Timing] | None = None
        self._samples = [
            Sample(number, planned, self._tokenizer) for number in range(planned.request.n)
        ]
        self._edits: list[Edit] = []
        self._prompted: Generation | None = None  # as the prompt left it, for the samples to come
        self._prompt_logits: Tensor | None = None
        self._generation: Generation | None = None  # of the sample that grows

    async def start(self) -> None:
        """Raises whatever is wrong with the prompt's run, before anything was said."""
        self._first = await self._inspector.on_device(self._run_prompt)
        self._spend(self._first[1])

    def _run_prompt(self, stopped: Callable[[], bool]) -> Reached:
        plan = self._planned.plan
        self._edits = self._inspector.edits_of(plan, stopped)
        self._prompted = Generation(
            self._inspector.opened.model,
            plan.ids,
            captures=plan.shown,
            edits=self._edits,
            wiring=plan.wiring,
        )
        advanced = self._prompted.prompt(stopped, traced=self._planned.traces_prompt)
        self._prompt_logits = advanced.logits
        reached = self._reached(advanced, self._samples[0])
        self._begin(self._samples[0])
        return reached

    def _begin(self, sample: Sample) -> None:
        """The last sample takes the prompt's own keys and values, every other one a copy."""
        assert self._prompted is not None
        last = sample.number == len(self._samples) - 1
        self._generation = None  # the sample before lets go of its own first
        self._generation = self._prompted if last else self._prompted.fork()

    def _choose_again(self, sample: Sample, stopped: Callable[[], bool]) -> Reached:
        assert self._prompt_logits is not None
        self._begin(sample)
        return Reached(self._choose(self._prompt_logits, sample), [], None)

    def _advance(self, sample: Sample, stopped: Callable[[], bool]) -> Reached:
        assert self._generation is not None
        return self._reached(self._generation.advance(sample.ids[-1], stopped), sample)

    def _reached(self, advanced: Advanced, sample: Sample) -> Reached:
        tensors = named_tensors(
            list(advanced.captures.values()), advanced.tensors, self._planned.plan.dtype
        )
        return Reached(
            self._choose(advanced.logits, sample),
            tensors,
            advanced.checks,
            all_finite(tensors, advanced.checks),
        )

    def _choose(self, logits: Tensor, sample: Sample) -> Choice:
        require_finite(logits)
        top = self._planned.request.top
        return choose(logits, self._planned.sampling, top=top, draw=sample.draw())

    async def events(self, write: Write[Written]) -> AsyncGenerator[Written, None]:
        """From `meta` to `done`, each written on a codec thread.

        Raises a 503 between two steps once the server is shutting down.
        """
        assert self._first is not None, "start first"
        (reached, timing), self._first = self._first, None
        off_loop = self._inspector.off_loop
        yield await off_loop(self._written, write, self._meta)
        yield await off_loop(self._written, write, self._prompt_event, reached, timing)
        # The prompt's values were told, and are let go; its choice is the first step.
        reached, timing = Reached(reached.choice, [], None), Timing()
        for sample in self._samples:
            if sample.number:
                reached, timing = await self._turn(partial(self._choose_again, sample))
            while True:
                yield await off_loop(
                    self._written, write, self._step_event, sample, reached, timing
                )
                if sample.reason is not None:
                    break
                reached, timing = await self._turn(partial(self._advance, sample))
        yield await off_loop(self._written, write, self._done)

    async def _turn(self, work: Callable[[Callable[[], bool]], Reached]) -> tuple[Reached, Timing]:
        if self._draining():
            raise Problem(
                "shutting-down",
                "the server is shutting down and ended the generation between two steps",
                headers={"retry-after": "1"},
            )
        found, timing = await self._inspector.on_device(work, step=True)
        self._spend(timing)
        return found, timing

    def _spend(self, timing: Timing) -> None:
        self.spent["queue"] += timing.queue
        self.spent["forward"] += timing.forward

    def _written(self, write: Write[Written], make: Callable[..., Event], *given: Any) -> Written:
        event = make(*given)
        written = write(event)
        encode = 0.0 if event.tensors is None else event.content["timing_ms"]["encode"]
        if encode:  # not where the tensors wait for the end
            self.note_encoding(encode)
        return written

    def note_encoding(self, milliseconds: float) -> None:
        self.spent["encode"] += milliseconds
        self._inspector.observe("encode", milliseconds / 1e3)

    def _meta(self) -> Event:
        return Event("meta", meta_fields(self._inspector, self._planned, self._edits))

    def _prompt_event(self, reached: Reached, timing: Timing) -> Event:
        assert reached.checks is not None
        content = {
            "tokens": tokens_of(self._inspector, self._planned.plan),
            "checks": check_fields(reached.checks, reached.finite),
            "timing_ms": _timing(timing, self.spent["tokenize"]),
        }
        return Event("prompt", content, reached.tensors)

    def _step_event(self, sample: Sample, reached: Reached, timing: Timing) -> Event:
        choice, checks = reached.choice, reached.checks
        assert choice.drawn is not None, "there was a number to draw with, or none was needed"
        step, position = len(sample.ids), sample.position
        token, text = sample.take(choice.drawn)
        content = {
            "sample": sample.number,
            "step": step,
            "position": position,
            "token": token,
            "text": text,
            **choice_fields(choice, self._tokenizer),
            "checks": None if checks is None else check_fields(checks, reached.finite),
            "timing_ms": _timing(timing),
        }
        return Event("step", content, reached.tensors)

    def _done(self) -> Event:
        content = {
            "samples": [sample.says() for sample in self._samples],
            "n_steps": sum(len(sample.ids) for sample in self._samples),
            "timing_ms": rounded(self.spent),
        }
        return Event("done", content)


def meta_fields(
    inspector: Inspector, planned: GenerationPlan, edits: list[Edit] | None
) -> dict[str, Any]:
    """The schema `GenerateMeta`; without the edits of a run in a dry one."""
    head = head_of(inspector, planned.plan, [])
    if edits is not None:
        head["input"]["edits"] = edit_reports(planned.request.edits, edits)
    return {
        "model": head["model"],
        "input": head["input"],
        "sampling": planned.says(),
        "cache": planned.keeps,
        "room": planned.room,
    }


def _timing(timing: Timing, tokenize: float = 0.0) -> dict[str, float]:
    spent = {"queue": timing.queue, "tokenize": tokenize, "forward": timing.forward}
    return rounded({**spent, "encode": 0.0})
