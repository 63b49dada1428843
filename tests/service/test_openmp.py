"""OpenMP's threads sleep soon after a run: seen in processor time, and in what it was told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.openmp import rest_between_runs

# Milliseconds of processor time that are used while nothing is computed, after each of 20 products.
WORK = """
import os, sys, time
from statistics import median
if sys.argv[1] == "rest":
    from service.openmp import rest_between_runs
    rest_between_runs(os.environ)
import torch
torch.set_num_threads(2)
square = torch.randn(512, 512)
used = []
for _ in range(20):
    square @ square
    before = time.process_time()
    time.sleep(0.05)
    used.append((time.process_time() - before) * 1e3)
print(median(used))
"""
SAYS = "GOMP_SPINCOUNT = "


def environment(**said: str) -> dict[str, str]:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    return {**{name: value for name, value in os.environ.items() if name not in names}, **said}


def used_while_resting(how: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", WORK, how],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return float(done.stdout)


def server_says(**said: str) -> str:
    """What the library says it was told, in a server that ends for want of a model."""
    done = subprocess.run(
        [Path(sys.executable).with_name("fluoroscope"), "serve", "--model", "nothing/there"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(OMP_DISPLAY_ENV="verbose", HF_HUB_OFFLINE="1", **said),
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if SAYS in line]
    if not lines:
        pytest.skip("another OpenMP than GNU's")
    return lines[0].split(SAYS)[1].strip("'")


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core: no second thread to rest")
def test_thread_without_work_sleeps_soon_after_a_run() -> None:
    server_says()  # skips where it is not GNU's
    control = used_while_resting("as it comes")
    assert control > 1
    assert used_while_resting("rest") < control / 4


def test_server_tells_the_library_before_it_is_loaded() -> None:
    assert server_says() == "10000"


def test_what_an_operator_said_stays() -> None:
    assert server_says(GOMP_SPINCOUNT="77") == "77"
    waiting = {"OMP_WAIT_POLICY": "active"}
    rest_between_runs(waiting)
    assert waiting == {"OMP_WAIT_POLICY": "active"}
