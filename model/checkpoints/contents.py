"""What every checkpoint format comes down to: a config, and named tensors read one at a time.

A format knows its files; it hands over Contents, and `model.checkpoints.assemble` makes the model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model.config import GPTConfig
from model.tokenizer import Tokenizer

Shape = tuple[int, ...]
Change = Callable[[Tensor], Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be opened; the message names the file, key or tensor."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not read yet: `read` brings it into memory, whole."""

    shape: Shape
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Wanted:
    """A tensor that a format must hold, and which of ours come of it, by what change."""

    shape: Shape
    ours: Mapping[str, Change]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """An opened checkpoint before its weights are read.

    `id` is what to call the model, `source` where it comes from. `tensors()` yields (our name,
    tensor) for every tensor of the model, tied ones once; each may be dropped before the next is
    read. `files` are those whose bytes are the weights. `notes` are sentences that a person should
    read before trusting the numbers. `golden` is a file of float64 numbers to hold the model
    against, where there is one.
    """

    id: str
    source: str
    format: str
    config: GPTConfig
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    tokenizer: Tokenizer | None
    files: Sequence[Path]
    sha256: str | None = None
    trained: bool = True
    notes: tuple[str, ...] = ()
    golden: Path | None = None

    @property
    def weights_sha256(self) -> str:
        """Of the files' bytes: taken now, unless opening had to take it already."""
        return self.sha256 or hash_files(self.files)


def unchanged(tensor: Tensor) -> Tensor:
    return tensor


def transposed(tensor: Tensor) -> Tensor:
    return tensor.T


def matched(
    source: Path | str, wanted: Mapping[str, Wanted], found: Mapping[str, Stored]
) -> Callable[[], Iterator[tuple[str, Tensor]]]:
    """The reader of `Contents.tensors`, once all that is wanted is found and nothing else.

    Raises CheckpointError that lists every missing, extra and misshapen tensor.
    """
    check_tensors(
        source,
        {name: want.shape for name, want in wanted.items()},
        {name: stored.shape for name, stored in found.items()},
    )

    def tensors() -> Iterator[tuple[str, Tensor]]:
        # The largest first: what is read beside its place has the room that the others will take.
        for name, want in sorted(wanted.items(), key=lambda each: -math.prod(each[1].shape)):
            tensor = found[name].read()
            if not tensor.is_floating_point():
                raise CheckpointError(f"{source}: {name} is {tensor.dtype}, not floating point")
            for ours, change in want.ours.items():
                yield ours, change(tensor)

    return tensors


def check_tensors(
    source: Path | str, wanted: Mapping[str, Shape], found: Mapping[str, Shape]
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


def check_layers(source: Path | str, config: GPTConfig, found: Mapping[str, Stored]) -> None:
    """Raises CheckpointError where a config asks for more layers than there are tensors.

    Such a config would be believed layer by layer, in memory, before a missing tensor shows.
    """
    if config.n_layer > len(found):
        raise CheckpointError(
            f"{source}: the config asks for {config.n_layer} layers, "
            f"but there are only {len(found)} tensors"
        )


def drop_tied_head(source: Path | str, found: dict[str, Stored], head: str, embedding: str) -> None:
    """Take out the head of a tied checkpoint that holds it once more.

    Raises CheckpointError where it is not the embedding after all.
    """
    twin, first = found.pop(head, None), found.get(embedding)
    if twin is None or first is None:
        return
    if twin.shape != first.shape or not torch.equal(twin.read(), first.read()):
        raise CheckpointError(f"{source}: the config ties {head} to {embedding}, but they differ")


def hash_files(files: Sequence[Path]) -> str:
    """sha256 of the one file; of several, of their hashes, a line each, in the files' order."""
    digests = [_sha256(file) for file in sorted(files)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


def _sha256(file: Path) -> str:
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
