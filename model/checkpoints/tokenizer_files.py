"""The tokenizer of a folder, whatever files it comes in. Knows nothing of weights.

Tried in this order: tokenizer.json, a SentencePiece .model, vocab.json with merges.txt (OpenAI's
names: encoder.json with vocab.bpe), BERT's vocab.txt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from model.checkpoints import byte_level, spm
from model.checkpoints.contents import CheckpointError
from model.checkpoints.settings import read_json
from model.tokenizer import END_OF_TEXT, Tokenizer

LARGEST = 64 * 2**20
RULE_OF_CLASS = {"Qwen2Tokenizer": "qwen2", "Qwen2TokenizerFast": "qwen2"}
BERT = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
About = Mapping[str, Any]


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """None where there is no tokenizer. Raises CheckpointError where there is a damaged one."""
    beside = folder / "tokenizer_config.json"
    about = read_json(beside) if beside.is_file() else {}
    for names, read in READERS:
        files = [folder / name for name in names]
        if not all(file.is_file() for file in files):
            continue
        try:
            if (size := sum(file.stat().st_size for file in files)) > LARGEST:
                raise ValueError(f"{size:,} bytes; at most {LARGEST:,} are read")
            return read(about, *files)
        except CheckpointError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{files[0]}: no tokenizer comes of it: {error}") from error
    return None


def _whole(about: About, file: Path) -> Tokenizer:
    """A tokenizer.json; whether BOS is added is in the config, else in the file's own rules."""
    inner = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    adds = about.get("add_bos_token")
    bos_id = _id(inner, about, "bos_token")
    return Tokenizer(
        inner,
        bos_id=bos_id,
        eos_id=_id(inner, about, "eos_token"),
        adds_bos=adds if isinstance(adds, bool) and (bos_id is not None or not adds) else None,
    )


def _sentencepiece(about: About, file: Path) -> Tokenizer:
    """Llama's way: BOS before every text unless the config says otherwise."""
    vocabulary = spm.read_model(file)
    later = sorted(
        (int(i), token) for i, token in (about.get("added_tokens_decoder") or {}).items()
    )
    added = {
        _content(token): bool(token.get("special"))
        for i, token in later
        if i >= len(vocabulary.pieces)
    }
    adds = bool(about.get("add_bos_token", vocabulary.bos_id is not None))
    return spm.build(replace(vocabulary, added=added), adds_bos=adds)


def _byte_level(about: About, words: Path, merges: Path) -> Tokenizer:
    vocabulary = json.loads(words.read_text(encoding="utf-8"))
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    added = {END_OF_TEXT: True} if END_OF_TEXT in vocabulary else {}
    for kind in ("bos_token", "eos_token", "unk_token", "pad_token"):
        if about.get(kind):
            added[_content(about[kind])] = True
    rule = RULE_OF_CLASS.get(str(about.get("tokenizer_class")), "gpt2")
    inner = byte_level.build(vocabulary, [(a, b) for a, b in pairs], added, rule=rule)
    return Tokenizer(
        inner,
        bos_id=_id(inner, about, "bos_token"),
        eos_id=_id(inner, about, "eos_token"),
        adds_bos=bool(about.get("add_bos_token", False)),
    )


def _wordpiece(about: About, file: Path) -> Tokenizer:
    """BERT's, as Chinese GPT-2s use it: one token a Han character, [CLS] and [SEP] around texts.

    Schuster and Nakajima 2012. A language model reads texts without them, so none is added.
    """
    words = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = {word.removesuffix("\r"): i for i, word in enumerate(words)}
    if len(vocabulary) < len(words):
        raise ValueError(f"{len(words) - len(vocabulary)} of {len(words)} words are there twice")
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=bool(about.get("tokenize_chinese_chars", True)),
        strip_accents=about.get("strip_accents"),
        lowercase=bool(about.get("do_lower_case", True)),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    byte_level.add(inner, {word: True for word in BERT if word in vocabulary})
    return Tokenizer(
        inner,
        bos_id=vocabulary.get("[CLS]"),
        eos_id=vocabulary.get("[SEP]"),
        adds_bos=False,
    )


def _id(inner: tokenizers.Tokenizer, about: About, kind: str) -> int | None:
    """The id of a token that the config names, if it names one that there is."""
    found: int | None = inner.token_to_id(_content(about[kind])) if about.get(kind) else None
    return found


def _content(token: Any) -> str:
    """Configs spell a token as its text, or as an object that holds it."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


READERS: tuple[tuple[tuple[str, ...], Callable[..., Tokenizer]], ...] = (
    (("tokenizer.json",), _whole),
    (("tokenizer.model",), _sentencepiece),
    (("spiece.model",), _sentencepiece),
    (("sentencepiece.bpe.model",), _sentencepiece),
    (("vocab.json", "merges.txt"), _byte_level),
    (("encoder.json", "vocab.bpe"), _byte_level),
    (("vocab.txt",), _wordpiece),
)
