"""A real server on a loopback port, and the client of this repository asking it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fluoroscope_client import Fluoroscope

from service.app import create_app
from service.settings import Settings
from tests.listening import listening


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
