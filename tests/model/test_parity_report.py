"""The parity report: what it finds, what it does not let pass, stored numbers bound to weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model import parity as module
from model.checkpoints import native
from model.checkpoints.open import OpenedModel, open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.parity import (
    GATE,
    ParityReport,
    fixed_ids,
    golden_of,
    main,
    parity,
    recomputed,
    wrong_formula,
)
from model.reading import RunCancelled
from tests.conftest import CONFIGS, SHAPE, with_large_weights

CPU = torch.device("cpu")
MORE = CONFIGS | {
    "no positions": GPTConfig(**SHAPE, n_head=4, positions="none"),
    "a lone pair": GPTConfig(**SHAPE, n_head=4, rotary_dim=2),
    "a short context": GPTConfig(**(SHAPE | {"n_ctx": 9}), n_head=4),
}


def of(model: GPT, **more: Any) -> OpenedModel:
    return OpenedModel(model, None, "m", "0" * 64, True, "a test", "test", **more)


def open_here(folder: Path, dtype: torch.dtype = torch.float32) -> OpenedModel:
    return open_model(str(folder), device=CPU, dtype=dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A native folder with stored numbers."""
    native.save(tmp_path / "m", with_large_weights(CONFIGS["grouped"]), None, dtype=torch.float32)
    assert main([str(tmp_path / "m"), "--write-golden"]) == 0
    return tmp_path / "m"


@pytest.mark.parametrize("name", MORE)
def test_a_right_model_passes_and_the_control_misses(name: str) -> None:
    report = parity(of(with_large_weights(MORE[name])))
    assert report.passed and report.within_gate and report.control_missed
    assert 0 < report.deviations.worst < GATE == report.gate
    assert report.control_deviations.worst > 1e-3
    assert (report.against, report.golden_ignored) == ("reference", None)
    config = MORE[name]
    assert report.n_tokens == report.rows == min(32, config.n_ctx)
    assert report.maps == config.n_layer * config.n_head


def test_relative_is_to_the_largest_magnitude_over_one(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = of(with_large_weights(CONFIGS["course"]))
    true = recomputed(opened.model)
    shifted = replace(true, logits=true.logits + 0.5)
    monkeypatch.setattr(module, "recomputed", lambda *_: shifted)
    found = parity(opened).deviations.logits
    largest = np.abs(shifted.logits).max()
    assert largest > 2
    assert found.absolute == pytest.approx(0.5, abs=1e-4)
    assert found.relative == pytest.approx(0.5 / largest, abs=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"rope_pairing": "half"}, {"norm_eps": 1e-3}, {"activation": "gelu_tanh"}]
)
def test_a_wrong_model_does_not_pass(wrong: dict[str, Any]) -> None:
    """Stored numbers are of the right formula; a model that computes another is found out."""
    right = with_large_weights(CONFIGS["course"])
    expected = recomputed(right)
    other = GPT(replace(right.config, **wrong)).eval()
    other.load_state_dict(right.state_dict())
    found = module.deviations(other, expected, module.MODEL_WIRING, lambda: False)
    assert found.worst > 2 * GATE


def test_a_comparison_in_which_the_wrong_formula_passes_too_does_not_pass() -> None:
    model = with_large_weights(CONFIGS["course"])
    for block in model.blocks:
        block.attn.q.weight.zero_()  # type: ignore[union-attr]
        block.attn.q.bias.zero_()  # type: ignore[union-attr]
    report = parity(of(model))
    assert report.within_gate and not report.control_missed
    assert report.passed is False


def test_bfloat16_is_reported_and_not_gated() -> None:
    report = parity(of(with_large_weights(CONFIGS["grouped"]).bfloat16()))
    assert (report.gate, report.within_gate, report.control_missed, report.passed) == (None,) * 4
    assert GATE < report.deviations.worst < 1
    assert report.dtype == "bfloat16"


def test_numbers_that_are_not_finite_do_not_pass_and_are_no_json() -> None:
    model = with_large_weights(CONFIGS["course"])
    model.blocks[1].mlp.up.bias[0] = math.nan  # type: ignore[index, union-attr]
    report = parity(of(model))
    assert report.passed is False and math.isnan(report.deviations.worst)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["deviations"]["logits"] == {"absolute": None, "relative": None}
    assert plain["passed"] is False


def test_it_ends_where_nobody_waits() -> None:
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(RunCancelled):
        parity(of(with_large_weights(CONFIGS["course"])), stopped=stopped)
    assert len(asked) == 3


def test_the_input_follows_from_the_vocabulary_alone() -> None:
    one, same = GPTConfig(**SHAPE, n_head=4), GPTConfig(**SHAPE, n_head=2, positions="none")
    assert fixed_ids(one) == fixed_ids(same) and len(fixed_ids(one)) == 32
    other = GPTConfig(**(SHAPE | {"vocab_size": 361}), n_head=4)
    assert fixed_ids(other) != fixed_ids(one)
    assert len(set(fixed_ids(one))) > 20 and max(fixed_ids(one)) < one.vocab_size
    # The generator's first step, worked by hand: (2·a + c) mod 2^64, its upper 31 bits, mod 2.
    two = GPTConfig(**(SHAPE | {"vocab_size": 2}), n_head=4)
    first = (2 * 6364136223846793005 + 1442695040888963407) % 2**64 >> 33
    assert fixed_ids(two)[0] == first % 2


def test_each_kind_of_position_has_a_control() -> None:
    assert "half" in wrong_formula(MORE["course"])[0]
    assert "interleaved" in wrong_formula(MORE["grouped"])[0]
    assert wrong_formula(MORE["learned"])[1].positions == "none"
    assert wrong_formula(MORE["a lone pair"])[1].positions == "none"  # both pairings are the same
    assert wrong_formula(MORE["no positions"])[1].score_scale == pytest.approx(2 / math.sqrt(12))


# Stored numbers


def test_stored_numbers_are_the_reference_s_last_rows(folder: Path) -> None:
    opened = open_here(folder)
    expected = recomputed(opened.model)
    stored = json.loads((folder / "golden.json").read_text())
    assert stored["logits_last_row"] == expected.logits[-1].tolist()
    assert stored["patterns"]["2.5"] == expected.patterns[2, 5][-1].tolist()
    assert len(stored["patterns"]) == 18
    report = parity(opened)
    assert (report.against, report.rows, report.maps) == ("golden", 1, 18)
    assert report.passed and "numpy" in report.made_with
    assert not list(folder.glob(".*"))


def edited(folder: Path, **changes: Any) -> ParityReport:
    file = folder / "golden.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return parity(open_here(folder))


def test_a_stored_number_that_the_model_misses_fails(folder: Path) -> None:
    row = json.loads((folder / "golden.json").read_text())["logits_last_row"]
    row[7] += 1e-3 * max(1.0, *map(abs, row))
    report = edited(folder, logits_last_row=row)
    assert report.against == "golden" and report.passed is False
    assert report.deviations.logits.relative == pytest.approx(1e-3, rel=0.05)
    assert report.deviations.patterns.relative < GATE


def test_a_wrong_config_beside_right_weights_misses_its_stored_numbers(folder: Path) -> None:
    file = folder / "config.json"
    description = json.loads(file.read_text())
    description["config"]["rope_pairing"] = "interleaved"
    file.write_text(json.dumps(description))
    report = parity(open_here(folder))
    assert report.against == "golden" and report.passed is False


def test_numbers_of_a_part_of_the_heads_are_enough(folder: Path) -> None:
    patterns = json.loads((folder / "golden.json").read_text())["patterns"]
    report = edited(folder, patterns={"0.0": patterns["0.0"], "2.5": patterns["2.5"]})
    assert report.passed and report.maps == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights_sha256": "f" * 64}, "of weights with the sha256 ffff"),
        ({"ids": [1, 2, 360]}, "does not fit"),
        ({"ids": [1.5]}, "does not fit"),
        ({"logits_last_row": [1.0]}, "does not fit"),
        ({"logits_last_row": [[1.0], [1.0, 2.0]]}, "damaged"),
        ({"patterns": {"0.9": [1.0] * 32}}, "does not fit"),
        ({"patterns": {"0": [1.0] * 32}}, "damaged"),
        ({"patterns": {}}, "does not fit"),
        ({"patterns": None}, "damaged"),
        ({"ids": None}, "damaged"),
    ],
)
def test_numbers_that_do_not_belong_are_ignored_with_the_reason(
    changes: dict[str, Any], says: str, folder: Path
) -> None:
    report = edited(folder, **changes)
    assert report.against == "reference" and report.passed
    reason = str(report.golden_ignored)
    assert reason.startswith("golden.json ") and says in reason and str(folder) not in reason


def test_a_file_that_is_no_json_is_ignored_without_its_folder(folder: Path) -> None:
    (folder / "golden.json").write_text("{")
    report = parity(open_here(folder))
    assert report.passed and str(report.golden_ignored).startswith("golden.json: not JSON")


def test_numbers_stay_with_the_same_weights_and_go_with_others(folder: Path) -> None:
    model = open_here(folder).model
    before = (folder / "golden.json").read_bytes()
    native.save(folder, model, None, dtype=torch.float32, about={"source": "again"})
    assert (folder / "golden.json").read_bytes() == before
    model.embed.weight[0, 0] += 1
    native.save(folder, model, None, dtype=torch.float32)
    assert not (folder / "golden.json").exists()
    assert open_here(folder).golden is None


def test_the_command_says_what_it_found(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["against"] == "golden"
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["preset:nano", "--write-golden"]) == 2
    assert "no native folder" in capsys.readouterr().err
    row = {"logits_last_row": [0.0] * 360}
    edited(folder, **row)
    assert main([str(folder)]) == 1


def test_numbers_that_are_not_finite_are_not_stored(tmp_path: Path) -> None:
    model = with_large_weights(CONFIGS["course"])
    model.unembed.weight[3, 0] = math.inf
    native.save(tmp_path / "m", model, None, dtype=torch.float32)
    with pytest.raises(ValueError, match="JSON"):
        module.write_golden(tmp_path / "m", golden_of(open_here(tmp_path / "m")))
    assert not (tmp_path / "m" / "golden.json").exists()
