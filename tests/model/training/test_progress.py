"""log.csv over several sittings, and the picture drawn from it."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

from model.training.progress import RunLog, clock, draw_curve


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_lines_are_on_disk_once_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.csv", ["story"], after_step=0)
    log.write({"step": 10, "tokens": 100, "loss": 3.14159265, "bits_story": 2.5})
    (line,) = lines(log.path)
    assert (line["loss"], line["bits_story"], line["nats_story"]) == ("3.14159", "2.5", "")


def test_resumed_log_drops_the_steps_that_were_lost(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    first = RunLog(path, ["story"], after_step=0)
    for step in (10, 20, 30):
        first.write({"step": step, "tokens": step})
    second = RunLog(path, ["fable"], after_step=20)
    second.write({"step": 30, "tokens": 31, "nats_fable": 1.5})
    assert [(line["step"], line["tokens"]) for line in lines(path)] == [
        ("10", "10"), ("20", "20"), ("30", "31"),
    ]  # fmt: skip
    assert "nats_story" in second.columns and lines(path)[-1]["nats_fable"] == "1.5"


def test_new_run_starts_a_new_log(tmp_path: Path) -> None:
    RunLog(tmp_path / "log.csv", [], after_step=0).write({"step": 1})
    assert lines(RunLog(tmp_path / "log.csv", [], after_step=0).path) == []


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00:00"), (59.6, "0:01:00"), (5400, "1:30:00"), (-3, "0:00:00")]
)
def test_clock_shows_hours_minutes_seconds(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_curve_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.csv", ["story"], after_step=0)
    for step in (10, 20):
        log.write({"step": step, "tokens": 1000 * step, "loss": 3.0, "bits_story": 1.5})
    picture = tmp_path / "curve.png"
    installed = importlib.util.find_spec("matplotlib") is not None
    assert draw_curve(log.path, picture) is installed
    assert picture.exists() is installed
    if installed:
        assert picture.read_bytes().startswith(b"\x89PNG")
