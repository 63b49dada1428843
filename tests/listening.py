"""A real server on a loopback port, in a thread of the test's own process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


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
