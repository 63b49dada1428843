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
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    added: Mapping[int, bool],
    *,
    rule: str,
) -> tokenizers.Tokenizer:
    """`tokens` by id; `added` are the ids outside the merges, and whether each is special.

    Raises ValueError for a vocabulary that does not hold what its merges make.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError(f"{len(tokens) - len(vocabulary)} of {len(tokens)} tokens are there twice")
    try:
        whole = rule in ("llama-bpe", "llama3")  # a word that is a token needs no merges
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges), ignore_merges=whole))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error
    inner.pre_tokenizer = _cutting(rule)
    if rule == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    for i, special in sorted(added.items()):
        token = tokenizers.AddedToken(tokens[i], special=special, normalized=False)
        (inner.add_special_tokens if special else inner.add_tokens)([token])
    return inner


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
