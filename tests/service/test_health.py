"""Health tells the truth: while loading, running, broken and hung."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import service.inspector
from model.checkpoints.open import OpenedModel
from service.app import create_app, open_configured
from service.inspector import Inspector
from service.settings import Settings
from tests.conftest import Serve
from tests.service.asgi import Exchange


def eventually(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def ready(client: TestClient) -> Any:
    return client.get("/health/ready")


def inspector(client: TestClient) -> Any:
    return client.app.state.inspector  # type: ignore[attr-defined]


def test_running_server_is_live_and_ready(client: TestClient) -> None:
    assert client.get("/health/live").json()["status"] == "live"
    answer = ready(client)
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "reason": None, "model": "course"}


class Loading:
    """A server whose model opens only when told, or fails to."""

    def __init__(self, settings: Settings) -> None:
        self.go = threading.Event()
        self.fault: Exception | None = None
        self.failed = threading.Event()
        self.app = create_app(settings, open_with=self.open, on_failure=self.failed.set)

    def open(self, settings: Settings) -> OpenedModel:
        assert self.go.wait(30)
        if self.fault is not None:
            raise self.fault
        return open_configured(settings)


@pytest.fixture
def loading(folders: dict[str, Path]) -> Iterator[tuple[Loading, TestClient]]:
    server = Loading(Settings(model=str(folders["course"])))
    with TestClient(server.app, base_url="http://localhost") as client:
        yield server, client
        server.go.set()


def test_loading_server_is_live_not_ready_and_answers_no_question(
    loading: tuple[Loading, TestClient],
) -> None:
    server, client = loading
    assert client.get("/health/live").status_code == 200
    answer = ready(client)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith(":not-ready")
    assert "loading" in answer.json()["detail"] and answer.headers["retry-after"] == "1"
    for path in ("/v1/model", "/v1/sites", "/v1/model/parameters"):
        assert client.get(path).status_code == 503, path
    for path, body in (
        ("/v1/attention", {"text": "a"}),
        ("/v1/tokenize", {"text": "a"}),
        ("/v1/detokenize", {"token_ids": [1]}),
    ):
        assert client.post(path, json=body).status_code == 503, path
    server.go.set()
    assert eventually(lambda: ready(client).status_code == 200)
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200


def test_model_that_cannot_be_opened_is_reported(
    loading: tuple[Loading, TestClient], caplog: pytest.LogCaptureFixture
) -> None:
    server, client = loading
    server.fault = ValueError("no such checkpoint")
    server.go.set()
    assert server.failed.wait(5)
    assert "no such checkpoint" in caplog.text
    assert ready(client).status_code == 503


def test_broken_model_is_not_ready_and_says_why(serve: Serve) -> None:
    client = serve()
    model = inspector(client).opened.model
    assert ready(client).status_code == 200
    model.ln_final.weight.data = model.ln_final.weight.data[:-1]  # no run gets through it
    failed = client.post("/v1/logits", json={"text": "a"})
    assert failed.status_code == 500
    answer = ready(client)
    assert answer.status_code == 503
    assert "failed with RuntimeError" in answer.json()["detail"]
    assert client.get("/health/live").status_code == 200


def test_broken_model_that_recovers_is_ready_again(serve: Serve) -> None:
    client = serve()
    weight = inspector(client).opened.model.ln_final.weight
    whole = weight.data
    weight.data = whole[:-1]
    client.post("/v1/logits", json={"text": "a"})
    assert ready(client).status_code == 503
    weight.data = whole
    assert ready(client).status_code == 200


def test_requests_that_are_refused_do_not_make_it_broken(serve: Serve) -> None:
    client = serve("learned")
    bad = {"text": "a", "wiring": {"rope": {"offset": 1}}}
    assert client.post("/v1/attention", json=bad).status_code == 422
    assert inspector(client)._broken is None
    assert ready(client).status_code == 200


def test_idle_model_is_tried_with_one_token_and_a_fresh_one_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    model = inspector(client).opened.model
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    assert ready(client).status_code == 200
    assert shapes == [(1, 1)]  # nothing had run yet
    assert ready(client).status_code == 200
    assert shapes == [(1, 1)]
    monkeypatch.setattr("service.inspector.PROBE_AFTER", 0.0)
    assert ready(client).status_code == 200
    assert shapes == [(1, 1)] * 2


class Hanging:
    """A model's forward that waits inside its first block until told to go on."""

    def __init__(self, client: TestClient) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        inspector(client).opened.model.blocks[0].register_forward_pre_hook(self.wait)

    def wait(self, *_: Any) -> None:
        self.entered.set()
        assert self.go.wait(30)


def test_busy_server_is_ready_and_a_hung_one_is_not(serve: Serve) -> None:
    client = serve(run_seconds=0.5)
    hanging = Hanging(client)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(client.post("/v1/attention", json={"text": "a"}))
    )
    asking.start()
    try:
        assert hanging.entered.wait(5)
        assert ready(client).status_code == 200
        assert client.get("/health/live").status_code == 200
        assert eventually(lambda: ready(client).status_code == 503)
        assert "over its deadline" in ready(client).json()["detail"]
        assert client.get("/health/live").status_code == 200
        asking.join(5)
        assert answers[0].status_code == 503
        assert answers[0].json()["type"].endswith(":deadline-passed")
        assert answers[0].json()["limit"] == 0.5
    finally:
        hanging.go.set()
        asking.join(5)
    assert eventually(lambda: ready(client).status_code == 200)
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200


def test_client_that_leaves_ends_its_run_and_breaks_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve()
    hanging = Hanging(client)
    layers: list[int] = []
    blocks = inspector(client).opened.model.blocks
    blocks[2].register_forward_pre_hook(lambda *_: layers.append(2))

    async def leave_when_running() -> dict[str, Any]:
        await asyncio.to_thread(hanging.entered.wait, 5)
        return {"type": "http.disconnect"}

    exchange = Exchange(b'{"text":"a"}', after=leave_when_running)
    client.portal.call(exchange.run, client.app, "/v1/attention")  # type: ignore[union-attr]
    assert exchange.sent == []
    hanging.go.set()
    assert eventually(lambda: not inspector(client).admission.running)
    assert layers == []  # the run ended at the next block
    assert inspector(client)._broken is None
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200


def test_probe_runs_on_the_models_own_device(serve: Serve) -> None:
    client = serve()
    opened = inspector(client).opened
    devices: list[torch.device] = []
    opened.model.register_forward_pre_hook(lambda _, inputs: devices.append(inputs[0].device))
    opened.model.to("meta")
    ready(client)
    assert devices == [torch.device("meta")]


OUT_OF_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 512.00 MiB is free. Process 1 has 7.50 GiB memory in use."
)


class Failing:
    """A model whose runs fail with the error inside their first block, until told to stop."""

    def __init__(self, client: TestClient, error: BaseException) -> None:
        self.held: list[weakref.ref[torch.Tensor]] = []  # what the runs had in memory
        self._error = error
        first = inspector(client).opened.model.blocks[0]
        self.stop = first.register_forward_pre_hook(self.fail).remove

    def fail(self, *_: Any) -> None:
        work = torch.zeros(1000)
        self.held.append(weakref.ref(work))
        raise self._error


def test_memory_that_runs_out_is_said_in_numbers_and_let_go(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    failing = Failing(client, OUT_OF_MEMORY)
    alive_when_emptied: list[torch.Tensor | None] = []
    monkeypatch.setattr(
        "torch.cuda.empty_cache", lambda: alive_when_emptied.append(failing.held[0]())
    )
    answer = client.post("/v1/attention", json={"text": "a"})
    assert answer.status_code == 503
    problem = answer.json()
    assert problem["type"].endswith(":out-of-memory")
    assert (problem["limit"], problem["actual"]) == (512 << 20, 5 << 29)
    assert (
        f"{5 << 29} bytes more were asked for, {512 << 20} of {8 << 30} were free"
        in (problem["detail"])
    )
    assert answer.headers["retry-after"] == "1"
    assert alive_when_emptied == [None]
    failing.stop()
    assert ready(client).status_code == 200
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(), None),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
            ),
            4096,
        ),
        (torch.AcceleratorError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), None),
    ],
)
def test_memory_that_runs_out_elsewhere_is_the_same_problem(
    error: BaseException, asked: int | None, serve: Serve
) -> None:
    client = serve()
    Failing(client, error)
    problem = client.post("/v1/attention", json={"text": "a"}).json()
    assert problem["type"].endswith(":out-of-memory")
    assert problem.get("actual") == asked
    assert inspector(client).fatal is None and inspector(client)._broken is None


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
        SystemExit(0),
    ],
)
def test_lost_device_is_fatal_and_stays_so(error: BaseException, serve: Serve) -> None:
    client = serve()
    failing = Failing(client, error)
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 500
    failing.stop()
    for _ in range(2):
        answer = ready(client)
        assert answer.status_code == 503
        assert f"failed with {type(error).__name__}" in answer.json()["detail"]
    assert client.get("/health/live").status_code == 200


def test_run_that_fails_for_itself_alone_is_not_fatal(serve: Serve) -> None:
    client = serve()
    failing = Failing(client, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 500
    assert inspector(client).fatal is None
    failing.stop()
    assert ready(client).status_code == 200


class Deadly:
    """Work after which the thread that does it is no more."""

    def run(self) -> None:
        raise SystemExit


def test_dead_inference_thread_is_not_ready_and_live(serve: Serve) -> None:
    client = serve()
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 200
    assert inspector(client).fatal is None
    inspector(client)._device._work_queue.put(Deadly())
    assert eventually(lambda: inspector(client).fatal is not None)
    answer = ready(client)
    assert answer.status_code == 503 and "thread is dead" in answer.json()["detail"]
    assert client.get("/health/live").status_code == 200


def test_model_that_is_lost_is_reported_to_whoever_runs_the_process(
    folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.app.WATCH_EVERY", 0.01)
    failed = threading.Event()
    app = create_app(Settings(model=str(folders["course"])), on_failure=failed.set)
    with TestClient(app, base_url="http://localhost") as client:
        assert eventually(lambda: ready(client).status_code == 200)
        failing = Failing(client, RuntimeError("not at all fatal"))
        client.post("/v1/attention", json={"text": "a"})
        assert not failed.wait(0.1)
        failing.stop()
        Failing(client, torch.AcceleratorError("CUDA error: unknown error"))
        client.post("/v1/attention", json={"text": "a"})
        assert failed.wait(5)
    assert "giving up: the last run failed with AcceleratorError" in caplog.text


def test_probe_that_hangs_is_not_ready_from_its_own_deadline_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks anything; only readiness tries the model, and finds that it hangs."""
    monkeypatch.setattr("service.inspector.PROBE_SECONDS", 0.2)
    client = serve()
    hanging = Hanging(client)
    try:
        for _ in range(3):
            answer = ready(client)
            assert answer.status_code == 503
            assert "no answer within 0.2 s" in answer.json()["detail"]
        assert client.get("/health/live").status_code == 200
    finally:
        hanging.go.set()
    assert eventually(lambda: ready(client).status_code == 200)


def test_model_that_is_slow_for_one_token_is_not_taken_for_a_hung_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inspector.PROBE_SECONDS", 0.05)
    monkeypatch.setattr("service.inspector.PROBE_AFTER", 0.0)
    client = serve()
    inspector(client).opened.model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    assert ready(client).status_code == 503  # nobody knows its pace yet
    assert eventually(lambda: ready(client).status_code == 200)
    for _ in range(5):
        assert ready(client).status_code == 200


def test_request_that_comes_just_before_the_probe_makes_it_busy_not_hung(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the slot, and its thread has not begun yet when readiness looks."""
    monkeypatch.setattr("service.inspector.PROBE_SECONDS", 0.2)
    app = serve().app
    go, end = threading.Event(), threading.Event()

    async def scenario() -> tuple[str | None, str | None]:
        watched = Inspector(app.state.inspector.opened, Settings())  # type: ignore[attr-defined]
        watched._device.submit(go.wait, 10)
        request = asyncio.ensure_future(watched.on_device(lambda _: end.wait(10)))
        probe = asyncio.ensure_future(watched.why_not_ready())
        await asyncio.sleep(0)
        go.set()
        while_it_runs = await probe
        end.set()
        await request
        after = await watched.why_not_ready()
        watched.close()
        return while_it_runs, after

    assert asyncio.run(scenario()) == (None, None)


def test_readiness_answers_within_two_seconds_whatever_the_model_does() -> None:
    assert service.inspector.PROBE_SECONDS < 2


def test_draining_server_is_live_and_not_ready(serve: Serve) -> None:
    client = serve()
    client.portal.call(client.app.state.draining.set)  # type: ignore[union-attr, attr-defined]
    answer = ready(client)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith(":shutting-down")
    assert answer.headers["retry-after"] == "1"
    assert client.get("/health/live").status_code == 200
