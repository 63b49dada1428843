"""golden.json of a native folder: float64 numbers of one input, bound to the weights they are of.

Knows nothing of how they are made or what is compared with them; `model.parity` does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.checkpoints.contents import CheckpointError
from model.checkpoints.settings import read_json
from model.config import GPTConfig

FILE = "golden.json"
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Golden:
    """For the T token ids: the last row of the logits (V,), and by (layer, head) that of the
    pattern (T,). `made_with` says what computed them."""

    weights_sha256: str
    made_with: str
    ids: Sequence[int]
    logits: Array
    patterns: Mapping[tuple[int, int], Array]


def write_golden(folder: Path, golden: Golden) -> Path:
    """Write the file atomically, numbers to the last bit. Raises ValueError for NaN or ∞."""
    values = {
        "weights_sha256": golden.weights_sha256,
        "made_with": golden.made_with,
        "ids": list(golden.ids),
        "logits_last_row": golden.logits.tolist(),
        "patterns": {
            f"{layer}.{head}": row.tolist() for (layer, head), row in golden.patterns.items()
        },
    }
    part = folder / f".{FILE}.part"
    part.write_text(json.dumps(values, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, folder / FILE)
    return folder / FILE


def read_golden(file: Path, config: GPTConfig, weights_sha256: str) -> Golden:
    """Raises CheckpointError where the file is damaged, does not fit the config, or is of other
    weights. The message names the file without its folder."""
    try:
        values = read_json(file)
        golden = Golden(
            weights_sha256=values["weights_sha256"],
            made_with=str(values["made_with"]),
            ids=[int(token_id) for token_id in values["ids"]],
            logits=np.array(values["logits_last_row"], np.float64),
            patterns={
                _place(key): np.array(row, np.float64) for key, row in values["patterns"].items()
            },
        )
    except CheckpointError as error:
        raise CheckpointError(str(error).removeprefix(f"{file.parent}{os.sep}")) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{file.name} is damaged: {error!r}") from error
    if golden.weights_sha256 != weights_sha256:
        raise CheckpointError(
            f"{file.name} is of weights with the sha256 {golden.weights_sha256}; "
            f"these have {weights_sha256}"
        )
    if not _fits(golden, config):
        raise CheckpointError(f"{file.name} does not fit the model's config")
    return golden


def is_of(file: Path, weights_sha256: str) -> bool:
    """Whether there is such a file and it names these weights."""
    try:
        return bool(read_json(file).get("weights_sha256") == weights_sha256)
    except CheckpointError:
        return False


def _place(key: str) -> tuple[int, int]:
    layer, head = key.split(".")
    return int(layer), int(head)


def _fits(golden: Golden, config: GPTConfig) -> bool:
    numbers = [golden.logits, *golden.patterns.values()]
    return (
        1 <= len(golden.ids) <= config.n_ctx
        and all(0 <= token_id < config.vocab_size for token_id in golden.ids)
        and golden.logits.shape == (config.vocab_size,)
        and len(golden.patterns) > 0
        and all(0 <= layer < config.n_layer for layer, _ in golden.patterns)
        and all(0 <= head < config.n_head for _, head in golden.patterns)
        and all(row.shape == (len(golden.ids),) for row in golden.patterns.values())
        and all(bool(np.isfinite(each).all()) for each in numbers)
    )
