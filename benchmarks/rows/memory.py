"""Row 5: peak memory of one request against the size of its answer, and how an answer grows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.equality import from_safetensors
from benchmarks.row import Bar, Result
from benchmarks.rows.requests import OURS
from benchmarks.serving import Server, fluoroscope, peer
from benchmarks.sizes import SIZES, Size, token_ids
from benchmarks.timing import Effort

COMPARED = [
    "Peak resident memory during one request, above the resident memory before it, in a server "
    "that has only answered a request of 8 tokens. `over_tensors` takes the captured tensors "
    "(float32) off first and divides by the answer's bytes: what the encoder holds.",
    "The same for transformers with orjson, which captures the same tensors.",
    "Growth: exponent of T between the last two lengths of the answer, of the numbers in it and "
    "of the rest of it (tokens, coordinates, checks).",
]


def measure(*, tokens: list[int], sizes: list[str], effort: Effort) -> Result:
    result = Result("Memory, and growth with T", COMPARED)
    for size in (SIZES[name] for name in sizes):
        for name, (accept, form) in OURS.items():
            for n_tokens in tokens:
                with fluoroscope(size) as server:
                    asked = [
                        {"token_ids": token_ids(n, size.vocabulary), "format": form}
                        for n in (8, n_tokens)
                    ]
                    line = _peak(size, n_tokens, server, "/v1/attention", asked, accept)
                    result.measurements.append({**line, "contestant": name})
        for n_tokens in tokens:
            with peer("transformers", size) as server:
                asked = [
                    {"token_ids": token_ids(n, size.vocabulary), "form": "orjson"}
                    for n in (8, n_tokens)
                ]
                line = _peak(size, n_tokens, server, "/attention", asked, "*/*")
                result.measurements.append({**line, "contestant": "transformers orjson"})
        longest = [
            line
            for line in result.measurements
            if line["size"] == size.name and line["tokens"] == max(tokens)
        ]
        result.bars += [
            Bar(
                f"(peak − tensors) ÷ answer, {line['contestant']}, {size.name} size, "
                f"T = {max(tokens)}",
                line["over_tensors"],
                "≤",
                1.3,
            )
            for line in longest
            if line["contestant"] in OURS
        ]
        if len(tokens) > 1:
            result.measurements.append(_growth(result.measurements, size, tokens))
    return result


def _peak(
    size: Size,
    n_tokens: int,
    server: Server,
    path: str,
    asked: list[dict[str, Any]],
    accept: str,
) -> dict[str, Any]:
    client = Client(server.port)
    client.post(path, asked[0], accept)
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak starts again from here
    before = _status(server.pid, "VmRSS")
    answer = client.post(path, asked[1], accept).body
    peak = _status(server.pid, "VmHWM") - before
    tensors = 4 * size.layers * size.heads * n_tokens * n_tokens
    line = {
        "size": size.name,
        "tokens": n_tokens,
        "answer_bytes": answer.nbytes,
        "tensor_bytes": tensors,
        "peak_bytes": peak,
        "over_tensors": (peak - tensors) / answer.nbytes,
    }
    if "safetensors" in accept:
        line["rest_bytes"] = answer.nbytes - from_safetensors(answer).nbytes
    return line


def _status(pid: int, field: str) -> int:
    """A field of the process's status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no {field}: this row needs Linux")


def _growth(lines: list[dict[str, Any]], size: Size, tokens: list[int]) -> dict[str, Any]:
    one, two = sorted(tokens)[-2:]
    at = {
        line["tokens"]: line
        for line in lines
        if line["size"] == size.name and line.get("contestant") == "fluoroscope safetensors"
    }
    growth = {
        field: math.log(at[two][field] / at[one][field]) / math.log(two / one)
        for field in ("answer_bytes", "tensor_bytes", "rest_bytes")
    }
    return {
        "size": size.name,
        "tokens": two,
        "contestant": f"exponent of T from {one} to {two}",
        **growth,
    }
