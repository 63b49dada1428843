"""Replicas come with load and go without it, and one that died is replaced. Takes a minute."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from ray import serve

from service.ray_app import Fleet
from tests.fleet.conftest import ASK, Deploy
from tests.fleet.gate import Gate, gated_app

pytestmark = pytest.mark.soak


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def running(application: str) -> int:
    deployed = serve.status().applications[application].deployments["fluoroscope"]
    return deployed.replica_states.get("RUNNING", 0)


def test_one_replica_becomes_two_and_one_again(
    deploy: Deploy, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    fleet = Fleet(
        model=str(folders["course"]),
        max_replicas=2,
        num_cpus=0.4,
        wait_seconds=120,
        run_seconds=120,
        upscale_delay_s=0.5,
        downscale_delay_s=1,
    )
    client = deploy("scaled", fleet, partial(gated_app, gate=gate))
    assert running("scaled") == 1
    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(client.post, "/v1/attention", json=ASK) for _ in range(6)]
        wait_until(lambda: running("scaled") == 2)
        gate.open()
        assert [one.result().status_code for one in asked] == [200] * 6
    wait_until(lambda: running("scaled") == 1)
    assert client.post("/v1/attention", json=ASK).status_code == 200


def test_killed_replica_comes_back(gated_replicas: httpx.Client, gate: Gate) -> None:
    gate.open()

    def answered() -> set[int]:
        assert gated_replicas.post("/v1/attention", json=ASK).status_code == 200
        return {*gate.marks("entered")}

    wait_until(lambda: len(answered()) == 2)
    before = answered()
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: not answered() <= before)  # a process that was not there before
