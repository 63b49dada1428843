"""Hugging Face checkpoints: a folder with config, weights and tokenizer, or a name on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model.checkpoints.contents import (
    CheckpointError,
    Contents,
    Stored,
    check_layers,
    drop_tied_head,
    matched,
)
from model.checkpoints.families import ARCHITECTURE_OF, BARE, FAMILIES, Family
from model.checkpoints.safetensors_files import read_safetensors
from model.checkpoints.settings import Settings, read_config, read_json
from model.checkpoints.tokenizer_files import tokenizer_in
from model.checkpoints.torch_files import read_torch

HUB_NAME = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w.-]+(/[\w.-]+)*))?"
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WANTED_FILES = ["*.json", "model*.safetensors", "merges.txt", "vocab.txt", "*.model"]


def is_huggingface(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def describe(folder: Path, id_: str, source: str) -> Contents:
    """What the folder holds, nothing read yet but its headers.

    Raises CheckpointError for an architecture, a config key or a tensor that has no place here.
    """
    values = read_json(folder / "config.json")
    family = family_of(values, folder / "config.json")
    config = read_config(Settings(values, folder / "config.json"), family.config)
    files, found = _weights(folder)
    found = _full_names(found, family)
    if config.tied:
        drop_tied_head(folder, found, family.head, family.embedding)
    check_layers(folder, config, found)
    wanted = family.wanted(config)
    return Contents(
        id=id_,
        source=source,
        format=f"huggingface {family.name}",
        config=config,
        tensors=matched(folder, wanted, found),
        tokenizer=tokenizer_in(folder),
        files=files,
    )


def family_of(values: dict[str, Any], source: Path) -> Family:
    """Raises CheckpointError that names the architecture and those that can be opened."""
    named = values.get("architectures")
    if not named:
        named = [ARCHITECTURE_OF.get(str(values.get("model_type")))]
    architecture = str(named[0]) if isinstance(named, list) and len(named) == 1 else str(named)
    architecture = BARE.get(architecture, architecture)
    if architecture not in FAMILIES:
        given = architecture if values.get("architectures") else values.get("model_type")
        raise CheckpointError(
            f"{source}: architecture {given!r} is not supported; these are: {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def download(name: str, revision: str | None) -> tuple[Path, str]:
    """The folder in the hub's cache, and name@commit; nothing is fetched where it is cached.

    HF_HUB_OFFLINE=1 keeps to the cache. Raises CheckpointError.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"{name}: names on the hub need the package huggingface_hub"
        ) from error
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=WANTED_FILES))
        if not list(folder.glob("*.safetensors")):
            older = ["pytorch_model*.bin"]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=older))
    except Exception as error:  # the hub's own errors, its HTTP library's, the system's
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{name} could not be had from the hub: {reason[0]}") from error
    return folder, f"{name}@{folder.name}"


def _weights(folder: Path) -> tuple[list[Path], dict[str, Stored]]:
    """The weight files and every tensor in them; shards as their index lists them."""
    for whole, read in zip(WEIGHT_FILES, (read_safetensors, read_torch), strict=True):
        if (folder / whole).is_file():
            return [folder / whole], read(folder / whole)
        index = folder / f"{whole}.index.json"
        if index.is_file():
            shards = _shards(index)
            found: dict[str, Stored] = {}
            for shard in shards:
                for name, stored in read(shard).items():
                    if name in found:
                        raise CheckpointError(f"{folder}: {name} is in two shards")
                    found[name] = stored
            return shards, found
    raise CheckpointError(
        f"{folder}: no model.safetensors, pytorch_model.bin or index of shards is there"
    )


def _shards(index: Path) -> list[Path]:
    """The files of an index, in order. Raises CheckpointError for one outside the folder."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(f"{index}: weight_map is missing")
    names = sorted({str(name) for name in where.values()})
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise CheckpointError(f"{index}: shard {name!r} is not a file beside it")
    return [index.parent / name for name in names]


def _full_names(found: dict[str, Stored], family: Family) -> dict[str, Stored]:
    """Tensors by the family's full names, tables that a run makes anew left out.

    A checkpoint of the bare model leaves the prefix off; newer ones spell every head lm_head.
    """
    bare = not any(name.startswith(family.prefix) for name in found)
    full: dict[str, Stored] = {}
    for name, stored in found.items():
        if name in ("lm_head.weight", family.head):
            full[family.head] = stored
        elif not name.endswith(family.buffers):
            full[family.prefix + name if bare else name] = stored
    return full
