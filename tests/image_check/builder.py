"""The image, built by buildah from a Debian that debootstrap made. Knows nothing of what it serves.

No engine and no network inside: the packages are downloaded here, by this machine's pip, and
mounted while the image is built. Nothing of that mount may stay in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "build" / "image"  # between runs: the Debian and the packages
# Debian's releases by the Python that they bring: it must be this one, whose wheels pip fetches.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
BASE = "localhost/base"
MOUNT = "/mnt"  # there in every Debian, and empty


class Builder:
    """buildah, with a storage of its own that is gone after the check."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage

    def buildah(self, *arguments: str) -> str:
        """What a buildah command prints; ends the check where it fails."""
        own = ("--root", str(self._storage / "images"), "--runroot", str(self._storage / "run"))
        return run(["buildah", *own, *arguments])

    def import_base(self, debian: Path) -> None:
        """A folder with a Debian becomes the image that the Dockerfile builds on."""
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(debian), "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str, base: str, packages: Path) -> str:
        """The image's name, with the packages mounted and pip told to look nowhere else."""
        pip = self._storage / "pip.conf"
        pip.write_text(f"[global]\nno-index = true\nfind-links = {MOUNT}\n")
        name = f"localhost/fluoroscope:{target}"
        arguments = ["--isolation", "chroot", "--format", "docker", "--layers", "--tag", name]
        if base == BASE:
            arguments += ["--pull-never"]
        arguments += ["--target", target, "--build-arg", f"BASE={base}"]
        arguments += ["--secret", f"id=pip,src={pip}", "--volume", f"{packages}:{MOUNT}:ro"]
        self.buildah("bud", *arguments, str(ROOT))
        return name

    def config(self, image: str) -> dict[str, Any]:
        """User, Cmd, Env, Healthcheck and the rest, as an engine reads them."""
        about = json.loads(self.buildah("inspect", "--type", "image", image))
        config: dict[str, Any] = about["Docker"]["config"]
        return config

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The image's root as a folder."""
        container = self.buildah("from", "--pull-never", image)
        try:
            yield Path(self.buildah("mount", container))
        finally:
            self.buildah("rm", container)

    def clear(self) -> None:
        """Unmount and remove everything that was built."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")


def debian() -> Path:
    """A minimal Debian with Python and certificates, made once."""
    suite = SUITES[sys.version_info[:2]]
    made = KEPT / suite
    if not made.exists():
        half = KEPT / f"{suite}.part"
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        packages = "python3,python3-venv,ca-certificates"
        run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(half)])
        shutil.rmtree(half / "var" / "cache" / "apt" / "archives")
        half.rename(made)
    return made


def packages() -> Path:
    """What requirements.lock names, as wheels; those that are there are not fetched again."""
    folder = KEPT / "packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    lock = str(ROOT / "requirements.lock")
    run([*pip, "--only-binary", ":all:", "--dest", str(folder), "--requirement", lock])
    return folder


def run(command: Sequence[str]) -> str:
    """Standard output, stripped. Raises CalledProcessError with what it said on both streams."""
    done = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout.decode().strip()
