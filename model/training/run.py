"""One model in training: a step, and what a checkpoint holds of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints import native
from model.gpt import GPT
from model.tokenizer import Tokenizer
from model.training.batches import NO_TARGET, Sampler
from model.training.config import TrainConfig
from model.training.corpus import CorpusError
from model.training.measures import Measures
from model.training.optimizer import Optimizers, scale_at
from model.training.state import load_state, save_state
from model.training.tokens import TokenSource, end_of_text


class DivergedError(ValueError):
    """The loss or the gradient is no longer a number; the message says where to go on from."""


class Run:
    """A model, its optimizers and its place in the corpus; `elapsed` is seconds of training."""

    def __init__(
        self, config: TrainConfig, tokenizer: Tokenizer, sources: dict[str, TokenSource]
    ) -> None:
        if not sources and not config.weights:
            raise CorpusError("there is nothing to train on: no folder and no generated source")
        self.config = config
        self.tokenizer = tokenizer
        self.device = choose_device(config.device)
        self.model = GPT(config.model, seed=config.seed).to(self.device)
        self.optimizers = Optimizers(self.model, config)
        self.sampler = Sampler(sources, config.weights, tokenizer, seed=config.seed)
        self.step = self.tokens = 0
        self.elapsed = 0.0
        self.last_loss = math.nan
        self.bfloat16 = config.precision == "bfloat16" or (
            config.precision == "auto" and has_bfloat16(self.device)
        )
        self._sum_loss: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self._eager_sum_loss, dynamic=False)
            if config.compile
            else self._eager_sum_loss
        )
        self.measures = Measures(
            self.model, tokenizer, sources, self.autocast,
            separator=end_of_text(tokenizer), max_tokens=config.eval_tokens,
            pairs=config.eval_pairs,
        )  # fmt: skip

    @property
    def checkpoint(self) -> Path:
        """Where this run's state is kept."""
        return self.config.out / "checkpoint.pt"

    def autocast(self) -> torch.autocast:
        """A new context that computes in bfloat16 where this run does."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16)

    def progress(self) -> float:
        """The fraction of the run that is done, by steps or by time, whichever is further."""
        done = [0.0]
        if self.config.steps is not None:
            done.append(self.step / self.config.steps)
        if self.config.minutes is not None:
            done.append(self.elapsed / (60 * self.config.minutes))
        return min(1.0, max(done))

    def train_step(self) -> tuple[float, float, float]:
        """One optimizer step; returns loss (nats a token), gradient norm, learning-rate factor.

        Raises DivergedError before anything is changed by a loss or gradient that is not finite.
        """
        config = self.config
        progress = self.progress()
        scale = scale_at(self.step, progress, warmup_steps=config.warmup_steps, decay=config.decay)
        rows, length = config.shape_at(progress)
        ids, targets = self.sampler.rows(rows * config.accumulate, length, progress)
        counted = max(1, int((targets != NO_TARGET).sum()))
        total = torch.zeros((), device=self.device)
        for first in range(0, len(ids), rows):
            part = slice(first, first + rows)
            loss = self._sum_loss(self._to_device(ids[part]), self._to_device(targets[part]))
            (loss / counted).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        mean = float(total) / counted
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip))
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise DivergedError(
                f"step {self.step + 1}: loss {mean}, gradient norm {norm}; "
                + (
                    f"the last good checkpoint is {self.checkpoint}"
                    if self.checkpoint.exists()
                    else "no checkpoint was written yet"
                )
            )
        self.optimizers.set_scale(scale)
        self.optimizers.step()
        self.step += 1
        self.tokens += ids.size
        self.last_loss = mean
        return mean, norm, scale

    def save(self) -> None:
        """Write checkpoint.pt and the native folder, each atomically."""
        save_state(self.checkpoint, self)
        about = {"steps": self.step, "tokens": self.tokens}
        native.save(self.config.out / "native", self.model, self.tokenizer, about=about)

    def load(self) -> None:
        """Go on from checkpoint.pt; raises TrainConfigError when it is of another model."""
        load_state(self.checkpoint, self)

    def seconds_left(self, tokens_per_second: float) -> float:
        """The time to go at this speed, by steps or by the clock, whichever ends first."""
        left = []
        if self.config.steps is not None and tokens_per_second:
            steps = self.config.steps - self.step
            left.append(steps * self.config.tokens_per_step / tokens_per_second)
        if self.config.minutes is not None:
            left.append(60 * self.config.minutes - self.elapsed)
        return min(left, default=0.0)

    def _eager_sum_loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            logits = self.model(ids)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NO_TARGET,
            reduction="sum",
        )  # fmt: skip

    def _to_device(self, rows: npt.NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(rows)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are fast here: by the processor's own instructions."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())
