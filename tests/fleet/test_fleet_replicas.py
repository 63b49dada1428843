"""Two replicas on a real local Ray: nothing lost when one dies, nothing run for nobody."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import pytest

from tests.fleet.conftest import ASK
from tests.fleet.gate import Gate

CONTINUE = {"text": "Once upon a time", "max_new_tokens": 5, "temperature": 0, "stop_ids": []}
STREAM = {"accept": "text/event-stream"}
ORIGIN = "http://localhost:5173"


def wait_for_both(client: httpx.Client, gate: Gate) -> None:
    """Until two processes answer, also where one was killed a moment ago."""
    gate.open()
    deadline = time.monotonic() + 120
    while len({*gate.marks("entered")}) < 2:
        assert client.post("/v1/attention", json=ASK).status_code == 200
        assert time.monotonic() < deadline
    gate.close()


def test_client_that_leaves_ends_its_run(gated_replicas: httpx.Client, gate: Gate) -> None:
    with pytest.raises(httpx.ReadTimeout):
        gated_replicas.post("/v1/attention", json=ASK, timeout=httpx.Timeout(30, read=2))
    gate.wait_for("entered")
    gate.wait_for("unanswered")
    gate.open()
    assert gated_replicas.post("/v1/attention", json=ASK).status_code == 200
    assert len(gate.marks("entered")) == 2  # nobody asked again for who had left
    assert len(gate.marks("passed")) == 1  # and the run stopped where it was


def events(lines: Iterator[str]) -> Iterator[str]:
    """The names of events as they arrive."""
    return (line.removeprefix("event: ") for line in lines if line.startswith("event: "))


def test_stream_arrives_while_it_is_made(gated_replicas: httpx.Client, gate: Gate) -> None:
    gate.open()
    with gated_replicas.stream("POST", "/v1/generate", json=CONTINUE, headers=STREAM) as answer:
        arrived = events(answer.iter_lines())
        # The first token is chosen at the end of the prompt, the second is not yet.
        assert [next(arrived) for _ in range(3)] == ["meta", "prompt", "step"]
        gate.wait_for("stepped")
        gate.open("steps")
        assert [*arrived] == ["step"] * (CONTINUE["max_new_tokens"] - 1) + ["done"]


def test_client_that_leaves_its_stream_ends_it(gated_replicas: httpx.Client, gate: Gate) -> None:
    gate.open()
    with gated_replicas.stream("POST", "/v1/generate", json=CONTINUE, headers=STREAM) as answer:
        arrived = events(answer.iter_lines())
        assert next(arrived) == "meta"
        gate.wait_for("stepped")
    gate.wait_for("ended")
    gate.open("steps")
    assert gated_replicas.post("/v1/attention", json=ASK).status_code == 200
    assert len(gate.marks("stepped")) == 1


def test_overload_is_refused_by_the_app(gated_replicas: httpx.Client, gate: Gate) -> None:
    wait_for_both(gated_replicas, gate)
    with ThreadPoolExecutor(24) as clients:
        asked = [
            clients.submit(
                gated_replicas.post, "/v1/attention", json=ASK, headers={"origin": ORIGIN}
            )
            for _ in range(24)
        ]
        done = as_completed(asked, timeout=60)
        refused = [next(done).result() for _ in range(24 - 2 * 3)]
        gate.open()
        answered = [one.result() for one in done]
    for answer in refused:
        assert answer.status_code == 429
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["type"].endswith(":too-busy")
    assert [answer.status_code for answer in answered] == [200] * 6


def test_killed_replica_loses_no_request(gated_replicas: httpx.Client, gate: Gate) -> None:
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(gated_replicas.post, "/v1/attention", json=ASK) for _ in range(3)]
        victim = gate.wait_for("entered")[0]
        os.kill(victim, signal.SIGKILL)
        gate.open()
        answers = [one.result() for one in asked]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({json.dumps(answer.json()["tensors"]) for answer in answers}) == 1
    assert len(gate.marks("entered")) == 3 + 1  # the one that died with its replica ran again
