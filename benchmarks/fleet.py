"""What one inspection costs a processor, under uvicorn and on Ray: the figures of docs/scaling.md.

    python -m benchmarks.fleet [MODEL …]

Processor seconds are read from /proc and hold on a busy machine; milliseconds do not, and are
compared only within a round. Needs the extra `ray`; two processors and two minutes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import serve

from benchmarks.client import Client
from service.ray_app import build
from tests.smoke import free_port, wait_until_ready

TICKS = os.sysconf("SC_CLK_TCK")
ROUNDS = 3
CLIENTS = 4
SECONDS = 2.0  # under load, each round
IDS = list(range(100, 1124))
# As (model, name, body): what is asked, each of it with the last token ids left out.
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("demo", "one head, 32 tokens", {"token_ids": IDS[:32], "layers": [2], "heads": [3]}),
    ("demo", "every head, 128 tokens", {"token_ids": IDS[:128]}),
    ("preset:gpt2", "one head, 32 tokens", {"token_ids": IDS[:32], "layers": [11], "heads": [3]}),
    ("preset:gpt2", "every head, 128 tokens", {"token_ids": IDS[:128]}),
]


@dataclass
class Server:
    """Where to ask, and the processes that answer by what they are."""

    port: int
    path: str
    processes: dict[str, list[int]]
    ms: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)

    def round(self, body: dict[str, Any]) -> None:
        """Some requests one after another, then CLIENTS at once."""
        before = {kind: seconds(pids) for kind, pids in self.processes.items()}
        client = Client(self.port)
        alone = [client.post(self.path, body).ms for _ in range(8)]
        client.close()
        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            counts = list(pool.map(lambda _: self._ask(body, start + SECONDS), range(CLIENTS)))
        wall = time.perf_counter() - start
        asked = sum(counts) + len(alone)
        self.ms.append(statistics.median(alone))
        self.per_second.append(sum(counts) / wall)
        for kind, pids in self.processes.items():
            spent = (seconds(pids) - before[kind]) / asked * 1e3
            self.cpu_ms.setdefault(kind, []).append(spent)

    def _ask(self, body: dict[str, Any], until: float) -> int:
        client, count = Client(self.port), 0
        while time.perf_counter() < until:
            client.post(self.path, body)
            count += 1
        client.close()
        return count


def seconds(pids: list[int]) -> float:
    """Of a processor that these processes have used, user and system."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / TICKS


def processes(title: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(title.encode()):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return found


@contextmanager
def uvicorn(model: str) -> Iterator[Server]:
    port = free_port()
    script = "from service.cli import main; main()"
    command = [sys.executable, "-c", script, "serve", "--model", model, "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    try:
        if reason := wait_until_ready(f"http://127.0.0.1:{port}", process):
            raise RuntimeError(reason)
        yield Server(port, "/v1/attention", {"server": [process.pid]})
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def on_ray(model: str, replicas: int, port: int) -> Iterator[Server]:
    name = f"r{replicas}"
    app = build({"model": model, "min_replicas": replicas, "max_replicas": replicas})
    serve.run(app, name=name, route_prefix=f"/{name}")
    try:
        kinds = {
            "server": processes(f"ray::ServeReplica:{name}"),
            "proxy": processes("ray::ProxyActor"),
        }
        yield Server(port, f"/{name}/v1/attention", kinds)
    finally:
        serve.delete(name)


def main() -> None:
    port = free_port()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        for model in sys.argv[1:] or dict.fromkeys(model for model, _, _ in ASKED):
            with (
                uvicorn(model) as alone,
                on_ray(model, 1, port) as one,
                on_ray(model, 2, port) as two,
            ):
                for _, name, body in (asked for asked in ASKED if asked[0] == model):
                    report(model, name, body, {"uvicorn": alone, "Ray, 1": one, "Ray, 2": two})
    finally:
        serve.shutdown()
        ray.shutdown()


def report(model: str, name: str, body: dict[str, Any], servers: dict[str, Server]) -> None:
    for server in servers.values():
        server.ms, server.per_second, server.cpu_ms = [], [], {}
        size = len(Client(server.port).post(server.path, body).body)
    for turn in range(ROUNDS):
        for server in list(servers.values())[:: 1 if turn % 2 else -1]:
            server.round(body)
    for label, server in servers.items():
        cost = ", ".join(
            f"{kind} {statistics.median(spent):.2f}" for kind, spent in server.cpu_ms.items()
        )
        print(
            f"{model}; {name}; {size / 1e6:.3f} MB; {label}; "
            f"{statistics.median(server.ms):.1f} ms; "
            f"{statistics.median(server.per_second):.1f}/s with {CLIENTS} clients; "
            f"processor ms: {cost}",
            flush=True,
        )


if __name__ == "__main__":
    main()
