"""Opening a model by name: the embedded demo, a preset, or a checkpoint of a known format.

Knows nothing of HTTP. Every failure is a CheckpointError whose message a person can act on.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model.checkpoints import native
from model.checkpoints.native import CheckpointError
from model.config import GPTConfig
from model.gpt import GPT
from model.presets import PRESETS
from model.tokenizer import Tokenizer, TokenizerError

DEMO = Path(__file__).parent.parent / "weights" / "demo"


@dataclass(frozen=True)
class OpenedModel:
    """A model ready to run, and what is known of where it comes from.

    `weights_sha256` is the file's; for several files it is the sha256 of their hashes, one hex
    digest a line in the order of the file names; for random weights that of the float32 bytes
    that were drawn, in the order of the parameters. `notes` are sentences that a person should
    read before trusting the numbers.
    """

    model: GPT
    tokenizer: Tokenizer | None
    id: str
    weights_sha256: str
    trained: bool
    source: str
    format: str
    notes: tuple[str, ...] = ()


def open_model(
    name: str, *, device: torch.device, dtype: torch.dtype, revision: str | None = None
) -> OpenedModel:
    """Open `demo`, `preset:NAME`, or a native folder, onto the device in the dtype.

    Raises CheckpointError, and nothing is left half loaded.
    """
    if name == "demo":
        return _open_native(DEMO, "demo", device=device, dtype=dtype)
    if name.startswith("preset:"):
        return _open_preset(name, device=device, dtype=dtype)
    path = Path(name).expanduser()
    if path.is_dir() and native.is_native(path):
        return _open_native(path, path.resolve().name, device=device, dtype=dtype)
    raise CheckpointError(f"{name}: {_why_not(path)}; a model is 'demo', 'preset:NAME' or a folder")


def _why_not(path: Path) -> str:
    return "not a checkpoint of a known format" if path.exists() else "no such file or folder"


def _open_native(
    folder: Path, id_: str, *, device: torch.device, dtype: torch.dtype
) -> OpenedModel:
    try:
        model, tokenizer, description = native.load(folder, device=device, dtype=dtype)
    except TokenizerError as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'}: {error}") from error
    about: dict[str, Any] = description.get("about") or {}
    return OpenedModel(
        model=model,
        tokenizer=tokenizer,
        id=id_,
        weights_sha256=description["weights_sha256"],
        trained=bool(about.get("trained", True)),
        source=str(about.get("source", id_)),
        format=native.FORMAT,
        notes=vocabulary_notes(tokenizer, model.config),
    )


def _open_preset(name: str, *, device: torch.device, dtype: torch.dtype) -> OpenedModel:
    """Random weights: the same draw on every device, made on the CPU in float32."""
    config = PRESETS.get(name.removeprefix("preset:"))
    if config is None:
        raise CheckpointError(f"there is no {name!r}; presets are {', '.join(PRESETS)}")
    require_memory(config, name)
    model = GPT(config).eval().requires_grad_(False)
    weights_sha256 = hash_weights(model)
    tokenizer = _demo_tokenizer()
    notes = ["the weights are random: nothing was learned"]
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        notes.append(
            f"no tokenizer: the demo's {tokenizer.vocab_size} tokens do not fit in "
            f"{config.vocab_size}"
        )
        tokenizer = None
    elif tokenizer is not None:
        notes.append("the tokenizer is the demo model's")
    return OpenedModel(
        model=model.to(device=device, dtype=dtype),
        tokenizer=tokenizer,
        id=name,
        weights_sha256=weights_sha256,
        trained=False,
        source="random weights, seed 0",
        format="preset",
        notes=tuple(notes),
    )


def _demo_tokenizer() -> Tokenizer | None:
    file = DEMO / "tokenizer.json"
    return Tokenizer.from_file(file) if file.exists() else None


def require_memory(config: GPTConfig, source: str) -> None:
    """Raises CheckpointError where float32 weights of this config exceed the machine's memory."""
    with torch.device("meta"):
        count = sum(weight.numel() for weight in GPT(config).parameters())
    memory = physical_memory()
    if 4 * count > memory:
        raise CheckpointError(
            f"{source}: {count:,} weights take {4 * count / 2**30:,.0f} GiB in float32; "
            f"this machine has {memory / 2**30:,.0f} GiB"
        )


def physical_memory() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def hash_weights(model: GPT) -> str:
    """sha256 of every parameter's bytes, in order; tied weights once."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def vocabulary_notes(tokenizer: Tokenizer | None, config: GPTConfig) -> tuple[str, ...]:
    """What to know where the tokenizer and the rows of the embedding do not match."""
    if tokenizer is None:
        return ("no tokenizer was found: this model takes token ids, not text",)
    if tokenizer.vocab_size > config.vocab_size:
        return (
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, the embedding only "
            f"{config.vocab_size} rows: ids from {config.vocab_size} on cannot be run",
        )
    return ()
