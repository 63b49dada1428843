"""The training loop: steps, measures, checkpoints, and going on from one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from rich.console import Console

from model.training.batches import GENERATED, check_names
from model.training.config import TrainConfig, TrainConfigError
from model.training.corpus import find_sources
from model.training.progress import Reporter, RunLog, clock, draw_curve
from model.training.run import Run
from model.training.tokens import cut_source
from model.training.vocabulary import run_tokenizer


@dataclass(frozen=True)
class Outcome:
    """How a run ended: after which step, tokens read, last loss in nats a token."""

    stopped: Literal["done", "interrupted"]
    step: int
    tokens: int
    loss: float


def train(config: TrainConfig, *, resume: bool = False, console: Console | None = None) -> Outcome:
    """Train as configured; everything is written to `config.out`.

    There: `tokenizer.json`, `tokens/` (the cut sources), `checkpoint.pt` (to go on from), `native/`
    (the weights to serve, bfloat16), `log.csv`, `curve.png` (with matplotlib). SIGINT and SIGTERM
    end the run after the step in work, with all of these written. Raises CorpusError,
    TrainConfigError, and DivergedError when the loss is NaN or infinite.
    """
    if threads := config.threads:
        torch.set_num_threads(threads)
    paths = find_sources(config.data) if config.data is not None else {}
    wanted = {weight.source for weight in config.weights} or set(paths)
    # Before any text is cut: a misspelt name should not cost minutes.
    check_names(wanted, (*paths, *GENERATED))
    used = {name: path for name, path in paths.items() if name in wanted}
    tokenizer = run_tokenizer(config, used)
    sources = {
        name: cut_source(
            name, path, tokenizer, every=config.held_out_every, cache=config.out / "tokens"
        )
        for name, path in used.items()
    }
    run = Run(config, tokenizer, sources)
    if resume:
        run.load()
    elif (config.out / "checkpoint.pt").exists():
        raise TrainConfigError(
            f"{config.out / 'checkpoint.pt'} exists: resume it, or choose another folder"
        )
    console = console or Console()
    with Reporter(console, every=config.log_steps) as reporter, _stop_signals() as stopped:
        return _Loop(run, reporter).until(stopped)


class _Loop:
    """The steps of one sitting, with what is shown, logged and saved between them."""

    def __init__(self, run: Run, reporter: Reporter) -> None:
        self.run = run
        self.reporter = reporter
        self.log = RunLog(run.config.out / "log.csv", run.measures.columns, after_step=run.step)
        self.measure_at = run.elapsed + 60 * run.config.eval_minutes
        self.save_at = run.elapsed + 60 * run.config.checkpoint_minutes
        self.start = time.monotonic() - run.elapsed
        self.speed = 0.0
        self.counted = (time.monotonic(), run.tokens)

    def until(self, stopped: threading.Event) -> Outcome:
        """Step until the run is over or `stopped` is set; then everything is written."""
        run = self.run
        self.reporter.say(
            f"{sum(p.numel() for p in run.model.parameters()):,} parameters on {run.device}, "
            f"{'bfloat16' if run.bfloat16 else 'float32'}, "
            f"{run.config.tokens_per_step:,} tokens a step, from step {run.step}"
        )
        while run.progress() < 1 and not stopped.is_set():
            loss, norm, scale = run.train_step()
            run.elapsed = time.monotonic() - self.start
            self._count()
            self.reporter.step(
                run.step, run.progress(), loss, self.speed, run.seconds_left(self.speed)
            )
            self._record({"loss": loss, "lr_scale": scale, "grad_norm": norm})
            if run.elapsed >= self.save_at:
                self.save_at = run.elapsed + 60 * run.config.checkpoint_minutes
                self._save()
                self.reporter.say(f"step {run.step}: saved {run.checkpoint}")
        self._save()
        done = run.progress() >= 1
        self.reporter.say(
            f"{'done' if done else 'interrupted'} after step {run.step}, {run.tokens:,} tokens, "
            f"{clock(run.elapsed)}; weights in {run.config.out / 'native'}"
        )
        return Outcome("done" if done else "interrupted", run.step, run.tokens, run.last_loss)

    def _count(self) -> None:
        """The speed over the last five seconds or more, so that single steps do not shake it."""
        since, tokens = self.counted
        now = time.monotonic()
        if now - since >= 5 or not self.speed:
            self.speed = (self.run.tokens - tokens) / (now - since)
            self.counted = (now, self.run.tokens)

    def _record(self, step: dict[str, float]) -> None:
        """Write the log's line of this step when one is due, with measures when those are."""
        run, config = self.run, self.run.config
        over = run.progress() >= 1
        if config.eval_steps is not None:
            measure = over or run.step % config.eval_steps == 0
        else:
            measure = over or run.elapsed >= self.measure_at
        if not (measure or run.step % config.log_steps == 0):
            return
        row: dict[str, Any] = {
            "step": run.step,
            "tokens": run.tokens,
            "seconds": run.elapsed,
            "progress": run.progress(),
            "tokens_per_second": self.speed,
            **step,
        }
        if measure:
            self.measure_at = run.elapsed + 60 * config.eval_minutes
            taken = run.measures.take()
            row |= taken
            self.reporter.say(f"step {run.step}: {describe(taken)}")
            # Measuring is no training time for the speed shown.
            self.counted = (time.monotonic(), run.tokens)
        self.log.write(row)

    def _save(self) -> None:
        self.run.save()
        draw_curve(self.log.path, self.run.config.out / "curve.png")


def describe(taken: dict[str, Any]) -> str:
    """Measures in one line."""
    return "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                     for k, v in taken.items())  # fmt: skip


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set while inside; a second signal acts as usual."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
