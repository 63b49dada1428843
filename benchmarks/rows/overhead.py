"""Row 3: what the server adds: a whole request against the bare forward of the layers it needs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.client import SAFETENSORS, Client
from benchmarks.row import Result
from benchmarks.rows.requests import forward
from benchmarks.serving import bare_forward, fluoroscope
from benchmarks.sizes import SIZES, token_ids
from benchmarks.timing import Contestant, Effort, interleave

JSON = "application/json"
# name: (path, question, accept, layers that it needs (None: all), positions to unembed)
REQUESTS: dict[str, tuple[str, dict[str, Any], str, int | None, list[int]]] = {
    "all heads, nested": ("/v1/attention", {}, JSON, None, []),
    "all heads, safetensors": ("/v1/attention", {}, SAFETENSORS, None, []),
    "last layer, one head": ("/v1/attention", {"layers": [-1], "heads": [0]}, JSON, None, []),
    "layer 0": ("/v1/attention", {"layers": [0]}, JSON, 1, []),
    "next token": ("/v1/logits", {}, JSON, None, [-1]),
}
COMPARED = [
    "Whole request at the client ÷ forward of the blocks that it needs, without taps, checks or "
    "service, in a process of its own (`to_blocks`).",
    "`to_stop` holds it against a forward that, as the request itself, ends at the last pattern "
    "that is needed: the stricter of the two. Next token: both unembed one position.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("What the server adds", COMPARED)
    for size in (SIZES[name] for name in sizes):
        with ExitStack() as stack:
            ours = Client(stack.enter_context(fluoroscope(size)).port)
            bare = Client(stack.enter_context(bare_forward(size)).port)
            for n_tokens in tokens:
                ids = token_ids(n_tokens, size.vocabulary)
                contestants: dict[str, Contestant] = {}
                for name, (path, question, accept, layers, unembed) in REQUESTS.items():
                    asked = {"token_ids": ids, **question}
                    contestants[name] = partial(_ask, ours, path, asked, accept)
                    how = {"layers": layers, "unembed": unembed}
                    contestants[f"{name}: blocks"] = forward(bare, ids, **how)
                    stop = not unembed
                    contestants[f"{name}: stop"] = forward(bare, ids, **how, stop_at_pattern=stop)
                times = interleave(contestants, effort)
                result.measurements += [
                    {
                        "size": size.name,
                        "tokens": n_tokens,
                        "request": name,
                        "ms": times.median(name),
                        "blocks_ms": times.median(f"{name}: blocks"),
                        "to_blocks": times.ratio(name, f"{name}: blocks"),
                        "to_stop": times.ratio(name, f"{name}: stop"),
                    }
                    for name in REQUESTS
                ]
    return result


def _ask(client: Client, path: str, question: dict[str, Any], accept: str) -> float:
    return client.post(path, question, accept).ms
