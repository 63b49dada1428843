"""Servers of one comparison, each a process of its own on loopback with two threads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.sizes import BUILD, Size, prepare
from service.openmp import SPINS

ROOT = Path(__file__).parent.parent
GIB = 1 << 30
RAISED = {
    "FLUOROSCOPE_MAX_ANSWER_BYTES": str(GIB),
    "FLUOROSCOPE_MAX_IN_FLIGHT_BYTES": str(16 * GIB),
    "FLUOROSCOPE_RUN_SECONDS": "300",
    "FLUOROSCOPE_WAIT_SECONDS": "300",
}
START_SECONDS = 300


@dataclass(frozen=True)
class Server:
    pid: int
    port: int


@contextmanager
def fluoroscope(size: Size) -> Iterator[Server]:
    """The service as `fluoroscope serve` starts it, its limits raised to those of RAISED."""
    script = "from service.cli import main; main()"
    command = ["-c", script, "serve", "--model", str(prepare(size)), "--threads", "2", "--port"]
    with _running(command, "/health/ready", RAISED) as server:
        yield server


@contextmanager
def peer(name: str, size: Size) -> Iterator[Server]:
    prepare(size)
    with _running(["-m", "benchmarks.peer_server", name, size.name], "/ready") as server:
        yield server


@contextmanager
def bare_forward(size: Size) -> Iterator[Server]:
    prepare(size)
    command = ["-m", "benchmarks.forward_server", size.name]
    with _running(command, "/ready", SPINS) as server:
        yield server


@contextmanager
def _running(command: list[str], ready: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    port = _free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", **(env or {})}
    with (BUILD / "servers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command, str(port)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(process, port, ready)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int, ready: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args} ended with {process.returncode} before it was ready"
            )
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", ready)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"{process.args} was not ready within {START_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
