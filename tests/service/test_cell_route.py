"""One attention number taken apart over HTTP, against the maps of the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.schemas.cell import CellAnswer

Servers = Mapping[str, TestClient]
TEXT = "猫追老鼠，因为它饿了。"


def take(client: TestClient, **asked: Any) -> dict[str, Any]:
    body = {"text": TEXT, "layer": 1, "head": 3, "query": 6, "key": 2, **asked}
    answer = client.post("/v1/attention/cell", json=body)
    assert answer.status_code == 200, answer.text
    CellAnswer.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


def test_cell_is_the_number_of_the_map(clients: Servers, family: str) -> None:
    client = clients[family]
    found = take(client)
    one = found["cell"]
    assert found["tensors"] == {}
    assert all(isinstance(token, int) for token in found["tokens"])
    whole = client.post(
        "/v1/attention",
        json={
            "text": TEXT,
            "layers": [1],
            "heads": [3],
            "stages": ["dots", "scores", "masked_scores", "pattern"],
            "format": {"exact": True},
        },
    ).json()["tensors"]
    maps = {name: np.array(tensor["data"], dtype=float)[0, 0] for name, tensor in whole.items()}
    assert one["errors"]["dot"] <= 1e-6
    assert one["errors"]["score"] <= 1e-6
    assert one["errors"]["weight"] <= 2e-6
    assert one["dot"] == pytest.approx(maps["attn.dots"][6, 2], abs=1e-5)
    assert one["score"] == pytest.approx(maps["attn.scores"][6, 2], abs=1e-5)
    assert one["weight"] == pytest.approx(maps["attn.pattern"][6, 2], abs=2e-6)
    # The parts make up the whole, as a person would check it.
    assert sum(one["products"]) == pytest.approx(one["dot"], abs=1e-12)
    assert np.array(one["rot_q"]) @ np.array(one["rot_k"]) == pytest.approx(one["dot"], abs=1e-12)
    assert one["score"] == one["dot"] * one["scale"]
    assert one["exp"] == pytest.approx(np.exp(one["score"] - one["row_max"]), rel=1e-14)
    assert one["weight"] == one["exp"] / one["row_sum"]
    np.testing.assert_allclose(one["weighted_v"], one["weight"] * np.array(one["v"]), rtol=1e-14)


def test_cell_of_the_future_is_masked(clients: Servers) -> None:
    one = take(clients["course"], query=2, key=6)["cell"]
    assert one["masked"]
    assert (one["exp"], one["weight"]) == (0, 0)
    assert one["dot"] != 0
    open_ = take(clients["course"], query=2, key=6, wiring={"causal": False})["cell"]
    assert not open_["masked"]
    assert open_["weight"] > 0


def test_cell_knows_the_score_scale_of_the_wiring(clients: Servers) -> None:
    one = take(clients["course"], wiring={"score_scale": 1.0})["cell"]
    assert one["scale"] == 1
    assert one["score"] == one["dot"]
    assert one["errors"]["weight"] <= 2e-6


def test_cell_shows_an_edit_between_its_stages(clients: Servers) -> None:
    """The numbers are worked out from rot_q and rot_k: an edit after them is a distance."""
    edit = {"op": "scale", "site": "attn.dots", "by": 2.0, "layers": [1], "heads": [3]}
    one = take(clients["course"], edits=[edit])["cell"]
    assert one["errors"]["dot"] > 1e-3
    blocked = {"op": "block", "layers": [1], "heads": [3], "queries": [6], "keys": "all"}
    empty = take(clients["course"], edits=[blocked])["cell"]
    assert empty["masked"]
    assert empty["row_max"] is None
    assert empty["weight"] == 0


def test_cell_counts_from_the_end_and_maps_grouped_heads(clients: Servers) -> None:
    one = take(clients["grouped"], layer=-1, head=-1, query=-1, key=-2)["cell"]
    n_tokens = len(take(clients["grouped"])["tokens"])
    assert (one["layer"], one["head"], one["kv_head"]) == (2, 5, 1)
    assert (one["query"], one["key"]) == (n_tokens - 1, n_tokens - 2)


def test_cell_dry_run_has_no_cell(clients: Servers) -> None:
    found = take(clients["course"], dry_run=True)
    assert found["cell"] is None
    assert found["estimate"]["tensor_floats"] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head": 4}, "head is 4; allowed are -4 to 3"),
        ({"layer": 3}, "layer 3 is out of range"),
        ({"key": 99}, "key is 99; allowed are"),
        ({"query": 99}, "99 is out of range"),
    ],
)
def test_cell_refuses_what_is_not_there(
    clients: Servers, change: dict[str, int], says: str
) -> None:
    body = {"text": TEXT, "layer": 1, "head": 3, "query": 6, "key": 2, **change}
    answer = clients["course"].post("/v1/attention/cell", json=body)
    assert answer.status_code == 422
    assert says in answer.json()["detail"]
