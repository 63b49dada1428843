"""Asking a served model and reading its answers, as strictly as the strictest client would."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from safetensors.numpy import load

SAFETENSORS = "application/vnd.safetensors"
EXACT = {"exact": True}
Json = dict[str, Any]


def strict_json(text: str | bytes) -> Any:
    """Parsed with NaN, Infinity and repeated keys refused, as most languages do."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), f"a key stands twice in {names}"
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def ask(client: TestClient, path: str, /, **body: Any) -> Json:
    """A 200's body."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: Json = strict_json(answer.content)
    return found


def refused(client: TestClient, path: str, slug: str, /, **body: Any) -> Json:
    """A refusal's problem, its kind and status checked."""
    answer = client.post(path, json=body)
    problem = strict_json(answer.content)
    assert answer.headers["content-type"] == "application/problem+json", problem
    assert problem["type"].rpartition(":")[2] == slug, problem
    assert problem["status"] == answer.status_code
    return dict(problem)


def array(tensor: Json) -> NDArray[np.float64]:
    """A JSON tensor of any encoding as float64; null is −∞. Its shape is checked."""
    shape = tuple(tensor["shape"])
    assert len(shape) == len(tensor["axes"])
    if tensor["encoding"] == "base64":
        kind = {"float32": "<f4", "float16": "<f2"}[tensor["dtype"]]
        values = np.frombuffer(base64.b64decode(tensor["data"], validate=True), dtype=kind)
        return values.reshape(shape).astype(np.float64)
    if tensor["encoding"] == "sparse":
        return dense(tensor)
    values = np.array(tensor["data"], dtype=object)
    assert values.shape == shape
    return np.where(values == None, -np.inf, values).astype(np.float64)  # noqa: E711


def single(tensor: Json) -> NDArray[np.float32]:
    """The float32 numbers that a tensor sent in exact JSON or base64 stands for."""
    return array(tensor).astype(np.float32)


def dense(tensor: Json) -> NDArray[np.float64]:
    """Sparse rows, 0 where nothing was sent."""
    *rows, n_keys = tensor["shape"]
    keys = tensor["coords"].get(tensor["axes"][-1], list(range(n_keys)))
    out = np.zeros((int(np.prod(rows)), n_keys))
    offsets = tensor["row_offsets"]
    assert len(offsets) == len(out) + 1 and offsets[-1] == len(tensor["values"])
    for row, (start, stop) in enumerate(pairwise(offsets)):
        for key, value in zip(
            tensor["keys"][start:stop], tensor["values"][start:stop], strict=True
        ):
            out[row, keys.index(key)] = value
    return out.reshape(tensor["shape"])


def exact(client: TestClient, path: str, name: str, /, **body: Any) -> NDArray[np.float32]:
    """One tensor of an answer, every bit of it."""
    return single(ask(client, path, format=EXACT, **body)["tensors"][name])


def captured(client: TestClient, site: str, /, text: Any, **body: Any) -> NDArray[np.float32]:
    """One site, whole unless `captures` says otherwise, every bit of it."""
    chosen = {"text": text} if isinstance(text, str) else {"token_ids": text}
    body.setdefault("captures", [{"site": site}])
    return exact(client, "/v1/inspect", site, **chosen, **body)


def safetensors(
    client: TestClient, path: str, /, **body: Any
) -> tuple[Json, dict[str, NDArray[Any]]]:
    """The answer in the metadata and the arrays, read by the safetensors library."""
    answer = client.post(path, json=body, headers={"accept": SAFETENSORS})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == SAFETENSORS
    size = int.from_bytes(answer.content[:8], "little")
    header = strict_json(answer.content[8 : 8 + size])
    return strict_json(header["__metadata__"]["answer"]), load(answer.content)
