"""GET /v1/model/parity: the report on the wire, made once, admitted like any run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from model.checkpoints import native
from model.checkpoints.open import open_model
from model.parity import main as write_golden
from model.parity import parity
from service import parity as kept
from tests.answers import strict_json
from tests.conftest import CONFIGS, Serve, with_large_weights

PATH = "/v1/model/parity"


def got(client: TestClient, status: int = 200) -> dict[str, Any]:
    answer = client.get(PATH)
    assert answer.status_code == status, answer.text
    return dict(strict_json(answer.content))


def test_every_family_passes_and_its_control_misses(
    family: str, clients: Mapping[str, TestClient]
) -> None:
    client = clients[family]
    answer = got(client)
    assert answer["passed"] is answer["within_gate"] is answer["control_missed"] is True
    expected = parity(client.app.state.inspector.opened).to_dict()  # type: ignore[attr-defined]
    for values in (expected, answer):
        values.pop("seconds")
    assert answer.pop("model")["weights_sha256"]
    assert answer == expected
    control = "no positions" if family == "learned" else "pairs"
    assert control in answer["control"]


def test_it_is_made_once_however_often_it_is_asked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*arguments: Any, **more: Any) -> Any:
        made.append(1)
        return parity(*arguments, **more)

    monkeypatch.setattr(kept, "parity", counted)
    client = serve("course", waiting=0)
    first = client.get(PATH)
    again = client.get(PATH, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)
    assert made == [1]
    admission = client.app.state.inspector.admission  # type: ignore[attr-defined]
    admission.running = 1
    assert client.get(PATH).content == first.content  # what is kept needs no slot
    admission.running = 0


def test_it_waits_its_turn_like_any_run(serve: Serve) -> None:
    client = serve("course", waiting=0)
    admission = client.app.state.inspector.admission  # type: ignore[attr-defined]
    admission.running = 1
    problem = got(client, 429)
    assert problem["type"].endswith("too-busy")
    admission.running = 0
    assert got(client)["passed"] is True


def test_one_that_is_past_its_deadline_ends_and_is_not_kept(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def slow_at_first(opened: Any, *, stopped: Any) -> Any:
        asked.append(1)
        while len(asked) == 1 and not stopped():
            time.sleep(0.01)
        return parity(opened, stopped=stopped)

    monkeypatch.setattr(kept, "parity", slow_at_first)
    client = serve("course", run_seconds=1)
    assert got(client, 503)["type"].endswith("deadline-passed")
    assert got(client)["passed"] is True
    assert asked == [1, 1]


def test_numbers_stored_with_the_checkpoint_are_what_counts(serve: Serve, tmp_path: Path) -> None:
    native.save(tmp_path / "m", with_large_weights(CONFIGS["course"]), None, dtype=torch.float32)
    assert write_golden([str(tmp_path / "m"), "--write-golden"]) == 0

    def opened(_: Any) -> Any:
        return open_model(str(tmp_path / "m"), device=torch.device("cpu"), dtype=torch.float32)

    answer = got(serve("course", open_with=opened))
    assert (answer["against"], answer["rows"], answer["passed"]) == ("golden", 1, True)
    other = replace(opened(None), weights_sha256="0" * 64)
    answer = got(serve("course", open_with=lambda _: other))
    assert answer["against"] == "reference" and "0000" in answer["golden_ignored"]
    assert str(tmp_path) not in answer["golden_ignored"]


def test_bfloat16_is_reported_without_a_gate(serve: Serve) -> None:
    answer = got(serve("grouped", dtype="bfloat16", device="cpu"))
    assert (answer["gate"], answer["passed"], answer["dtype"]) == (None, None, "bfloat16")
    assert answer["deviations"]["logits"]["relative"] > 1e-4


def test_a_model_that_is_not_finite_does_not_pass(serve: Serve, folders: Any) -> None:
    opened = open_model(str(folders["course"]), device=torch.device("cpu"), dtype=torch.float32)
    opened.model.ln_final.weight[0] = float("nan")
    answer = got(serve("course", open_with=lambda _: opened))
    assert answer["passed"] is False
    assert answer["deviations"]["logits"] == {"absolute": None, "relative": None}
    assert answer["deviations"]["patterns"]["relative"] < 2e-5
