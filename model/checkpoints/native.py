"""The native checkpoint: a folder with model.safetensors, config.json and tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from model.config import ConfigError, GPTConfig
from model.gpt import GPT
from model.tokenizer import Tokenizer

FORMAT = "fluoroscope-1"


class CheckpointError(ValueError):
    """A checkpoint that cannot be opened; the message names the file, key or tensor."""


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
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        weights = {
            name: weight.detach().to(device="cpu", dtype=dtype).contiguous()
            for name, weight in model.state_dict().items()
            if not (model.config.tied and name == "unembed.weight")
        }
        save_file(weights, part / "model.safetensors", metadata={"format": FORMAT})
        if tokenizer is not None:
            (part / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        description = {
            "format": FORMAT,
            "config": model.config.to_dict(),
            "weights_sha256": sha256(part / "model.safetensors"),
            "about": about or {},
        }
        (part / "config.json").write_text(
            json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        for kept in ("card.md", "golden.json"):
            if (folder / kept).exists():
                shutil.copy2(folder / kept, part / kept)
        part.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            os.replace(folder, old / folder.name)
            os.replace(part, folder)
            shutil.rmtree(old)
        else:
            os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_native(folder: Path) -> bool:
    """Whether the folder's config.json says that it is one of ours."""
    try:
        return bool(_read_json(folder / "config.json").get("format") == FORMAT)
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
    description = _read_json(folder / "config.json")
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder / 'config.json'}: format is {description.get('format')!r}, not {FORMAT!r}"
        )
    try:
        config = GPTConfig.from_dict(description["config"])
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    file = folder / "model.safetensors"
    found = sha256(file)
    if found != description.get("weights_sha256"):
        raise CheckpointError(
            f"{file}: its sha256 is {found}, config.json says {description.get('weights_sha256')}"
        )
    with torch.device("meta"):
        model = GPT(config)
    weights = _read_weights(file, model, device=device, dtype=dtype)
    model.load_state_dict(weights, assign=True, strict=False)
    if config.tied:
        model.unembed.weight = model.embed.weight
    tokenizer_file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(tokenizer_file) if tokenizer_file.exists() else None
    return model.eval().requires_grad_(False), tokenizer, description


def _read_weights(
    file: Path, model: GPT, *, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if model.config.tied:
        del wanted["unembed.weight"]
    try:
        with safe_open(file, framework="pt") as tensors:
            names = set(tensors.keys())
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
            check_tensors(file, wanted, shapes)
            return {
                name: tensors.get_tensor(name).to(device=device, dtype=dtype) for name in wanted
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: {error}") from error


def check_tensors(
    source: Path | str, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> None:
    """Raises CheckpointError that lists every missing, extra and misshapen tensor."""
    faults = [f"{name} is missing" for name in sorted(set(wanted) - set(found))]
    faults += [f"{name} is not part of this model" for name in sorted(set(found) - set(wanted))]
    faults += [
        f"{name} has shape {list(found[name])}, the config asks for {list(wanted[name])}"
        for name in sorted(set(wanted) & set(found))
        if found[name] != wanted[name]
    ]
    if faults:
        raise CheckpointError(f"{source}: " + "; ".join(faults))


def sha256(file: Path) -> str:
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds {type(value).__name__}, not an object")
    return value
