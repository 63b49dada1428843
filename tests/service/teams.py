"""A server of its own that is asked everything, and how many threads that nobody starts in Python
each answer leaves behind: OpenMP's teams. `python -m tests.service.teams FOLDER` prints it as JSON.

Knows nothing of pytest. FOLDER is a checkpoint whose tokenizer the server has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from starlette.testclient import TestClient

from model.checkpoints.open import OpenedModel, open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.labs.rotation import MOST_PAIRS
from service.app import create_app
from service.settings import Settings

THREADS = 2
TOKENS, WIDE = 64, 1024  # of a lab's sequence and vector, at most
D_HEAD = 256
CONFIG = GPTConfig(n_layer=1, d_model=WIDE, n_head=WIDE // D_HEAD, vocab_size=360, n_ctx=TOKENS)
IDS = [*range(TOKENS)]
EVERY_SITE = [{"site": site} for site in ("resid_pre", "attn.pattern", "mlp.post", "logits")]


def rows(n_rows: int, size: int) -> list[list[int]]:
    return [[(row + column) % 3 - 1 for column in range(size)] for row in range(n_rows)]


def places(dimensions: int) -> list[dict[str, int]]:
    """As many as the lab turns at once."""
    return [{"m": m, "n": 0} for m in range(2 * MOST_PAIRS // dimensions)]


def questions() -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """A name, a path, and a body where it is posted: each lab at its largest, by numbers that are
    given and by the model's, and the other routes that work beside the inference thread."""
    q = rows(TOKENS, WIDE)
    to_narrow = rows(WIDE, TOKENS)
    narrow = {"w_q": to_narrow, "w_k": to_narrow, "w_v": to_narrow}
    projections = {"kind": "projections", "x": q}
    ids = {"token_ids": IDS}
    yield (
        "attention, vectors",
        "/v1/labs/attention",
        {"source": {"kind": "vectors", "q": q, "k": q, "v": q}},
    )
    yield "attention, projections", "/v1/labs/attention", {"source": {**projections, **narrow}}
    yield "attention, model", "/v1/labs/attention", {"source": {"kind": "model", **ids}}
    yield (
        "heads, vectors",
        "/v1/labs/heads",
        {"source": {"kind": "vectors", "heads": [{"q": q, "k": q, "v": q}], "w_o": rows(WIDE, 64)}},
    )
    yield (
        "heads, projections",
        "/v1/labs/heads",
        {"source": {**projections, "heads": [narrow], "w_o": rows(TOKENS, WIDE)}, "results": True},
    )
    yield "heads, model", "/v1/labs/heads", {"source": {"kind": "model", **ids}}
    yield "scaling", "/v1/labs/scaling", {"head_sizes": [WIDE], "samples": 16384}
    yield "rotate, vectors", "/v1/rope/rotate", {"q": q[0], "k": q[1], "positions": places(WIDE)}
    yield "rotate, model", "/v1/rope/rotate", {"model": ids, "positions": places(D_HEAD)}
    yield (
        "frequencies",
        "/v1/rope/frequencies",
        {
            "d_head": WIDE,
            "distances": [*range(1024)],
            "scalings": [{"kind": "linear", "factor": 2}] * 16,
        },
    )
    yield "block", "/v1/labs/block", ids
    yield "order", "/v1/labs/order", {}
    yield "diagnostics", "/v1/labs/diagnostics", {}
    yield "cell", "/v1/attention/cell", {**ids, "layer": 0, "head": 0, "query": -1, "key": 0}
    yield "model's rope", "/v1/model/rope", None
    yield "course", "/v1/course", None
    yield "parameters", "/v1/model/parameters", None
    yield "tensor", "/v1/model/parameters/blocks.0.attn.q.weight?rows=0:64", None
    yield (
        "edit",
        "/v1/inspect",
        {
            **ids,
            "captures": EVERY_SITE,
            "edits": [{"op": "set", "site": "resid_pre", "layers": [0], "value": [q]}],
        },
    )
    yield "generate", "/v1/generate", {"token_ids": IDS[:32], "max_new_tokens": 2}
    yield "sample", "/v1/sample", {"logits": [0.0] * 40_000, "settings": [{"top_p": 0.5}]}


def opened(folder: str) -> OpenedModel:
    torch.set_num_threads(THREADS)
    model = GPT(CONFIG).eval().requires_grad_(False)
    tokenizer = open_model(folder, device=torch.device("cpu"), dtype=torch.float32).tokenizer
    return OpenedModel(model, tokenizer, "wide", "0" * 64, False, "random weights", "preset")


def foreign() -> int:
    """Threads of this process that are none of Python's."""
    own = {thread.native_id for thread in threading.enumerate()}
    return len({int(task.name) for task in Path("/proc/self/task").iterdir()} - own)


async def product_beside(app: FastAPI) -> None:
    """What no route may do: on both codec threads, of which each waits for the other."""
    both = threading.Barrier(2)

    def multiply() -> None:
        both.wait(timeout=60)
        square = torch.ones(512, 512)
        square @ square

    inspector = app.state.inspector
    await asyncio.gather(*(inspector.off_loop(multiply) for _ in range(2)))


def left_behind(folder: str) -> dict[str, int]:
    app = create_app(Settings(), open_with=lambda settings: opened(folder))
    left: dict[str, int] = {}
    with TestClient(app, base_url="http://localhost") as http:
        run = {"token_ids": IDS, "captures": EVERY_SITE}
        assert http.post("/v1/inspect", json=run).status_code == 200
        before = left["one run"] = foreign()
        for name, path, body in questions():
            answer = http.get(path) if body is None else http.post(path, json=body)
            assert answer.status_code == 200, (name, answer.text[:500])
            left[name] = foreign() - before
            before += left[name]
        assert http.portal is not None
        http.portal.call(product_beside, app)
        left["a product beside"] = foreign() - before
    return left


if __name__ == "__main__":
    json.dump(left_behind(sys.argv[1]), sys.stdout)
