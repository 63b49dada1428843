"""The tokenizer of a run: the one given, the one that the run's folder has, or a new one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from model.tokenizer import Tokenizer, train_tokenizer
from model.training import templates
from model.training.config import TrainConfig
from model.training.corpus import TEXT_SUFFIXES, CorpusError, is_held_out, read_documents

TEMPLATE_DOCUMENTS = 4000


def run_tokenizer(config: TrainConfig, paths: dict[str, Path]) -> Tokenizer:
    """The tokenizer to use, also written to the run's folder as `tokenizer.json`.

    A new one is trained on the training documents of the text sources and some templates. Raises
    CorpusError when the model's vocabulary is smaller than the tokenizer's.
    """
    kept = config.out / "tokenizer.json"
    if config.tokenizer is not None:
        tokenizer = Tokenizer.from_file(config.tokenizer)
    elif kept.exists():
        tokenizer = Tokenizer.from_file(kept)
    else:
        tokenizer = train_tokenizer(_texts(config, paths), config.model.vocab_size)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise CorpusError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {config.model.vocab_size} rows for them"
        )
    config.out.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".partial")
    partial.write_text(tokenizer.to_str(), encoding="utf-8")
    os.replace(partial, kept)
    return tokenizer


def _texts(config: TrainConfig, paths: dict[str, Path]) -> Iterator[str]:
    for path in paths.values():
        if path.suffix in TEXT_SUFFIXES:
            for document in read_documents(path):
                if not is_held_out(document.unit, config.held_out_every):
                    yield document.text
    yield from islice(templates.documents(random.Random(0)), TEMPLATE_DOCUMENTS)
