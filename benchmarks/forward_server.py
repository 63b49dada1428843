"""The bare forward in a process of its own: our model, no service around it, timed inside.

What a request is held against: the same weights, threads and ids, but no tap, no check, no wire.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.sizes import SIZES, prepare
from model.checkpoints.open import open_model
from model.gpt import GPT
from model.tap import EndOfRun, Tap
from service.memory import keep_freed_memory


class Question(BaseModel):
    token_ids: list[int]
    layers: int | None = None  # how many; None for all
    stop_at_pattern: bool = False
    unembed: list[int] = []


class StopAfter(Tap):
    """Ends the run after so many layers, or at the pattern of the last of them."""

    def __init__(self, layers: int, at_pattern: bool) -> None:
        self._layers = layers
        self._site = "attn.pattern" if at_pattern else "resid_post"

    def at(self, layer: int) -> Tap:
        return _Stop(self._site) if layer == self._layers - 1 else Tap()


class _Stop(Tap):
    def __init__(self, site: str) -> None:
        self._site = site

    def __call__(self, site: str, value: torch.Tensor) -> torch.Tensor:
        if site == self._site:
            raise EndOfRun
        return value


def forward_ms(model: GPT, question: Question) -> float:
    ids = torch.tensor([question.token_ids])
    stops = question.layers is not None or question.stop_at_pattern
    layers = question.layers or model.config.n_layer
    tap = StopAfter(layers, question.stop_at_pattern) if stops else Tap()
    start = time.perf_counter()
    with torch.inference_mode():
        model(ids, tap=tap, unembed=question.unembed)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    torch.set_num_threads(2)
    # As the service does: freed memory is kept, and one thread opens the model and runs it. That
    # threads sleep between runs, benchmarks/serving.py says.
    keep_freed_memory()
    folder = prepare(SIZES[given.size])
    thread = ThreadPoolExecutor(1)
    cpu = torch.device("cpu")
    opened = thread.submit(open_model, str(folder), device=cpu, dtype=torch.float32).result()
    app = FastAPI()

    @app.get("/ready")
    def ready() -> str:
        return "yes"

    @app.post("/forward")
    def forward(question: Question) -> float:
        return thread.submit(forward_ms, opened.model, question).result()

    uvicorn.run(app, port=given.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
