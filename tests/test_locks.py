"""The two lock files: exactly what the declared dependencies come to, each package once."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FROM_TORCH = ("nvidia-", "cuda-", "triton")  # torch brings its CUDA libraries itself


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(pins, key=lambda pin: pin.partition("==")[0])
    return {name: version for name, _, version in (pin.partition("==") for pin in pins)}


def found(name: str) -> str | None:
    """The installed version, without the build's own suffix."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def closure(declared: Iterable[str]) -> set[str]:
    """The names of everything that is needed on this machine, by the installed packages' word."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), frozenset({""})) for text in declared]
    while waiting:
        wanted, extras = waiting.pop()
        name = canonicalize_name(wanted.name)
        met = [wanted.marker.evaluate({"extra": extra}) for extra in extras if wanted.marker]
        if wanted.marker and not any(met):
            continue
        own = frozenset({"", *wanted.extras})
        if (name, own) in seen or name.startswith(FROM_TORCH):
            continue
        seen.add((name, own))
        assert wanted.specifier.contains(version(name), prereleases=True), wanted
        waiting += [(Requirement(text), own) for text in requires(name) or []]
    return {name for name, _ in seen}


def test_locks_hold_what_is_needed_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    server, tests = locked("requirements.lock"), locked("requirements-test.lock")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the files are made for Linux on x86_64")
    if any(found(name) != pinned for name, pinned in {**server, **tests}.items()):
        pytest.skip("other versions are installed than are locked")
    builds = ["setuptools"]
    needed = closure([*project["dependencies"], *builds])
    assert set(server) == needed
    extra = project["optional-dependencies"]
    client = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
    more = closure([*extra["test"], *extra["check"], *client["dependencies"]])
    assert set(tests) == more - needed
