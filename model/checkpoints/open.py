"""Opening a model by name: the embedded demo, a preset, or a checkpoint of a known format.

Knows nothing of HTTP. Every failure is a CheckpointError whose message a person can act on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from model.checkpoints import gguf, huggingface, llama2c, nanogpt, native
from model.checkpoints.assemble import (
    Progress,
    assemble,
    require_memory,
    skeleton,
    tensor_shapes,
)
from model.checkpoints.contents import CheckpointError, Contents
from model.config import GPTConfig
from model.gpt import GPT
from model.presets import PRESETS
from model.tokenizer import Tokenizer

DEMO = Path(__file__).parent.parent / "weights" / "demo"


@dataclass(frozen=True)
class OpenedModel:
    """A model ready to run, and what is known of where it comes from.

    `weights_sha256` is the file's; for several files it is the sha256 of their hashes, one hex
    digest a line in the order of the file names; for random weights that of the float32 bytes
    that were drawn, in the order of the parameters. `notes` are sentences that a person should
    read before trusting the numbers. `golden` is the checkpoint's file of float64 numbers, if it
    has one; whether it is of these weights shows when it is read.
    """

    model: GPT
    tokenizer: Tokenizer | None
    id: str
    weights_sha256: str
    trained: bool
    source: str
    format: str
    notes: tuple[str, ...] = ()
    golden: Path | None = None


def open_model(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    revision: str | None = None,
    progress: Progress | None = None,
) -> OpenedModel:
    """Open a model onto the device in the dtype.

    `name` is `demo`, `preset:NAME`, a folder (native or Hugging Face), a file, or `org/name` on
    the hub where no such path exists; the hub's revision stands in `revision`, or in the name as
    `org/name@revision`. `progress` is told the weights placed so far and all there are. Raises
    CheckpointError, and nothing is left half loaded.
    """
    if name.startswith("preset:"):
        return _open_preset(name, device=device, dtype=dtype)
    contents = describe(name, revision=revision)
    return OpenedModel(
        model=assemble(contents, device=device, dtype=dtype, progress=progress),
        tokenizer=contents.tokenizer,
        id=contents.id,
        weights_sha256=contents.weights_sha256,
        trained=contents.trained,
        source=contents.source,
        format=contents.format,
        notes=contents.notes + vocabulary_notes(contents.tokenizer, contents.config),
        golden=contents.golden,
    )


def describe(name: str, *, revision: str | None = None) -> Contents:
    """What a name stands for, no weight read. Raises CheckpointError.

    What is local is called by its last name alone: where it lies is nobody else's business.
    """
    if name == "demo":
        return native.describe(DEMO, "demo")
    path = Path(name).expanduser()
    own = path.resolve().name
    if not name:
        raise CheckpointError("no name was given")
    if path.is_dir():
        if native.is_native(path):
            return native.describe(path, own)
        if huggingface.is_huggingface(path):
            return huggingface.describe(path, own, own)
        raise CheckpointError(f"{name}: a folder without config.json is no checkpoint")
    if path.is_file():
        return _describe_file(path)
    if hub := huggingface.HUB_NAME.fullmatch(name):
        if revision is not None and hub["revision"] is not None:
            raise CheckpointError(f"{name}: the revision is in the name, and {revision!r} is given")
        folder, at = huggingface.download(hub["name"], revision or hub["revision"])
        return huggingface.describe(folder, hub["name"], at)
    raise CheckpointError(
        f"{name}: no such file or folder; a model is 'demo', 'preset:NAME', a folder or file, or "
        "'org/name' on the hub, 'org/name@revision' at one of its commits"
    )


def _describe_file(file: Path) -> Contents:
    """A single file is known by its first bytes; llama2.c's first version has none of its own."""
    if file.name in huggingface.WEIGHT_FILES and huggingface.is_huggingface(file.parent):
        return describe(str(file.parent))
    with open(file, "rb") as stream:
        head = stream.read(4)
    if head == b"GGUF":
        return gguf.describe(file, file.stem, file.name)
    if head[:2] == b"PK" or head[:1] == b"\x80":
        return nanogpt.describe(file, file.stem, file.name)
    if head == llama2c.MAGIC or file.suffix == ".bin":
        return llama2c.describe(file, file.stem, file.name)
    raise CheckpointError(
        f"{file}: not a file of a known format: GGUF, nanoGPT's and minGPT's .pt, llama2.c's .bin"
    )


def _open_preset(name: str, *, device: torch.device, dtype: torch.dtype) -> OpenedModel:
    """Random weights: the same draw on every device, made on the CPU in float32."""
    config = PRESETS.get(name.removeprefix("preset:"))
    if config is None:
        raise CheckpointError(f"there is no {name!r}; presets are {', '.join(PRESETS)}")
    count = sum(shape.numel() for shape in tensor_shapes(skeleton(config)).values())
    require_memory(name, count, torch.device("cpu"), torch.float32)
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
