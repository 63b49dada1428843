"""The client as a package: what it pulls in, that it is typed, and that its README is true."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import fluoroscope_client
import pytest
from fluoroscope_client import AsyncFluoroscope, Fluoroscope

FOLDER = Path(__file__).parents[2] / "clients" / "python"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
ENGLISH, CHINESE = (
    "\n".join(re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL))
    for part in README.split("## 中文")
)


def test_importing_the_client_brings_neither_torch_nor_the_server() -> None:
    code = (
        "import sys, fluoroscope_client; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"fluoroscope_client", "httpx", "numpy"} <= loaded
    assert not loaded & {"torch", "model", "service", "safetensors", "fastapi", "pydantic"}


def test_project_depends_on_httpx_and_numpy_alone() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {re.split(r"\W", need)[0] for need in project["dependencies"]} == {"httpx", "numpy"}
    assert project["requires-python"] == ">=3.10"
    assert fluoroscope_client.__version__ == "0.1.0"


def test_package_says_that_it_is_typed() -> None:
    assert files(fluoroscope_client).joinpath("py.typed").is_file()


def test_everything_public_exists_and_is_documented() -> None:
    for name in fluoroscope_client.__all__:
        assert getattr(fluoroscope_client, name).__doc__, name
    for client in (Fluoroscope, AsyncFluoroscope):
        for name, method in vars(client).items():
            assert name.startswith("_") or method.__doc__, name


@pytest.mark.parametrize("code", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_readme_runs_as_it_stands(
    code: str, base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code.count("Fluoroscope()") >= 1
    given = code.replace("Fluoroscope()", f"Fluoroscope({base_url!r})")
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(given, "README.md", "exec"), names)
    said = capsys.readouterr().out
    if code == ENGLISH:
        assert "valid are -3 to 2" in said
    else:
        assert "猫" in said
    scope = names["scope"]
    assert isinstance(scope, Fluoroscope)
    scope.close()
