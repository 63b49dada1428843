"""Generation: a prompt run once, then one token at a time, its inside open at every step.

A step gives the numbers that a run of the whole text so far would give at its newest position.
Knows nothing of text, HTTP, or how the next token is chosen. Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.cache import Cache
from model.capture import Capture
from model.checks import Checks, PatternCheck
from model.config import RopeScaling
from model.edit import Edit
from model.gpt import GPT, ContextError
from model.reading import RunCancelled, logit_rows, recorded, require_fired
from model.tap import Probe
from model.wiring import MODEL_WIRING, Wiring


@dataclass(frozen=True, eq=False)
class Advanced:
    """What one run of a generation gave.

    `logits` (V,) of the newest position, float32, on the host. `tensors` by capture name, on the
    run's device; `captures`, of the same names, say their axes, shapes and coordinates here. A
    capture that covers nothing of this step is in neither.
    """

    logits: Tensor
    tensors: dict[str, Tensor]
    captures: dict[str, Capture]
    checks: Checks


class Generation:
    """One text that grows. Captures and edits come resolved against the prompt.

    Selections with an open end go on with the text, lists and closed spans stay. At a step a
    capture gives the newest position (over attention cells: the newest query's row over all keys
    so far), and an edit works on what it covers of that. attn.rot_k alone is made anew from all
    kept keys, and an edit there works on all that it covers. Edits count over all steps and forks;
    a step that has to run the whole text counts all of it again.
    """

    def __init__(
        self,
        model: GPT,
        ids: Sequence[int],
        *,
        captures: Sequence[Capture] = (),
        edits: Sequence[Edit] = (),
        wiring: Wiring = MODEL_WIRING,
    ) -> None:
        self.ids = list(ids)
        self._model = model
        self._captures = list(captures)
        self._edits = list(edits)
        self._wiring = wiring
        self._cache = Cache(model.config)

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        """How many more tokens the context holds."""
        return self._model.config.n_ctx - len(self.ids)

    @property
    def n_bytes(self) -> int:
        """What is kept between steps takes."""
        return self._cache.n_bytes

    @property
    def keeps(self) -> bool:
        """Whether the next step uses the keys and values kept so far, or runs the whole text."""
        return self.keeps_at(len(self.ids) + 1)

    def keeps_at(self, n_tokens: int) -> bool:
        """Whether keys and values kept from a shorter text are those of one of n_tokens.

        They are not where later tokens change what earlier positions compute: without the causal
        mask, under an edit that reaches back, and under dynamic scaling past the context that it
        starts from.
        """
        rope = self._wiring.rope.scaling
        scaling = self._model.config.rope_scaling if rope is None else rope
        if self._model.config.positions != "rope" or self._wiring.positions == "none":
            scaling = None
        turned_anew = (
            isinstance(scaling, RopeScaling)
            and scaling.kind == "dynamic"
            and n_tokens > (scaling.original_context or 0)
        )
        revised = any(edit.revises for edit in self._edits)
        return self._wiring.causal and not revised and not turned_anew

    def prompt(
        self, stopped: Callable[[], bool] = lambda: False, *, traced: bool = True
    ) -> Advanced:
        """The whole prompt, once, with the captures as they were resolved; with none if not
        `traced`.

        Raises as `read` does, and ContextError where the context does not hold it.
        """
        advanced = self._run(self.ids, self._captures if traced else [], stopped)
        require_fired(self._edits)
        return advanced

    def advance(self, token_id: int, stopped: Callable[[], bool] = lambda: False) -> Advanced:
        """One token more. Raises ContextError where there is no room, RunCancelled once `stopped`
        says so; neither changes the generation."""
        ids = [*self.ids, token_id]
        newest = [capture.newest(self._model.config, len(ids)) for capture in self._captures]
        advanced = self._run(ids, [capture for capture in newest if capture], stopped)
        self.ids = ids
        return advanced

    def fork(self) -> Generation:
        """Another generation that goes its own way from here."""
        other = Generation(
            self._model,
            self.ids,
            captures=self._captures,
            edits=self._edits,
            wiring=self._wiring,
        )
        other._cache = self._cache.copy()
        return other

    def _run(
        self, ids: list[int], captures: list[Capture], stopped: Callable[[], bool]
    ) -> Advanced:
        model, n_tokens = self._model, len(ids)
        if n_tokens > model.config.n_ctx:
            raise ContextError(f"{n_tokens} tokens; the context holds 1 to {model.config.n_ctx}")
        cache = self._cache if self.keeps_at(n_tokens) else None
        held = range(cache.n_tokens if cache else 0, n_tokens)
        assert held, "the prompt runs once"
        pairs = [(edit, edit.at_step(held)) for edit in self._edits]
        edits = [here for _, here in pairs if here is not None]
        patterns = PatternCheck(model.config.n_layer)
        probe = Probe(
            captures, edits, observers=patterns.observers, stopped=stopped, to_the_end=True
        )
        # The newest position and those asked for; all where an edit of logits may need them.
        unembed = None if len(held) == 1 else logit_rows(captures, edits)
        if unembed is not None:
            unembed = sorted({*unembed, n_tokens - 1})
        for recording in probe.recordings:
            site = recording.capture.site
            if site.name == "logits":
                recording.rows = held if unembed is None else unembed
            elif held.start and site.along is not None and not site.spans_steps:
                recording.rows = held
        with torch.inference_mode():
            logits = model(
                torch.tensor([ids[held.start :]], device=model.embed.weight.device),
                tap=probe,
                wiring=self._wiring,
                unembed=unembed,
                cache=cache,
            )
            if probe.cancelled or logits is None:
                raise RunCancelled
            for edit, here in pairs:
                if here is not None:
                    edit.add(here)
            row_sum_error, future_mass, empty_rows = patterns.result()
            return Advanced(
                logits=logits[0, -1].float().cpu(),
                tensors={r.capture.name: recorded(r) for r in probe.recordings},
                captures={capture.name: capture for capture in captures},
                checks=Checks(
                    row_sum_error=row_sum_error, future_mass=future_mass, empty_rows=empty_rows
                ),
            )
