"""POST /v1/sample: one row of logits under many settings, against numbers worked here."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.sampling import Choice, choose
from service.schemas.generation import SampleAnswer
from tests.answers import EXACT, Json, ask, refused, single
from tests.conftest import VOCABULARY, Serve
from tests.service.test_metrics import scrape, value

TEXT = "The cat chased the mouse"
# Logits whose softmax at temperature 1 is 1/2, 1/4, 1/8, 1/8.
HALVES = [float(np.log(8 * p)) for p in (0.5, 0.25, 0.125, 0.125)]


def sample(client: TestClient, *settings: Json, **body: Any) -> list[Json]:
    answer = ask(client, "/v1/sample", settings=list(settings), **body)
    SampleAnswer.model_validate(answer)
    choices: list[Json] = answer["choices"]
    assert len(choices) == len(settings)
    return choices


def column(choice: Json, name: str) -> list[Any]:
    return [candidate[name] for candidate in choice["candidates"]]


def test_given_logits_under_each_setting_worked_by_hand(client: TestClient) -> None:
    plain, warm, top_k, top_p, greedy = sample(
        client,
        {},
        {"temperature": 0.5},
        {"top_k": 2},
        {"top_p": 0.75},
        {"temperature": 0},
        logits=HALVES,
    )
    assert column(plain, "probability") == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert column(plain, "cumulative") == pytest.approx([0.5, 0.75, 0.875, 1.0])
    assert plain["entropy_nats"] == pytest.approx(1.75 * np.log(2))
    assert (plain["n_kept"], plain["top_k_cut"], plain["top_p_cut"]) == (4, None, None)
    # At half the temperature the probabilities are squared: 16, 4, 1, 1 of 22.
    assert column(warm, "probability") == pytest.approx([16 / 22, 4 / 22, 1 / 22, 1 / 22])
    assert column(warm, "scaled") == pytest.approx([2 * logit for logit in HALVES])
    assert column(top_k, "probability") == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert column(top_k, "cut_by") == [None, None, "top_k", "top_k"]
    assert top_k["top_k_cut"] == {"rank": 2, "mass": pytest.approx(0.75)}
    assert top_p["n_kept"] in (2, 3)  # 0.75 is met, or missed by a rounding
    assert column(top_p, "uncut") == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert column(greedy, "probability") == [1, 0, 0, 0]
    assert (greedy["drawn"], greedy["draw"], greedy["entropy_nats"]) == (0, None, 0)


def test_nothing_is_drawn_without_a_seed_but_where_nothing_is_left_to_chance(
    client: TestClient,
) -> None:
    plain, greedy = sample(client, {}, {"temperature": 0}, logits=HALVES)
    assert (plain["draw"], plain["drawn"]) == (None, None)
    assert not any(column(plain, "drawn"))
    assert greedy["drawn"] == 0


def test_one_number_draws_under_every_setting(client: TestClient) -> None:
    for seed in range(8):
        u = Random(seed).random()
        settings = ({}, {"top_k": 2}, {"temperature": 0})
        plain, top_k, greedy = sample(client, *settings, logits=HALVES, seed=seed)
        assert (greedy["draw"], greedy["drawn"]) == (None, 0)
        assert plain["draw"] == top_k["draw"] == u
        assert plain["drawn"] == sum(u >= edge for edge in (0.5, 0.75, 0.875))
        assert top_k["drawn"] == (u >= 2 / 3)


def test_null_is_minus_infinity_and_never_drawn(client: TestClient) -> None:
    (choice,) = sample(client, {"top_k": 3}, logits=[None, 1.0, None, 1.0], seed=1)
    assert column(choice, "id") == [1, 3, 0, 2]
    assert column(choice, "logit") == [1.0, 1.0, None, None]
    assert column(choice, "probability") == [0.5, 0.5, 0, 0]
    assert choice["drawn"] == (1 if Random(1).random() < 0.5 else 3)


def test_drawn_token_stands_behind_the_first_ranks(client: TestClient) -> None:
    seed = next(seed for seed in range(99) if Random(seed).random() > 0.9)
    (choice,) = sample(client, {}, logits=HALVES, seed=seed, top=1)
    assert column(choice, "rank") == [1, 4]
    assert column(choice, "drawn") == [False, True]


def test_text_is_run_once_for_all_settings(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()
    from model.reading import read

    runs: list[int] = []

    def counted(*given: Any, **named: Any) -> Any:
        runs.append(1)
        return read(*given, **named)

    monkeypatch.setattr("service.sampling.read", counted)
    settings = [{"temperature": t / 10} for t in range(1, 21)]
    answer = ask(client, "/v1/sample", text=TEXT, settings=settings, top=VOCABULARY)
    assert len(runs) == 1
    ask(client, "/v1/sample", logits=HALVES, settings=settings)
    assert len(runs) == 1
    logits = single(
        ask(client, "/v1/logits", text=TEXT, full=True, format=EXACT)["tensors"]["logits"]
    )[0].astype(np.float64)
    for setting, choice in zip(settings, answer["choices"], strict=True):
        weights = np.exp((logits - logits.max()) / setting["temperature"])
        expected = weights / weights.sum()
        found = np.zeros(VOCABULARY)
        found[column(choice, "id")] = column(choice, "probability")
        assert np.allclose(found, expected, atol=1e-9)
        assert choice["temperature"] == setting["temperature"]
    assert answer["vocab_size"] == VOCABULARY and answer["position"] == answer["n_tokens"] - 1


def test_first_step_of_a_generation_draws_the_same(client: TestClient) -> None:
    setting = {"temperature": 1.3, "top_k": 30}
    for seed in range(5):
        (choice,) = sample(client, setting, text=TEXT, seed=seed)
        step = ask(client, "/v1/generate", text=TEXT, seed=seed, max_new_tokens=1, **setting)
        (step,) = step["steps"]
        for name in ("candidates", "draw", "n_kept", "entropy_nats", "top_k_cut"):
            assert choice[name] == step[name]
        assert choice["drawn"] == step["token"]["id"]


def test_position_of_the_text_can_be_chosen(client: TestClient) -> None:
    ids = ask(client, "/v1/tokenize", text=TEXT)["token_ids"]
    for position in (0, 2, -2):
        choices = sample(client, {"temperature": 0}, token_ids=ids, position=position)
        upto = ids[: position % len(ids) + 1]
        (last,) = sample(client, {"temperature": 0}, token_ids=upto)
        assert choices[0]["drawn"] == last["drawn"]
    refused(client, "/v1/sample", "invalid-selection", text=TEXT, position=40, settings=[{}])


def test_texts_are_those_of_the_models_vocabulary_where_the_logits_may_be(
    client: TestClient,
) -> None:
    (theirs,) = sample(client, {}, logits=HALVES)
    assert column(theirs, "text") == [None] * 4
    (ours,) = sample(client, {}, logits=[0.0] * VOCABULARY, top=3)
    assert all(isinstance(text, str) for text in column(ours, "text"))


@pytest.mark.parametrize(
    ("slug", "body"),
    [
        ("invalid-request", {"settings": [{}]}),
        ("invalid-request", {"text": TEXT, "logits": HALVES, "settings": [{}]}),
        ("invalid-request", {"text": TEXT, "settings": []}),
        ("invalid-request", {"text": TEXT, "settings": [{}] * 65}),
        ("invalid-request", {"text": TEXT, "settings": [{"temperature": -1}]}),
        ("invalid-request", {"logits": [], "settings": [{}]}),
        ("invalid-request", {"logits": ["1"], "settings": [{}]}),
        ("invalid-request", {"logits": [0] * (2**18 + 1), "settings": [{}]}),
        ("invalid-sampling", {"logits": [None, None], "settings": [{}]}),
        ("invalid-sampling", {"logits": HALVES, "settings": [{"temperature": 1e-9}]}),
        ("no-tokens", {"text": "", "settings": [{}]}),
        ("invalid-text", {"token_ids": [99999], "settings": [{}]}),
    ],
    ids=lambda given: str(given)[:60],
)
def test_what_does_not_fit_is_refused(client: TestClient, slug: str, body: Json) -> None:
    refused(client, "/v1/sample", slug, **body)


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        ({"logits": HALVES}, ["queue", "forward", "encode"]),
        ({"text": TEXT}, ["queue", "tokenize", "forward", "encode"]),
        ({"token_ids": [1, 2]}, ["queue", "tokenize", "forward", "encode"]),
    ],
    ids=["logits", "text", "ids"],
)
def test_answer_says_where_its_time_went_and_the_metrics_hear_the_same(
    given: Json, stages: list[str], serve: Serve
) -> None:
    """Of given logits there is nothing to tokenize; choosing is `forward`, as in a generation."""
    client = serve()
    answer = client.post("/v1/sample", json={"settings": [{}, {"top_k": 2}], **given})
    told = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert list(told) == stages
    assert float(told["forward"]) > 0 and float(told["encode"]) > 0
    assert answer.headers["cache-control"] == "no-store"
    varies = {name.strip().lower() for name in answer.headers["vary"].split(",")}
    assert varies >= {"accept", "accept-encoding", "origin"}
    measured = scrape(client)
    for stage in ("queue", "tokenize", "forward", "encode"):
        of_stage = {"stage": stage}
        assert value(measured, "stage_seconds_count", **of_stage) == (stage in told), stage
        seconds = float(told.get(stage, 0)) / 1e3
        assert value(measured, "stage_seconds_sum", **of_stage) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("given", [{"logits": HALVES}, {"text": TEXT}])
def test_choosing_is_done_by_the_thread_that_runs_the_model(
    given: Json, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread that computes with torch slows every run after it: measured, 1.35 times."""
    threads: list[str] = []

    def noting(*arguments: Any, **named: Any) -> Choice:
        threads.append(threading.current_thread().name)
        return choose(*arguments, **named)

    monkeypatch.setattr("service.sampling.choose", noting)
    sample(client, {}, {"top_k": 2}, **given)
    assert len(threads) == 2
    assert {name.partition("_")[0] for name in threads} == {"inference"}
