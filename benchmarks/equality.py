"""Nobody is timed before all are known to give the same maps."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.client import SAFETENSORS, Client
from benchmarks.sizes import Size, token_ids

GATE = 2e-5
Maps = npt.NDArray[np.float32]


def require_same_maps(size: Size, clients: dict[str, Client], n_tokens: int) -> None:
    """Every form of every server against our safetensors. Raises AssertionError with the error."""
    ids = token_ids(n_tokens, size.vocabulary)
    shape = (size.layers, size.heads, n_tokens, n_tokens)
    ours = clients["fluoroscope"]
    wanted = from_safetensors(
        ours.post("/v1/attention", {"token_ids": ids}, SAFETENSORS).body
    ).reshape(shape)
    nested = orjson.loads(ours.post("/v1/attention", {"token_ids": ids}).body)
    _compare("fluoroscope nested", nested["tensors"]["attn.pattern"]["data"], wanted, 0.5e-4)
    for name in ("transformers", "transformer_lens"):
        for expert in (False, True):
            for form in ("bytes", "orjson", "orjson4", "json"):
                question = {"token_ids": ids, "form": form, "expert": expert}
                body = clients[name].post("/attention", question).body
                found = (
                    np.frombuffer(body, dtype=np.float32).reshape(shape)
                    if form == "bytes"
                    else orjson.loads(body)["attentions"]
                )
                gate = GATE + (0.5e-4 if form == "orjson4" else 0)
                _compare(f"{name} {form} expert={expert}", found, wanted, gate)


def from_safetensors(body: memoryview) -> Maps:
    """The numbers of a safetensors answer with one tensor."""
    header = int.from_bytes(body[:8], "little")
    assert len(json.loads(bytes(body[8 : 8 + header]))) == 2  # metadata and the tensor
    return np.frombuffer(body[8 + header :], dtype=np.float32).copy()


def _compare(name: str, found: object, wanted: Maps, gate: float) -> None:
    error = float(np.abs(np.asarray(found, dtype=np.float64) - wanted).max())
    assert error <= gate + 1e-9, f"{name} is {error:.2e} away from our maps; at most {gate:.1e}"
