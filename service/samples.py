"""One sample as it grows: its tokens as they are told, its text, and why it ended.

Knows nothing of the model or HTTP.
"""

from __future__ import annotations

from random import Random
from typing import Any

from model.tokenizer import Encoded, Tokenizer, TokenizerError
from service.generation import GenerationPlan
from service.inspection import token_fields
from service.running_text import RunningText

_FIELDS = ("raw", "text", "display", "bytes_hex")


class Sample:
    """Sample `number` draws as the only one would with the seed that many higher."""

    def __init__(self, number: int, planned: GenerationPlan, tokenizer: Tokenizer | None) -> None:
        self.number = number
        self.ids: list[int] = []
        self.reason: str | None = None
        self._planned = planned
        self._tokenizer = tokenizer
        self._draws = Random(planned.seed + number)
        self._text = RunningText(planned.request.stop)
        self._said = ""
        self._stop_string: str | None = None
        self._stop_id: int | None = None

    @property
    def position(self) -> int:
        """That the next token takes."""
        return len(self._planned.plan.ids) + len(self.ids)

    def draw(self) -> float:
        """The next number in [0, 1)."""
        return self._draws.random()

    def take(self, token_id: int) -> tuple[dict[str, Any], str | None]:
        """One token more: the schema `StepToken`, and what can be said of the text now. Sets
        `reason` where it is the last."""
        token = {"index": self.position, "id": token_id, **self._alone(token_id)}
        self.ids.append(token_id)
        text = ""
        if token_id in self._planned.stop_ids:
            self.reason, self._stop_id = "stop_id", token_id
        elif token["bytes_hex"] is not None:
            grown = self._text.grow(bytes.fromhex(token["bytes_hex"]))
            token["continuation"] = grown.continuation
            if not token["special"]:
                token["display"] = grown.display
            text = grown.text
            if grown.stop is not None:
                self.reason, self._stop_string = "stop_string", grown.stop
        if self.reason is None and len(self.ids) == self._planned.max_steps:
            enough = self._planned.max_steps == self._planned.max_new_tokens
            self.reason = "max_new_tokens" if enough else "context_full"
        if self.reason is not None and self._stop_string is None:
            rest, stop = self._text.end()
            text += rest
            if stop is not None:
                self.reason, self._stop_string, self._stop_id = "stop_string", stop, None
        self._said += text
        return token, None if self._tokenizer is None else text

    def _alone(self, token_id: int) -> dict[str, Any]:
        """What is known of the token by itself; nothing of one that the vocabulary has not."""
        token = {**dict.fromkeys(_FIELDS), "continuation": False, "special": False}
        if self._tokenizer is not None:
            try:
                found = _placed(self._tokenizer, [token_id])[0]
            except TokenizerError:
                return token
            token = {name: found[name] for name in token}
        return token

    def says(self) -> dict[str, Any]:
        """The schema `GeneratedSample`."""
        return {
            "sample": self.number,
            "text": None if self._tokenizer is None else self._said,
            "token_ids": self.ids,
            "tokens": self._tokens(),
            "reason": self.reason,
            "stop_string": self._stop_string,
            "stop_id": self._stop_id,
        }

    def _tokens(self) -> list[Any]:
        kind = self._planned.request.tokens
        if kind == "none":
            return []
        if kind == "ids" or self._tokenizer is None:
            return self.ids
        try:
            placed = _placed(self._tokenizer, self.ids)
        except TokenizerError:  # one is not in the vocabulary: a row that only pads the embedding
            return self.ids
        first = len(self._planned.plan.ids)
        return [{**token, "index": first + token["index"]} for token in placed]


def _placed(tokenizer: Tokenizer, ids: list[int]) -> list[dict[str, Any]]:
    """Tokens with their places in a text that follows another: a first space stays."""
    data = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
    encoded = Encoded(data.decode("utf-8", "replace"), ids, False, data, None)
    return [token_fields(token) for token in tokenizer.tokens(encoded)]
