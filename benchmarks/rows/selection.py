"""Row 2: what asking for less costs: one head, one query row, one layer, against everything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.client import Client
from benchmarks.row import Bar, Result
from benchmarks.serving import fluoroscope
from benchmarks.sizes import SIZES, token_ids
from benchmarks.timing import Effort, Times, interleave

QUESTIONS: dict[str, dict[str, Any]] = {
    "everything": {},
    "last layer, one head": {"layers": [-1], "heads": [0]},
    "last layer, one head, one query": {"layers": [-1], "heads": [0], "queries": [-1]},
    "every head, one query": {"queries": [-1]},
    "layer 0": {"layers": [0]},
    "layer 0, one head, one query": {"layers": [0], "heads": [0], "queries": [-1]},
}
COMPARED = [
    "POST /v1/attention as nested JSON, whole and narrowed down. `forward` and `encode` are the "
    "server's own timing of the same requests, `ms` the whole request at the client.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("Pay for what is asked", COMPARED)
    for size in (SIZES[name] for name in sizes):
        with ExitStack() as stack:
            client = Client(stack.enter_context(fluoroscope(size)).port)
            for n_tokens in tokens:
                ids = token_ids(n_tokens, size.vocabulary)
                stages: dict[str, dict[str, list[float]]] = {}
                contestants = {
                    name: _asking(
                        client, {"token_ids": ids, **question}, stages.setdefault(name, {})
                    )
                    for name, question in QUESTIONS.items()
                }
                times = interleave(contestants, effort)
                by_stage = {stage: _stage_times(stages, stage) for stage in ("forward", "encode")}
                for name in QUESTIONS:
                    line = {
                        "size": size.name,
                        "tokens": n_tokens,
                        "question": name,
                        "ms": times.median(name),
                        "to_everything": times.ratio(name, "everything"),
                    }
                    for stage, of_stage in by_stage.items():
                        line[f"{stage}_ms"] = of_stage.median(name)
                        line[f"{stage}_to_everything"] = of_stage.ratio(name, "everything")
                    result.measurements.append(line)
                if n_tokens == 256:
                    result.bars += _bars(size.name, by_stage)
    return result


def _asking(
    client: Client, question: dict[str, Any], stages: dict[str, list[float]]
) -> Callable[[], float]:
    def ask() -> float:
        answer = client.post("/v1/attention", question)
        for stage, ms in answer.timing_ms.items():
            stages.setdefault(stage, []).append(ms)
        return answer.ms

    return ask


def _stage_times(stages: dict[str, dict[str, list[float]]], stage: str) -> Times:
    """One stage of every question, the first call left out; rounds fit where nobody sat out."""
    times = Times(list(stages))
    rounds = min(len(of_name[stage]) for of_name in stages.values())
    for name, of_name in stages.items():
        times.by_name[name] = list(of_name[stage][1:rounds])
    return times


def _bars(size: str, by_stage: dict[str, Times]) -> list[Bar]:
    where = f"{size} size, T = 256"
    encode = by_stage["encode"].ratio("last layer, one head", "everything")
    bars = [Bar(f"encode of one head ÷ of all heads, {where}", encode, "≤", 0.15)]
    if size == "course":
        forward = by_stage["forward"].ratio("layer 0", "everything")
        bars.append(Bar(f"forward of layer 0 ÷ of six layers, {where}", forward, "≤", 0.35))
    return bars
