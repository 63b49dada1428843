"""Row 8: tokens a second of greedy generation, with nothing looked at and with one layer."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.peers import generator
from benchmarks.row import Bar, Result
from benchmarks.sizes import SIZES, Size, prepare, token_ids
from benchmarks.timing import Effort, interleave
from model.capture import Capture
from model.checkpoints.open import open_model
from model.generation import Generation
from model.gpt import GPT
from model.sampling import Sampling, choose
from model.selection import Asked
from model.sites import SITES, Axis

NEW = 32  # tokens
GREEDY = Sampling(temperature=0)
COMPARED = [
    f"Greedy, {NEW} tokens after a prompt of T, the prompt's run included, in one process with two "
    "threads. All give the same ids, checked before timing.",
    "fluoroscope: a table of ten candidates over the whole vocabulary and the checks of every "
    "pattern at each step, as always.",
    "fluoroscope, one layer traced: the attention of every head and the residual stream of layer 2 "
    "as well, at the prompt and at each step.",
    "transformers: generate with its key/value cache, as manuals show it (sdpa).",
    "transformers, attention: the same with output_attentions, which needs eager attention.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    torch.set_num_threads(2)
    result = Result("Generation", COMPARED)
    for size in (SIZES[name] for name in sizes):
        contestants = work(size)
        for n_tokens in tokens:
            ids = token_ids(n_tokens, size.vocabulary)
            require_same_ids(contestants, ids)
            timed = {name: _timed(run, ids) for name, run in contestants.items()}
            times = interleave(timed, effort)
            for name in contestants:
                result.measurements.append(
                    {
                        "size": size.name,
                        "tokens": n_tokens,
                        "contestant": name,
                        "tokens_a_second": NEW / times.median(name) * 1e3,
                        "to_transformers": times.ratio("transformers", name),
                        "runs": times.runs(name),
                    }
                )
            if n_tokens == 256:
                where = f"{size.name} size, T = 256"
                plain = times.ratio("transformers", "fluoroscope")
                traced = times.ratio("fluoroscope", "fluoroscope, one layer traced")
                result.bars += [
                    Bar(f"tokens a second ÷ transformers', {where}", plain, "≥", 1.5),
                    Bar(f"tokens a second traced ÷ untraced, {where}", traced, "≥", 0.9),
                ]
    return result


def work(size: Size) -> dict[str, Callable[[list[int]], list[int]]]:
    """Each takes the prompt's ids and gives the new ones."""
    folder = prepare(size)
    model = open_model(str(folder), device=torch.device("cpu"), dtype=torch.float32).model
    return {
        "fluoroscope": lambda ids: generate(model, ids, traced=False),
        "fluoroscope, one layer traced": lambda ids: generate(model, ids, traced=True),
        "transformers": generator(size, NEW, attentions=False),
        "transformers, attention": generator(size, NEW, attentions=True),
    }


def generate(model: GPT, ids: list[int], *, traced: bool) -> list[int]:
    config = model.config
    one: dict[Axis, Asked] = {"layer": [min(2, config.n_layer - 1)]}
    captures = [
        Capture.resolve(SITES[site], one, config, len(ids))
        for site in ("attn.pattern", "resid_post")
        if traced
    ]
    generation = Generation(model, ids, captures=captures)
    advanced = generation.prompt()
    new: list[int] = []
    while True:
        drawn = choose(advanced.logits, GREEDY, top=10, draw=None).drawn
        assert drawn is not None
        new.append(drawn)
        if len(new) == NEW:
            return new
        advanced = generation.advance(drawn)


def require_same_ids(
    contestants: dict[str, Callable[[list[int]], list[int]]], ids: list[int]
) -> None:
    """Raises AssertionError where one goes another way."""
    given = {name: run(ids) for name, run in contestants.items()}
    wanted = given["fluoroscope"]
    for name, new in given.items():
        assert new == wanted, f"{name} gives {new}, fluoroscope {wanted}"


def _timed(run: Callable[[list[int]], list[int]], ids: list[int]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run(ids)
        return (time.perf_counter() - start) * 1e3

    return timed
