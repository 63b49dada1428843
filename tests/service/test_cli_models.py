"""`fluoroscope check-model` and `convert`: what a person reads, what a program gets, exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from typer.testing import CliRunner, Result

from model.checkpoints import convert as converting
from model.checkpoints import native
from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import open_model
from model.parity import main as write_golden
from service.cli import app
from tests.conftest import CONFIGS, with_large_weights

CPU = torch.device("cpu")


def run(*arguments: str | Path, code: int = 0) -> Result:
    environment = {"COLUMNS": "110", "TERM": "dumb"}
    result = CliRunner().invoke(app, [str(word) for word in arguments], env=environment)
    assert result.exit_code == code, result.output
    return result


def test_check_model_holds_the_numbers_against_float64_ones(folders: Mapping[str, Path]) -> None:
    facts = json.loads(run("check-model", folders["grouped"], "--device", "cpu", "--json").stdout)
    assert facts["passed"] is facts["parity_passed"] is True
    assert facts["parity_against"] == "reference"
    assert 0 < facts["parity_error"] < facts["parity_gate"] == 2e-5
    assert facts["parity_control_error"] > 1e-3 and "pairs" in facts["parity_control"]
    text = run("check-model", folders["grouped"], "--device", "cpu").stdout
    assert "parity against                 reference\n" in text
    assert "parity passed                  True\n" in text


def test_check_model_takes_stored_numbers_and_fails_where_they_are_missed(tmp_path: Path) -> None:
    native.save(tmp_path / "m", with_large_weights(CONFIGS["course"]), None, dtype=torch.float32)
    assert write_golden([str(tmp_path / "m"), "--write-golden"]) == 0
    facts = json.loads(run("check-model", tmp_path / "m", "--device", "cpu", "--json").stdout)
    assert facts["parity_against"] == "golden"
    file = tmp_path / "m" / "golden.json"
    values = json.loads(file.read_text())
    values["logits_last_row"][0] += 1
    file.write_text(json.dumps(values))
    found = run("check-model", tmp_path / "m", "--device", "cpu", "--json", code=1)
    facts = json.loads(found.stdout)
    assert facts["passed"] is facts["parity_passed"] is False


def test_check_model_says_not_finite_in_plain_json(tmp_path: Path) -> None:
    model = with_large_weights(CONFIGS["course"])
    model.blocks[0].mlp.up.bias[0] = math.nan  # type: ignore[index, union-attr]
    native.save(tmp_path / "m", model, None, dtype=torch.float32)
    found = run("check-model", tmp_path / "m", "--device", "cpu", "--json", code=1).stdout
    assert "NaN" not in found
    facts = json.loads(found)
    assert facts["passed"] is False and facts["finite"] is False and facts["parity_error"] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_convert_writes_a_folder_that_opens(
    dtype: str, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "there" / "out"
    said = run("convert", folders["grouped"], out, "--dtype", dtype).stdout
    assert said.startswith(f"{out}: grouped (fluoroscope-1) in {dtype}, ")
    opened = open_model(str(out), device=CPU, dtype=torch.float32)
    original = open_model(str(folders["grouped"]), device=CPU, dtype=torch.float32)
    for name, weight in original.model.state_dict().items():
        expected = weight.to(getattr(torch, dtype)).float()
        assert torch.equal(opened.model.state_dict()[name], expected)
    about = json.loads((out / "config.json").read_text())["about"]
    assert about["source_sha256"] == original.weights_sha256


def test_convert_loses_nothing_unless_told(folders: Mapping[str, Path], tmp_path: Path) -> None:
    run("convert", folders["learned"], tmp_path / "out")
    paths = (folders["learned"], tmp_path / "out")
    one, other = (path / "model.safetensors" for path in paths)
    assert one.read_bytes() == other.read_bytes()


def test_convert_refuses_with_the_reason_and_writes_nothing(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years")
    found = run("convert", folders["course"], tmp_path / "out", code=1)
    assert "holds no native checkpoint; nothing was written" in found.stderr
    (tmp_path / "file").write_text("years")
    assert run("convert", folders["course"], tmp_path / "file", code=1).stderr
    found = run("convert", tmp_path / "nowhere", tmp_path / "new", code=1)
    assert "no such file or folder" in found.stderr
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "file").read_text() == "years"
    run("convert", folders["course"], tmp_path / "new", "--dtype", "int8", code=2)


def test_convert_says_what_a_person_should_know(
    folders: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = converting.describe
    note = "the tokenizer in the file is not implemented"
    monkeypatch.setattr(
        converting,
        "describe",
        lambda name, revision: replace(describe(name, revision=revision), notes=(note,)),
    )
    found = run("convert", folders["course"], tmp_path / "out")
    assert note in found.stderr and note not in found.stdout
    assert json.loads((tmp_path / "out" / "config.json").read_text())["about"]["notes"] == [note]


def test_convert_hands_the_revision_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def none(name: str, revision: str | None = None) -> NoReturn:
        asked.append((name, revision))
        raise CheckpointError("not today")

    monkeypatch.setattr(converting, "describe", none)
    run("convert", "some/model", tmp_path / "out", "--revision", "v2", code=1)
    assert asked == [("some/model", "v2")]
