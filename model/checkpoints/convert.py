"""From any checkpoint that can be opened to a native folder, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.checkpoints import native
from model.checkpoints.assemble import Progress, skeleton, tensor_shapes
from model.checkpoints.contents import CheckpointError, Contents
from model.checkpoints.open import describe


def convert(
    name: str,
    folder: Path,
    *,
    dtype: torch.dtype,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Contents:
    """Write what `name` opens to into the native folder, in `dtype`; give what was read.

    The folder appears whole or not at all, and its config.json says where the weights come from
    and what the sha256 of the original is. Raises CheckpointError, also where the folder is there
    already and holds something else than a checkpoint.
    """
    if folder.exists() and not native.is_native(folder) and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder} is there and holds no native checkpoint; nothing was written"
        )
    contents = describe(name, revision=revision)
    about: dict[str, Any] = {
        "source": contents.source,
        "source_format": contents.format,
        "source_sha256": contents.weights_sha256,
        "trained": contents.trained,
        "notes": list(contents.notes),
    }
    native.write(
        folder,
        contents.config,
        _counted(contents, progress),
        contents.tokenizer,
        dtype=dtype,
        about=about,
    )
    return contents


def _counted(contents: Contents, progress: Progress | None) -> Iterator[tuple[str, Tensor]]:
    total = sum(shape.numel() for shape in tensor_shapes(skeleton(contents.config)).values())
    done = 0
    for name, tensor in contents.tensors():
        yield name, tensor
        done += tensor.numel()
        if progress is not None:
            progress(done, total)
