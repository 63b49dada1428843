"""How the process ends: in order when told to, at once when told twice, by itself when it must."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.test_health import eventually
from tests.smoke import free_port

ROOT = Path(__file__).parents[2]
QUESTION = {"text": "a"}


class Process:
    """A gated server, its standard input, and an HTTP client of it."""

    def __init__(self, folder: Path | str, **settings: Any) -> None:
        port = free_port()
        given = [f"{name}={value}" for name, value in settings.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.gated_server", folder, str(port), *given],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def order(self, *words: str) -> None:
        """Tell it, and wait until it has obeyed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        for word in words:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == f"{word}\n"

    def status(self, path: str) -> int:
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def gauge(self, name: str) -> float:
        found = [
            line for line in self.http.get("/metrics").text.splitlines() if line.startswith(name)
        ]
        return float(found[0].split()[1])

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, within: float) -> int:
        """Its exit code; negative where a signal killed it."""
        return self.process.wait(timeout=within)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reading.join()
        self.http.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


Start = Callable[..., Process]


@pytest.fixture
def start(folders: Mapping[str, Path]) -> Iterator[Start]:
    """A ready server of its own process."""
    running: list[Process] = []

    def begin(**settings: Any) -> Process:
        server = Process(folders["course"], **settings)
        running.append(server)
        assert eventually(lambda: server.status("/health/ready") == 200, 60), server.log
        return server

    yield begin
    for server in running:
        server.close()


class Asking(threading.Thread):
    """One request in a thread of its own, and what came of it."""

    def __init__(self, server: Process, method: str, path: str, **given: Any) -> None:
        super().__init__()
        self._ask = lambda: server.http.stream(method, path, **given)
        self.lines: list[str] = []
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        with self._ask() as answer:
            for line in answer.iter_lines():
                self.lines.append(line)
        self.answer = answer


def test_told_to_stop_it_says_so_finishes_what_runs_and_closes_streams(start: Start) -> None:
    server = start(grace_seconds=20)
    server.order("shut", "pass", "pass", "pass", "pass")  # two prompts and a step of each
    story = {"text": "a", "max_new_tokens": 32, "stop_ids": []}
    events = {"accept": "text/event-stream"}
    streams = [Asking(server, "POST", "/v1/generate", json=story, headers=events) for _ in range(2)]
    assert eventually(lambda: all("event: step" in stream.lines for stream in streams))
    runs = [Asking(server, "POST", "/v1/attention", json=QUESTION) for _ in range(4)]
    # One run has the device, and everybody else waits for it: runs, and the steps of streams.
    assert eventually(lambda: server.gauge("fluoroscope_waiting") == 5)
    server.tell(signal.SIGTERM)
    assert eventually(lambda: server.status("/health/ready") == 503)
    assert server.http.get("/health/ready").json()["type"].endswith(":shutting-down")
    assert server.status("/health/live") == 200
    refused = server.http.post("/v1/attention", json=QUESTION)
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["type"].endswith(":shutting-down")
    assert all(asking.is_alive() for asking in (*runs, *streams))
    server.order("open")
    for run in runs:
        run.join(10)
        assert run.answer is not None and run.answer.status_code == 200
    for stream in streams:
        stream.join(10)
        assert "event: done" not in stream.lines
        last = stream.lines.index("event: error")
        assert json.loads(stream.lines[last + 1].removeprefix("data: "))["status"] == 503
        assert ":shutting-down" in stream.lines[last + 1]
    assert server.ended(within=10) == 0  # long before the grace is over


def test_grace_that_is_over_ends_what_still_runs_and_says_why(start: Start) -> None:
    server = start(grace_seconds=1)
    server.order("shut")
    runs = [Asking(server, "POST", "/v1/attention", json=QUESTION) for _ in range(2)]
    assert eventually(lambda: server.gauge("fluoroscope_waiting") == 1)
    told = time.monotonic()
    server.tell(signal.SIGTERM)
    assert server.ended(within=10) == 0
    assert time.monotonic() - told < 1 + 2
    for run in runs:
        run.join(10)
        assert run.answer is not None and run.answer.status_code == 503
        assert json.loads(run.lines[0])["type"].endswith(":shutting-down")


def test_second_signal_ends_it_at_once(start: Start) -> None:
    server = start(grace_seconds=60)
    server.order("shut")
    run = threading.Thread(target=ask_and_lose, args=(server,))
    run.start()
    assert eventually(lambda: server.gauge("fluoroscope_running") == 1)
    server.tell(signal.SIGINT)
    assert eventually(lambda: server.status("/health/ready") == 503)
    server.tell(signal.SIGTERM)
    assert server.ended(within=2) == 128 + signal.SIGTERM
    run.join(10)


def ask_and_lose(server: Process) -> None:
    with pytest.raises(httpx.TransportError):
        server.http.post("/v1/attention", json=QUESTION)


def test_server_that_still_loads_can_be_stopped() -> None:
    server = Process("-", grace_seconds=60)
    try:
        assert eventually(lambda: server.status("/health/live") == 200, 60), server.log
        assert server.status("/health/ready") == 503
        server.tell(signal.SIGTERM)
        assert server.ended(within=3) == 0
    finally:
        server.close()


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("lose", "giving up: the last run failed with AcceleratorError"),
        ("kill", "giving up: the inference thread is dead"),
    ],
)
def test_process_that_can_run_nothing_any_more_ends_and_says_so(
    order: str, says: str, start: Start
) -> None:
    server = start()
    server.order(order)
    if order == "lose":
        assert server.http.post("/v1/attention", json=QUESTION).status_code == 500
    assert server.ended(within=10) == 1
    server.close()
    assert says in "".join(server.log)


def test_command_serves_logs_in_json_and_ends_in_order(folders: Mapping[str, Path]) -> None:
    port = free_port()
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("fluoroscope"),
            *("serve", "--model", folders["course"], "--port", str(port), "--threads", "1"),
            *("--log-format", "json"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, trust_env=False) as http:

            def status() -> int:
                try:
                    return http.get("/health/ready").status_code
                except httpx.TransportError:
                    return 0

            assert eventually(lambda: status() == 200, 60)
            answer = http.post("/v1/attention", json=QUESTION)
            assert answer.status_code == 200 and "server" not in answer.headers
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        _, text = process.communicate()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"uvicorn.error", "fluoroscope", "fluoroscope.access"} == {
        line["logger"] for line in lines
    }
    (run,) = [line for line in lines if line.get("route") == "/v1/attention"]
    assert run["request_id"] == answer.headers["x-request-id"]
    assert any(line["message"].startswith("draining") for line in lines)
