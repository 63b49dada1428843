"""Whatever is asked, only the inference thread ever has a team of OpenMP's threads.

A second team would slow every later run by about a third, for the rest of the process's life.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to count threads in"),
    pytest.mark.skipif(os.cpu_count() == 1, reason="one core: no second thread to start"),
]
# Said to the server: OpenMP may start threads, and nobody else does.
OTHERS = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def left(folders: Mapping[str, Path]) -> dict[str, int]:
    """Threads that each answer left behind, in a process where nothing was computed before."""
    inherited = {name: said for name, said in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.service.teams", folders["course"]],
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, **OTHERS},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_product_on_codec_threads_would_give_each_a_team(left: dict[str, int]) -> None:
    """What the next test looks for can be seen: two threads of torch, one beside each."""
    assert left["one run"] >= 1
    assert left["a product beside"] == 2


def test_no_route_starts_a_team_beside_the_inference_thread(left: dict[str, int]) -> None:
    answers = {name: n for name, n in left.items() if name not in ("one run", "a product beside")}
    assert len(answers) > 20
    assert {name: n for name, n in answers.items() if n} == {}
