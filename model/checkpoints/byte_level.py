"""Byte-level BPE tokenizers from a vocabulary and merges (Sennrich 2016, Radford et al. 2019).

How a text is cut before the merges differs by family; the rules are those of each family's own
tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As llama.cpp names them.
RULES = ("gpt-2", "gpt2", "smollm", "llama-bpe", "llama3", "qwen2")
BEGIN_WITH_BOS = ("llama-bpe", "llama3")


def build(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    added: Mapping[str, bool],
    *,
    rule: str,
) -> tokenizers.Tokenizer:
    """`added` are the tokens that no merge makes, in order, and whether each is special.

    Raises ValueError for a vocabulary that does not hold what its merges make.
    """
    try:
        whole = rule in BEGIN_WITH_BOS  # a word that is a token needs no merges
        model = models.BPE(dict(vocabulary), list(merges), ignore_merges=whole)
        inner = tokenizers.Tokenizer(model)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error
    inner.pre_tokenizer = _cutting(rule)
    if rule == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    add(inner, added)
    return inner


def add(inner: tokenizers.Tokenizer, added: Mapping[str, bool]) -> None:
    """Tokens that are found before anything else is done to a text, and whether each is special."""
    for text, special in added.items():
        token = tokenizers.AddedToken(text, special=special, normalized=False)
        (inner.add_special_tokens if special else inner.add_tokens)([token])


def _cutting(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule in ("gpt-2", "gpt2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "smollm":  # digits one by one
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    numbers = "" if rule == "qwen2" else "{1,3}"
    words = pre_tokenizers.Split(Regex(_WORDS % numbers), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, to_bytes])
