"""What a run shows and writes while it goes: a bar or plain lines, log.csv, a curve picture."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

COLUMNS = ("step", "tokens", "seconds", "progress", "loss", "lr_scale", "grad_norm",
           "tokens_per_second", "induction", "induction_head", "previous_token",
           "previous_token_head", "template_en", "template_zh")  # fmt: skip


class RunLog:
    """log.csv: one line every few steps, measures filled in where they were taken.

    After the columns of COLUMNS come `nats_<source>` (nats a token) and `bits_<source>` (bits a
    byte), both on held-out text. Each line is on disk once written.
    """

    def __init__(self, path: Path, sources: Sequence[str], *, after_step: int) -> None:
        """Keep the lines of an earlier sitting up to `after_step`, drop what was lost after it."""
        self.path = path
        self.columns = [*COLUMNS, *(f"{kind}_{s}" for s in sources for kind in ("nats", "bits"))]
        kept: list[dict[str, str]] = []
        if after_step and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= after_step]
        for row in kept:
            self.columns += [name for name in row if name and name not in self.columns]
        partial = path.with_suffix(".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        os.replace(partial, path)

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line; a float is written with six significant digits."""
        shown = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in values.items()}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="", lineterminator="\n").writerow(shown)


class Reporter:
    """A bar on a terminal; elsewhere one plain line every `every` steps."""

    def __init__(self, console: Console, *, every: int) -> None:
        self._console = console
        self._every = every
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:5.1f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[line]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=1.0, line="")

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def step(
        self, step: int, progress: float, loss: float, tokens_per_second: float, left: float
    ) -> None:
        """Show a step that is done; `left` is the time to go in seconds."""
        line = (
            f"step {step}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  left {clock(left)}"
        )
        if self._console.is_terminal:
            self._progress.update(self._task, completed=progress, line=line)
        elif step % self._every == 0:
            self._plain(f"{line}  ({progress:.1%})")

    def say(self, message: str) -> None:
        """A line that stays."""
        if self._console.is_terminal:
            self._progress.console.print(message, markup=False, highlight=False)
        else:
            self._plain(message)

    def _plain(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()


def clock(seconds: float) -> str:
    """A duration as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def draw_curve(log: Path, picture: Path) -> bool:
    """Draw losses and head scores over tokens; False where matplotlib is not installed."""
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    with log.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return True
    figure = figures.Figure(figsize=(9, 8), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    held_out = [name for name in rows[0] if name and name.startswith("bits_")]
    for axes, names in (
        (top, ["loss", *held_out]),
        (bottom, ["induction", "previous_token", "template_en", "template_zh"]),
    ):
        for name in names:
            points = [(int(r["tokens"]) / 1e6, float(r[name])) for r in rows if r[name]]
            if points:
                axes.plot(*zip(*points, strict=True), label=name.replace("_", " "))
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    top.set_ylabel("training loss (nats a token), held out (bits a byte)")
    bottom.set_ylabel("score")
    bottom.set_xlabel("million tokens")
    partial = picture.with_name(f".{picture.name}")
    figure.savefig(partial, format="png", dpi=110)
    os.replace(partial, picture)
    return True
