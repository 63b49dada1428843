"""What Dockerfile, .dockerignore and compose.yaml promise; `make image-check` tries the image."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """A Dockerfile without its comments, each continued line put into one."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", "").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in whole]


def stages(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name, what stands before the first under ''."""
    found: dict[str, list[Instruction]] = {"": []}
    for one in instructions(text):
        if one.word == "FROM":
            found[one.rest.split()[-1]] = []
        found[list(found)[-1]].append(one)
    return found


STAGES = stages(DOCKERFILE)


def only(stage: str, word: str) -> str:
    (rest,) = [one.rest for one in STAGES[stage] if one.word == word]
    return rest


def environment(stage: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in only(stage, "ENV").split())


def test_targets_share_one_runtime_and_cpu_is_the_default() -> None:
    assert {name: lines[0].rest for name, lines in STAGES.items() if name} == {
        "build": "${BASE} AS build",
        "runtime": "${BASE} AS runtime",
        "cuda": "runtime AS cuda",
        "cpu": "runtime AS cpu",
    }
    assert list(STAGES)[-1] == "cpu"
    assert environment("cpu")["FLUOROSCOPE_DEVICE"] == "cpu"
    assert environment("cuda")["FLUOROSCOPE_DEVICE"] == "cuda"
    assert environment("cuda")["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert only("", "ARG").startswith("BASE=python:3.11-")


def test_locked_packages_come_before_the_sources() -> None:
    build = [f"{one.word} {one.rest}" for one in STAGES["build"]]
    order = [
        next(i for i, line in enumerate(build) if wanted in line)
        for wanted in (
            "COPY requirements.lock",
            "pip install -r requirements.lock",
            "COPY pyproject.toml",
            "COPY model",
            "COPY service",
            "pip install --no-deps",
        )
    ]
    assert order == sorted(order)


def test_runtime_installs_nothing_and_is_not_root() -> None:
    assert {part.split()[0] for part in only("runtime", "RUN").split("&&")} == {
        "useradd",
        "install",
    }
    assert not [one for one in STAGES["cpu"] + STAGES["cuda"] if one.word not in ("FROM", "ENV")]
    assert only("runtime", "USER") == "10001:10001"
    assert json.loads(only("runtime", "CMD")) == ["fluoroscope", "serve"]
    assert only("runtime", "COPY") == "--from=build /venv /venv"


def test_environment_names_settings_and_no_secret() -> None:
    names = {name for stage in ("runtime", "cpu", "cuda") for name in environment(stage)}
    assert {"OMP_NUM_THREADS", "MALLOC_ARENA_MAX"} <= names
    ours = {name for name in names if name.startswith("FLUOROSCOPE_")}
    assert ours == {"FLUOROSCOPE_HOST", "FLUOROSCOPE_PORT", "FLUOROSCOPE_DEVICE"}
    assert ours <= {f"FLUOROSCOPE_{name.upper()}" for name in Settings.model_fields}


def health_check() -> list[str]:
    options, _, command = only("runtime", "HEALTHCHECK").partition("CMD ")
    assert "--start-period=" in options
    whole: list[str] = json.loads(command)
    return whole


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server whose /health/ready has that status; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def code_of_health_check(port: int, **variables: str) -> int:
    program, *rest = health_check()
    assert program == "python3"
    given = {"FLUOROSCOPE_PORT": str(port), **variables}
    return subprocess.run([sys.executable, *rest], env=given, capture_output=True).returncode


def test_health_check_passes_where_the_server_is_ready() -> None:
    with answering(200) as port:
        assert code_of_health_check(port) == 0


def test_health_check_asks_no_proxy() -> None:
    with socket.socket() as closed, answering(200) as port:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert code_of_health_check(port, http_proxy=proxy, HTTP_PROXY=proxy) == 0


def test_health_check_fails_while_the_model_loads() -> None:
    with answering(503) as port:
        assert code_of_health_check(port) == 1


def test_health_check_fails_where_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert code_of_health_check(closed.getsockname()[1]) == 1


def test_context_holds_what_is_copied_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert lines[0] == "*"
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source for one in STAGES["build"] if one.word == "COPY" for source in one.rest.split()[:-1]
    }
    assert kept == copied
    assert [line for line in lines[1:] if not line.startswith("!")] == ["**/__pycache__"]


def test_files_name_no_address_but_loopback() -> None:
    for name in ("Dockerfile", "compose.yaml", ".dockerignore"):
        hosts = re.findall(r"https?://([\w.-]+)", (ROOT / name).read_text())
        assert set(hosts) <= {"127.0.0.1"}, name


def hadolint(dockerfile: str) -> subprocess.CompletedProcess[str]:
    command = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if command is None:
        pytest.skip("hadolint is not installed; make check needs it")
    return subprocess.run([command, "-"], input=dockerfile, capture_output=True, text=True)


def test_hadolint_finds_nothing() -> None:
    done = hadolint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_the_shell_form() -> None:
    done = hadolint(DOCKERFILE.replace('["fluoroscope", "serve"]', "fluoroscope serve"))
    assert done.returncode == 1
    assert "DL3025" in done.stdout


COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("service", "target"), [("fluoroscope", "cpu"), ("gpu", "cuda")])
def test_compose_service_has_a_key_limits_and_a_read_only_root(service: str, target: str) -> None:
    one = COMPOSE["services"][service]
    assert one["build"]["target"] == target
    assert target in STAGES
    # `:?` ends compose with an error where the variable is missing or empty.
    assert one["environment"]["FLUOROSCOPE_KEY"].startswith("${FLUOROSCOPE_KEY:?")
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit"} <= one.keys()
    assert one["ports"] == ["${PUBLISH:-127.0.0.1}:8000:8000"]
    assert only("runtime", "EXPOSE") == "8000"


def test_compose_starts_one_service_unless_told() -> None:
    assert [n for n, one in COMPOSE["services"].items() if "profiles" not in one] == ["fluoroscope"]
    devices = COMPOSE["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_compose_waits_longer_than_the_server_does() -> None:
    grace = COMPOSE["services"]["fluoroscope"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings().grace_seconds + 2


def test_compose_mounts_where_the_image_has_places() -> None:
    volumes = COMPOSE["services"]["fluoroscope"]["volumes"]
    places = [volume.removesuffix(":ro").rpartition(":")[2] for volume in volumes]
    assert places == ["/models", "/cache"]
    made = only("runtime", "RUN")
    assert "install -d /models" in made
    assert "install -d -o 10001 -g 10001 /cache" in made
    assert environment("runtime")["HF_HOME"] == "/cache"
