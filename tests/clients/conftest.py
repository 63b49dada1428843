"""A real server on a loopback port, and the client of this repository asking it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fluoroscope_client import Fluoroscope

from service.app import create_app
from service.settings import Settings


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an ASGI app from a thread of its own; its base URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while not server.started:
                assert thread.is_alive() and time.monotonic() < deadline
                time.sleep(0.01)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def base_url(folders: Mapping[str, Path]) -> Iterator[str]:
    """The course-like model's server."""
    with listening(create_app(Settings(model=str(folders["course"])))) as url:
        # The model is opened while the server answers already; these tests are about afterwards.
        with Fluoroscope(url) as client:
            wait_until_ready(client)
        yield url


def wait_until_ready(client: Fluoroscope) -> None:
    deadline = time.monotonic() + 60
    while client._http.get("/health/ready").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="session")
def remote(base_url: str) -> Iterator[Fluoroscope]:
    with Fluoroscope(base_url) as client:
        yield client
