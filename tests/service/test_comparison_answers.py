"""compare: the run beside the same input without edits and wiring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.tokenizer import Tokenizer
from tests.answers import ask, captured

TEXT = "The cat chased the mouse because it was hungry."
CHANGES: dict[str, dict[str, Any]] = {
    "an edit": {"edits": [{"op": "zero", "site": "attn.z", "layers": [1], "heads": [2]}]},
    "a wiring": {"wiring": {"score_scale": 1.0}},
    "both": {
        "edits": [{"op": "scale", "site": "mlp_out", "layers": [0], "by": 0.5}],
        "wiring": {"causal": False},
    },
}


def log_softmax(rows: Any) -> Any:
    rows = rows.astype(np.float64)
    top = rows.max(-1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("path", ["/v1/attention", "/v1/logits", "/v1/inspect"])
def test_divergence_and_change_are_those_of_the_two_runs_logits(
    path: str, name: str, client: TestClient, tokenizer: Tokenizer
) -> None:
    plain = captured(client, "logits", text=TEXT)
    changed = captured(client, "logits", text=TEXT, **CHANGES[name])
    captures = {"captures": [{"site": "embed"}]} if path == "/v1/inspect" else {}
    found = ask(client, path, text=TEXT, compare=True, **captures, **CHANGES[name])["comparison"]

    before, after = log_softmax(plain), log_softmax(changed)
    divergence = (np.exp(before) * (before - after)).sum(-1)
    np.testing.assert_allclose(found["kl_nats"], divergence, rtol=1e-6, atol=1e-9)
    largest = np.abs(changed - plain).max(-1)
    np.testing.assert_allclose(found["max_logit_change"], largest, rtol=1e-6)

    expected = []
    for position, (old, new) in enumerate(zip(plain, changed, strict=True)):
        for token in sorted({int(old.argmax()), int(new.argmax())}):
            ranks = [1 + int((row > row[token]).sum()) for row in (old, new)]
            if ranks[0] != ranks[1]:
                expected.append((position, token, *ranks))
    told = [
        (change["position"], change["id"], change["rank_before"], change["rank_after"])
        for change in found["rank_changes"]
    ]
    assert told == expected and len(told) > 3
    for change in found["rank_changes"]:
        assert change["text"] == tokenizer.token_text(change["id"])


def test_run_that_changes_nothing_differs_by_exactly_nothing(family: str, clients: Any) -> None:
    found = ask(
        clients[family],
        "/v1/attention",
        text=TEXT,
        compare=True,
        edits=[{"op": "scale", "site": "attn.z", "by": 1}],
    )["comparison"]
    assert set(found["kl_nats"]) == set(found["max_logit_change"]) == {0.0}
    assert found["rank_changes"] == []


def test_nothing_changes_before_the_edited_position(client: TestClient) -> None:
    edit = {"op": "zero", "site": "embed", "positions": [4]}
    found = ask(client, "/v1/logits", text=TEXT, compare=True, edits=[edit])["comparison"]
    assert found["kl_nats"][:4] == [0.0] * 4
    assert all(value > 0 for value in found["kl_nats"][4:])


def test_answer_without_it_has_no_comparison(client: TestClient) -> None:
    assert "comparison" not in ask(client, "/v1/logits", text=TEXT)
