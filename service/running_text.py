"""A text that grows by tokens: whole characters, and never past a stop string.

Knows nothing of models or HTTP.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grown:
    """What one token added. `display`: the characters that are complete with it; `text`: what can
    be said of the text now; `stop`: the stop string that ended it."""

    display: str
    text: str
    stop: str | None
    continuation: bool


class RunningText:
    """Decodes bytes as they come, and holds back what may yet become a stop string.

    All `text` together is the bytes decoded (U+FFFD for what is not UTF-8), up to where the stop
    string begins that is complete first, wherever the tokens' borders lie.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def grow(self, data: bytes) -> Grown:
        pending, _ = self._decoder.getstate()
        display = self._decoder.decode(data)
        continuation = bool(pending) and bool(data) and 0x80 <= data[0] < 0xC0
        self._held += display
        text, stop = self._let_go()
        return Grown(display, text, stop, continuation)

    def end(self) -> tuple[str, str | None]:
        """What was held back, now that nothing follows; and the stop string in it, if that ends in
        the U+FFFD of bytes that never became a character."""
        self._held += self._decoder.decode(b"", final=True)
        text, stop = self._let_go()
        return (text, stop) if stop is not None else (text + self._held, None)

    def _let_go(self) -> tuple[str, str | None]:
        places = [(self._held.find(stop), stop) for stop in self._stops]
        ends = [(at + len(stop), at, stop) for at, stop in places if at >= 0]
        if ends:
            _, at, stop = min(ends)
            text, self._held = self._held[:at], ""
            return text, stop
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text, None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of text are the beginning of stop, and not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
