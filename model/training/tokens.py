"""Documents → token ids, cut once and kept as files in the run's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.training.corpus import (
    ID_SUFFIXES,
    SEPARATOR,
    CorpusError,
    is_held_out,
    read_documents,
)

Ids = npt.NDArray[np.integer[Any]]


class Encoder(Protocol):
    """What training needs of a tokenizer."""

    vocab_size: int
    eos_id: int | None

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def to_str(self) -> str: ...


@dataclass(frozen=True)
class TokenSource:
    """The documents of one source as token ids.

    Document i is `ids[starts[i]:starts[i + 1]]`, `sizes[i]` UTF-8 bytes of text; `train` and
    `held_out` hold the numbers of the documents on each side of the split.
    """

    name: str
    ids: Ids
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    train: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]

    def document(self, index: int) -> Ids:
        """The ids of one document, the separator not included."""
        return self.ids[self.starts[index] : self.starts[index + 1]]


def end_of_text(tokenizer: Encoder) -> int:
    """The id that stands between documents; raises CorpusError when the tokenizer has none."""
    if tokenizer.eos_id is None:
        raise CorpusError(f"the tokenizer has no token that ends a text, such as {SEPARATOR}")
    return tokenizer.eos_id


def cut_source(
    name: str, path: Path, tokenizer: Encoder, *, every: int, cache: Path | None = None
) -> TokenSource:
    """Read one source and cut it into tokens, or take what `cache` holds of the same content.

    Raises CorpusError as `read_documents` does, when ids do not fit the vocabulary, and when a
    side of the split is empty.
    """
    if path.suffix in ID_SUFFIXES:
        ids, starts, sizes, units = _from_ids(path, tokenizer)
    else:
        ids, starts, sizes, units = _from_text(name, path, tokenizer, cache)
    held = np.array([is_held_out(int(unit), every) for unit in units], dtype=bool)
    if held.all() or not len(held):
        raise CorpusError(f"{path} holds no document to train on")
    return TokenSource(name, ids, starts, sizes, np.flatnonzero(~held), np.flatnonzero(held))


Parts = tuple[Ids, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _from_text(name: str, path: Path, tokenizer: Encoder, cache: Path | None) -> Parts:
    kept = None if cache is None else cache / f"{name}.{_digest(path, tokenizer)}.npz"
    if kept is not None and kept.exists():
        with np.load(kept, allow_pickle=False) as saved:
            return saved["ids"], saved["starts"], saved["sizes"], saved["units"]
    documents = read_documents(path)
    cut = [
        np.array(
            tokenizer.encode(document.text, add_bos=False), dtype=id_type(tokenizer.vocab_size)
        )
        for document in documents
    ]
    parts = (
        np.concatenate(cut),
        np.concatenate([[0], np.cumsum([len(ids) for ids in cut])]).astype(np.int64),
        np.array([len(document.text.encode()) for document in documents], dtype=np.int64),
        np.array([document.unit for document in documents], dtype=np.int64),
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, ids=parts[0], starts=parts[1], sizes=parts[2], units=parts[3])
        os.replace(partial, kept)
    return parts


def _from_ids(path: Path, tokenizer: Encoder) -> Parts:
    try:
        ids: Ids = (
            np.load(path, allow_pickle=False)
            if path.suffix == ".npy"
            else np.fromfile(path, dtype="<u2")
        )
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path} cannot be read as token ids: {error}") from error
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise CorpusError(f"{path} holds {ids.dtype} of shape {ids.shape}, not a row of ids")
    if not ids.size:
        raise CorpusError(f"{path} holds no token")
    if ids.max() >= tokenizer.vocab_size or ids.min() < 0:
        raise CorpusError(
            f"{path} holds ids from {ids.min()} to {ids.max()}; "
            f"the vocabulary has 0 to {tokenizer.vocab_size - 1}"
        )
    separator = end_of_text(tokenizer)
    pieces = [
        piece[1:] if piece[:1] == separator else piece
        for piece in np.split(ids, np.flatnonzero(ids == separator))
        if piece.size
    ]
    # Ids without separators, or one long document, are cut so that a part can be held out.
    documents = [
        piece[start : start + 2048] for piece in pieces for start in range(0, piece.size, 2048)
    ]
    if not documents:
        raise CorpusError(f"{path} holds nothing but separators")
    return (
        np.concatenate(documents).astype(id_type(tokenizer.vocab_size)),
        np.concatenate([[0], np.cumsum([d.size for d in documents])]).astype(np.int64),
        np.array([len(tokenizer.decode(d.tolist()).encode()) for d in documents], dtype=np.int64),
        np.arange(len(documents), dtype=np.int64),
    )


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type that holds every id of a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _digest(path: Path, tokenizer: Encoder) -> str:
    """Changes with the text and with how the tokenizer cuts."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        digest.update(path.read_bytes())
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from error
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()
