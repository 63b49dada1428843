"""SentencePiece vocabularies as `tokenizers.Tokenizer`: from a .model file, or from bare pieces.

Kudo and Richardson 2018. The .model file is a protobuf message (sentencepiece_model.proto); the few
fields that matter are read here, so that no message, however it lies, costs more than its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from model.checkpoints import byte_level
from model.checkpoints.contents import CheckpointError
from model.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
LARGEST_MODEL = 32 * 2**20
MOST_PIECES = 1_000_000


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary: its text (U+2581 for a space), its score, its type."""

    text: str
    score: float
    kind: int = NORMAL


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A SentencePiece vocabulary and the rules that go with it.

    `adds_space`: a space is put before the text. `charsmap` is SentencePiece's own compiled
    normalization, `collapses` whether runs of spaces become one. `added` are tokens that follow
    the pieces, and whether each is special.
    """

    pieces: Sequence[Piece]
    unigram: bool = False
    adds_space: bool = True
    collapses: bool = False
    charsmap: bytes = b""
    bos_id: int | None = None
    eos_id: int | None = None
    added: Mapping[str, bool] = field(default_factory=dict)


def build(vocabulary: Pieces, *, adds_bos: bool) -> Tokenizer:
    """The tokenizer of a vocabulary. Raises ValueError where it holds no unknown piece."""
    pieces = vocabulary.pieces
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    unknown = next((p.text for p in pieces if p.kind == UNKNOWN), None)
    if len(ids) < len(pieces):
        raise ValueError(f"{len(pieces) - len(ids)} of {len(pieces)} pieces are there twice")
    in_bytes = sum(piece.kind == BYTE for piece in pieces) == 256
    if vocabulary.unigram:
        if unknown is None:
            raise ValueError("a unigram vocabulary needs an unknown piece")
        scored = [(piece.text, piece.score) for piece in pieces]
        inner = tokenizers.Tokenizer(
            models.Unigram(scored, unk_id=ids[unknown], byte_fallback=in_bytes)
        )
    else:
        merges = _merges(pieces, ids)
        inner = tokenizers.Tokenizer(
            models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=in_bytes)
        )
    inner.normalizer = normalizers.Sequence(_normalizers(vocabulary))
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if vocabulary.adds_space else []),
        ]
    )
    # The unknown piece is no added token: what it stands for has its place in the text.
    of_kind = {CONTROL: True, USER_DEFINED: False}
    added = {piece.text: of_kind[piece.kind] for piece in pieces if piece.kind in of_kind}
    byte_level.add(inner, added | dict(vocabulary.added))
    return Tokenizer(inner, bos_id=vocabulary.bos_id, eos_id=vocabulary.eos_id, adds_bos=adds_bos)


def _merges(pieces: Sequence[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint piece scores highest: that order of merges."""
    joined = [
        (piece.text[:cut], piece.text[cut:], piece.score)
        for piece in pieces
        if piece.kind in (NORMAL, UNUSED)
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in ids and piece.text[cut:] in ids
    ]
    joined.sort(key=lambda each: (-each[2], ids[each[0]], ids[each[1]]))
    return [(left, right) for left, right, _ in joined]


def _normalizers(vocabulary: Pieces) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.collapses:
        steps += [
            normalizers.Strip(left=True, right=True),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if vocabulary.adds_space:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def read_model(file: Path) -> Pieces:
    """The vocabulary of a SentencePiece .model file. Raises CheckpointError."""
    try:
        size = file.stat().st_size
        if size > LARGEST_MODEL:
            raise CheckpointError(f"{file}: {size:,} bytes; at most {LARGEST_MODEL:,} are read")
        return _read_model(file.read_bytes())
    except CheckpointError:
        raise
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{file}: not a SentencePiece model: {error}") from error


def _read_model(data: bytes) -> Pieces:
    pieces: list[Piece] = []
    trainer: dict[int, bytes | int] = {}
    normalizer: dict[int, bytes | int] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            one = dict(fields(value))
            text, score = one.get(1, b""), one.get(2, b"\0\0\0\0")
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise ValueError("a piece without text")
            (points,) = struct.unpack("<f", score)
            pieces.append(Piece(text.decode("utf-8"), points, int(one.get(3, NORMAL))))
            if len(pieces) > MOST_PIECES:
                raise ValueError(f"more than {MOST_PIECES:,} pieces")
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(fields(value))
    kind = trainer.get(3, 1)
    if kind not in (1, 2):
        raise ValueError(f"model type {kind!r} is neither unigram (1) nor bpe (2)")
    if trainer.get(24) or not normalizer.get(5, 1):
        raise ValueError("spaces after words, or not escaped, are not implemented")
    charsmap = normalizer.get(2, b"")
    assert isinstance(charsmap, bytes)
    return Pieces(
        pieces=pieces,
        unigram=kind == 1,
        adds_space=bool(normalizer.get(3, 1)),
        collapses=bool(normalizer.get(4, 1)),
        charsmap=charsmap,
        bos_id=_id(trainer.get(41, 1), pieces),
        eos_id=_id(trainer.get(42, 2), pieces),
    )


def _id(value: bytes | int, pieces: Sequence[Piece]) -> int | None:
    """An id of the vocabulary; -1, which says that there is none, is a very large varint."""
    if isinstance(value, int) and value < len(pieces) and pieces[value].kind == CONTROL:
        return value
    return None


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Field numbers and values of a protobuf message: integers, and all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        value: bytes | int
        if wire == 0:
            value, at = _varint(message, at)
        else:
            if wire == 2:
                size, at = _varint(message, at)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise ValueError(f"wire type {wire} at byte {at}")
            if at + size > len(message):
                raise ValueError(f"a field of {size:,} bytes at {at} of {len(message):,}")
            value, at = message[at : at + size], at + size
        yield number, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number without end at byte {at}")
