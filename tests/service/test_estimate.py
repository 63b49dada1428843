"""dry_run: what an answer will take, against what it then takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.answers import SAFETENSORS, ask, refused, safetensors

TEXT = "The cat chased the mouse because it was hungry. 猫追老鼠，因为它饿了。"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "every map": ("/v1/attention", {}),
    "every stage": (
        "/v1/attention",
        {"stages": ["dots", "scores", "masked_scores", "pattern"], "layers": [0]},
    ),
    "one head": ("/v1/attention", {"layers": [2], "heads": [1]}),
    "one row": ("/v1/attention", {"heads": [0], "queries": [-1]}),
    "mean of heads": ("/v1/attention", {"aggregate": "mean"}),
    "logits": ("/v1/logits", {"full": True, "positions": "all"}),
    "no tensor": ("/v1/logits", {}),
    "sites": (
        "/v1/inspect",
        {
            "captures": [
                {"site": "resid_post"},
                {"site": "mlp.post", "layers": [1]},
                {"site": "attn.z", "reduce": "stats"},
                {"site": "ln1.scale"},
            ]
        },
    ),
}


@pytest.fixture(params=list(REQUESTS))
def request_of(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    path, body = REQUESTS[request.param]
    return path, {"text": TEXT, "tokens": "none", **body}


def text_of_tensors(answer: bytes) -> int:
    """Bytes that the numbers take: what stands behind each `"data":` of the answer."""
    found = json.loads(answer)
    parts = answer.partition(b',"timing_ms":')[0].split(b'"data":')[1:]
    assert len(parts) == len(found["tensors"])
    return sum(len(part) for part in parts)


@pytest.mark.parametrize("decimals", [0, 2, 4, 8])
def test_floats_bytes_and_text_are_what_then_comes(
    decimals: int, request_of: Any, client: TestClient
) -> None:
    path, body = request_of
    body = {**body, "format": {"decimals": decimals}}
    estimate = ask(client, path, **body, dry_run=True)["estimate"]
    answer, arrays = safetensors(client, path, **body)
    assert estimate["tensor_floats"] == sum(array.size for array in arrays.values())
    assert estimate["tensor_bytes"] == sum(array.nbytes for array in arrays.values())
    assert estimate["n_tokens"] == answer["input"]["n_tokens"]
    size = text_of_tensors(client.post(path, json=body).content)
    if not arrays:
        assert size == estimate["json_bytes"] == 0
        return
    assert abs(estimate["json_bytes"] - size) < 0.1 * size


@pytest.mark.parametrize("family", ["course", "grouped"])
@pytest.mark.parametrize("wiring", [{}, {"causal": False}], ids=["causal", "no mask"])
def test_exact_text_is_estimated_too(
    wiring: Any, family: str, request_of: Any, clients: Any
) -> None:
    path, body = request_of
    body = {**body, "format": {"exact": True}, "wiring": wiring}
    estimate = ask(clients[family], path, **body, dry_run=True)["estimate"]
    size = text_of_tensors(clients[family].post(path, json=body).content)
    assert abs(estimate["json_bytes"] - size) <= 0.1 * size


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_are_exact_in_the_dtype_asked_for(
    dtype: str, request_of: Any, client: TestClient
) -> None:
    path, body = request_of
    body = {**body, "format": {"dtype": dtype}}
    estimated = client.post(
        path, json={**body, "dry_run": True}, headers={"accept": SAFETENSORS}
    ).json()["estimate"]
    _, arrays = safetensors(client, path, **body)
    assert {array.dtype for array in arrays.values()} <= {np.dtype(dtype)}
    assert estimated["tensor_bytes"] == sum(array.nbytes for array in arrays.values())
    form = {"dtype": dtype, "encoding": "base64"}
    body = {**body, "format": form}
    estimated = ask(client, path, **body, dry_run=True)["estimate"]
    answer = ask(client, path, **body)
    sent = sum(len(tensor["data"]) for tensor in answer["tensors"].values())
    assert abs(estimated["json_bytes"] - sent) <= 4 * len(arrays)
    assert estimated["tensor_bytes"] == sum(array.nbytes for array in arrays.values())


def test_dry_run_runs_nothing_and_sends_no_tensor(
    request_of: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.app.state.inspector, "inspect", None)  # type: ignore[attr-defined]
    path, body = request_of
    answer = ask(client, path, **body, dry_run=True)
    assert answer["tensors"] == {}
    assert set(answer["estimate"]) == {
        *("n_tokens", "layers_run", "tensor_floats", "tensor_bytes", "json_bytes", "flops")
    }


def test_answer_without_it_has_no_estimate(client: TestClient) -> None:
    assert "estimate" not in ask(client, "/v1/attention", text=TEXT)


@pytest.mark.parametrize(
    ("captures", "layers"),
    [
        ([{"site": "embed"}], 0),
        ([{"site": "attn.q", "layers": [0]}], 1),
        ([{"site": "mlp_out", "layers": [1, 0]}], 2),
        ([{"site": "logits", "positions": [-1]}], 3),
    ],
)
def test_layers_run_are_those_up_to_the_last_one_asked_for(
    captures: Any, layers: int, client: TestClient
) -> None:
    answer = ask(client, "/v1/inspect", text=TEXT, captures=captures, dry_run=True)
    assert answer["estimate"]["layers_run"] == layers


def test_flops_of_a_whole_run_are_the_formulas(clients: Any) -> None:
    # 2(12Ld² + Vd) a token and 4·L·d for each of T² cells.
    answer = ask(clients["course"], "/v1/logits", text=TEXT, positions="all", dry_run=True)
    n = answer["input"]["n_tokens"]
    expected = n * 2 * (12 * 3 * 48**2 + 360 * 48) + 4 * 3 * 48 * n**2
    assert answer["estimate"]["flops"] == expected
    compared = ask(
        clients["course"], "/v1/logits", text=TEXT, positions="all", compare=True, dry_run=True
    )
    assert compared["estimate"]["flops"] == 2 * expected


def test_dry_run_refuses_what_the_run_would_refuse(client: TestClient) -> None:
    for slug, more in (
        ("invalid-selection", {"layers": [9]}),
        ("invalid-site", {"edits": [{"op": "zero", "site": "pos_embed"}]}),
    ):
        refused(client, "/v1/attention", slug, text=TEXT, dry_run=True, **more)
