"""Row 6: several clients at once: requests a second, and how long the slow ones wait."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.client import Client
from benchmarks.row import Result
from benchmarks.serving import fluoroscope, peer
from benchmarks.sizes import SIZES, token_ids
from benchmarks.timing import Effort

CLIENTS = (1, 2, 4, 8)
COMPARED = [
    "So many clients, each with its own connection, each asking again as soon as it has its "
    "answer. Clients and server share the machine's cores.",
    "fluoroscope: one run at a time, the rest wait in its queue. transformers orjson: the same "
    "minimal route as in row 1, one forward at a time. The two are loaded in turn.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("Several clients", COMPARED)
    for size in (SIZES[name] for name in sizes):
        with ExitStack() as stack:
            ours = stack.enter_context(fluoroscope(size)).port
            theirs = stack.enter_context(peer("transformers", size)).port
            for n_tokens in tokens:
                ids = token_ids(n_tokens, size.vocabulary)
                one = {"token_ids": ids, "layers": [-1], "heads": [0]}
                for count in CLIENTS:
                    for name, port, path, question in (
                        ("fluoroscope nested", ours, "/v1/attention", {"token_ids": ids}),
                        ("fluoroscope one head", ours, "/v1/attention", one),
                        (
                            "transformers orjson",
                            theirs,
                            "/attention",
                            {"token_ids": ids, "form": "orjson"},
                        ),
                    ):
                        ms, seconds = _load(port, path, question, count, effort)
                        result.measurements.append(
                            {
                                "size": size.name,
                                "tokens": n_tokens,
                                "contestant": name,
                                "clients": count,
                                "requests_a_second": len(ms) / seconds,
                                "p50_ms": float(np.percentile(ms, 50)),
                                "p99_ms": float(np.percentile(ms, 99)),
                                "runs": len(ms),
                            }
                        )
    return result


def _load(
    port: int, path: str, question: dict[str, Any], count: int, effort: Effort
) -> tuple[list[float], float]:
    """Milliseconds of every answered request, and the seconds that all of it took."""

    def keep_asking(client: Client) -> list[float]:
        found: list[float] = []
        while len(found) < effort.rounds or time.perf_counter() < until:
            found.append(client.post(path, question).ms)
        return found

    clients = [Client(port) for _ in range(count)]
    clients[0].post(path, question)
    start = time.perf_counter()
    until = start + effort.seconds
    with ThreadPoolExecutor(count) as pool:
        ms = [one for found in pool.map(keep_asking, clients) for one in found]
    seconds = time.perf_counter() - start
    for client in clients:
        client.close()
    return ms, seconds
