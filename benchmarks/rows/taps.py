"""Row 7: what taps cost where nobody looks, and what looking at one head costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import untapped
from benchmarks.row import Bar, Result
from benchmarks.sizes import SIZES, prepare, token_ids
from benchmarks.timing import Effort, interleave
from model.capture import Capture
from model.checkpoints.open import open_model
from model.gpt import GPT
from model.reading import read
from model.sites import SITES
from service.memory import keep_freed_memory

NAMES = {
    "untapped": "without tap calls",
    "default": "default tap",
    "capture": "one head captured",
    "everything": "every pattern captured",
}
COMPARED = [
    "In one process, two threads, freed memory kept as the service keeps it; the whole model with "
    "the unembedding of the last position: a copy of the forward without tap calls; the model with "
    "its default tap; `read` of one head's pattern of the last layer and of those logits, checks "
    "of every pattern included; `read` of every pattern.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    torch.set_num_threads(2)
    keep_freed_memory()
    result = Result("What taps cost", COMPARED)
    for size in (SIZES[name] for name in sizes):
        folder = prepare(size)
        model = open_model(str(folder), device=torch.device("cpu"), dtype=torch.float32).model
        for n_tokens in tokens:
            ids = token_ids(n_tokens, size.vocabulary)
            untapped.require_same_logits(model, torch.tensor([ids]))
            work = _work(model, ids)
            times = interleave({name: _timed(run) for name, run in work.items()}, effort)
            for name, says in NAMES.items():
                result.measurements.append(
                    {
                        "size": size.name,
                        "tokens": n_tokens,
                        "forward": says,
                        "ms": times.median(name),
                        "to_untapped": times.ratio(name, "untapped"),
                        "to_default": times.ratio(name, "default"),
                        "runs": times.runs(name),
                    }
                )
            if n_tokens == 256:
                where = f"{size.name} size, T = 256"
                default = times.ratio("default", "untapped")
                capture = times.ratio("capture", "default")
                result.bars += [
                    Bar(f"default tap ÷ no tap calls, {where}", default, "≤", 1.02),
                    Bar(f"one head captured ÷ bare forward, {where}", capture, "≤", 1.05),
                ]
    return result


def _work(model: GPT, ids: list[int]) -> dict[str, Callable[[], Any]]:
    config = model.config
    batch = torch.tensor([ids])
    logits = Capture.resolve(SITES["logits"], {"position": [-1]}, config, len(ids))
    one = Capture.resolve(
        SITES["attn.pattern"], {"layer": [-1], "head": [0]}, config, len(ids), name="one"
    )
    every = Capture.resolve(SITES["attn.pattern"], {}, config, len(ids))
    return {
        "untapped": lambda: untapped.forward(model, batch, [-1]),
        "default": lambda: model(batch, unembed=[-1]),
        "capture": lambda: read(model, ids, [one, logits]),
        "everything": lambda: read(model, ids, [every, logits]),
    }


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        with torch.inference_mode():
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) * 1e3

    return run
