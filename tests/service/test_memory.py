"""Freed memory is kept: the same run done again touches few new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from service.memory import keep_freed_memory

# The page faults of the last eight of ten like runs, in a thread as the server's. A pattern is
# 12.6 MB, twelve of them are kept, and each layer needs two more stages of the scores.
WORK = """
import resource, sys, threading
import torch
from model.capture import Capture
from model.config import GPTConfig
from model.gpt import GPT
from model.reading import read
from model.sites import SITES
if sys.argv[1] == "kept":
    from service.memory import keep_freed_memory
    assert keep_freed_memory()
T = 512
config = GPTConfig(vocab_size=64, n_ctx=T, n_layer=12, d_model=96, n_head=12)
model = GPT(config)
maps = [Capture.resolve(SITES["attn.pattern"], {}, config, T)]
faults = []
def work():
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        read(model, [0] * T, maps)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(sum(faults[2:]))
"""


def faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_run_uses_the_memory_of_the_run_before_it_again() -> None:
    control = faults("given back")
    assert control > 80_000  # 320 MiB in eight runs
    assert faults("kept") < control / 5


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
