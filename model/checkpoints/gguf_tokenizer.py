"""The tokenizer in a GGUF file's metadata. Knows nothing of its tensors.

Source: llama.cpp's llama-vocab.cpp for what its names mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.checkpoints import byte_level, spm
from model.checkpoints.contents import CheckpointError
from model.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."


def tokenizer_of(metadata: dict[str, Any], file: Path) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer, or None and a note that says why not. Raises CheckpointError if damaged."""
    own = {
        key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)
    }
    kind, pre = own.get("model"), own.get("pre", "default")
    if kind is None:
        return None, ()
    try:
        if kind == "llama":
            return _sentencepiece(own), ()
        if kind == "gpt2" and pre in byte_level.RULES:
            return _byte_level(own, str(pre)), ()
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise CheckpointError(f"{file}: its tokenizer is damaged: {error!r}") from error
    named = f"model {kind!r}" if kind != "gpt2" else f"pre-tokenizer {pre!r}"
    return None, (f"the tokenizer in the file ({named}) is not implemented",)


def _sentencepiece(own: dict[str, Any]) -> Tokenizer:
    tokens = _texts(own["tokens"])
    kinds = own.get("token_type", [spm.NORMAL] * len(tokens))
    pieces = [spm.Piece(*each) for each in zip(tokens, own["scores"], kinds, strict=True)]
    vocabulary = spm.Pieces(
        pieces=pieces,
        adds_space=bool(own.get("add_space_prefix", True)),
        bos_id=own.get("bos_token_id"),
        eos_id=own.get("eos_token_id"),
    )
    return spm.build(vocabulary, adds_bos=bool(own.get("add_bos_token", True)))


def _byte_level(own: dict[str, Any], pre: str) -> Tokenizer:
    tokens = _texts(own["tokens"])
    kinds = own.get("token_type", [spm.NORMAL] * len(tokens))
    added = {
        token: kind == spm.CONTROL
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (spm.CONTROL, spm.USER_DEFINED)
    }
    merges = [merge.split(" ", 1) for merge in _texts(own["merges"])]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError(f"{len(tokens) - len(vocabulary)} of {len(tokens)} tokens are there twice")
    inner = byte_level.build(vocabulary, [(left, right) for left, right in merges], added, rule=pre)
    return Tokenizer(
        inner,
        bos_id=own.get("bos_token_id"),
        eos_id=own.get("eos_token_id"),
        adds_bos=bool(own.get("add_bos_token", pre in byte_level.BEGIN_WITH_BOS)),
    )


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("a list of texts was expected")
    return values
