"""TrainConfig: every choice of one training run, checked once when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.config import GPTConfig

Precision = Literal["auto", "bfloat16", "float32"]


class TrainConfigError(ValueError):
    """A training run that cannot be; the message holds the value and what is allowed."""


@dataclass(frozen=True)
class Piecewise:
    """A number that is constant between fractions of the run.

    `pieces` are (until, value): the value holds while progress is below `until`; the last
    `until` is 1.
    """

    pieces: tuple[tuple[float, float], ...]

    def at(self, progress: float) -> float:
        """The value at this fraction of the run, 0 at the start and 1 at the end."""
        return next((v for until, v in self.pieces if progress < until), self.pieces[-1][1])

    @property
    def starts(self) -> list[float]:
        """The fractions of the run at which a value begins to hold."""
        return [0.0, *(until for until, _ in self.pieces[:-1])]


def parse_piecewise(spec: str) -> Piecewise:
    """Read `0.3` or, for a number that changes, `0.25@0.33:0.06`.

    The second form means 0.25 for the first 33 % of the run and 0.06 after that; any number of
    `value@until:` pieces may come before the last one.
    """
    try:
        *changing, last = spec.split(":")
        pairs = [piece.split("@") for piece in changing]
        pieces = [(float(until), float(value)) for value, until in pairs]
        pieces.append((1.0, float(last)))
    except ValueError:
        raise TrainConfigError(f"{spec!r} is neither like 0.3 nor like 0.25@0.33:0.06") from None
    before = 0.0
    for until, value in pieces:
        if not (math.isfinite(value) and value >= 0):
            raise TrainConfigError(f"{spec!r} holds {value}; it must be at least 0")
        if not before < until <= 1:
            raise TrainConfigError(
                f"{spec!r} changes at {until}; it must be over {before} and at most 1"
            )
        before = until
    return Piecewise(tuple(pieces))


@dataclass(frozen=True)
class Weight:
    """The share of one source in the rows of a batch.

    The weights of all sources are divided by their sum, so they need not add up to 1.
    """

    source: str
    share: Piecewise


def parse_weight(spec: str) -> Weight:
    """Read `name=0.3` or `name=0.25@0.33:0.06`; what is after the = is a Piecewise."""
    source, sign, share = spec.partition("=")
    if not (source and sign):
        raise TrainConfigError(f"weight {spec!r} is not like name=0.3")
    return Weight(source, parse_piecewise(share))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run: where the text is, what model, for how long, how fast.

    A run ends after `steps` optimizer steps or `minutes` of wall-clock time, whichever comes
    first; the schedule and the changing weights follow the larger of the two fractions. A run
    bounded by steps alone repeats and resumes bit for bit on one machine; one bounded by minutes
    resumes at its step, its sampler and its elapsed time, but its schedule follows the clock.

    A step reads `rows` × `accumulate` rows of `model.n_ctx` tokens, `rows` at a time; with a
    shorter `context`, which may change over the run, as many more rows as keep the tokens of a
    step the same.
    Learning rates: `muon_lr` for the matrices of the blocks, `adam_lr` for everything else.
    """

    data: Path | None
    out: Path
    model: GPTConfig
    weights: tuple[Weight, ...] = ()
    tokenizer: Path | None = None

    steps: int | None = None
    minutes: float | None = None
    rows: int = 8
    accumulate: int = 2
    context: Piecewise | None = None

    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    ns_steps: int = 5
    warmup_steps: int = 50
    decay: float = 0.5
    clip: float = 1.0

    precision: Precision = "auto"
    device: str = "auto"
    compile: bool = False
    threads: int | None = None
    seed: int = 0

    held_out_every: int = 50
    eval_tokens: int = 8192
    eval_pairs: int = 200
    eval_steps: int | None = None
    eval_minutes: float = 5.0
    checkpoint_minutes: float = 5.0
    log_steps: int = 10

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise TrainConfigError("a run needs steps or minutes, or it would never end")
        for name in ("steps", "minutes", "rows", "accumulate", "ns_steps", "log_steps",
                     "eval_tokens", "eval_pairs", "eval_steps", "eval_minutes",
                     "checkpoint_minutes", "muon_lr", "adam_lr", "clip", "threads"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise TrainConfigError(f"{name} is {value}; it must be over 0")
        for name in ("weight_decay", "warmup_steps"):
            if not getattr(self, name) >= 0:
                raise TrainConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 <= self.decay <= 1:
            raise TrainConfigError(f"decay is {self.decay}; it is a fraction of the run, 0 to 1")
        if self.held_out_every < 2:
            raise TrainConfigError(
                f"held_out_every is {self.held_out_every}; at least every 2nd document must "
                f"stay for training"
            )
        names = [weight.source for weight in self.weights]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TrainConfigError(f"sources {twice} have two weights each")

        for _, length in self.context.pieces if self.context is not None else ():
            if not 2 <= length <= self.model.n_ctx or self.rows * self.model.n_ctx % length:
                raise TrainConfigError(
                    f"context is {length:g}; it must be 2 to {self.model.n_ctx} tokens and "
                    f"divide the {self.rows * self.model.n_ctx} of {self.rows} rows"
                )

    def shape_at(self, progress: float) -> tuple[int, int]:
        """Rows read at a time and tokens in each, at this fraction of the run."""
        if self.context is None:
            return self.rows, self.model.n_ctx
        length = int(self.context.at(progress))
        return self.rows * self.model.n_ctx // length, length

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step reads."""
        return self.rows * self.accumulate * self.model.n_ctx
