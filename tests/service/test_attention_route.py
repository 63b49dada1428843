"""POST /v1/attention: the maps are what attention is defined to give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.answers import SAFETENSORS, array, ask, exact, safetensors, single

TEXT = "The cat chased the mouse because it was hungry. 猫追老鼠。"
PATH = "/v1/attention"


@pytest.fixture(params=["exact", "base64", "safetensors"])
def pattern(request: pytest.FixtureRequest, family: str, clients: Any) -> Any:
    """Every map of the text, in a form that keeps every bit."""
    client = clients[family]
    if request.param == "safetensors":
        return safetensors(client, PATH, text=TEXT)[1]["attn.pattern"]
    form = {"exact": True} if request.param == "exact" else {"encoding": request.param}
    return single(ask(client, PATH, text=TEXT, format=form)["tensors"]["attn.pattern"])


def test_future_positions_get_exactly_nothing(pattern: Any) -> None:
    assert pattern.ndim == 4 and pattern.shape[2] == pattern.shape[3] > 16
    assert np.count_nonzero(np.triu(pattern, 1)) == 0
    assert np.count_nonzero(np.tril(pattern)) > 0.9 * np.tril(np.ones_like(pattern)).sum()


def test_each_row_sums_to_one(pattern: Any) -> None:
    assert np.abs(pattern.sum(-1, dtype=np.float64) - 1).max() < 2e-6
    assert pattern.std(-1).mean() > 0.03  # far from uniform


def test_stages_follow_from_each_other_as_the_formula_says(family: str, clients: Any) -> None:
    stages = ["dots", "scores", "masked_scores", "pattern"]
    found = ask(
        clients[family],
        PATH,
        text=TEXT,
        stages=stages,
        heads=[1],
        format={"exact": True},
    )["tensors"]
    assert list(found) == [f"attn.{stage}" for stage in stages]
    dots, scores, masked, pattern = (single(tensor) for tensor in found.values())
    d_head = clients[family].get("/v1/model").json()["config"]["d_head"]
    np.testing.assert_allclose(scores, dots / np.sqrt(d_head), rtol=1e-6, atol=1e-6)
    below = np.tril(np.ones(dots.shape[-2:], dtype=bool))
    assert np.array_equal(masked[..., below], scores[..., below])
    assert np.isneginf(masked[..., ~below]).all()
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    np.testing.assert_allclose(pattern, weights / weights.sum(-1, keepdims=True), atol=1e-6)


def test_text_of_one_token_looks_at_itself(family: str, clients: Any) -> None:
    answer = ask(clients[family], PATH, text="a")
    assert answer["input"]["n_tokens"] == 1
    tensor = answer["tensors"]["attn.pattern"]
    assert np.array_equal(array(tensor), np.ones(tensor["shape"]))


def test_longest_text_is_answered_and_one_token_more_is_not(client: TestClient) -> None:
    answer = ask(client, PATH, token_ids=[65] * 64, layers=[2], heads=[0], tokens="ids")
    assert answer["tensors"]["attn.pattern"]["shape"] == [1, 1, 64, 64]
    longer = client.post(PATH, json={"token_ids": [65] * 65})
    assert longer.status_code == 422
    assert (longer.json()["limit"], longer.json()["actual"]) == (64, 65)


@pytest.mark.parametrize(("aggregate", "over"), [("mean", np.mean), ("max", np.max)])
def test_aggregate_is_over_the_chosen_heads_whose_axis_is_gone(
    aggregate: str, over: Any, client: TestClient
) -> None:
    whole = exact(client, PATH, "attn.pattern", text=TEXT)
    answer = ask(client, PATH, text=TEXT, heads=[3, 1], aggregate=aggregate, format={"exact": True})
    tensor = answer["tensors"]["attn.pattern"]
    assert tensor["axes"] == ["layer", "query", "key"]
    np.testing.assert_allclose(single(tensor), over(whole[:, [3, 1]], axis=1), rtol=1e-6)


def test_selection_is_that_part_of_the_whole_with_its_true_indices(client: TestClient) -> None:
    whole = exact(client, PATH, "attn.pattern", text=TEXT)
    n_tokens = whole.shape[-1]
    answer = ask(
        client,
        PATH,
        text=TEXT,
        layers=[-1, 0],
        heads=[2],
        queries={"start": -1, "stop": -8, "step": -3},
        keys={"start": 1, "stop": 6, "step": 2},
        format={"exact": True},
    )
    tensor = answer["tensors"]["attn.pattern"]
    queries = list(range(n_tokens))[-1:-8:-3]
    assert tensor["coords"] == {
        "layer": [2, 0],
        "head": [2],
        "query": queries,
        "key": [1, 3, 5],
    }
    assert np.array_equal(single(tensor), whole[np.ix_([2, 0], [2], queries, [1, 3, 5])])


def test_axes_taken_whole_have_no_coords(client: TestClient) -> None:
    tensor = ask(client, PATH, text=TEXT)["tensors"]["attn.pattern"]
    assert tensor["coords"] == {}
    assert tensor["axes"] == ["layer", "head", "query", "key"]
    assert tensor["name"] == tensor["site"] == "attn.pattern"


def test_layers_come_in_the_order_asked_for(client: TestClient) -> None:
    forward = exact(client, PATH, "attn.pattern", text=TEXT, layers=[0, 2])
    backward = exact(client, PATH, "attn.pattern", text=TEXT, layers=[2, 0])
    assert np.array_equal(forward[::-1], backward)


def test_grouped_heads_are_all_there(clients: Any) -> None:
    answer = ask(clients["grouped"], PATH, text="Once upon a time")
    assert answer["tensors"]["attn.pattern"]["shape"][1] == 6


def test_unembedding_is_never_part_of_it(client: TestClient) -> None:
    answer = ask(client, PATH, text=TEXT, layers=[0], dry_run=True)
    # 2 FLOPs for each weight of one block, 4 · d_model for each cell.
    n_tokens = answer["input"]["n_tokens"]
    assert answer["estimate"]["layers_run"] == 1
    assert answer["estimate"]["flops"] == 2 * 12 * 48**2 * n_tokens + 4 * 48 * n_tokens**2


def test_vendor_form_says_the_same_as_json(client: TestClient) -> None:
    answer, arrays = safetensors(client, PATH, text=TEXT, layers=[1])
    plain = ask(client, PATH, text=TEXT, layers=[1], format={"exact": True})
    assert arrays["attn.pattern"].dtype == np.float32
    assert np.array_equal(arrays["attn.pattern"], single(plain["tensors"]["attn.pattern"]))
    for key in ("model", "input", "tokens", "checks"):
        assert answer[key] == plain[key]
    assert SAFETENSORS in client.get("/v1/model").json()["formats"]
