"""One local Ray for this folder: a small cluster on loopback, without dashboard, ended afterwards.

Ray's processes take the environment from here, so that they find this checkout from anywhere.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import pytest
import ray
from fastapi import FastAPI
from ray import serve

from service.app import create_app
from service.ray_app import Fleet, application
from service.settings import Settings
from tests.fleet.gate import Gate, gated_app
from tests.listening import listening
from tests.smoke import free_port

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_TOKEN": secrets.token_hex(16),  # else one is written to the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray_proxy.middleware",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}
# Both kinds of server: with other threads a matrix product has other last bits.
ONE_THREAD = {"threads": 1}
ASK = {"text": "The cat chased the mouse because it was hungry."}
Deploy = Callable[..., httpx.Client]


@pytest.fixture(scope="package")
def context() -> Iterator[ray.client_builder.ClientContext]:
    """A Ray of our own with two processors to give away."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        yield ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="package")
def cluster(context: object) -> Iterator[str]:
    """The base URL of its HTTP proxy."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 120})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture(scope="package")
def deploy(cluster: str) -> Iterator[Deploy]:
    """A client of an application of its own: `deploy("name", Fleet(…), make_app)`."""
    clients: list[httpx.Client] = []

    def start(
        name: str, fleet: Fleet, make_app: Callable[[Settings], FastAPI] = create_app
    ) -> httpx.Client:
        serve.run(application(fleet, make_app), name=name, route_prefix=f"/{name}")
        clients.append(client_of(f"{cluster}/{name}"))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def client_of(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, trust_env=False, timeout=120)


@pytest.fixture(scope="package")
def replicas(deploy: Deploy, folders: Mapping[str, Path]) -> httpx.Client:
    """The course-like model on two replicas."""
    fleet = Fleet(
        model=str(folders["course"]),
        min_replicas=2,
        max_replicas=2,
        num_cpus=0.4,
    )
    return deploy("plain", fleet)


@pytest.fixture(scope="package")
def alone(folders: Mapping[str, Path]) -> Iterator[httpx.Client]:
    """The same model on one uvicorn."""
    with (
        listening(create_app(Settings(model=str(folders["course"]), **ONE_THREAD))) as url,
        client_of(url) as client,
    ):
        yield client


@pytest.fixture(scope="package", params=["alone", "replicas"])
def client(request: pytest.FixtureRequest) -> httpx.Client:
    """One server, then the two replicas."""
    found: httpx.Client = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="package")
def gate_folder(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="package")
def gated_replicas(deploy: Deploy, folders: Mapping[str, Path], gate_folder: Gate) -> httpx.Client:
    """Two replicas behind one gate, each with room for three requests."""
    fleet = Fleet(
        model=str(folders["course"]),
        min_replicas=2,
        max_replicas=2,
        num_cpus=0.4,
        waiting=2,
        wait_seconds=60,
        run_seconds=60,
    )
    return deploy("gated", fleet, partial(gated_app, gate=gate_folder))


@pytest.fixture
def gate(gate_folder: Gate) -> Iterator[Gate]:
    """Closed at the start of a test, open after it."""
    gate_folder.close()
    yield gate_folder
    gate_folder.open()
    gate_folder.open("steps")
