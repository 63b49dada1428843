"""Parity: how far a model's numbers are from float64 ones, and that a wrong formula would show.

The float64 numbers are those stored with the checkpoint (golden.json) where they are of these very
weights, else what `model.reference` makes of the weights in memory. Knows nothing of HTTP.

`python -m model.parity MODEL` prints the report; `--write-golden` first stores the numbers in that
native folder.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from model.capture import Capture
from model.checkpoints import native
from model.checkpoints.contents import CheckpointError
from model.checkpoints.golden import Golden, read_golden, write_golden
from model.checkpoints.open import OpenedModel, open_model
from model.config import GPTConfig, Pairing
from model.gpt import GPT
from model.reading import RunCancelled, read
from model.reference import reference_run
from model.sites import SITES
from model.wiring import MODEL_WIRING, RopeWiring, Wiring

Array = NDArray[np.floating[Any]]
Stopped = Callable[[], bool]
GATE = 2e-5
CLEARLY = 10  # a wrong formula must miss by so many gates
LONGEST = 32


@dataclass(frozen=True, eq=False)
class Standard:
    """Float64 numbers for one input of T tokens: the logits (R, V) of the last R of them, and by
    (layer, head) those tokens' rows of the pattern (R, T)."""

    against: Literal["golden", "reference"]
    made_with: str
    ids: Sequence[int]
    logits: Array
    patterns: Mapping[tuple[int, int], Array]


@dataclass(frozen=True)
class Deviation:
    """The largest difference, as it is and relative to the largest magnitude where that is over 1.

    NaN where the model's numbers are not finite.
    """

    absolute: float
    relative: float


@dataclass(frozen=True)
class Deviations:
    """Of one run from the standard."""

    logits: Deviation
    patterns: Deviation

    @property
    def worst(self) -> float:
        """The larger relative one; NaN wins."""
        return float(np.maximum(self.logits.relative, self.patterns.relative))


@dataclass(frozen=True)
class ParityReport:
    """`gate` is on the relative deviations, None where they are only reported (bfloat16).

    `control` says what was made wrong, `control_missed` whether that missed the gate ten times
    over. `golden_ignored` says why stored numbers were not used. `rows` of logits and of each of
    the `maps` were compared.
    """

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
    seconds: float

    @property
    def passed(self) -> bool | None:
        """Within the gate, and the control was not: a comparison that lets a wrong formula pass
        shows nothing. None without a gate."""
        if self.gate is None:
            return None
        return bool(self.within_gate and self.control_missed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; a deviation that is no finite number is None."""
        plain = asdict(self)
        for which in ("deviations", "control_deviations"):
            for kind in plain[which].values():
                for name, value in kind.items():
                    kind[name] = value if math.isfinite(value) else None
        return {**plain, "passed": self.passed}


def parity(opened: OpenedModel, *, stopped: Stopped = lambda: False) -> ParityReport:
    """Run a fixed input as the model is, and with its formula made wrong; compare both.

    Raises RunCancelled once `stopped` says so.
    """
    start = time.perf_counter()
    model = opened.model
    dtype = model.embed.weight.dtype
    gate = GATE if dtype in (torch.float32, torch.float64) else None
    standard, ignored = standard_of(opened, stopped)
    control, wiring = wrong_formula(model.config)
    own = deviations(model, standard, MODEL_WIRING, stopped)
    wrong = deviations(model, standard, wiring, stopped)
    return ParityReport(
        against=standard.against,
        made_with=standard.made_with,
        golden_ignored=ignored,
        n_tokens=len(standard.ids),
        rows=len(standard.logits),
        maps=len(standard.patterns),
        dtype=str(dtype).removeprefix("torch."),
        deviations=own,
        gate=gate,
        within_gate=None if gate is None else own.worst <= gate,
        control=control,
        control_deviations=wrong,
        control_missed=None if gate is None else wrong.worst > CLEARLY * gate,
        seconds=time.perf_counter() - start,
    )


def standard_of(
    opened: OpenedModel, stopped: Stopped = lambda: False
) -> tuple[Standard, str | None]:
    """What to compare with, and why stored numbers are not it where there are some."""
    ignored = None
    if opened.golden is not None:
        try:
            stored = read_golden(opened.golden, opened.model.config, opened.weights_sha256)
        except CheckpointError as error:
            ignored = str(error)
        else:
            rows = {place: row[None] for place, row in stored.patterns.items()}
            own = Standard("golden", stored.made_with, stored.ids, stored.logits[None], rows)
            return own, None
    return recomputed(opened.model, stopped), ignored


def recomputed(model: GPT, stopped: Stopped = lambda: False) -> Standard:
    """Every row and every map of the fixed input, made of the weights as they are in memory."""

    def before_layer() -> None:
        if stopped():
            raise RunCancelled

    config = model.config
    ids = fixed_ids(config)
    with np.errstate(all="ignore"):  # a broken model's numbers may be anything
        run = reference_run(config, model.state_dict(), ids, before_layer=before_layer)
    places = [(layer, head) for layer in range(config.n_layer) for head in range(config.n_head)]
    return Standard(
        against="reference",
        made_with=f"model/reference.py in float64, numpy {np.__version__}",
        ids=ids,
        logits=run.logits,
        patterns={place: run.patterns[place] for place in places},
    )


def fixed_ids(config: GPTConfig) -> list[int]:
    """The input: min(32, context) ids that follow from the size of the vocabulary alone.

    Knuth's 64-bit linear congruential generator, so that no library's stream is relied on.
    """
    state, ids = config.vocab_size, []
    for _ in range(min(LONGEST, config.n_ctx)):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % config.vocab_size)
    return ids


def wrong_formula(config: GPTConfig) -> tuple[str, Wiring]:
    """What to make wrong so that a comparison must see it: in words, and as a wiring."""
    if config.positions == "rope" and config.rotary_dim > 2:
        other: Pairing = "half" if config.rope_pairing == "interleaved" else "interleaved"
        return f"rotation with {other} pairs", Wiring(rope=RopeWiring(pairing=other))
    if config.positions == "none":
        own = config.d_head**-0.5 if config.score_scale is None else config.score_scale
        return "scores twice as large", Wiring(score_scale=2 * own)
    return "no positions", Wiring(positions="none")


def deviations(model: GPT, standard: Standard, wiring: Wiring, stopped: Stopped) -> Deviations:
    """How far a run under the wiring is from the standard, in every number that it holds."""
    dtype = torch.promote_types(model.embed.weight.dtype, torch.float32)
    config, n_tokens = model.config, len(standard.ids)
    last = list(range(-len(standard.logits), 0))
    logits = Capture.resolve(SITES["logits"], {"position": last}, config, n_tokens, dtype=dtype)
    pattern = Capture.resolve(SITES["attn.pattern"], {"query": last}, config, n_tokens, dtype=dtype)
    found = read(model, standard.ids, [logits, pattern], wiring=wiring, stopped=stopped).tensors
    maps = found[pattern.name].cpu().numpy()  # (L, H, R, T)
    return Deviations(
        logits=_deviation(found[logits.name].cpu().numpy(), standard.logits),
        patterns=_deviation(
            np.stack([maps[place] for place in standard.patterns]),
            np.stack(list(standard.patterns.values())),
        ),
    )


def _deviation(found: Array, expected: Array) -> Deviation:
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is NaN, which no gate lets pass
        absolute = float(np.abs(found - expected).max())
    return Deviation(absolute, absolute / max(1.0, float(np.abs(expected).max())))


def golden_of(opened: OpenedModel) -> Golden:
    """What to store with a checkpoint: the last rows, recomputed from its weights."""
    standard = recomputed(opened.model)
    return Golden(
        weights_sha256=opened.weights_sha256,
        made_with=standard.made_with,
        ids=standard.ids,
        logits=standard.logits[-1].astype(np.float64),
        patterns={place: rows[-1].astype(np.float64) for place, rows in standard.patterns.items()},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the model passes, 1 where it does not, 2 where it cannot be opened or written to."""
    parser = argparse.ArgumentParser(prog="python -m model.parity", description=__doc__)
    parser.add_argument("model", help="demo, preset:NAME, or a checkpoint")
    parser.add_argument(
        "--write-golden", action="store_true", help="store golden.json in the native folder"
    )
    asked = parser.parse_args(arguments)
    folder = Path(asked.model)
    try:
        if asked.write_golden and not native.is_native(folder):
            raise CheckpointError(f"{folder} is no native folder: golden.json has no place there")
        opened = open_model(asked.model, device=torch.device("cpu"), dtype=torch.float32)
        if asked.write_golden:
            opened = replace(opened, golden=write_golden(folder, golden_of(opened)))
    except ValueError as error:  # a CheckpointError, or numbers that are not finite
        print(error, file=sys.stderr)
        return 2
    report = parity(opened)
    print(json.dumps(report.to_dict(), indent=2))
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
