"""What an operator would try on the image: build it, start it, ask it, stop it.

    python -m tests.image_check [BASE]

BASE is the image to build on, one that buildah can pull; without it a Debian is made by
debootstrap. Prints a line for each check; exits 1 at the first that fails, 2 where this machine
lacks something.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.image_check import builder
from tests.image_check.container import Container

# What must be on the machine, by the Debian package that brings it.
TOOLS = {
    "buildah": "buildah",
    "curl": "curl",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "as", "ld", "nvcc", "rustc", "go")
KEY = "the-key-of-the-image-check"
SERVER = "http://127.0.0.1:8000"  # the image's own port, in a network of its own
READY_WITHIN = 180.0
STOPPED_WITHIN = 20.0


def main(base: str | None = None) -> int:
    """Everything, in order; the exit code."""
    if lacks := missing(base):
        print(f"image-check cannot run here: {'; '.join(lacks)}", file=sys.stderr)
        return 2
    builder.KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=builder.KEPT, prefix="storage-") as storage:
        made = builder.Builder(Path(storage))
        try:
            check(made, base)
        except (AssertionError, LookupError, OSError, subprocess.SubprocessError) as error:
            print(f"FAIL {explain(error)}", file=sys.stderr)
            return 1
        finally:
            made.clear()
    print("the image passes")
    return 0


def missing(base: str | None) -> list[str]:
    """What this machine lacks, and where it is to be had."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("it needs root, to mount and to change users")
    absent = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if base is not None:
        absent.discard("debootstrap")
    elif sys.version_info[:2] not in builder.SUITES:
        known = " and ".join(f"{major}.{minor}" for major, minor in builder.SUITES)
        lacks.append(f"Debian brings Python {known}, this is {sys.version.split()[0]}")
    if absent:
        lacks.append(f"apt-get install {' '.join(sorted(absent))}")
    return lacks


def check(made: builder.Builder, given: str | None) -> None:
    """Raises AssertionError or CalledProcessError at the first thing that is wrong."""
    with timed("the base is there"):
        if given is None:
            made.import_base(builder.debian())
    with timed("the locked packages are there"):
        packages = builder.packages()
    base = given or builder.BASE
    with timed("target cpu builds"):
        cpu = made.build("cpu", base, packages)
    with timed("target cuda builds"):
        cuda = made.build("cuda", base, packages)
    config = made.config(cpu)
    config_is_as_promised(config)
    with made.mounted(cpu) as root, made.mounted(base) as before:
        holds_only_what_it_needs(root, before)
        refuses_to_start_without_a_key(root, config)
        serves(root, config)
        serves_mounted_weights(root, config)
    with made.mounted(cuda) as root:
        refuses_to_start_without_a_gpu(root, made.config(cuda))


def config_is_as_promised(config: Mapping[str, Any]) -> None:
    user = config["User"]
    assert all(part.isdigit() and int(part) for part in user.split(":")), f"the user is {user!r}"
    assert config["Cmd"] == ["fluoroscope", "serve"] and not config["Entrypoint"], config
    test = config["Healthcheck"]["Test"]
    assert test[:2] == ["CMD", "python3"] and "/health/ready" in test[-1], test
    names = {line.partition("=")[0] for line in config["Env"]}
    assert {"OMP_NUM_THREADS", "MALLOC_ARENA_MAX"} <= names, names
    assert not {name for name in names if "KEY" in name or "PIP" in name}, names
    say(f"config: user {user}, {' '.join(config['Cmd'])}, a health check, threads and arenas")


def holds_only_what_it_needs(root: Path, before: Path) -> None:
    """Beside the base there is the environment, the user and the two places for weights."""
    new = {path.name for path in root.iterdir()} - {path.name for path in before.iterdir()}
    assert new == {"cache", "models", "venv"}, f"these are new at the top: {sorted(new)}"
    assert not any((root / "mnt").iterdir()) and not (root / "etc" / "pip.conf").exists()
    found = [
        f"/{folder}/{name}"
        for folder in ("bin", "usr/bin", "usr/local/bin", "usr/local/cuda/bin", "venv/bin")
        for name in COMPILERS
        if os.path.lexists(root / folder / name)
    ]
    assert not found, f"a compiler is inside: {found}"
    foreign = [path for path in (root / "venv").rglob("*") if path.lstat().st_uid != 0]
    assert not foreign, f"not root's: {foreign[:3]}"
    (weights,) = (root / "venv").glob("lib/python*/site-packages/model/weights/demo/*.safetensors")
    demo = builder.ROOT / "model/weights/demo" / weights.name
    assert weights.stat().st_size == demo.stat().st_size, "the demo model is another"
    whole, bare = weigh(root) / 1e6, weigh(before) / 1e6
    say(f"{whole:,.0f} MB with a base of {bare:,.0f}, no compiler, the demo model is inside")


def refuses_to_start_without_a_key(root: Path, config: Mapping[str, Any]) -> None:
    with Container(root, config, environment={}) as server:
        assert server.code(60) == 2 and "FLUOROSCOPE_KEY" in server.said(), server.said()
    say("without a key it says so and ends with code 2")


def refuses_to_start_without_a_gpu(root: Path, config: Mapping[str, Any]) -> None:
    with Container(root, config, environment={"FLUOROSCOPE_KEY": KEY}) as server:
        code = server.code(120)
        assert code == 1 and "device 'cuda' is not available" in server.said(), server.said()
    say("target cuda without a GPU says so and ends with code 1")


def serves(root: Path, config: Mapping[str, Any]) -> None:
    with Container(root, config, environment={"FLUOROSCOPE_KEY": KEY}) as server:
        seconds = wait_until_healthy(server, config)
        say(f"its own health check passes after {seconds:.1f} s, and failed before")
        status = Path(f"/proc/{server.pid}/status").read_text()
        facts = {line.split(":")[0]: line.split()[1:] for line in status.splitlines() if line}
        assert set(facts["Uid"]) == {config["User"].split(":")[0]}, facts["Uid"]
        assert facts["NSpid"][-1] == "1" and facts["CapEff"] == ["0" * 16], status
        assert server.execute("touch", "written").returncode != 0, "its root can be written to"
        say("it runs as that user, is process 1, and its root is read-only")
        script = str(builder.ROOT / "clients" / "curl" / "smoke.sh")
        said = server.from_its_network("bash", script, SERVER, FLUOROSCOPE_KEY=KEY)
        say(f"clients/curl/smoke.sh: {said.decode().count('ok   ')} answers are right")
        left = server.execute("find", "/tmp", "/dev/shm", "-type", "f").stdout.decode().split()
        assert not left, f"it wrote {left}"
        peak = Path(f"/proc/{server.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        say(f"it wrote no file, and took {int(peak) / 1e3:,.0f} MB of memory at most")
        started = time.monotonic()
        server.terminate()
        code = server.code(STOPPED_WITHIN)
        assert code == 0, f"SIGTERM ended it with code {code}: {server.said()}"
        assert "Traceback" not in server.said(), server.said()
    say(f"SIGTERM ends it with code {code} in {time.monotonic() - started:.1f} s")


def serves_mounted_weights(root: Path, config: Mapping[str, Any]) -> None:
    """A tiny GPT-2 of random weights: what is served must compute what transformers computes."""
    from transformers.utils.logging import disable_progress_bar

    from tests.contract.tiny_checkpoints import gpt2

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        tiny = gpt2(Path(folder) / "tiny")
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        given = {"FLUOROSCOPE_KEY": KEY, "FLUOROSCOPE_MODEL": "/models/tiny"}
        with Container(root, config, environment=given, models=Path(folder)) as server:
            wait_until_healthy(server, config)
            ids = [7, 300, 12, 12, 255]
            body = json.dumps({"token_ids": ids, "top": 1})
            said = server.from_its_network(
                *("curl", "--silent", "--fail-with-body", "--max-time", "60"),
                *("--header", f"Authorization: Bearer {KEY}", "--json", body),
                f"{SERVER}/v1/logits",
            )
            (top,) = json.loads(said)["predictions"][0]["top"]
            logits = tiny.computes(ids)[0][-1]
            assert top["id"] == int(logits.argmax()), (top, logits.argmax())
            assert abs(top["logit"] - float(logits.max())) < 2e-5, (top, logits.max())
            running = Path(f"/proc/{server.pid}")
            assert running.exists()
    assert not running.exists(), f"{running} is left behind"
    say("weights from a mounted folder: the logits are those of transformers")


def wait_until_healthy(server: Container, config: Mapping[str, Any]) -> float:
    """Seconds until the image's own health check passed; it must not pass at once."""
    command = config["Healthcheck"]["Test"][1:]
    started = time.monotonic()
    failures = 0
    while server.execute(*command).returncode:
        failures += 1
        assert time.monotonic() - started < READY_WITHIN, f"never healthy: {server.said()}"
        time.sleep(0.2)
    assert failures, "the health check passed before the model can have been there"
    return time.monotonic() - started


def weigh(root: Path) -> int:
    """Bytes of all files under a root, each once."""
    files = {(s.st_dev, s.st_ino): s.st_size for s in map(os.lstat, root.rglob("*"))}
    return sum(files.values())


def explain(error: Exception) -> str:
    """One text; of a failed command also the end of what it said."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not ended after {error.timeout:g} s: {error.cmd[-2:]}"
    if not isinstance(error, subprocess.CalledProcessError):
        return f"{error}"
    said = (error.stdout or b"") + (error.stderr or b"")
    return f"{error}\n{said.decode(errors='replace')[-4000:]}"


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    say(f"{what} ({time.monotonic() - started:.0f} s)")


def say(line: str) -> None:
    print(f"ok   {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
