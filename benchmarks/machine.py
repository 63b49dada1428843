"""What the numbers were measured on: processor, cores, memory, versions. No names, no paths."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers", "transformer-lens", "fastapi", "uvicorn", "orjson", "numpy")


def describe() -> dict[str, object]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    """Model name, family and model number: cloud machines give the bare brand for a name."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    wide = "AVX-512" if "avx512f" in facts.get("flags", "") else "AVX2"
    named = facts.get("model name", platform.machine())
    return f"{named}, family {facts.get('cpu family')} model {facts.get('model')}, {wide}"
