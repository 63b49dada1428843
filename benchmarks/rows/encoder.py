"""Row 4: the encoder alone, in numbers a second: no server, no model, one thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.row import Result
from benchmarks.timing import Effort, interleave
from service.wire.decimals import Nested

Floats = npt.NDArray[np.float32]
COMPARED = [
    "Nested of service/wire/decimals.py at several decimals, against orjson of the array "
    "and of the array rounded to 4 decimals, and json.dumps of the lists (on a part, for time).",
    "patterns: causal softmax rows; dense: softmax rows without a mask; masked scores: the same "
    "with −∞ above the diagonal, written as null (orjson gives null, json gives -Infinity); "
    "general: N(0, 3).",
    "Sizes: 36 heads of T × T numbers. M/s: million numbers a second.",
]


def values_of(kind: str, n_tokens: int, heads: int = 36) -> Floats:
    """(heads, T, T) float32 of one kind, the same at every call."""
    draw = np.random.default_rng(0)
    scores = draw.normal(0, 3, (heads, n_tokens, n_tokens)).astype(np.float32)
    if kind == "general":
        return scores
    if kind != "dense patterns":
        scores[:, np.triu(np.ones((n_tokens, n_tokens), dtype=bool), 1)] = -np.inf
    if kind == "masked scores":
        return scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def writers(values: Floats, *, weights: bool) -> dict[str, Callable[[], Any]]:
    def ours(decimals: int) -> Callable[[], Any]:
        return lambda: list(Nested(values, decimals, weights=weights).pieces())

    def rounded() -> bytes:
        return orjson.dumps(values.round(4), option=orjson.OPT_SERIALIZE_NUMPY)

    return {
        **{f"fluoroscope {decimals} decimals": ours(decimals) for decimals in (1, 3, 4, 6, 8)},
        "orjson": lambda: orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY),
        "orjson rounded to 4": rounded,
        "json": lambda: json.dumps(values[:4].tolist()),
    }


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("The encoder alone", COMPARED)
    for kind in ("patterns", "dense patterns", "masked scores", "general"):
        for n_tokens in tokens:
            values = values_of(kind, n_tokens)
            work = writers(values, weights="patterns" in kind)
            times = interleave({name: _timed(write) for name, write in work.items()}, effort)
            for name in work:
                count = values[:4].size if name == "json" else values.size
                rate = count / times.median(name) / 1e3
                result.measurements.append(
                    {"values": kind, "tokens": n_tokens, "writer": name, "millions_a_second": rate}
                )
    return result


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3

    return run
