"""Streams of rows and the sampler that mixes them by weight. Knows nothing of the model.

Everything is a function of the seed and of small counters, so a saved position goes on exactly.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.training import templates
from model.training.config import Piecewise, Weight
from model.training.corpus import CorpusError
from model.training.repeats import Row, repeated_row
from model.training.tokens import Encoder, Ids, TokenSource, end_of_text

GENERATED = ("templates", "repeats")
NO_TARGET = -100  # what cross_entropy leaves out


class Stream(Protocol):
    """An endless row after row of one source."""

    def next_row(self, length: int) -> Row: ...

    def state_dict(self) -> dict[str, int]: ...

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class DocumentStream:
    """The training documents of one source, shuffled anew each epoch, each after a separator."""

    def __init__(self, source: TokenSource, separator: int, seed: int) -> None:
        self._source = source
        self._separator = separator
        self._seed = seed
        self._epoch = self._place = self._offset = 0
        self._order = self._shuffled()

    def next_row(self, length: int) -> Row:
        """The next `length` tokens; the last one is also the first of the row after."""
        row = np.empty(length, dtype=np.int64)
        filled = 0
        while filled < length - 1:
            rest = self._rest()
            taken = min(rest.size, length - 1 - filled)
            row[filled : filled + taken] = rest[:taken]
            filled += taken
            self._offset += taken
            if taken == rest.size:
                self._next_document()
        row[-1] = self._rest()[0]
        return row, np.ones(length, dtype=bool)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "place": self._place, "offset": self._offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._place, self._offset = state["epoch"], state["place"], state["offset"]
        self._order = self._shuffled()

    def _rest(self) -> Ids:
        """What is left of the current document; offset 0 is the separator before it."""
        document = self._source.document(int(self._order[self._place]))
        if self._offset:
            return document[self._offset - 1 :]
        return np.concatenate([[self._separator], document])

    def _next_document(self) -> None:
        self._offset = 0
        self._place += 1
        if self._place == self._order.size:
            self._place = 0
            self._epoch += 1
            self._order = self._shuffled()

    def _shuffled(self) -> npt.NDArray[np.int64]:
        rng = _generator(self._seed, self._source.name, self._epoch)
        order: npt.NDArray[np.int64] = rng.permutation(self._source.train)
        return order


class TemplateStream:
    """Rows of template sentences; row k depends on the seed and k alone."""

    def __init__(self, tokenizer: Encoder, seed: int) -> None:
        self._tokenizer = tokenizer
        self._separator = end_of_text(tokenizer)
        self._seed = seed
        self._row = 0

    def next_row(self, length: int) -> Row:
        ids: list[int] = []
        source = templates.documents(random.Random(f"{self._seed}:templates:{self._row}"))
        self._row += 1
        while len(ids) < length:
            ids += [self._separator, *self._tokenizer.encode(next(source), add_bos=False)]
        return np.array(ids[:length], dtype=np.int64), np.ones(length, dtype=bool)

    def state_dict(self) -> dict[str, int]:
        return {"row": self._row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._row = state["row"]


class RepeatStream:
    """Rows of repeats; row k depends on the seed, k and the sources of real text alone."""

    def __init__(self, tokenizer: Encoder, sources: Sequence[TokenSource], seed: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._separator = end_of_text(tokenizer)
        self._sources = sources
        self._seed = seed
        self._row = 0

    def next_row(self, length: int) -> Row:
        rng = _generator(self._seed, "repeats", self._row)
        self._row += 1
        return repeated_row(
            rng,
            length,
            vocab_size=self._vocab_size,
            separator=self._separator,
            snippet=self._snippet if self._sources else None,
        )

    def _snippet(self, rng: np.random.Generator, count: int) -> Ids:
        source = self._sources[int(rng.integers(len(self._sources)))]
        document = source.document(int(rng.choice(source.train)))
        start = int(rng.integers(max(1, document.size - count + 1)))
        return document[start : start + count]

    def state_dict(self) -> dict[str, int]:
        return {"row": self._row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._row = state["row"]


class Sampler:
    """Rows of tokens and their targets; each row's source is drawn by weight."""

    def __init__(
        self,
        sources: Mapping[str, TokenSource],
        weights: Sequence[Weight],
        tokenizer: Encoder,
        *,
        seed: int,
    ) -> None:
        """Without weights each source counts by its tokens and nothing is generated.

        Raises CorpusError for a weight whose source is unknown and when all weights are 0.
        """
        check_names({weight.source for weight in weights}, (*sources, *GENERATED))
        self._weights = list(weights) or [
            Weight(name, Piecewise(((1.0, float(source.ids.size)),)))
            for name, source in sources.items()
        ]
        for start in sorted({start for w in self._weights for start in w.share.starts}):
            if not sum(w.share.at(start) for w in self._weights) > 0:
                raise CorpusError(f"all weights are 0 from {start:.0%} of the run on")
        self._seed = seed
        self._rows = 0
        separator = end_of_text(tokenizer)
        self._streams: dict[str, Stream] = {
            name: DocumentStream(source, separator, seed) for name, source in sources.items()
        }
        self._streams["templates"] = TemplateStream(tokenizer, seed)
        self._streams["repeats"] = RepeatStream(tokenizer, list(sources.values()), seed)

    def rows(
        self, count: int, length: int, progress: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """ids (count, length) and targets alike: the token after each, NO_TARGET where none."""
        ids = np.empty((count, length + 1), dtype=np.int64)
        known = np.empty((count, length + 1), dtype=bool)
        shares = np.array([weight.share.at(progress) for weight in self._weights])
        edges = np.cumsum(shares / shares.sum())
        for row in range(count):
            draw = _generator(self._seed, "rows", self._rows).random()
            self._rows += 1
            chosen = min(int(np.searchsorted(edges, draw, side="right")), edges.size - 1)
            stream = self._streams[self._weights[chosen].source]
            ids[row], known[row] = stream.next_row(length + 1)
        return ids[:, :-1].copy(), np.where(known, ids, NO_TARGET)[:, 1:].copy()

    def state_dict(self) -> dict[str, Any]:
        streams = {name: stream.state_dict() for name, stream in self._streams.items()}
        return {"rows": self._rows, "streams": streams}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position; a source that was not there then starts at its start."""
        self._rows = state["rows"]
        for name, stream in self._streams.items():
            if name in state["streams"]:
                stream.load_state_dict(state["streams"][name])


def check_names(wanted: Iterable[str], known: Collection[str]) -> None:
    """Raises CorpusError that names the unknown sources and the known."""
    if unknown := sorted(set(wanted) - set(known)):
        raise CorpusError(f"unknown sources {unknown}; known are {sorted(known)}")


def _generator(seed: int, name: str, count: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode()), count])
