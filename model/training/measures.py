"""The measures that a run takes of itself now and then, as columns of its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from model.gpt import GPT
from model.training.evaluate import (
    held_out_loss,
    induction_scores,
    previous_token_scores,
    template_accuracy,
)
from model.training.templates import Language
from model.training.tokens import Encoder, TokenSource

STORY_TOKENS = 256
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Measures:
    """Held-out loss by source, the best heads, and the endings of unseen template sentences."""

    def __init__(
        self,
        model: GPT,
        tokenizer: Encoder,
        sources: Mapping[str, TokenSource],
        autocast: Callable[[], torch.autocast],
        *,
        separator: int,
        max_tokens: int,
        pairs: int,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._sources = sources
        self._autocast = autocast
        self._separator = separator
        self._max_tokens = max_tokens
        self._pairs = pairs

    @property
    def columns(self) -> list[str]:
        """The sources that have losses."""
        return list(self._sources)

    def take(self) -> dict[str, float | str]:
        """All measures, by column of the log. Head scores are of the best head, in float32."""
        taken: dict[str, float | str] = {}
        n_ctx = self._model.config.n_ctx
        if n_ctx >= 16:
            period = min(32, n_ctx // 2)
            taken |= _best(
                "induction", induction_scores(self._model, self._separator, period=period)
            )
        if (story := self._story(min(STORY_TOKENS, n_ctx))) is not None:
            taken |= _best("previous_token", previous_token_scores(self._model, story))
        for language in LANGUAGES:
            taken[f"template_{language}"] = template_accuracy(
                self._model, self._tokenizer, language,
                count=self._pairs, autocast=self._autocast(),
            )  # fmt: skip
        for name, source in self._sources.items():
            loss = held_out_loss(
                self._model, source, self._separator,
                max_tokens=self._max_tokens, autocast=self._autocast(),
            )  # fmt: skip
            if loss is not None:
                taken[f"nats_{name}"] = loss.nats_per_token
                taken[f"bits_{name}"] = loss.bits_per_byte
        return taken

    def _story(self, length: int) -> Tensor | None:
        """The start of the first held-out document that is long enough."""
        names = sorted(self._sources, key=lambda name: "stor" not in name)
        for name in names:
            source = self._sources[name]
            for index in source.held_out:
                if source.document(int(index)).size >= length:
                    return torch.from_numpy(source.document(int(index))[:length].astype("int64"))
        return None


def _best(name: str, scores: Tensor) -> dict[str, float | str]:
    """scores (L, H) -> the highest score and its head, written layer.head."""
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return {name: float(scores.max()), f"{name}_head": f"{layer}.{head}"}
