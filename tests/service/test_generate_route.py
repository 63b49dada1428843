"""POST /v1/generate: what it chooses and says, against runs of the whole text."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.tokenizer import train_tokenizer
from service.app import create_app
from service.schemas.generation import GenerateAnswer
from service.settings import Settings
from tests.answers import EXACT, Json, ask, refused, single
from tests.conftest import CONTEXT, VOCABULARY, Serve
from tests.service.sse import in_one_piece, stream, without_times

TEXT = "The cat chased the mouse"
IDS = [5, 9, 5, 40, 7, 8, 30]


def generate(client: TestClient, /, **body: Any) -> Json:
    return ask(client, "/v1/generate", **{"text": TEXT, "max_new_tokens": 6, **body})


def ids_of(answer: Json, sample: int = 0) -> list[int]:
    ids: list[int] = answer["done"]["samples"][sample]["token_ids"]
    return ids


def next_logits(client: TestClient, ids: list[int], **body: Any) -> np.ndarray[Any, Any]:
    """After a run of the whole text: no keys kept, no generation."""
    answer = ask(
        client, "/v1/logits", token_ids=ids, positions=[-1], full=True, format=EXACT, **body
    )
    return single(answer["tensors"]["logits"])[0].astype(np.float64)


def token_ids(client: TestClient, text: str) -> list[int]:
    ids: list[int] = ask(client, "/v1/tokenize", text=text)["token_ids"]
    return ids


def test_greedy_takes_the_largest_logit_of_the_whole_text_each_time(
    clients: dict[str, TestClient], family: str
) -> None:
    client = clients[family]
    ids = token_ids(client, TEXT)
    answer = generate(client, temperature=0, max_new_tokens=8, stop_ids=[])
    for step in answer["steps"]:
        logits = next_logits(client, ids)
        assert step["token"]["id"] == int(logits.argmax())
        for candidate in step["candidates"]:
            assert candidate["logit"] == pytest.approx(logits[candidate["id"]], abs=2e-5)
        assert step["position"] == step["token"]["index"] == len(ids)
        ids.append(step["token"]["id"])
    assert ids_of(answer) == ids[-8:]
    assert answer["meta"]["cache"] is True


def test_every_stage_of_a_choice_is_that_of_a_softmax_worked_here(client: TestClient) -> None:
    setting = {"temperature": 0.7, "top_k": 40, "top_p": 0.8}
    answer = generate(client, **setting, seed=11, top=50, max_new_tokens=3, stop_ids=[])
    ids, draws = token_ids(client, TEXT), Random(11)
    for step in answer["steps"]:
        scaled = next_logits(client, ids) / 0.7
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order] - scaled.max())
        uncut = weights / weights.sum()
        by_k = uncut[:40] / uncut[:40].sum()
        n_kept = int(np.searchsorted(by_k.cumsum(), 0.8)) + 1
        probabilities = by_k[:n_kept] / by_k[:n_kept].sum()
        u = draws.random()
        drawn = order[int(np.searchsorted(probabilities.cumsum(), u, side="right"))]
        assert step["draw"] == u and step["token"]["id"] == drawn
        assert step["n_kept"] == step["top_p_cut"]["rank"] == n_kept
        assert step["top_k_cut"]["rank"] == 40
        assert step["top_k_cut"]["mass"] == pytest.approx(uncut[:40].sum(), abs=1e-5)
        assert step["top_p_cut"]["mass"] == pytest.approx(by_k[:n_kept].sum(), abs=1e-5)
        entropy = -(probabilities * np.log(probabilities)).sum()
        assert step["entropy_nats"] == pytest.approx(entropy, abs=1e-4)
        rows = step["candidates"]
        assert [row["rank"] for row in rows] == list(range(1, 51))
        assert [row["id"] for row in rows] == order[:50].tolist()
        assert [row["cut_by"] for row in rows[38:42]] == ["top_p", "top_p", "top_k", "top_k"]
        for place, row in enumerate(rows):
            kept = probabilities[place] if place < n_kept else 0
            assert row["probability"] == pytest.approx(kept, abs=1e-5)
            assert row["uncut"] == pytest.approx(uncut[place], abs=1e-5)
            assert row["drawn"] == (row["id"] == drawn)
        ids.append(step["token"]["id"])


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0, "seed": 1},
        {"seed": 3, "n": 3, "top_p": 0.9},
        {"seed": 3, "trace": {"captures": [{"site": "attn.pattern"}, {"site": "resid_post"}]}},
        {"seed": 4, "tokens": "ids", "wiring": {"causal": False}},
        {"seed": 5, "stop": ["a", "中"], "max_new_tokens": 40},
    ],
)
def test_stream_says_what_the_one_answer_says(client: TestClient, body: dict[str, Any]) -> None:
    body = {"text": TEXT, "max_new_tokens": 5, **body}
    whole = ask(client, "/v1/generate", **body)
    streamed = in_one_piece(stream(client, **body))
    assert without_times(streamed) == without_times(whole)
    GenerateAnswer.model_validate(whole)
    GenerateAnswer.model_validate(streamed)


def test_deltas_are_the_text_and_the_text_is_the_tokens(client: TestClient) -> None:
    for seed in range(6):
        answer = generate(client, seed=seed, max_new_tokens=40, stop_ids=[])
        (sample,) = answer["done"]["samples"]
        assert "".join(step["text"] for step in answer["steps"]) == sample["text"]
        decoded = ask(client, "/v1/detokenize", token_ids=sample["token_ids"])["text"]
        assert sample["text"] == decoded
        data = b"".join(bytes.fromhex(step["token"]["bytes_hex"]) for step in answer["steps"])
        assert data.decode("utf-8", "replace") == decoded
        n_prompt = answer["meta"]["input"]["n_tokens"]
        assert [token["index"] for token in sample["tokens"]] == [n_prompt + n for n in range(40)]
        for token in sample["tokens"]:
            if not token["continuation"]:
                assert decoded[token["char_start"] :].startswith(token["display"])


def test_seed_makes_it_repeat_and_another_changes_it(client: TestClient) -> None:
    first, again, other = (
        ids_of(generate(client, seed=seed, max_new_tokens=12)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_seed_that_was_chosen_is_said_and_repeats(client: TestClient) -> None:
    answer = generate(client, max_new_tokens=12)
    seed = answer["meta"]["sampling"]["seed"]
    assert ids_of(generate(client, seed=seed, max_new_tokens=12)) == ids_of(answer)
    assert seed != generate(client)["meta"]["sampling"]["seed"]


def test_each_sample_is_what_its_own_seed_gives_alone(client: TestClient) -> None:
    together = generate(client, seed=20, n=3, max_new_tokens=10, stop_ids=[])
    alone = [generate(client, seed=20 + n, max_new_tokens=10, stop_ids=[]) for n in range(3)]
    for number, one in enumerate(alone):
        assert ids_of(together, number) == ids_of(one)
        steps = [step for step in together["steps"] if step["sample"] == number]
        for here, there in zip(steps, one["steps"], strict=True):
            assert without_times({**here, "sample": 0}) == without_times(there)
    assert ids_of(together, 0) != ids_of(together, 1)
    assert together["done"]["n_steps"] == 30
    assert [step["sample"] for step in together["steps"]] == [0] * 10 + [1] * 10 + [2] * 10


def test_stop_id_ends_a_sample_and_is_no_part_of_its_text(client: TestClient) -> None:
    ids = ids_of(generate(client, temperature=0, max_new_tokens=5, stop_ids=[]))
    stop = ids[3]
    place = ids.index(stop)
    answer = generate(client, temperature=0, max_new_tokens=5, stop_ids=[VOCABULARY - 1, stop])
    (sample,) = answer["done"]["samples"]
    assert (sample["reason"], sample["stop_id"]) == ("stop_id", stop)
    assert sample["token_ids"] == ids[: place + 1]
    assert sample["text"] == ask(client, "/v1/detokenize", token_ids=ids[:place])["text"]


def test_end_of_text_stops_where_no_stop_ids_are_given(client: TestClient) -> None:
    (end,) = [
        token
        for name, token in ask_model(client)["tokenizer"]["special_tokens"].items()
        if "end" in name
    ]
    assert generate(client)["meta"]["sampling"]["stop_ids"] == [end]
    assert generate(client, stop_ids=[])["meta"]["sampling"]["stop_ids"] == []
    forced = {"op": "set", "site": "logits", "value": [[float(n == end) * 99 for n in range(360)]]}
    last = {**forced, "positions": [-1]}
    (sample,) = generate(client, temperature=0, edits=[last])["done"]["samples"]
    assert (sample["reason"], sample["stop_id"], sample["text"]) == ("stop_id", end, "")


def ask_model(client: TestClient) -> Json:
    found: Json = client.get("/v1/model").json()
    return found


def test_stop_string_across_tokens_ends_the_text_before_it(client: TestClient) -> None:
    plain = generate(client, seed=9, max_new_tokens=30, stop_ids=[])
    texts = [step["token"]["text"] for step in plain["steps"]]
    place = next(
        n for n in range(3, 28) if "\ufffd" not in texts[n] + texts[n + 1] and texts[n + 1]
    )
    stop = texts[place][-1] + texts[place + 1][0]
    whole = plain["done"]["samples"][0]["text"]
    answer = generate(client, seed=9, max_new_tokens=30, stop_ids=[], stop=["no such text", stop])
    (sample,) = answer["done"]["samples"]
    assert (sample["reason"], sample["stop_string"]) == ("stop_string", stop)
    assert sample["text"] == whole[: whole.index(stop)]
    assert "".join(step["text"] for step in answer["steps"]) == sample["text"]
    assert len(answer["steps"]) <= place + 2


def test_context_that_is_full_ends_it_and_says_so(client: TestClient) -> None:
    ids = [n % 300 for n in range(CONTEXT - 3)]
    answer = ask(client, "/v1/generate", token_ids=ids, max_new_tokens=20, stop_ids=[], seed=1)
    assert answer["meta"]["room"] == 3
    (sample,) = answer["done"]["samples"]
    assert (sample["reason"], len(sample["token_ids"])) == ("context_full", 4)
    assert answer["steps"][-1]["position"] == CONTEXT
    exactly = ask(client, "/v1/generate", token_ids=ids, max_new_tokens=4, stop_ids=[], seed=1)
    assert exactly["done"]["samples"][0]["reason"] == "max_new_tokens"
    assert ids_of(exactly) == sample["token_ids"]


def test_prompt_that_fills_the_context_still_chooses_one_token(client: TestClient) -> None:
    ids = [n % 300 for n in range(CONTEXT)]
    answer = ask(client, "/v1/generate", token_ids=ids, temperature=0, n=2, stop_ids=[])
    assert answer["meta"]["room"] == 0
    for sample in answer["done"]["samples"]:
        assert sample["reason"] == "context_full"
        assert sample["token_ids"] == [int(next_logits(client, ids).argmax())]


def test_model_without_a_tokenizer_goes_on_in_ids(serve: Serve) -> None:
    client = serve()
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    ids = token_ids(client, TEXT)
    named = ask(client, "/v1/generate", token_ids=ids, seed=3, max_new_tokens=5, stop_ids=[])
    inspector.opened = replace(inspector.opened, tokenizer=None)
    answer = ask(client, "/v1/generate", token_ids=ids, seed=3, max_new_tokens=5)
    assert answer["meta"]["sampling"]["stop_ids"] == []
    (sample,) = answer["done"]["samples"]
    assert sample["text"] is None
    assert sample["tokens"] == sample["token_ids"] == ids_of(named)
    for step in answer["steps"]:
        token = step["token"]
        assert step["text"] is token["text"] is token["raw"] is token["display"] is None
        assert all(candidate["text"] is None for candidate in step["candidates"])
    GenerateAnswer.model_validate(answer)
    refused(client, "/v1/generate", "no-tokenizer", token_ids=ids, stop=["a"])


def test_token_that_only_pads_the_embedding_has_no_text(serve: Serve) -> None:
    client = serve()
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    small = train_tokenizer(["a"], 257)
    inspector.opened = replace(inspector.opened, tokenizer=small)
    value = [float(n == VOCABULARY - 1) * 99 for n in range(VOCABULARY)]
    edit = {"op": "set", "site": "logits", "positions": [-1], "value": [value]}
    body = {"temperature": 0, "edits": [edit], "max_new_tokens": 1, "top": 1}
    answer = ask(client, "/v1/generate", text="b", **body)
    (step,), (sample,) = answer["steps"], answer["done"]["samples"]
    assert step["token"]["id"] == VOCABULARY - 1 and step["token"]["text"] is None
    assert (step["text"], sample["text"], sample["tokens"]) == ("", "", [VOCABULARY - 1])


def test_default_number_of_tokens_is_the_servers(serve: Serve) -> None:
    client = serve(new_tokens=5, max_new_tokens=7)
    answer = ask(client, "/v1/generate", text=TEXT, stop_ids=[])
    assert len(answer["steps"]) == answer["meta"]["sampling"]["max_new_tokens"] == 5
    limits = ask_model(client)["limits"]
    assert (limits["new_tokens"], limits["new_tokens_default"], limits["generations"]) == (7, 5, 4)


def test_default_never_is_over_the_most(serve: Serve) -> None:
    assert len(ask(serve(max_new_tokens=3), "/v1/generate", text=TEXT, stop_ids=[])["steps"]) == 3


def test_dry_run_runs_nothing_and_estimates_at_most_what_is_sent(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    body = {
        "text": TEXT,
        "max_new_tokens": 9,
        "n": 2,
        "stop_ids": [],
        "seed": 1,
        "trace": {"captures": [{"site": "attn.pattern"}, {"site": "resid_post", "layers": [1]}]},
    }
    answer = ask(client, "/v1/generate", **body)
    sent = [answer["prompt"], *answer["steps"]]
    floats = sum(
        int(np.prod(tensor["shape"])) for each in sent for tensor in each["tensors"].values()
    )
    monkeypatch.setattr("model.generation.Generation.prompt", None)
    estimate = ask(client, "/v1/generate", dry_run=True, **body)["estimate"]
    assert estimate["tensor_floats"] == floats  # no sample ended early: at most is exact
    assert estimate["tensor_bytes"] == 4 * floats
    assert estimate["max_steps"] == 18
    # Two caches of 3 layers, 48 numbers for keys and 48 for values, room for 64 positions.
    assert estimate["cache_bytes"] == 2 * 3 * 2 * 48 * 64 * 4
    n_tokens = estimate["n_tokens"]
    block = 4 * 48 * 48 + 2 * 48 * 192
    each = [3 * (2 * block + 4 * 48 * (n_tokens + 1 + step)) for step in range(8)]
    prompt = 3 * (2 * block * n_tokens + 4 * 48 * n_tokens**2)
    unembedded = 2 * 48 * VOCABULARY * (1 + 2 * 8)
    assert estimate["flops"] == prompt + 2 * sum(each) + unembedded


@pytest.mark.parametrize("n_tokens", [4, 5, 6, 7])
def test_estimate_is_at_most_also_where_keys_are_left_out(
    n_tokens: int, client: TestClient
) -> None:
    capture = {"site": "attn.pattern", "layers": [0], "heads": [0], "keys": {"step": 2}}
    body = {"token_ids": IDS[:n_tokens], "max_new_tokens": 4, "stop_ids": [], "seed": 1}
    body["trace"] = {"captures": [capture]}
    answer = ask(client, "/v1/generate", **body)
    tensors = [answer["prompt"]["tensors"], *(step["tensors"] for step in answer["steps"])]
    sent = sum(prod(each["attn.pattern"]["shape"]) for each in tensors if each)
    estimate = ask(client, "/v1/generate", dry_run=True, **body)["estimate"]["tensor_floats"]
    assert sent <= estimate <= sent + 3


def test_estimate_is_at_most_also_where_keys_are_no_longer_kept(client: TestClient) -> None:
    """Dynamic scaling turns all keys anew once the text is longer than the context it starts at."""
    scaling = {"kind": "dynamic", "factor": 2, "original_context": 6}
    body = {"token_ids": IDS[:4], "max_new_tokens": 4, "wiring": {"rope": {"scaling": scaling}}}
    dry = ask(client, "/v1/generate", dry_run=True, **body)
    assert dry["meta"]["cache"] is True  # at the first step, of 5 tokens; the third has 7
    block = 4 * 48 * 48 + 2 * 48 * 192
    lengths = [(4, 4), (1, 5), (1, 6), (7, 7)]
    run = sum(3 * n * (2 * block + 4 * 48 * length) for n, length in lengths)
    assert dry["estimate"]["flops"] >= run + 4 * 2 * 48 * VOCABULARY


def test_json_estimate_covers_what_the_steps_take(client: TestClient) -> None:
    body = {"text": TEXT, "max_new_tokens": 20, "n": 2, "stop_ids": [], "top": 30, "seed": 2}
    body["trace"] = {"captures": [{"site": "attn.pattern"}]}
    answer = client.post("/v1/generate", json=body)
    sent = len(answer.content)
    tokens = len(ask(client, "/v1/tokenize", text=TEXT)["tokens"]) * 400
    estimate = ask(client, "/v1/generate", dry_run=True, **body)["estimate"]["json_bytes"]
    assert sent - tokens - 40 * 400 < estimate < 3 * sent


def test_demo_model_says_split_characters_whole() -> None:
    """喵 is two tokens of the embedded model's, neither of which is a character."""
    with TestClient(create_app(Settings()), base_url="http://localhost") as demo:
        events = stream(demo, text="喵喵喵喵喵喵", temperature=0, max_new_tokens=8, top=1)
    steps = [data for name, data in events if name == "step"]
    assert [step["text"] for step in steps] == ["", "喵"] * 4
    assert [step["token"]["display"] for step in steps] == ["", "喵"] * 4
    assert [step["token"]["continuation"] for step in steps] == [False, True] * 4
    assert all("\ufffd" in step["token"]["text"] for step in steps)
    (sample,) = events[-1][1]["samples"]
    assert sample["text"] == "喵喵喵喵"
    # Once all is known, a split character stands whole on its first token, as in /v1/tokenize.
    assert [token["display"] for token in sample["tokens"]] == ["喵", ""] * 4
    assert [token["char_start"] for token in sample["tokens"]] == [0, 0, 1, 1, 2, 2, 3, 3]
