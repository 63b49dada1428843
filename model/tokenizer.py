"""Text <-> token ids, with offsets that front-ends can use. Knows nothing of HTTP or torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from model.placing import Characters, Encoded, Token, spans_of
from model.spelling import TokenizerError, spelling

__all__ = [
    "Description",
    "Encoded",
    "TextError",
    "Token",
    "TokenIdError",
    "Tokenizer",
    "TokenizerError",
    "train_tokenizer",
]

END_OF_TEXT = "<|endoftext|>"
# Spellings that mean "a text begins" and "a text ends" in tokenizers that don't say it themselves.
BOS_SPELLINGS = ("<|begin_of_text|>", "<s>", "<bos>", END_OF_TEXT)
EOS_SPELLINGS = ("<|end_of_text|>", "</s>", "<eos>", END_OF_TEXT)


class TokenIdError(TokenizerError):
    """An id outside the vocabulary; the message names the id, its index and what is allowed."""


class TextError(TokenizerError):
    """A text that no UTF-8 can hold; the message names the character's position, not the text."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a client needs to know of a tokenizer; `normalizes`: it may rewrite a text first."""

    kind: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    normalizes: bool
    special_tokens: dict[str, int]


class Tokenizer:
    """A `tokenizers.Tokenizer` with exact bytes and offsets; safe to use from several threads."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        adds_bos: bool | None = None,
    ) -> None:
        """Take over `inner`, which the caller must not change afterwards.

        `bos_id` and `eos_id` default to the ids of the usual spellings, if there are any;
        `adds_bos` to what the tokenizer's own post-processor does.
        """
        inner.no_truncation()
        inner.no_padding()
        # Whether special tokens are recognised is a property of the whole object: two objects,
        # never a switch thrown under another thread's feet.
        self._parsing = inner
        self._plain = tokenizers.Tokenizer.from_str(inner.to_str())
        self._plain.encode_special_tokens = True

        added = inner.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items()}
        self._special = {i for i, token in added.items() if token.special}
        self._raw = {i: raw for raw, i in inner.get_vocab(with_added_tokens=True).items()}
        self.vocab_size = max(self._raw, default=-1) + 1
        self.kind, self._spelled_bytes, self._drops_space = spelling(inner)

        first = _leading_special(inner)
        by_spelling = {self._added[i]: i for i in sorted(self._special)}
        if bos_id is None:
            bos_id = first if first is not None else _first_known(by_spelling, BOS_SPELLINGS)
        self.bos_id = bos_id
        self.eos_id = eos_id if eos_id is not None else _first_known(by_spelling, EOS_SPELLINGS)
        self.adds_bos = (first is not None) if adds_bos is None else adds_bos
        for named in (self.bos_id, self.eos_id):
            if named is not None:
                self.token_bytes(named)  # raises where there is no such id
        self._bos(self.adds_bos)

    @classmethod
    def from_str(cls, spec: str) -> Tokenizer:
        """The tokenizer that the text of a `tokenizer.json` describes."""
        try:
            inner = tokenizers.Tokenizer.from_str(spec)
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(f"not a tokenizer.json: {error}") from error
        return cls(inner)

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a `tokenizer.json`."""
        return cls.from_str(Path(path).read_text(encoding="utf-8"))

    def to_str(self) -> str:
        """The text of its `tokenizer.json`."""
        return self._parsing.to_str()

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text; see `read`."""
        return self.read(text, add_bos=add_bos, parse_special=parse_special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; see `read_ids`."""
        return self.read_ids(ids).text

    def read(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> Encoded:
        """Tokenize a text. `add_bos` None means as the tokenizer wishes.

        `parse_special` False: a text that spells a special token is text, and that token's id
        does not come of it. Raises TextError for a lone surrogate.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TextError(
                f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}, "
                "which is no character"
            ) from error
        chosen = self._parsing if parse_special else self._plain
        # encode_batch lets the interpreter lock go; encode holds it.
        encoding = chosen.encode_batch([text], add_special_tokens=False)[0]
        bos = self._bos(self.adds_bos if add_bos is None else add_bos)
        return Encoded(text, bos + encoding.ids, bool(bos), data, encoding)

    def read_ids(self, ids: Sequence[int], *, add_bos: bool = False) -> Encoded:
        """Decode ids. The text spells special tokens out, and has U+FFFD for what is not UTF-8.

        Raises TokenIdError for an id outside the vocabulary.
        """
        data = b"".join(self._bytes_at(index, i) for index, i in enumerate(ids))
        if self._drops_space:
            data = data.removeprefix(b" ")
        bos = self._bos(add_bos)
        return Encoded(data.decode("utf-8", "replace"), [*bos, *ids], bool(bos), data, None)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for; those of its spelling if it is special."""
        return self._bytes_at(None, token_id)

    def token_text(self, token_id: int) -> str:
        """One token decoded alone, U+FFFD for bytes that are not UTF-8 by themselves."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def tokens(self, encoded: Encoded) -> list[Token]:
        """Every token of an input with its place in `encoded.text`, in time linear in the text.

        Where ids hold bytes that are not UTF-8, each U+FFFD is a character that those bytes share:
        a token that touches it spans all of it, also in byte offsets.
        Where a tokenizer rewrote the text, offsets are the library's own, in whole characters; what
        it took out belongs to no token, and `bytes_hex` is what it wrote.
        """
        pieces = [self._bytes_at(index, i) for index, i in enumerate(encoded.ids)]
        at = Characters(encoded.text, encoded.data)
        tokens: list[Token] = []
        group, touched = -1, 0  # characters before `touched` have begun in earlier tokens
        for i, piece, span in zip(encoded.ids, pieces, spans_of(encoded, pieces, at), strict=True):
            special = i in self._special
            first, stop = (touched, touched) if special else at.touched_by(*span)
            continuation = not special and first < touched
            group += not continuation
            own = piece.decode("utf-8", "replace")
            tokens.append(
                Token(
                    index=len(tokens),
                    id=i,
                    raw=self._raw[i],
                    text=own,
                    display=own if special else encoded.text[max(first, touched) : stop],
                    bytes_hex=piece.hex(),
                    byte_start=None if special else at.utf8_start(span[0], first),
                    byte_end=None if special else at.utf8_end(span[1], stop),
                    char_start=None if special else first,
                    char_end=None if special else stop,
                    utf16_start=None if special else at.utf16[first],
                    utf16_end=None if special else at.utf16[stop],
                    group=group,
                    continuation=continuation,
                    special=special,
                )
            )
            touched = stop
        return tokens

    def describe(self) -> Description:
        """What a client needs to know of this tokenizer."""
        return Description(
            kind=self.kind,
            vocab_size=self.vocab_size,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            adds_bos=self.adds_bos,
            normalizes=self._parsing.normalizer is not None,
            special_tokens={self._added[i]: i for i in sorted(self._special)},
        )

    def _bos(self, wanted: bool) -> list[int]:
        if not wanted:
            return []
        if self.bos_id is None:
            raise TokenizerError("add_bos is true, but no token begins a text here")
        return [self.bos_id]

    def _bytes_at(self, index: int | None, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8")
        if token_id not in self._raw:
            where = "" if index is None else f" at index {index}"
            raise TokenIdError(
                f"token id {token_id}{where} is not in the vocabulary, 0 to {self.vocab_size - 1}"
            )
        return self._spelled_bytes(self._raw[token_id])


def _leading_special(inner: tokenizers.Tokenizer) -> int | None:
    """The id that the tokenizer's own post-processor puts before a text."""
    plain, whole = (inner.encode("a", add_special_tokens=added).ids for added in (False, True))
    return whole[0] if plain and whole[0] != plain[0] else None


def _first_known(ids: dict[str, int], spellings: Sequence[str]) -> int | None:
    return next((ids[spelling] for spelling in spellings if spelling in ids), None)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = (END_OF_TEXT,)
) -> Tokenizer:
    """Train byte-level BPE: the special tokens first, then the 256 bytes, then merges.

    A Han character is never merged with its neighbours, so Chinese attention maps read by the
    character. The same texts in the same order give the same tokenizer. Small corpora run out of
    merges: ask `.vocab_size` for the size reached. Raises TokenizerError for a `vocab_size` that
    cannot hold every byte.
    """
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise TokenizerError(
            f"vocab_size is {vocab_size}; the bytes and special tokens alone need {least}"
        )
    inner = tokenizers.Tokenizer(models.BPE())
    by_character = pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")
    by_word = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([by_character, by_word])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return Tokenizer(inner)
