"""Two replicas answer bit for bit as the single server does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.answers import SAFETENSORS, strict_json

TEXT = "Once upon a time there was a little girl. 从前有一个小女孩。"
EXACT = {"text": TEXT, "format": {"exact": True}}
EDIT = {"op": "zero", "site": "attn.z", "layers": [1], "heads": [2]}
UNMASKED = {"causal": False}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("/v1/attention", {**EXACT, "stages": ["dots", "scores", "pattern"]}),
    "logits": ("/v1/logits", {**EXACT, "positions": "all", "full": True}),
    "edited": ("/v1/logits", {**EXACT, "edits": [EDIT], "compare": True}),
    "wired": ("/v1/inspect", {**EXACT, "captures": [{"site": "attn.z"}], "wiring": UNMASKED}),
    "cell": ("/v1/attention/cell", {"text": TEXT, "layer": 2, "head": 1, "query": 9, "key": 3}),
    "lab": ("/v1/labs/heads", {}),
}


def without_times(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    found = strict_json(answer.content)
    found.pop("timing_ms", None)
    return found


@pytest.mark.parametrize("name", ASKED)
def test_two_replicas_answer_as_one_server(
    name: str, replicas: httpx.Client, alone: httpx.Client
) -> None:
    path, body = ASKED[name]
    wanted = without_times(alone.post(path, json=body))
    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(replicas.post, path, json=body) for _ in range(6)]
        for one in asked:
            assert without_times(one.result()) == wanted


def test_generation_is_the_same_token_for_token(
    replicas: httpx.Client, alone: httpx.Client
) -> None:
    body = {
        "text": TEXT,
        "max_new_tokens": 8,
        "seed": 5,
        "trace": {"captures": [{"site": "attn.z"}]},
    }
    one, other = (client.post("/v1/generate", json=body).json() for client in (alone, replicas))
    for answer in (one, other):
        assert len(answer["steps"]) == 8
        for part in (answer["prompt"], answer["done"], *answer["steps"]):
            del part["timing_ms"]
    assert one == other


def test_bytes_of_tensors_are_the_same(replicas: httpx.Client, alone: httpx.Client) -> None:
    body = {"text": TEXT, "captures": [{"site": "resid_post"}, {"site": "attn.pattern"}]}
    given = {"json": body, "headers": {"accept": SAFETENSORS}}
    one, other = (client.post("/v1/inspect", **given).content for client in (alone, replicas))
    tensors = [data[8 + int.from_bytes(data[:8], "little") :] for data in (one, other)]
    assert len(tensors[0]) > 4 * 3 * 48 and tensors[0] == tensors[1]


def test_both_replicas_answered(replicas: httpx.Client) -> None:
    """What stands above means nothing if one of them did all the work."""
    path, body = ASKED["attention"]
    for _ in range(20):
        with ThreadPoolExecutor(6) as clients:
            for one in [clients.submit(replicas.post, path, json=body) for _ in range(6)]:
                one.result()
        assert replicas.post(path, json=body).status_code == 200  # so that the two differ
        counts = {requests_counted(replicas, path) for _ in range(20)}
        if len(counts) == 2 and all(counts):
            return
    raise AssertionError(counts)


def requests_counted(client: httpx.Client, path: str) -> float:
    """Of the replica that answers just now."""
    name = f'fluoroscope_request_seconds_count{{method="POST",route="{path}",status="2xx"}}'
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(name):
            return float(line.removeprefix(name))
    return 0
