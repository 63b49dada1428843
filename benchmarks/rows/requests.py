"""Row 1: whole requests over loopback, every map of every head, against what a user would build."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.client import SAFETENSORS, Client
from benchmarks.equality import require_same_maps
from benchmarks.row import Bar, Result
from benchmarks.serving import bare_forward, fluoroscope, peer
from benchmarks.sizes import SIZES, Size, token_ids
from benchmarks.timing import Contestant, Effort, Times, interleave

DEFAULT_LIMIT = 128 << 20

# name: (accept, format)
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "fluoroscope nested": ("application/json", {}),
    "fluoroscope base64": ("application/json", {"encoding": "base64"}),
    "fluoroscope safetensors": (SAFETENSORS, {}),
}
# name: (server, form, as an expert would)
THEIRS: dict[str, tuple[str, str, bool]] = {
    "transformers json": ("transformers", "json", False),
    "transformers orjson": ("transformers", "orjson", False),
    "transformers expert orjson": ("transformers", "orjson", True),
    "transformers expert orjson 4 decimals": ("transformers", "orjson4", True),
    "transformers expert bytes": ("transformers", "bytes", True),
    "transformer_lens orjson": ("transformer_lens", "orjson", False),
    "transformer_lens expert orjson": ("transformer_lens", "orjson", True),
    "transformer_lens expert bytes": ("transformer_lens", "bytes", True),
}
BARE = "bare forward"
COMPARED = [
    "fluoroscope: POST /v1/attention, all layers and heads, as nested JSON (4 decimals), base64 "
    "and safetensors; tokens, checks and provenance included, as always.",
    "transformers json, orjson: eager, output_attentions, in a minimal FastAPI route; json.dumps "
    "of lists, or orjson of the arrays. Full float32 text.",
    "transformer_lens orjson: TransformerBridge.run_with_cache with a names filter on the "
    "patterns, orjson of the arrays.",
    "expert: no unembedding (TransformerLens: of one position) and no key/value cache, under "
    "inference_mode; the answer as orjson, as orjson of values rounded to 4 decimals, or as the "
    "raw bytes.",
    "bare forward: our model without taps and without unembedding, all blocks, timed inside its "
    "own process, which keeps freed memory, opens the model on the thread that runs it and lets "
    "OpenMP's threads sleep between runs, as the service does. The peers are loaded at start and "
    "run in FastAPI's worker threads, as a plain `def` route is.",
    "All give the same maps within 2e-5, checked before timing. Each server is a process of its "
    "own; one works at a time; one client for all.",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("Whole request, every head of every layer", COMPARED)
    for size in (SIZES[name] for name in sizes):
        with ExitStack() as stack:
            clients = {
                "fluoroscope": Client(stack.enter_context(fluoroscope(size)).port),
                "transformers": Client(stack.enter_context(peer("transformers", size)).port),
                "transformer_lens": Client(
                    stack.enter_context(peer("transformer_lens", size)).port
                ),
                "bare": Client(stack.enter_context(bare_forward(size)).port),
            }
            require_same_maps(size, clients, min(tokens))
            for n_tokens in tokens:
                times, sizes_of = _race(size, clients, n_tokens, effort)
                result.measurements += _lines(size, n_tokens, times, sizes_of)
                if n_tokens == 256:
                    result.bars += _bars(size, times)
    return result


def _race(
    size: Size, clients: dict[str, Client], n_tokens: int, effort: Effort
) -> tuple[Times, dict[str, int]]:
    ids = token_ids(n_tokens, size.vocabulary)
    bodies: dict[str, int] = {}

    def ask(name: str, client: Client, path: str, question: dict[str, Any], accept: str) -> float:
        answer = client.post(path, question, accept)
        bodies[name] = answer.body.nbytes
        return answer.ms

    contestants: dict[str, Contestant] = {}
    for name, (accept, form) in OURS.items():
        question = {"token_ids": ids, "format": form}
        contestants[name] = partial(
            ask, name, clients["fluoroscope"], "/v1/attention", question, accept
        )
    for name, (server, form_name, expert) in THEIRS.items():
        asked = {"token_ids": ids, "form": form_name, "expert": expert}
        contestants[name] = partial(ask, name, clients[server], "/attention", asked, "*/*")
    contestants[BARE] = forward(clients["bare"], ids)
    return interleave(contestants, effort), bodies


def forward(client: Client, ids: list[int], **how: Any) -> Callable[[], float]:
    """A contestant: one bare forward, in the milliseconds that its own process measured."""
    return lambda: float(bytes(client.post("/forward", {"token_ids": ids, **how}).body))


def _lines(size: Size, n_tokens: int, times: Times, bodies: dict[str, int]) -> list[dict[str, Any]]:
    floats = size.layers * size.heads * n_tokens * n_tokens
    nested = bodies["fluoroscope nested"]
    return [
        {
            "size": size.name,
            "tokens": n_tokens,
            "contestant": name,
            "ms": times.median(name),
            "runs": times.runs(name),
            "to_nested": times.ratio(name, "fluoroscope nested"),
            "to_bare": times.ratio(name, BARE),
            "bytes": bodies.get(name),
            "limits_raised": name in OURS and 4 * floats + nested > DEFAULT_LIMIT,
        }
        for name in times.by_name
    ]


def _bars(size: Size, times: Times) -> list[Bar]:
    where = f"{size.name} size, T = 256"
    slow, fast = (15.0, 2.5) if size.name == "course" else (8.0, 1.4)
    nested = "fluoroscope nested"
    bars = [
        Bar(f"nested ÷ bare forward, {where}", times.ratio(nested, BARE), "≤", 1.35),
        Bar(
            f"safetensors ÷ bare forward, {where}",
            times.ratio("fluoroscope safetensors", BARE),
            "≤",
            1.15,
        ),
    ]
    for name, bound in (
        ("transformers json", slow),
        ("transformers orjson", fast),
        ("transformer_lens orjson", fast),
    ):
        bars.append(Bar(f"{name} ÷ nested, {where}", times.ratio(name, nested), "≥", bound))
    return bars
