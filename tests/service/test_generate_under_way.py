"""Generations beside other requests: turns on the device, limits, what ends one before its end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from fastapi.testclient import TestClient

from model.generation import Advanced, Generation
from model.reading import read
from service.app import create_app
from service.settings import Settings
from tests.answers import ask
from tests.conftest import Serve
from tests.listening import listening
from tests.service.asgi import Exchange
from tests.service.sse import EVENTS, events_of, in_one_piece, stream, without_times

TEXT = "The cat chased the mouse"
BODY = {"text": TEXT, "seed": 1, "stop_ids": [], "top": 2}


class Steps:
    """Every step of every generation passes here, and is held at one of them until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        self.held_at: int | None = None
        self.held, self.go = threading.Event(), threading.Event()
        self.gives: Callable[[Advanced], Advanced] = lambda advanced: advanced
        advance = Generation.advance

        def counted(generation: Generation, token_id: int, stopped: Any) -> Advanced:
            self.order.append("step")
            if self.count == self.held_at:
                go = self.go
                self.held.set()
                assert go.wait(30)
            return self.gives(advance(generation, token_id, stopped))

        def noted(*given: Any, **named: Any) -> Any:
            self.order.append("map")
            return read(*given, **named)

        monkeypatch.setattr(Generation, "advance", counted)
        monkeypatch.setattr("service.inspector.read", noted)

    def hold_again_at(self, step: int) -> threading.Event:
        """Let go of the step that is held, for another one later."""
        before, self.go, self.held_at = self.go, threading.Event(), step
        self.held.clear()
        before.set()
        return self.go

    @property
    def count(self) -> int:
        return self.order.count("step")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    found = Steps(monkeypatch)
    yield found
    found.go.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(6) as threads:
        yield threads


def admission_of(client: TestClient) -> Any:
    return client.app.state.inspector.admission  # type: ignore[attr-defined]


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def generate(client: TestClient, accept: str = "application/json", **body: Any) -> Any:
    return client.post("/v1/generate", json={**BODY, **body}, headers={"accept": accept})


def test_attention_map_comes_between_two_steps_of_a_long_generation(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor
) -> None:
    client = serve()
    steps.held_at = 3
    long = pool.submit(generate, client, max_new_tokens=40)
    assert steps.held.wait(20)
    maps = [pool.submit(client.post, "/v1/attention", json={"text": TEXT}) for _ in range(2)]
    until(lambda: admission_of(client).waiting == 2)
    steps.go.set()
    assert [answer.result().status_code for answer in maps] == [200, 200]
    answer = long.result()
    assert answer.status_code == 200 and len(answer.json()["steps"]) == 40
    # Both had asked before the fourth step did, and the 36 steps after them still had to come.
    assert steps.order[:6] == ["step", "step", "step", "map", "map", "step"]
    assert steps.count == 39


def test_two_generations_take_turns(serve: Serve, steps: Steps, pool: ThreadPoolExecutor) -> None:
    client = serve()
    steps.held_at = 1
    first = pool.submit(generate, client, max_new_tokens=30)
    assert steps.held.wait(20)
    second = pool.submit(generate, client, max_new_tokens=5)
    until(lambda: admission_of(client).waiting == 1)
    ended: list[int] = []
    second.add_done_callback(lambda _: ended.append(steps.count))
    steps.go.set()
    assert first.result().status_code == second.result().status_code == 200
    assert ended[0] < 29 + 4  # the short one was over before the long one


def test_steps_of_generations_that_were_let_in_are_never_refused(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor
) -> None:
    client = serve(waiting=1)
    steps.held_at = 2
    first = pool.submit(generate, client, max_new_tokens=12)
    assert steps.held.wait(20)
    second = pool.submit(generate, client, max_new_tokens=12)
    until(lambda: admission_of(client).waiting == 1)
    assert client.post("/v1/attention", json={"text": TEXT}).status_code == 429  # the queue is full
    again = steps.hold_again_at(8)
    assert steps.held.wait(20)
    until(lambda: admission_of(client).waiting == 1)
    # The other's step waits and takes no place: a map may wait too, and then the queue is full.
    one = pool.submit(client.post, "/v1/attention", json={"text": TEXT})
    until(lambda: admission_of(client).waiting == 2)
    assert client.post("/v1/attention", json={"text": TEXT}).status_code == 429
    again.set()
    assert [each.result().status_code for each in (first, second, one)] == [200, 200, 200]


def test_generations_at_once_equal_those_one_by_one(serve: Serve, pool: ThreadPoolExecutor) -> None:
    client = serve(generations=6)
    bodies = [
        {
            "seed": seed,
            "max_new_tokens": 8,
            "n": 1 + seed % 2,
            "trace": {"captures": [{"site": "attn.pattern"}]},
        }
        for seed in range(6)
    ]
    alone = [without_times(generate(client, **body).json()) for body in bodies]
    together = pool.map(lambda body: generate(client, **body).json(), bodies)
    assert [without_times(answer) for answer in together] == alone
    assert len({str(answer) for answer in alone}) == 6


def test_one_generation_too_many_is_asked_to_come_back(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor
) -> None:
    client = serve(generations=1)
    steps.held_at = 2
    first = pool.submit(generate, client, EVENTS)
    assert steps.held.wait(20)
    for accept in (EVENTS, "application/json"):
        refused = generate(client, accept)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["type"].endswith(":too-busy")
        assert "generations under way: 1" in refused.json()["detail"]  # not that a wait was long
    assert generate(client, dry_run=True).status_code == 200  # nothing is run for it
    steps.go.set()
    assert first.result().status_code == 200
    assert generate(client).status_code == 200
    assert admission_of(client).generating == 0


def test_budget_holds_keys_values_and_the_largest_event_until_the_stream_is_over(
    serve: Serve,
) -> None:
    client = serve()
    admission = admission_of(client)
    held: list[int] = []

    class Watching(Exchange):
        async def _send(self, message: Any) -> None:
            held.append(admission.bytes_in_flight)
            assert admission.generating == 1
            await super()._send(message)

    body = orjson.dumps({**BODY, "max_new_tokens": 3})
    exchange = Watching(body, accept=EVENTS)
    client.portal.call(exchange.run, client.app, "/v1/generate")  # type: ignore[union-attr]
    assert exchange.status == 200 and len(held) == 8
    kept = 3 * 2 * 48 * 64 * 4  # layers, keys and values, numbers, room for 64 positions, float32
    assert all(kept <= size < kept + 10_000 for size in held)
    assert admission.bytes_in_flight == admission.generating == 0


@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
def test_client_that_leaves_stops_it_within_one_step(
    folders: Mapping[str, Path], steps: Steps, accept: str
) -> None:
    """Over a socket, with all middleware. The step that runs is held, so that it is known."""
    app = create_app(Settings(model=str(folders["course"])))
    steps.held_at = 3
    with listening(app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as connection:
            body = orjson.dumps({**BODY, "max_new_tokens": 50})
            connection.sendall(
                b"POST /v1/generate HTTP/1.1\r\nhost: localhost\r\naccept: %s\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (accept.encode(), len(body), body)
            )
            assert steps.held.wait(20)
        admission = app.state.inspector.admission
        until(lambda: admission.generating == 0)
        assert admission.bytes_in_flight == 0
        assert admission.running == 1  # the thread is still inside the step
        steps.go.set()
        until(lambda: admission.running == 0)
    assert steps.count == 3


def test_events_come_as_they_are_made_and_are_never_compressed(serve: Serve, steps: Steps) -> None:
    client = serve()
    steps.held_at = 2
    exchange = Exchange(
        orjson.dumps({**BODY, "max_new_tokens": 30, "top": 300}),
        accept=EVENTS,
        origin="http://localhost:3000",
        **{"accept-encoding": "gzip, zstd"},
    )
    portal = client.portal
    assert portal is not None
    running = portal.start_task_soon(exchange.run, client.app, "/v1/generate")
    assert steps.held.wait(20)
    # Steps 0 and 1 were made before the run that is held.
    until(lambda: len(exchange.sent) == 1 + 4)
    steps.go.set()
    running.result()
    assert len(exchange.body) > 64 * 1024
    assert "content-encoding" not in exchange.headers
    assert exchange.headers["content-type"].startswith(EVENTS)
    assert exchange.headers["cache-control"] == "no-store"
    assert exchange.headers["access-control-allow-origin"] == "http://localhost:3000"
    pieces = [message["body"] for message in exchange.sent[1:-1]]
    assert [len(events_of(piece)) for piece in pieces] == [1] * 33
    assert exchange.sent[-1]["body"] == b"" and not exchange.sent[-1]["more_body"]


def test_silence_is_filled_with_comments(
    serve: Serve, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.wire.events.PING_SECONDS", 0.01)
    client = serve()
    steps.held_at = 2
    exchange = Exchange(orjson.dumps({**BODY, "max_new_tokens": 4}), accept=EVENTS)
    portal = client.portal
    assert portal is not None
    running = portal.start_task_soon(exchange.run, client.app, "/v1/generate")
    until(lambda: exchange.body.count(b": ping\n\n") >= 3)
    steps.go.set()
    running.result()
    assert [name for name, _ in events_of(exchange.body)][-2:] == ["step", "done"]


@contextmanager
def held_generation(
    client: TestClient, steps: Steps, pool: ThreadPoolExecutor, accept: str
) -> Iterator[Any]:
    steps.held_at = 2
    answer = pool.submit(generate, client, accept, max_new_tokens=9)
    assert steps.held.wait(20)
    yield answer
    steps.go.set()


def last_problem(body: bytes) -> Any:
    events = events_of(body)
    assert [name for name, _ in events[:2]] == ["meta", "prompt"]
    assert events[-1][0] == "error" and "done" not in dict(events)
    return events[-1][1]


def test_server_that_drains_ends_a_stream_after_the_step_that_runs(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor
) -> None:
    client = serve()
    with held_generation(client, steps, pool, EVENTS) as running:
        client.portal.call(client.app.state.draining.set)  # type: ignore[union-attr,attr-defined]
    answer = running.result()
    assert answer.status_code == 200
    names = [name for name, _ in events_of(answer.content)]
    assert names == ["meta", "prompt", "step", "step", "step", "error"]
    problem = last_problem(answer.content)
    assert problem["type"].endswith(":shutting-down") and problem["status"] == 503
    assert problem["instance"] == answer.headers["x-request-id"]
    assert steps.count == 2 and admission_of(client).generating == 0


def test_server_that_drains_finishes_an_answer_in_one_piece(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor
) -> None:
    client = serve()
    with held_generation(client, steps, pool, "application/json") as running:
        client.portal.call(client.app.state.draining.set)  # type: ignore[union-attr,attr-defined]
    answer = running.result()
    assert answer.status_code == 200 and len(answer.json()["steps"]) == 9
    assert generate(client).status_code == 503  # and takes nothing new


@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
def test_step_over_its_deadline_ends_it(
    serve: Serve, steps: Steps, pool: ThreadPoolExecutor, accept: str
) -> None:
    client = serve(run_seconds=0.5)
    with held_generation(client, steps, pool, accept) as running:
        answer = running.result()
    problem = last_problem(answer.content) if accept == EVENTS else answer.json()
    assert problem["type"].endswith(":deadline-passed") and problem["status"] == 503
    assert problem["limit"] == 0.5
    assert steps.count == 2


def test_deadline_is_for_each_step_and_not_for_all(serve: Serve, steps: Steps) -> None:
    client = serve(run_seconds=0.6)

    def slowly(advanced: Advanced) -> Advanced:
        time.sleep(0.1)
        return advanced

    steps.gives = slowly
    assert len(ask(client, "/v1/generate", **BODY, max_new_tokens=12)["steps"]) == 12


def test_logits_that_stop_being_numbers_end_the_stream_with_the_problem(
    serve: Serve, steps: Steps
) -> None:
    client = serve()

    def nan_later(advanced: Advanced) -> Advanced:
        if steps.count < 3:
            return advanced
        spoilt = torch.full_like(advanced.logits, float("nan"))
        return Advanced(spoilt, advanced.tensors, advanced.captures, advanced.checks)

    steps.gives = nan_later
    problem = last_problem(generate(client, EVENTS).content)
    assert problem["type"].endswith(":not-finite") and problem["status"] == 422
    steps.order.clear()
    assert generate(client).json()["type"].endswith(":not-finite")
    assert admission_of(client).generating == 0


def test_fault_of_ours_ends_the_stream_without_its_words(serve: Serve, steps: Steps) -> None:
    client = serve()

    def fail(_: Advanced) -> Advanced:
        raise RuntimeError(TEXT)

    steps.gives = fail
    answer = generate(client, EVENTS)
    problem = last_problem(answer.content)
    assert problem["type"].endswith(":internal-error") and problem["status"] == 500
    assert TEXT not in str(problem)
    steps.gives = lambda advanced: advanced
    assert in_one_piece(stream(client, **BODY))["done"]["n_steps"] == 32
    assert admission_of(client).bytes_in_flight == admission_of(client).generating == 0


def test_event_loop_neither_chooses_nor_writes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model.sampling import choose
    from service.choices import choice_fields
    from service.wire.tensors import json_tensors

    threads: dict[str, str] = {}

    def noting(name: str, work: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            threads[name] = threading.current_thread().name.partition("_")[0]
            return work(*given, **named)

        return noted

    monkeypatch.setattr("service.generating.choose", noting("choose", choose))
    monkeypatch.setattr("service.generating.choice_fields", noting("tell", choice_fields))
    monkeypatch.setattr("service.generation_forms.json_tensors", noting("write", json_tensors))
    assert generate(serve(), EVENTS).status_code == 200
    assert threads == {"choose": "inference", "tell": "codec", "write": "codec"}
