"""POST /v1/logits: predictions against numpy on the logits themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.tokenizer import Tokenizer
from tests.answers import ask, exact, refused, single

PATH = "/v1/logits"
TEXT = "The cat chased the mouse. 猫"


def log_softmax(row: Any) -> Any:
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@pytest.fixture(scope="module")
def answer(client: TestClient) -> Any:
    return ask(client, PATH, text=TEXT, positions="all", top=360, full=True, format={"exact": True})


@pytest.fixture(scope="module")
def logits(answer: Any) -> Any:
    return single(answer["tensors"]["logits"])


def test_logits_are_the_ones_that_inspect_shows(answer: Any, logits: Any, clients: Any) -> None:
    whole = exact(
        clients["course"], "/v1/inspect", "logits", text=TEXT, captures=[{"site": "logits"}]
    )
    assert np.array_equal(logits, whole)
    assert answer["tensors"]["logits"]["axes"] == ["position", "vocab"]


def test_each_position_lists_the_likeliest_tokens_with_their_probabilities(
    answer: Any, logits: Any, tokenizer: Tokenizer
) -> None:
    for row, prediction in zip(logits, answer["predictions"], strict=True):
        expected = log_softmax(row)
        order = np.argsort(-row, kind="stable")
        assert [token["id"] for token in prediction["top"]] == order.tolist()
        for token in prediction["top"]:
            assert token["logit"] == pytest.approx(float(row[token["id"]]))
            assert token["logprob"] == pytest.approx(expected[token["id"]], abs=1e-9)
            assert token["probability"] == pytest.approx(np.exp(expected[token["id"]]))
            assert token["text"] == tokenizer.token_text(token["id"])
        assert sum(token["probability"] for token in prediction["top"]) == pytest.approx(1)


def test_entropy_and_normalizer_are_those_of_the_whole_vocabulary(answer: Any, logits: Any) -> None:
    for row, prediction in zip(logits, answer["predictions"], strict=True):
        logprob = log_softmax(row)
        assert prediction["entropy_nats"] == pytest.approx(-(np.exp(logprob) * logprob).sum())
        assert prediction["logsumexp"] == pytest.approx(np.log(np.exp(row.astype("f8")).sum()))


def test_next_is_the_token_that_really_follows_with_its_rank(answer: Any, logits: Any) -> None:
    ids = [token["id"] for token in answer["tokens"]]
    for position, prediction in enumerate(answer["predictions"]):
        assert prediction["position"] == position
        if position == len(ids) - 1:
            assert prediction["next"] is None
            continue
        following = prediction["next"]
        row = logits[position]
        assert following["id"] == ids[position + 1]
        assert following["rank"] == 1 + (row > row[following["id"]]).sum()
        assert following["logprob"] == pytest.approx(log_softmax(row)[following["id"]], abs=1e-9)


def test_default_is_the_last_position_and_ten_tokens_and_no_tensor(client: TestClient) -> None:
    answer = ask(client, PATH, text=TEXT)
    assert answer["tensors"] == {}
    (prediction,) = answer["predictions"]
    assert prediction["position"] == answer["input"]["n_tokens"] - 1
    assert len(prediction["top"]) == 10


def test_positions_come_in_the_order_asked_for(client: TestClient) -> None:
    answer = ask(client, PATH, text=TEXT, positions=[3, 0, -1], top=1, full=True)
    last = answer["input"]["n_tokens"] - 1
    assert [p["position"] for p in answer["predictions"]] == [3, 0, last]
    assert answer["tensors"]["logits"]["coords"] == {"position": [3, 0, last]}


def test_more_tokens_than_the_vocabulary_gives_all_of_it(client: TestClient) -> None:
    (prediction,) = ask(client, PATH, text=TEXT, top=1000)["predictions"]
    assert len(prediction["top"]) == 360
    assert ask(client, PATH, text=TEXT, top=0)["predictions"][0]["top"] == []


@pytest.mark.parametrize("top", [-1, 1001, 2.5, "3"])
def test_top_out_of_range_is_refused(top: Any, client: TestClient) -> None:
    problem = refused(client, PATH, "invalid-request", text=TEXT, top=top)
    assert problem["errors"][0]["pointer"] == "/top"


def test_equal_logits_go_to_the_lower_id(client: TestClient) -> None:
    zero = {"op": "zero", "site": "logits", "positions": [-1]}
    (prediction,) = ask(client, PATH, text=TEXT, edits=[zero], top=3)["predictions"]
    assert [token["id"] for token in prediction["top"]] == [0, 1, 2]
    assert prediction["entropy_nats"] == pytest.approx(np.log(360))


def test_edited_run_predicts_from_the_edited_logits(client: TestClient) -> None:
    push = {"op": "set", "site": "logits", "positions": [-1], "value": -100.0}
    raise_one = {"op": "add", "site": "logits", "positions": [-1]}
    value = [[0.0] * 360]
    value[0][77] = 150.0
    edits = [push, {**raise_one, "value": value}]
    (prediction,) = ask(client, PATH, text=TEXT, edits=edits, top=1)["predictions"]
    assert prediction["top"][0]["id"] == 77
    assert prediction["top"][0]["probability"] == pytest.approx(1)
