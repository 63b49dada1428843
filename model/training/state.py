"""What a checkpoint of a run holds, written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from model.training.config import TrainConfigError

if TYPE_CHECKING:
    from model.training.run import Run


def save_state(path: Path, run: Run) -> None:
    """Write everything that the next step depends on; a cut-off leaves the old file."""
    state = {
        "model_config": asdict(run.config.model),
        "seed": run.config.seed,
        "model": run.model.state_dict(),
        "optimizers": run.optimizers.state_dict(),
        "sampler": run.sampler.state_dict(),
        "rng": torch.get_rng_state(),
        "step": run.step,
        "tokens": run.tokens,
        "elapsed": run.elapsed,
        "last_loss": run.last_loss,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_state(path: Path, run: Run) -> None:
    """Put a saved state into a run of the same model and seed.

    The weights of the sources, the length and the learning rates may be others than before.
    Raises TrainConfigError when there is no such file or it is of another model.
    """
    if not path.exists():
        raise TrainConfigError(f"{path} does not exist: there is nothing to resume")
    state = torch.load(path, map_location=run.device, weights_only=True)
    mine = asdict(run.config.model)
    saved = state["model_config"]
    if other := [key for key in mine if mine[key] != saved.get(key)]:
        differs = ", ".join(f"{key} {saved.get(key)} there, {mine[key]} here" for key in other)
        raise TrainConfigError(f"{path} is of another model: {differs}")
    if state["seed"] != run.config.seed:
        raise TrainConfigError(
            f"{path} was started with seed {state['seed']}, not {run.config.seed}"
        )
    run.model.load_state_dict(state["model"])
    run.optimizers.load_state_dict(state["optimizers"])
    run.sampler.load_state_dict(state["sampler"])
    torch.set_rng_state(state["rng"].cpu())
    run.step, run.tokens = state["step"], state["tokens"]
    run.elapsed, run.last_loss = state["elapsed"], state["last_loss"]
