"""How vocabularies spell bytes: byte-level, Metaspace, WordPiece, literal. Knows no text."""

from __future__ import annotations

import re
from collections.abc import Callable

import tokenizers


class TokenizerError(ValueError):
    """A tokenizer that cannot be used, or a question that this one cannot answer."""


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte (`bytes_to_unicode` in its code)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


BYTE_OF_CHARACTER = _byte_of_character()


def _byte_level(raw: str) -> bytes:
    # A name put into the vocabulary by hand may leave that alphabet; then it is what it says.
    if all(character in BYTE_OF_CHARACTER for character in raw):
        return bytes(BYTE_OF_CHARACTER[character] for character in raw)
    return raw.encode("utf-8")


def _metaspace(raw: str) -> bytes:
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", raw):
        return bytes.fromhex(byte[1])
    return raw.replace("\u2581", " ").encode("utf-8")


def _literal(raw: str) -> bytes:
    return raw.encode("utf-8")


# A word that BERT's normalization parts from the one before by a space: Han characters need none.
_WORD = re.compile(r"[^\W\u2e80-\u2fdf\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _wordpiece(raw: str) -> bytes:
    if raw.startswith("##"):
        return raw[2:].encode("utf-8")
    return (" " * bool(_WORD.match(raw)) + raw).encode("utf-8")


def spelling(inner: tokenizers.Tokenizer) -> tuple[str, Callable[[str], bytes], bool]:
    """How the vocabulary spells bytes: the kind, the rule, whether decoding drops a first space."""
    parts = (inner.pre_tokenizer, inner.decoder)
    state = b"".join(part.__getstate__() for part in parts if part is not None).decode("utf-8")
    if '"ByteLevel"' in state:
        return "byte-level", _byte_level, False
    if "\u2581" in state:
        drops = '"Strip"' in state or ('"Metaspace"' in state and '"never"' not in state)
        return "metaspace", _metaspace, drops
    if '"WordPiece"' in state:
        return "wordpiece", _wordpiece, True
    if state.endswith('{"type":"Fuse"}'):
        return "literal", _literal, False
    raise TokenizerError(
        f"a tokenizer decoded by {type(inner.decoder).__name__} is not supported: "
        "byte-level, Metaspace, WordPiece and literal (Fuse) ones are"
    )
