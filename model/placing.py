"""Where each token stands in its text: bytes, characters, UTF-16 units. Knows no vocabulary."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise

import tokenizers

REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Token:
    """One token and its place in the text, counted in UTF-8 bytes, characters and UTF-16 units.

    The end of a span is exclusive. `raw` is the vocabulary's spelling (`Ġcat`), `text` this token
    decoded alone, `display` the characters that begin in it, whole even where later tokens hold
    the rest of their bytes; a special token displays its spelling and has no offsets.
    `continuation`: it begins inside a character. Such a token has the exact bytes, the character
    and UTF-16 span of all characters that it touches, and the `group` of those that share them.
    """

    index: int
    id: int
    raw: str
    text: str
    display: str
    bytes_hex: str
    byte_start: int | None
    byte_end: int | None
    char_start: int | None
    char_end: int | None
    utf16_start: int | None
    utf16_end: int | None
    group: int
    continuation: bool
    special: bool


@dataclass(frozen=True, slots=True)
class Encoded:
    """One input as the model reads it. `data` holds the bytes that `text` is decoded from.

    Where `bos_added`, `ids[0]` stands before the text and is no part of it.
    """

    text: str
    ids: list[int]
    bos_added: bool
    data: bytes
    encoding: tokenizers.Encoding | None  # none for an input given as ids


class Characters:
    """Where each character of a text begins, in bytes and UTF-16 units, and where the last ends."""

    def __init__(self, text: str, data: bytes) -> None:
        sizes = [1 + (c > "\x7f") + (c > "\u07ff") + (c > "\uffff") for c in text]
        self.utf16 = [0, *accumulate(1 + (size == 4) for size in sizes)]
        self._utf8 = [0, *accumulate(sizes)]
        self.data = self._utf8  # the same, unless something was replaced
        self._replaced: set[int] = set()
        if len(data) == self._utf8[-1] and data == text.encode("utf-8"):
            return
        self.data = [0]
        for index, (character, size) in enumerate(zip(text, sizes, strict=True)):
            begin = self.data[-1]
            if character == REPLACEMENT and (bad := _invalid_length(data[begin : begin + 4])):
                self._replaced.add(index)
                size = bad
            self.data.append(begin + size)

    def touched_by(self, start: int, end: int) -> tuple[int, int]:
        """The first character that holds a byte of data[start:end], and the one after the last."""
        first = bisect_right(self.data, start) - 1
        return first, max(first, bisect_left(self.data, end))

    def utf8_start(self, start: int, first: int) -> int:
        """A data offset inside character `first` as an offset in the text's UTF-8."""
        return self._utf8[first] + (0 if first in self._replaced else start - self.data[first])

    def utf8_end(self, end: int, stop: int) -> int:
        """The same for the end of a span that reaches into character `stop - 1`."""
        return self._utf8[stop] - (0 if stop - 1 in self._replaced else self.data[stop] - end)


def _invalid_length(head: bytes) -> int:
    """How many bytes at the start of `head` one U+FFFD replaces; 0 where a character begins."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end if error.start == 0 else 0
    return 0


def spans_of(encoded: Encoded, pieces: list[bytes], at: Characters) -> list[tuple[int, int]]:
    """The bytes of `encoded.data` that each token stands for.

    Where the tokens' bytes make up the data they are running sums, else (a tokenizer that
    normalizes) they come from the library's offsets, which count characters.
    """
    inside = [b"", *pieces[1:]] if encoded.bos_added else pieces
    joined = b"".join(inside)
    extra = len(joined) - len(encoded.data)  # 1 where a tokenizer puts a space before the text
    if extra in (0, 1) and joined == b" " * extra + encoded.data:
        ends = accumulate(map(len, inside), initial=0)
        return list(pairwise(max(end - extra, 0) for end in ends))
    assert encoded.encoding is not None, "the bytes of ids are the data"
    spans = [(at.data[start], at.data[stop]) for start, stop in encoded.encoding.offsets]
    return [(0, 0), *spans] if encoded.bos_added else spans
