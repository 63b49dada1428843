"""Requests at once: never another's numbers, never a stalled loop, nothing left held."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from model.checkpoints.open import OpenedModel
from model.reading import read
from service.app import open_configured
from service.settings import Settings
from service.wire.tensors import json_parts
from tests.answers import strict_json
from tests.conftest import Serve
from tests.service.asgi import Exchange

TEXTS = ["The cat chased the mouse.", "猫追老鼠，因为它饿了。", "Once upon a time", "a"]
WIRINGS: list[dict[str, Any]] = [
    {},
    {"causal": False},
    {"score_scale": 1.0},
    {"residual": False},
    {"positions": "none"},
    {"rope": {"pairing": "half"}},
    {"rope": {"base": 100.0, "offset": 7}},
    {"rope": {"scaling": {"kind": "linear", "factor": 4}}},
]
EDITS: list[list[dict[str, Any]]] = [
    [],
    [{"op": "zero", "site": "attn.z", "layers": [0], "heads": [1]}],
    [{"op": "block", "layers": [1], "heads": [0, 2], "keys": [0]}],
    [{"op": "scale", "site": "mlp_out", "by": 0.5, "layers": [2]}],
    [{"op": "patch", "site": "resid_pre", "layers": [1], "positions": [0]}],
]
FORMS: list[dict[str, Any]] = [{"exact": True}, {"encoding": "base64"}, {"decimals": 8}]


def request(number: int) -> tuple[str, dict[str, Any]]:
    edits = [dict(edit) for edit in EDITS[number % len(EDITS)]]
    for edit in edits:
        if edit["op"] == "patch":
            edit["source"] = {"text": TEXTS[(number + 1) % 4], "positions": [0]}
    body: dict[str, Any] = {
        "text": TEXTS[number % len(TEXTS)],
        "wiring": WIRINGS[number % len(WIRINGS)],
        "edits": edits,
        "format": FORMS[number % len(FORMS)],
    }
    kind = number % 3
    if kind == 0 and not edits:
        return "/v1/attention", body
    if kind == 1:
        return "/v1/logits", {**body, "full": True, "compare": number % 2 == 0}
    captures = [{"site": "attn.pattern"}, {"site": "resid_post", "layers": [-1]}]
    return "/v1/inspect", {**body, "captures": captures}


def told(client: TestClient, number: int) -> Any:
    path, body = request(number)
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = strict_json(answer.content)
    del found["timing_ms"]
    return found


@pytest.fixture(scope="module")
def serial(client: TestClient) -> list[Any]:
    return [told(client, number) for number in range(60)]


def test_two_hundred_mixed_requests_at_once_equal_their_serial_answers(
    client: TestClient, serial: list[Any]
) -> None:
    numbers = [(7 * n) % len(serial) for n in range(200)]
    with ThreadPoolExecutor(12) as pool:
        for number, found in zip(
            numbers, pool.map(lambda n: told(client, n), numbers), strict=True
        ):
            assert found == serial[number], request(number)
    admission = client.app.state.inspector.admission  # type: ignore[attr-defined]
    assert admission.running == 0 and admission.waiting == 0
    assert admission.bytes_in_flight == 0


def test_the_mixed_requests_do_differ(serial: list[Any]) -> None:
    different = {str(answer["tensors"]) for answer in serial}
    assert len(different) > 50


def test_queue_that_is_full_answers_429_at_once(serve: Serve) -> None:
    client = serve(waiting=1)
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    entered, go = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        entered.set()
        assert go.wait(30)

    hook = inspector.opened.model.blocks[0].register_forward_pre_hook(hold)
    with ThreadPoolExecutor(3) as pool:
        try:
            running = pool.submit(client.post, "/v1/attention", json={"text": "a"})
            assert entered.wait(5)
            waiting = pool.submit(client.post, "/v1/attention", json={"text": "a"})
            deadline = time.monotonic() + 5
            while not inspector.admission.waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            refused = client.post("/v1/attention", json={"text": "a"})
            assert refused.status_code == 429
            assert refused.json()["type"].endswith(":too-busy")
            assert int(refused.headers["retry-after"]) >= 1
            for path in ("/health/live", "/health/ready", "/v1/model"):
                assert client.get(path).status_code == 200, path
            assert client.post("/v1/tokenize", json={"text": "a"}).status_code == 200
        finally:
            go.set()
            hook.remove()
        assert running.result().status_code == waiting.result().status_code == 200


def test_budget_is_held_until_the_answer_is_sent_also_where_it_cannot_be(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve()
    admission = client.app.state.inspector.admission  # type: ignore[attr-defined]
    held: list[int] = []

    class Slow(Exchange):
        async def _send(self, message: Any) -> None:
            held.append(admission.bytes_in_flight)
            await super()._send(message)

    class Broken(Exchange):
        async def _send(self, message: Any) -> None:
            held.append(admission.bytes_in_flight)
            raise OSError("the connection is gone")

    body = b'{"text":"The cat chased the mouse."}'
    client.portal.call(Slow(body).run, client.app, "/v1/attention")  # type: ignore[union-attr]
    assert len(held) >= 3 and all(size > 4000 for size in held)
    assert admission.bytes_in_flight == 0
    client.portal.call(Broken(body).run, client.app, "/v1/attention")  # type: ignore[union-attr]
    assert held[-1] > 4000
    assert admission.bytes_in_flight == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_event_loop_neither_tokenizes_nor_runs_nor_encodes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    opened = client.app.state.inspector.opened  # type: ignore[attr-defined]
    threads: dict[str, str] = {}

    def noting(name: str, work: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            threads[name] = threading.current_thread().name
            return work(*given, **named)

        return noted

    monkeypatch.setattr(opened.tokenizer, "read", noting("read", opened.tokenizer.read))
    monkeypatch.setattr("service.inspector.read", noting("run", read))
    monkeypatch.setattr("service.wire.tensors.json_parts", noting("encode", json_parts))
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200
    kinds = {name: thread.partition("_")[0] for name, thread in threads.items()}
    assert kinds == {"read": "codec", "run": "inference", "encode": "codec"}


def test_model_is_opened_by_the_thread_that_runs_it(serve: Serve) -> None:
    """Every thread that computes gets a team of OpenMP's own, and teams stand in each other's way:
    measured on two cores, the runs of a model that another thread had opened took 1.35 times as
    long."""
    threads: list[threading.Thread] = []

    def noting(settings: Settings) -> OpenedModel:
        threads.append(threading.current_thread())
        return open_configured(settings)

    client = serve(open_with=noting)
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    assert client.portal is not None
    client.portal.call(inspector.on_device, lambda _: threads.append(threading.current_thread()))
    opening, running = threads
    assert opening is running
