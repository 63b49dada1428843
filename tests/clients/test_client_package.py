"""The client as a package: what it pulls in, that it is typed, and that its README is true."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import fluoroscope_client
import pytest
from fluoroscope_client import AsyncFluoroscope, Fluoroscope, cli
from packaging.requirements import Requirement

FOLDER = Path(__file__).parents[2] / "clients" / "python"
ENGLISH, CHINESE = (
    (FOLDER / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


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


def test_sources_are_python_3_10() -> None:
    for path in (FOLDER / "fluoroscope_client").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def needed(*names: str) -> dict[str, metadata.Distribution]:
    """The installed distributions that these need, themselves among them."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        asked = waiting.pop()
        if asked.name in found or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        found[asked.name] = metadata.distribution(asked.name)
        waiting += map(Requirement, found[asked.name].requires or ())
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        FOLDER, folder / "source", ignore=shutil.ignore_patterns("build", ".*", "*.egg-info")
    )
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source")
    (built,) = folder.glob("*.whl")
    return built


def pip(*arguments: str | Path) -> None:
    quiet = ["--disable-pip-version-check", "--no-input", "-q", "--no-cache-dir"]
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)


def test_wheel_holds_the_package_and_needs_two_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (about,) = (name for name in names if name.endswith("METADATA"))
        text = opened.read(about).decode()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"fluoroscope_client"}
    assert "fluoroscope_client/py.typed" in names
    assert sorted(re.findall(r"^Requires-Dist: (\w+)", text, re.MULTILINE)) == ["httpx", "numpy"]
    assert "Requires-Python: >=3.10" in text


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path, base_url: str) -> None:
    """Of all that is installed here, the environment has what httpx and numpy need."""
    venv.create(tmp_path, symlinks=True)
    python = tmp_path / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", code], text=True).strip())
    for distribution in needed("httpx", "numpy").values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    command = [tmp_path / "bin" / "fluoroscope-client", "tokenize", "猫", "--json"]
    bare = {"FLUOROSCOPE_URL": base_url, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=bare, capture_output=True, check=True)
    assert json.loads(done.stdout)["text"] == "猫"
    code = """if True:
        import sys
        from fluoroscope_client import Fluoroscope
        reading = Fluoroscope(sys.argv[1]).attention("猫", layers=0)
        print(reading["attn.pattern"].sel(layer=0, head=0, query=0, key=0).values)
        assert "<svg" in reading["attn.pattern"].sel(layer=0, head=0)._repr_html_()
        try:
            import torch
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([python, "-c", code, base_url], env=bare, capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == ["1.0", "No module named 'torch'"]


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_readme_runs_as_it_stands(
    page: str, base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["fluoroscope_client"], "Fluoroscope", at(base_url, Fluoroscope))
    monkeypatch.setattr(
        sys.modules["fluoroscope_client"], "AsyncFluoroscope", at(base_url, AsyncFluoroscope)
    )
    names: dict[str, object] = {"__name__": "readme"}
    for code in blocks(page, "python"):
        exec(compile(code, "README.md", "exec"), names)
    scope = names["scope"]
    assert isinstance(scope, Fluoroscope)
    scope.close()
    said = capsys.readouterr().out
    assert "-3" in said and "猫" in said


def at(base_url: str, kind: Callable[..., Any]) -> Callable[..., Any]:
    """The client as the page makes it, but of the server that these tests have."""
    return lambda **options: kind(base_url, **options)


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_commands_of_the_readme_work_as_pasted(
    page: str, base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLUOROSCOPE_URL", base_url)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("fluoroscope-client ")]
    assert len(commands) == 6
    for line in commands:
        _, *arguments = shlex.split(line.partition(" > ")[0])
        assert cli.main(arguments) == 0, line
        assert capsys.readouterr().out


def test_both_languages_show_the_same_calls() -> None:
    english, chinese = (
        re.findall(r"scope\.(\w+)\(", "".join(blocks(page, "python")))
        for page in (ENGLISH, CHINESE)
    )
    assert english == chinese
