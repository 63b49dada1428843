"""llama2.c checkpoints (.bin, versions 0 and 1) and their tokenizers (tok*.bin).

Source: karpathy/llama2.c, export.py and tokenizer.py. The file holds Llama weights in float32 with
interleaved rotation; base 1e4 and eps 1e-5 are not in it but are what its code uses.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.checkpoints import spm
from model.checkpoints.contents import CheckpointError, Contents, Shape
from model.config import ConfigError, GPTConfig
from model.tokenizer import Tokenizer

MAGIC = b"24ka"  # 0x616b3432, "ak42" as the code writes it
OLD_HEADER, NEW_HEADER = 28, 256
LARGEST_TOKENIZER = 32 * 2**20


def describe(file: Path, id_: str, source: str) -> Contents:
    """What the file holds. Raises CheckpointError where its length is not what the header says."""
    config, version = _read_header(file)
    start = NEW_HEADER if version == 1 else OLD_HEADER
    expected, size = start + 4 * _count(config, version), file.stat().st_size
    if size != expected:
        raise CheckpointError(
            f"{file}: as a llama2.c file its header asks for {expected:,} bytes; it has {size:,}"
        )

    def tensors() -> Iterator[tuple[str, Tensor]]:
        at = start
        for name, shape in _order(config, version):
            if name:
                # Mapped: its memory goes back with it, where the allocator would keep it.
                yield name, torch.from_numpy(np.memmap(file, "<f4", "c", at, shape))
            at += 4 * math.prod(shape)

    tokenizer, notes = _beside(file, config)
    return Contents(
        id=id_,
        source=source,
        format=f"llama2.c version {version}",
        config=config,
        tensors=tensors,
        tokenizer=tokenizer,
        files=[file],
        notes=notes,
    )


def _read_header(file: Path) -> tuple[GPTConfig, int]:
    with open(file, "rb") as stream:
        head = stream.read(NEW_HEADER)
    try:
        if head[:4] == MAGIC:
            version, *sizes, shared = struct.unpack_from("<8iB", head, 4)
            tied = bool(shared)
        else:
            version, sizes = 0, list(struct.unpack_from("<7i", head))
            tied = sizes[5] > 0  # a negative vocabulary says that the head is its own
            sizes[5] = abs(sizes[5])
        if version not in (0, 1):
            raise CheckpointError(
                f"{file}: llama2.c version {version} (quantized) is not implemented; 0 and 1 are"
            )
        return _config(*sizes, tied=tied), version
    except (struct.error, ConfigError) as error:
        raise CheckpointError(f"{file}: not a llama2.c file: {error}") from error


def _config(
    dim: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    context: int,
    *,
    tied: bool,
) -> GPTConfig:
    return GPTConfig(
        n_layer=layers,
        d_model=dim,
        n_head=heads,
        n_kv_head=kv_heads,
        d_mlp=hidden,
        vocab_size=vocabulary,
        n_ctx=context,
        rope_pairing="interleaved",
        norm="rmsnorm",
        norm_bias=False,
        norm_eps=1e-5,
        activation="swiglu",
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        tied=tied,
    )


def _parts(config: GPTConfig) -> dict[str, Shape]:
    """One layer's tensors, in version 0's order."""
    c, narrow = config.d_model, config.n_kv_head * config.d_head
    return {
        "ln1": (c,),
        "attn.q": (c, c),
        "attn.k": (narrow, c),
        "attn.v": (narrow, c),
        "attn.o": (c, c),
        "ln2": (c,),
        "mlp.gate": (config.d_mlp, c),
        "mlp.down": (c, config.d_mlp),
        "mlp.up": (config.d_mlp, c),
    }


def _order(config: GPTConfig, version: int) -> Iterator[tuple[str, Shape]]:
    """Every tensor of the file in its order; "" for tables that a run makes anew."""
    parts = _parts(config)
    embedding = ("embed.weight", (config.vocab_size, config.d_model))
    final = ("ln_final.weight", (config.d_model,))
    names = list(parts)
    if version == 1:
        names = ["ln1", "ln2", *(name for name in names if name not in ("ln1", "ln2"))]
    else:
        yield embedding
    for name in names:
        for layer in range(config.n_layer):
            yield f"blocks.{layer}.{name}.weight", parts[name]
        if version == 1 and name == "ln2":
            yield final
            yield embedding
    if version == 0:
        yield final
        yield "", (config.n_ctx, config.d_head)  # cos and sin, half of d_head each
    if not config.tied:
        yield "unembed.weight", embedding[1]


def _count(config: GPTConfig, version: int) -> int:
    """Numbers in the file, without making a list as long as the header claims."""
    layer = sum(math.prod(shape) for shape in _parts(config).values())
    tables = config.n_ctx * config.d_head if version == 0 else 0
    embedding = config.vocab_size * config.d_model * (1 if config.tied else 2)
    return config.n_layer * layer + config.d_model + tables + embedding


def _beside(file: Path, config: GPTConfig) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer in the same folder: tok<vocabulary>.bin or tokenizer.bin."""
    for name in (f"tok{config.vocab_size}.bin", "tokenizer.bin"):
        if (file.parent / name).is_file():
            return read_tokenizer(file.parent / name, config.vocab_size), ()
    return None, ()


def read_tokenizer(file: Path, vocab_size: int) -> Tokenizer:
    """Scores and texts of a tok*.bin: a SentencePiece vocabulary with BOS before every text.

    Raises CheckpointError.
    """
    if file.stat().st_size > LARGEST_TOKENIZER:
        raise CheckpointError(f"{file}: {file.stat().st_size:,} bytes are too many")
    data, at = file.read_bytes(), 4  # the length of the longest text comes first
    pieces: list[spm.Piece] = []
    try:
        while at < len(data):
            score, size = struct.unpack_from("<fi", data, at)
            text = data[at + 8 : at + 8 + size]
            if not 0 <= size == len(text):
                raise ValueError(f"a text of {size:,} bytes at byte {at:,} of {len(data):,}")
            pieces.append(_piece(len(pieces), text.decode("utf-8"), score))
            at += 8 + size
        if len(pieces) != vocab_size:
            raise ValueError(f"it has {len(pieces)} tokens, the model {vocab_size}")
        return spm.build(spm.Pieces(pieces=pieces, bos_id=1, eos_id=2), adds_bos=True)
    except (struct.error, ValueError) as error:
        raise CheckpointError(f"{file}: not a llama2.c tokenizer: {error}") from error


def _piece(index: int, text: str, score: float) -> spm.Piece:
    """The file spells spaces out, and puts line ends around BOS and EOS so that they show."""
    if index < 3:
        return spm.Piece(text.strip(), score, spm.UNKNOWN if index == 0 else spm.CONTROL)
    if 3 <= index < 259:
        return spm.Piece(text, score, spm.BYTE)
    return spm.Piece(text.replace(" ", spm.SPACE), score)
