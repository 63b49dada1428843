"""`fluoroscope generate`: what it shows is what POST /v1/generate says."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from typer.testing import CliRunner

from service.cli import app
from service.generation_view import Screen, printable
from tests.answers import ask
from tests.service.sse import stream, without_times

TEXT = "The cat chased"


def run(folder: Path, *arguments: str, code: int = 0, width: int = 300) -> str:
    result = CliRunner().invoke(
        app,
        ["generate", *arguments, "--model", str(folder)],
        env={"COLUMNS": str(width), "TERM": "dumb"},
    )
    assert result.exit_code == code, result.output
    return result.output


def test_json_is_the_wires_answer(folders: Mapping[str, Path], client: TestClient) -> None:
    printed = run(
        folders["course"],
        *(TEXT, "--seed", "3", "--max-new-tokens", "4", "--top-p", "0.9", "--n", "2"),
        *("--stop", "zzz", "--top", "3", "--json"),
    )
    body = {"seed": 3, "max_new_tokens": 4, "top_p": 0.9, "n": 2, "stop": ["zzz"], "top": 3}
    answer = ask(client, "/v1/generate", text=TEXT, **body)
    assert without_times(json.loads(printed)) == without_times(answer)


def test_every_token_has_a_line_with_its_choices_then_comes_the_text(
    folders: Mapping[str, Path], client: TestClient
) -> None:
    lines = run(
        folders["course"], TEXT, "--temperature", "0", "--max-new-tokens", "5", "--top", "2"
    ).splitlines()
    answer = ask(
        client, "/v1/generate", text=TEXT, temperature=0, max_new_tokens=5, top=2, stop_ids=None
    )
    for line, step in zip(lines, answer["steps"], strict=False):
        assert line.split()[0] == str(step["position"])
        shares = [f"{candidate['uncut']:.0%}" for candidate in step["candidates"]]
        assert all(share in line for share in shares)
        drawn = json.dumps(step["token"]["text"], ensure_ascii=False)
        assert line.count(drawn) >= 2  # as what was drawn, and among the choices
    (sample,) = answer["done"]["samples"]
    assert printable(TEXT + sample["text"]) in "\n".join(lines)
    reason = sample["reason"].replace("_", " ")
    assert lines[-1] == f"{len(sample['token_ids'])} tokens, ended by {reason}"


def test_terminal_shows_the_text_and_the_latest_steps_that_fit(client: TestClient) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, height=12, color_system=None)
    screen = Screen(console, TEXT)
    events = stream(client, text=TEXT, seed=5, max_new_tokens=12, top=2, stop_ids=[])
    for name, said in events:
        screen.show(name, said)
    frames = [
        frame for frame in re.split(r"(?:\r|\x1b\[[0-9?]*[a-zA-Z])+", file.getvalue()) if frame
    ]
    assert all(frame.count("\n") <= 12 for frame in frames)
    drawn = [said for name, said in events if name == "step"]
    whole = [frame for frame in frames if "choices" in frame]
    assert len(whole) >= 12  # drawn anew with each step
    rows = [line.split()[0] for line in whole[-1].splitlines() if "░" in line or "█" in line]
    positions = [str(step["position"]) for step in drawn]
    assert rows == positions[-len(rows) :] and 2 <= len(rows) < 12
    (sample,) = events[-1][1]["samples"]
    assert printable(TEXT + sample["text"]) in whole[-1]
    assert file.getvalue().rstrip().endswith("12 tokens, ended by max new tokens")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "-1"], "temperature: Input should be greater than or equal to 0"),
        (["--temperature", "1e-9"], "temperature is 1e-09"),
        (["--max-new-tokens", "300"], "at most 256"),
        (["--top-p", "1.5"], "top_p"),
    ],
)
def test_what_does_not_fit_is_said_and_ends_with_2(
    folders: Mapping[str, Path], arguments: list[str], said: str
) -> None:
    assert said in run(folders["course"], TEXT, *arguments, code=2)


def test_model_that_is_not_there_ends_with_1(tmp_path: Path) -> None:
    assert "no such file or folder" in run(tmp_path / "none", TEXT, code=1)


def test_what_would_move_the_cursor_is_not_printed() -> None:
    assert printable("a\x1b[2J\tb\nc猫") == "a\ufffd[2J\ufffdb\nc猫"
    console = Console(file=io.StringIO(), width=100)
    screen = Screen(console, "\x1b[31m")
    step: dict[str, Any] = {
        "sample": 0,
        "position": 1,
        "text": "\x07",
        "candidates": [
            {"id": 1, "text": "\x1b]0;", "drawn": True, "cut_by": None, "probability": 1.0}
        ],
    }
    screen.show("step", step)
    done = {"text": "\x1b]0;", "token_ids": [1], "reason": "stop_id"}
    screen.show("done", {"samples": [done]})
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_token_without_a_text_is_shown_by_its_number() -> None:
    console = Console(file=io.StringIO(), width=100)
    step: dict[str, Any] = {
        "sample": 0,
        "position": 1,
        "text": None,
        "candidates": [
            {"id": 17, "text": None, "drawn": True, "cut_by": None, "probability": 0.5},
            {"id": 4, "text": None, "drawn": False, "cut_by": "top_k", "probability": 0.0},
        ],
    }
    Screen(console, "").show("step", step)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "#17" in printed and "#4 cut" in printed and " 50% ████░░░░" in printed
