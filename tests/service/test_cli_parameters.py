"""`fluoroscope parameters`: tables that a person can read, JSON that a program can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from model.checkpoints import native
from model.gpt import GPT
from model.presets import PRESETS
from service.cli_parameters import parameters
from service.parameter_tables import bar
from service.schemas.parameters import ComparisonAnswer, ParametersAnswer

APP = typer.Typer()
APP.command()(parameters)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(APP, list(arguments), env={"COLUMNS": "110", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    return result.output


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.strip().startswith(start))


def test_table_of_a_preset_has_counts_shares_bars_and_formulas() -> None:
    text = run("--preset", "gpt2")
    assert "124,439,808 parameters" in text
    embedding = line(text, "token embedding")
    assert "38,597,376" in embedding
    assert "31.0%" in embedding
    assert "█████" in embedding
    assert "V·d" in embedding
    assert "4·D·d + 3·D" in line(text, "one head, of 12")
    assert "66.6%" in line(text, "feed-forward")
    assert "is embed.weight" in line(text, "unembedding")
    assert "84,934,656" in line(text, "as transformerlens")
    assert "75.5 MB" in line(text, "keys and values, float32")


def test_sizes_change_the_preset() -> None:
    text = run("--preset", "course", "--n-layer", "8", "--tied", "--no-bias")
    assert f"{50257 * 384 + 8 * (12 * 384**2 + 2 * 384) + 384:,} parameters" in text
    rms = run("--preset", "course", "--norm", "rmsnorm", "--activation", "swiglu")
    assert "gate" in rms


def test_json_is_the_wire_answer() -> None:
    body = json.loads(run("--preset", "qwen3-0.6b", "--context", "32", "--json"))
    ParametersAnswer.model_validate(body)
    assert body["totals"]["unique"] == 596_049_920
    assert body["costs"]["context"] == 32


def test_several_presets_stand_side_by_side() -> None:
    text = run("--preset", "course", "--preset", "gpt2")
    assert "49,244,928" in line(text, "totals: unique")
    assert "×2.53" in line(text, "totals: unique")
    assert "learned" in line(text, "positions")
    body = json.loads(run("--preset", "course", "--preset", "gpt2", "--json"))
    ComparisonAnswer.model_validate(body)


def test_derivation_comes_in_the_language_asked_for() -> None:
    assert "Token embedding: one row" in run("--preset", "nano", "--explain", "en")
    assert "词嵌入：词表里" in run("--preset", "nano", "--explain", "zh")


def test_checkpoint_is_counted_without_reading_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    native.save(folder, GPT(PRESETS["nano"]), None, dtype=torch.float32)
    assert "mine: 85,728 parameters" in run("--model", str(folder))
    assert "85,728 parameters" in run("--model", "preset:nano")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--preset", "gpt2", "--n-head", "7"], 2, "768 is not divisible by n_head 7"),
        (["--preset", "gpt5"], 2, "no preset 'gpt5'"),
        (["--preset", "gpt2", "--context", "2000"], 2, "1 to 1024"),
        (["--preset", "gpt2", "--model", "demo"], 2, "not both"),
        (["--preset", "gpt2", "--preset", "nano", "--explain", "en"], 2, "one model"),
        (["--model", "/no/such/folder"], 1, "no such file or folder"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    arguments: list[str], code: int, words: str
) -> None:
    text = " ".join(run(*arguments, code=code).replace("│", " ").split())
    assert words in text


@pytest.mark.parametrize(
    ("share", "drawn", "plain"),
    [
        (0, "", ""),
        (1e-9, "▏", "#"),
        (0.5, "█" * 8, "#" * 8),
        (0.5 + 1 / 64, "█" * 8 + "▎", "#" * 8),
        (1, "█" * 16, "#" * 16),
    ],
)
def test_bar_is_as_long_as_the_share(share: float, drawn: str, plain: str) -> None:
    assert bar(share) == drawn
    assert bar(share, ascii_only=True) == plain


def test_command_line_starts_without_torch() -> None:
    """Help and completion must not wait seconds for a library that they do not need."""
    code = "import sys, service.cli_parameters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
