"""The guards of `make image-check`, each with a case in which it fires."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.image_check import __main__ as image_check

ROOT = Path(__file__).parent.parent
GOOD: dict[str, Any] = {
    "User": "10001:10001",
    "Cmd": ["fluoroscope", "serve"],
    "Entrypoint": [],
    "Healthcheck": {"Test": ["CMD", "python3", "-c", "…/health/ready…"]},
    "Env": ["OMP_NUM_THREADS=2", "MALLOC_ARENA_MAX=2"],
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"User": "0:0"},
        {"User": ""},
        {"User": "root"},
        {"Cmd": ["/bin/sh", "-c", "fluoroscope serve"]},
        {"Healthcheck": {"Test": ["CMD-SHELL", "true"]}},
        {"Env": ["OMP_NUM_THREADS=2"]},
        {"Env": [*GOOD["Env"], "FLUOROSCOPE_KEY=k"]},
    ],
)
def test_image_check_refuses_a_config(wrong: dict[str, Any]) -> None:
    image_check.config_is_as_promised(GOOD)
    with pytest.raises(AssertionError):
        image_check.config_is_as_promised(GOOD | wrong)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root as it should be, as far as the check looks."""
    weights = tmp_path / "venv/lib/python3.11/site-packages/model/weights/demo"
    for folder in (
        weights,
        *(tmp_path / name for name in ("mnt", "etc", "usr/bin", "cache", "models")),
    ):
        folder.mkdir(parents=True)
    (weights / "model.safetensors").symlink_to(ROOT / "model/weights/demo/model.safetensors")
    return tmp_path


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("base")
    for name in ("mnt", "etc", "usr"):
        (root / name).mkdir()
    return root


@pytest.mark.skipif(os.geteuid() != 0, reason="an image's files are root's")
@pytest.mark.parametrize(
    "left", ["usr/bin/gcc", "venv/bin/nvcc", "mnt/torch.whl", "etc/pip.conf", "wheels/x"]
)
def test_image_check_refuses_what_is_left_behind(left: str, image: Path, base: Path) -> None:
    image_check.holds_only_what_it_needs(image, base)
    (image / left).parent.mkdir(parents=True, exist_ok=True)
    (image / left).touch()
    with pytest.raises(AssertionError):
        image_check.holds_only_what_it_needs(image, base)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_image_check_refuses_a_program_that_the_server_could_change(
    image: Path, base: Path
) -> None:
    os.chown(image / "venv/lib", 10001, 10001)
    with pytest.raises(AssertionError, match="not root's"):
        image_check.holds_only_what_it_needs(image, base)


def test_image_check_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert image_check.main() == 2
    assert "buildah curl debootstrap iproute2 util-linux" in capsys.readouterr().err
