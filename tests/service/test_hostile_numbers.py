"""A NaN or ∞ in the weights, as a damaged file or an overflow leaves it: every route says so, or
answers from what it does not touch; every body passes a strict parser, and none is a 5xx."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from model.comparison import compare_logits
from tests.answers import strict_json
from tests.conftest import Serve

TEXT = "The cat chased the mouse again."
BYTES = {"encoding": "base64"}
ON_LAYER = {"text": TEXT, "layer": 1}
HEAD = {"kind": "model", **ON_LAYER, "head": 0}
# Each with whether its answer hangs on the logits, and on layer 1.
ASKED: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "attention of layer 0": ("/v1/attention", {"text": TEXT, "layers": [0]}, False, False),
    "attention": ("/v1/attention", {"text": TEXT}, False, True),
    "logits": ("/v1/logits", {"text": TEXT}, True, True),
    "logits, whole": ("/v1/logits", {"text": TEXT, "full": True, "format": BYTES}, True, True),
    "inspect": ("/v1/inspect", {"text": TEXT, "captures": [{"site": "logits"}]}, True, True),
    "stats": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "logits", "reduce": "stats"}]},
        True,
        True,
    ),
    "comparison": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "embed"}], "compare": True},
        True,
        True,
    ),
    "cell": ("/v1/attention/cell", {**ON_LAYER, "head": 0, "query": -1, "key": 0}, False, True),
    "generation": ("/v1/generate", {"text": TEXT, "max_new_tokens": 3}, True, True),
    "samples": ("/v1/sample", {"text": TEXT, "settings": [{}]}, True, True),
    "head by hand": ("/v1/labs/attention", {"source": HEAD}, False, True),
    "heads by hand": ("/v1/labs/heads", {"source": {"kind": "model", **ON_LAYER}}, False, True),
    "block": ("/v1/labs/block", ON_LAYER, False, True),
    "order": ("/v1/labs/order", {}, False, True),
    "diagnostics": ("/v1/labs/diagnostics", {"text": TEXT}, True, True),
}
READ = ["/v1/model", "/v1/model/parameters", "/v1/model/parity", "/v1/course", "/health/ready"]


def damage(client: TestClient, where: str, number: float) -> None:
    """A row of the unembedding, or every query of layer 1."""
    model = client.app.state.inspector.opened.model  # type: ignore[attr-defined]
    with torch.no_grad():
        if where == "unembedding":
            model.unembed.weight[5].fill_(number)
        else:
            model.blocks[1].attn.q.bias.fill_(number)


@pytest.mark.parametrize("number", [float("nan"), float("inf")], ids=["nan", "infinity"])
@pytest.mark.parametrize("where", ["unembedding", "layer 1"])
@pytest.mark.parametrize("name", ASKED)
def test_number_that_is_none_is_told_and_never_written(
    name: str, where: str, number: float, serve: Serve, client: TestClient
) -> None:
    path, body, on_logits, on_layer = ASKED[name]
    assert client.post(path, json=body).status_code == 200
    damaged = serve()
    damage(damaged, where, number)
    answer = damaged.post(path, json=body)
    found = strict_json(answer.content)
    if on_logits if where == "unembedding" else on_layer:
        assert answer.status_code == 422 and found["type"].endswith(":not-finite"), found
    else:
        assert answer.status_code == 200, found


@pytest.mark.parametrize("encoding", ["base64", "safetensors"])
def test_bytes_carry_it_and_the_checks_say_so(encoding: str, serve: Serve) -> None:
    client = serve()
    damage(client, "unembedding", float("nan"))
    body = {"text": TEXT, "captures": [{"site": "logits"}], "format": BYTES}
    accept = "application/vnd.safetensors" if encoding == "safetensors" else "application/json"
    answer = client.post("/v1/inspect", json=body, headers={"accept": accept})
    assert answer.status_code == 200
    if encoding == "safetensors":
        size = int.from_bytes(answer.content[:8], "little")
        header = strict_json(answer.content[8 : 8 + size])
        said = strict_json(header["__metadata__"]["answer"])
    else:
        said = strict_json(answer.content)
    assert said["checks"]["finite"] is False


def test_stream_that_meets_it_midway_ends_with_an_error_event(serve: Serve) -> None:
    """The first steps are finite: the answer has begun when the number turns up."""
    client = serve()
    model = client.app.state.inspector.opened.model  # type: ignore[attr-defined]
    runs = 0

    def spoil(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return logits * float("nan") if runs == 4 else logits

    model.unembed.register_forward_hook(spoil)
    answer = client.post(
        "/v1/generate",
        json={"text": TEXT, "max_new_tokens": 8, "stop_ids": []},
        headers={"accept": "text/event-stream"},
    )
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert events == ["meta", "prompt", "step", "step", "step", "error"]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    problems = [strict_json(each) for each in data]
    assert problems[-1]["type"].endswith(":not-finite")


@pytest.mark.parametrize("path", READ)
def test_what_is_only_read_is_still_answered_in_strict_json(path: str, serve: Serve) -> None:
    client = serve()
    damage(client, "layer 1", float("nan"))
    damage(client, "unembedding", float("inf"))
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    strict_json(answer.content)


ROW = [0.5] * 359
HIDDEN_LOGIT = {"op": "set", "site": "logits", "positions": [-1], "value": [[-1e300, *ROW]]}
NO_LOGIT = {"op": "set", "site": "logits", "positions": [-1], "value": -1e300}


def test_logit_of_minus_infinity_is_null_and_leaves_the_others_their_probability(
    client: TestClient,
) -> None:
    body = {"text": TEXT, "edits": [HIDDEN_LOGIT], "top": 360}
    top = strict_json(client.post("/v1/logits", json=body).content)["predictions"][0]["top"]
    assert top[-1] == {**top[-1], "id": 0, "logit": None, "logprob": None, "probability": 0}
    assert top[0]["probability"] == pytest.approx(1 / 359, rel=1e-6)
    assert all(token["logprob"] is not None for token in top[:-1])


def test_comparison_with_a_logit_of_minus_infinity_has_no_bound(client: TestClient) -> None:
    body = {"text": TEXT, "captures": [{"site": "embed"}], "compare": True}
    answer = client.post("/v1/inspect", json={**body, "edits": [HIDDEN_LOGIT]})
    found = strict_json(answer.content)["comparison"]
    assert found["kl_nats"][-1] is None and found["max_logit_change"][-1] is None
    assert set(found["kl_nats"][:-1]) == set(found["max_logit_change"][:-1]) == {0}


@pytest.mark.parametrize("way", ["logits", "comparison"])
def test_row_of_minus_infinity_alone_is_refused(way: str, client: TestClient) -> None:
    path, body = "/v1/logits", {"text": TEXT, "edits": [NO_LOGIT]}
    if way == "comparison":
        path = "/v1/inspect"
        body |= {"captures": [{"site": "embed"}], "compare": True}
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith(":not-finite") and "−∞" in answer.json()["detail"]


def test_kl_of_rows_that_share_a_logit_of_minus_infinity_is_finite() -> None:
    """By hand: the token that neither run allows adds nothing."""
    gone = -math.inf
    before = torch.tensor([[gone, 0.0, 0.0]])
    after = torch.tensor([[gone, math.log(3), 0.0]])
    found = compare_logits(before, after)
    # p = (1/2, 1/2), q = (3/4, 1/4): ½ ln(2/3) + ½ ln 2 = ½ ln(4/3)
    assert found.kl_nats[0] == pytest.approx(0.5 * math.log(4 / 3))
    assert found.max_logit_change[0] == pytest.approx(math.log(3))
