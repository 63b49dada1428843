"""A server of its own process, as `fluoroscope serve` makes it, watched from outside.

    python -m tests.soak.served PORT LEAK [SETTING=VALUE …]

LEAK bytes are kept for ever at each request: 0, but where a test needs a server that leaks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from service.app import create_app
from service.server import Server
from service.settings import Settings
from tests.smoke import free_port

ROOT = Path(__file__).parents[2]


class Leaky:
    def __init__(self, app: ASGIApp, size: int) -> None:
        self.app, self.size = app, size
        self.kept: list[bytearray] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.size and scope["type"] == "http":
            self.kept.append(bytearray(b"x") * self.size)
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class Use:
    """What a process holds: bytes of memory, threads, open descriptors."""

    memory: int
    threads: int
    descriptors: int


@dataclass
class Served:
    url: str
    pid: int

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
        raise LookupError(key)

    def use(self) -> Use:
        return Use(
            1024 * self._status("VmRSS"),
            self._status("Threads"),
            len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
        )

    def peak(self) -> int:
        """The most memory that was held since `forget_peak`."""
        return 1024 * self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@contextmanager
def serving(folder: Path, *, leak: int = 0, **settings: Any) -> Iterator[Served]:
    port = free_port()
    given = [f"{name}={value}" for name, value in {"model": folder, **settings}.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.served", str(port), str(leak), *given], cwd=ROOT
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while not _ready(url):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield Served(url, process.pid)
        assert process.poll() is None, "the server died"
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def main(port: str, leak: str, *given: str) -> int:
    settings = Settings(
        port=int(port), threads=1, log_level="error", **dict(item.split("=", 1) for item in given)
    )
    app = create_app(settings, on_failure=lambda: server.fail())
    app.add_middleware(Leaky, size=int(leak))
    server = Server(app, settings)
    server.run()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
