"""A request's text or token ids, read by the loaded model's tokenizer, within every limit."""

from __future__ import annotations

from collections.abc import Sequence

from model.checkpoints.open import OpenedModel
from model.config import GPTConfig
from model.tokenizer import Encoded
from service.errors import Problem
from service.settings import Settings


def encode_input(
    opened: OpenedModel,
    settings: Settings,
    *,
    text: str | None,
    token_ids: Sequence[int] | None,
    add_bos: bool | None = None,
    parse_special: bool = False,
) -> Encoded:
    """The ids of a text or of ids, within the limits of size and context."""
    tokenizer = opened.tokenizer
    config = opened.model.config
    if text is not None:
        # No UTF-8 text is longer than 4 bytes a character: most are let through uncounted.
        size = len(text) if len(text) * 4 <= settings.max_text_bytes else _utf8_size(text)
        if size > settings.max_text_bytes:
            raise Problem(
                "text-too-long",
                f"the text is {size} bytes of UTF-8; at most {settings.max_text_bytes} are read",
                limit=settings.max_text_bytes,
                actual=size,
            )
        if tokenizer is None:
            raise Problem(
                "no-tokenizer", f"{opened.id} has no tokenizer: send token_ids instead of text"
            )
        encoded = tokenizer.read(text, add_bos=add_bos, parse_special=parse_special)
    else:
        assert token_ids is not None
        known = max(config.vocab_size, 0 if tokenizer is None else tokenizer.vocab_size)
        for index, token_id in enumerate(token_ids):
            if token_id >= known:
                raise Problem(
                    "invalid-text",
                    f"token id {token_id} at index {index} is not in the vocabulary, "
                    f"0 to {known - 1}",
                    limit=known - 1,
                    actual=token_id,
                )
        if tokenizer is not None:
            encoded = tokenizer.read_ids(token_ids, add_bos=bool(add_bos))
        elif add_bos:
            raise Problem(
                "no-tokenizer", f"{opened.id} has no tokenizer to say which token begins a text"
            )
        else:
            encoded = Encoded("", list(token_ids), False, b"", None)
    return encoded


def require_runnable(encoded: Encoded, opened: OpenedModel, settings: Settings) -> None:
    """Raises the 422 for no tokens, for more than the model's context or the server's limit, and
    for a token that the tokenizer has and the embedding has not."""
    n_tokens, limit = len(encoded.ids), token_limit(opened.model.config, settings)
    if n_tokens > limit:
        raise Problem(
            "too-many-tokens",
            f"the input has {n_tokens} tokens; at most {limit} are run",
            limit=limit,
            actual=n_tokens,
        )
    if n_tokens == 0:
        raise Problem(
            "no-tokens", "the input has 0 tokens; at least 1 is needed", limit=1, actual=0
        )
    rows = opened.model.config.vocab_size
    largest = max(encoded.ids)
    if largest >= rows:
        raise Problem(
            "invalid-text",
            f"the token at index {encoded.ids.index(largest)} has the id {largest}; this model's "
            f"embedding has rows for 0 to {rows - 1} alone",
            limit=rows - 1,
            actual=largest,
        )


def token_limit(config: GPTConfig, settings: Settings) -> int:
    return min(config.n_ctx, settings.max_tokens)


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", errors="surrogatepass"))
