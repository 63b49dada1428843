"""One run of the model on one input, with captures and edits: what every question comes down to.

Knows nothing of text or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.capture import Capture, Recording
from model.checks import Checks, PatternCheck, SumCheck
from model.edit import Edit, EditError
from model.gpt import GPT
from model.selection import SelectionError
from model.sites import ORDER, Site
from model.tap import Probe
from model.wiring import MODEL_WIRING, Wiring


class RunCancelled(Exception):
    """Nobody waits for the run any more; it ended between two blocks."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Captured values by name, on the run's device, and the checks. Edits count for themselves."""

    tensors: dict[str, Tensor]
    checks: Checks


def read(
    model: GPT,
    ids: Sequence[int],
    captures: Sequence[Capture],
    *,
    edits: Sequence[Edit] = (),
    wiring: Wiring = MODEL_WIRING,
    full_checks: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Reading:
    """Run `ids` once, no further than the last capture needs.

    Raises EditError for an edit past the end of the run or at a site that this wiring leaves out,
    SelectionError for a capture of such a site, RunCancelled once `stopped` says so.
    """
    require_reached(captures, edits, full_checks=full_checks)
    patterns = PatternCheck(model.config.n_layer)
    sums = SumCheck(model, wiring) if full_checks else None
    probe = Probe(
        captures,
        edits,
        observers={**patterns.observers, **(sums.observers if sums else {})},
        stopped=stopped,
        to_the_end=full_checks,
    )
    rows = None if full_checks else logit_rows(captures, edits)
    device = model.embed.weight.device
    with torch.inference_mode():
        for recording in probe.recordings:
            if rows is not None and recording.capture.site.name == "logits":
                recording.rows = rows
        model(
            torch.tensor([list(ids)], device=device),
            tap=probe,
            wiring=wiring,
            unembed=rows,
        )
        if probe.cancelled:
            raise RunCancelled
        require_fired(edits)
        row_sum_error, future_mass, empty_rows = patterns.result()
        residual, heads, logits = sums.result() if sums else (None, None, None)
    return Reading(
        tensors={r.capture.name: recorded(r) for r in probe.recordings},
        checks=Checks(
            row_sum_error=row_sum_error,
            future_mass=future_mass,
            empty_rows=empty_rows,
            residual_sum_error=residual,
            head_sum_error=heads,
            logits_error=logits,
        ),
    )


def recorded(recording: Recording) -> Tensor:
    """Raises SelectionError where the run never met the site."""
    if recording.values is None:
        raise SelectionError(
            f"{recording.capture.site.name} does not occur under this wiring, so there is "
            "nothing to capture"
        )
    return recording.values


def logit_rows(captures: Sequence[Capture], edits: Sequence[Edit]) -> list[int] | None:
    """The positions to unembed, in order; None for all (an edit there needs them at their place).

    Nothing asked of the logits costs nothing: the run ends before the unembedding.
    """
    if any(edit.site.name == "logits" for edit in edits):
        return None
    asked = [capture.indices[0] for capture in captures if capture.site.name == "logits"]
    return sorted({position for index in asked if index is not None for position in index})


def end_of_run(captures: Sequence[Capture], *, full_checks: bool = False) -> tuple[int, int]:
    """Where the run ends: the last layer it enters, and the place of the last site in it.

    Sites after the blocks count as one layer more.
    """
    if full_checks:
        return (2**31, ORDER["logits"])
    ends = [(place(capture.site, capture.layers)) for capture in captures]
    return max(ends, default=(-1, 0))


def place(site: Site, layers: Sequence[int | None]) -> tuple[int, int]:
    """When a run last meets the site at these layers: (layer, order of the site)."""
    if site.layered:
        return (max(layer for layer in layers if layer is not None), ORDER[site.name])
    before_blocks = ORDER[site.name] < ORDER["resid_pre"]
    return (-1 if before_blocks else 2**31, ORDER[site.name])


def require_reached(
    captures: Sequence[Capture], edits: Sequence[Edit], *, full_checks: bool = False
) -> None:
    """Raises EditError where an edit, or a layer of it, lies after everything that is captured."""
    end = end_of_run(captures, full_checks=full_checks)
    for number, edit in enumerate(edits):
        if place(edit.site, edit.layers) > end:
            last = max((c.name for c in captures), key=str, default="nothing")
            where = "" if edit.layers == (None,) else f" layer {max(edit.layers)}"  # type: ignore[type-var]
            raise EditError(
                f"edit {number} at {edit.site.name}{where} would change nothing that is asked "
                f"for: the run ends at {_where(end, last)}"
            )


def require_fired(edits: Sequence[Edit]) -> None:
    """Raises EditError where an edit met no value in the run that is over."""
    for number, edit in enumerate(edits):
        if not edit.values_touched:
            raise EditError(
                f"edit {number} at {edit.site.name} changed nothing: the site does not occur "
                "under this wiring"
            )


def _where(end: tuple[int, int], name: str) -> str:
    if end[0] < 0:
        return "the embedding"
    return f"layer {end[0]}" if end[0] < 2**31 else name
