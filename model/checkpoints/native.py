"""The native checkpoint: a folder with model.safetensors, config.json and tokenizer.json."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from model.checkpoints import golden
from model.checkpoints.assemble import assemble, skeleton, tensor_shapes
from model.checkpoints.contents import CheckpointError as CheckpointError
from model.checkpoints.contents import (
    Contents,
    Wanted,
    check_layers,
    hash_files,
    matched,
    unchanged,
)
from model.checkpoints.safetensors_files import read_safetensors, write_safetensors
from model.checkpoints.settings import read_json
from model.config import ConfigError, GPTConfig
from model.gpt import GPT
from model.tokenizer import Tokenizer

FORMAT = "fluoroscope-1"


def save(
    folder: Path,
    model: GPT,
    tokenizer: Tokenizer | None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    about: dict[str, Any] | None = None,
) -> None:
    """Write the folder atomically: a cut-off leaves the old one or the new one.

    `about` is kept in config.json beside the config: where the weights come from.
    """
    state = model.state_dict()
    names = tensor_shapes(model)
    write(
        Path(folder),
        model.config,
        ((name, state[name]) for name in names),
        tokenizer,
        dtype=dtype,
        about=about or {},
        keep=("card.md",),
    )


def write(
    folder: Path,
    config: GPTConfig,
    tensors: Iterable[tuple[str, Tensor]],
    tokenizer: Tokenizer | None,
    *,
    dtype: torch.dtype,
    about: dict[str, Any],
    keep: Sequence[str] = (),
) -> None:
    """The same from tensors that come one at a time, every one of the model's, tied ones once.

    `keep` names files of an older folder that go on into the new one; its golden.json does where
    the weights are the same to the bit.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        weights = part / "model.safetensors"
        write_safetensors(weights, tensor_shapes(skeleton(config)), tensors, dtype, FORMAT)
        if tokenizer is not None:
            (part / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        description: dict[str, Any] = {
            "format": FORMAT,
            "config": config.to_dict(),
            "weights_sha256": hash_files([weights]),
            "about": about,
            "tokenizer": _policy(tokenizer),
        }
        (part / "config.json").write_text(
            json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        same = golden.is_of(folder / golden.FILE, description["weights_sha256"])
        for kept in (*keep, golden.FILE) if same else keep:
            if (folder / kept).exists():
                shutil.copy2(folder / kept, part / kept)
        part.chmod(0o755)
        _put_in_place(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put_in_place(part: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(part, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    os.replace(folder, old / folder.name)
    os.replace(part, folder)
    shutil.rmtree(old)


def is_native(folder: Path) -> bool:
    """Whether the folder's config.json says that it is one of ours."""
    try:
        return bool(read_json(folder / "config.json").get("format") == FORMAT)
    except CheckpointError:
        return False


def load(
    folder: Path, *, device: torch.device, dtype: torch.dtype
) -> tuple[GPT, Tokenizer | None, dict[str, Any]]:
    """The model in `dtype` on `device`, its tokenizer if it has one, and the description.

    Raises CheckpointError where a file is missing or damaged, the hash does not match, or the
    tensors are not exactly those that the config asks for.
    """
    folder = Path(folder)
    contents = describe(folder, folder.name)
    description = read_json(folder / "config.json")
    return assemble(contents, device=device, dtype=dtype), contents.tokenizer, description


def describe(folder: Path, id_: str) -> Contents:
    """What the folder holds, its hash checked, no weight read."""
    description = read_json(folder / "config.json")
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder / 'config.json'}: format is {description.get('format')!r}, not {FORMAT!r}"
        )
    try:
        config = GPTConfig.from_dict(description["config"])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    file = folder / "model.safetensors"
    sha256 = hash_files([file])
    if sha256 != description.get("weights_sha256"):
        raise CheckpointError(
            f"{file}: its sha256 is {sha256}, config.json says {description.get('weights_sha256')}"
        )
    found = read_safetensors(file)
    check_layers(file, config, found)
    wanted = {
        name: Wanted(tuple(shape), {name: unchanged})
        for name, shape in tensor_shapes(skeleton(config)).items()
    }
    about = description.get("about") or {}
    return Contents(
        id=id_,
        source=str(about.get("source", id_)),
        format=FORMAT,
        config=config,
        tensors=matched(file, wanted, found),
        tokenizer=_tokenizer(folder / "tokenizer.json", description.get("tokenizer") or {}),
        files=[file],
        sha256=sha256,
        trained=bool(about.get("trained", True)),
        golden=folder / golden.FILE if (folder / golden.FILE).is_file() else None,
    )


def _policy(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What a tokenizer.json has no place for: which tokens begin and end a text, and whether."""
    if tokenizer is None:
        return {}
    names = ("bos_id", "eos_id", "adds_bos")
    return {name: getattr(tokenizer, name) for name in names}


def _tokenizer(file: Path, policy: dict[str, Any]) -> Tokenizer | None:
    if not file.exists():
        return None
    try:
        inner = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        return Tokenizer(inner, **policy)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: {error}") from error
