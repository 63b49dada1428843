"""Rotary positions over HTTP: the course's moves to the last printed digit, the model's own dot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model.checkpoints.open import OpenedModel
from model.config import GPTConfig, RopeScaling
from model.gpt import GPT
from model.tokenizer import Tokenizer
from service.app import create_app
from service.schemas.rope import FrequenciesAnswer, ModelRopeAnswer, RotateAnswer
from service.settings import Settings
from tests.conftest import SHAPE

Servers = Mapping[str, TestClient]
TEXT = "猫追老鼠，因为它饿了。"


@pytest.fixture(scope="module")
def http(clients: Mapping[str, TestClient], tokenizer: Tokenizer) -> Iterator[Servers]:
    """The shared servers, and one whose model rotates with YaRN's factor on cos and sin."""
    config = GPTConfig(
        **SHAPE,
        n_head=4,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_context=16),
    )
    model = GPT(config).eval().requires_grad_(False)
    opened = OpenedModel(model, tokenizer, "yarn", "0" * 64, False, "random weights", "preset")
    app = create_app(Settings(), open_with=lambda settings: opened)
    with TestClient(app, base_url="http://localhost") as yarn:
        yield {**clients, "yarn": yarn}


@pytest.fixture
def course(http: Servers) -> TestClient:
    return http["course"]


def post(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_rotate_answers_to_an_empty_object(course: TestClient) -> None:
    answer = course.post("/v1/rope/rotate", json={})
    RotateAnswer.model_validate_json(answer.content)
    found = answer.json()
    assert (found["degrees_per_position"], found["base"]) == (20, None)
    assert found["pairing"] == "interleaved"
    first, second, equal = found["steps"]
    assert first["dot"] == second["dot"] == 0.0479775612
    assert equal["dot"] == found["unrotated_dot"] == 0.65
    assert first["matrices_m"] == [[[0.5, -0.8660254038], [0.8660254038, 0.5]]]
    assert first["closed_form"] == 0.0479775612
    differences = [step["shift_both"]["difference"] for step in found["steps"]]
    assert max(map(abs, differences)) < 1e-15
    assert any(differences)  # not rounded away
    assert first["shift_both"]["dot"] == first["dot"]
    assert abs(first["shift_m"]["difference"]) > 0.1


def test_rotate_slider_of_one_request_keeps_ten_digits_along_the_diagonal(
    course: TestClient,
) -> None:
    places = [{"m": n + 2, "n": n} for n in range(200)]
    steps = post(course, "/v1/rope/rotate", {"positions": places})["steps"]
    assert {step["dot"] for step in steps} == {0.0479775612}


def test_rotate_ladder_is_the_default_beyond_the_plane(course: TestClient) -> None:
    found = post(course, "/v1/rope/rotate", {"q": [1, 0, 0, 1], "k": [1, 0, 0, 1]})
    assert (found["degrees_per_position"], found["base"]) == (None, 10_000)
    assert found["frequencies"] == [1, 0.01]
    # φ = 0, lengths 1: the dot at distance 2 is cos 2 + cos 0.02.
    assert found["steps"][0]["dot"] == round(math.cos(2) + math.cos(0.02), 10)


@pytest.mark.parametrize("family", ["course", "grouped", "parallel", "yarn"])
def test_rotate_from_the_model_meets_its_own_dot(http: Servers, family: str) -> None:
    client = http[family]
    body = {"model": {"text": TEXT, "layer": 1, "head": 2, "query": 6, "key": 2}}
    found = post(client, "/v1/rope/rotate", body)
    RotateAnswer.model_validate(found)
    assert found["pair"]["dot_error"] <= 1e-6
    here, moved, nearer = (step["dot"] for step in found["steps"])
    assert (found["steps"][0]["m"], found["steps"][0]["n"]) == (6, 2)
    assert moved == pytest.approx(here, abs=1e-9)
    assert abs(nearer - here) > 1e-6
    captures = [{"site": "attn.dots", "layers": [1], "heads": [2], "queries": [6], "keys": [2]}]
    whole = post(
        client, "/v1/inspect", {"text": TEXT, "captures": captures, "format": {"exact": True}}
    )
    own = np.array(whole["tensors"]["attn.dots"]["data"]).item()
    assert found["pair"]["dot"] == pytest.approx(own, rel=1e-6)
    assert found["pairing"] == ("interleaved" if family in ("course", "yarn") else "half")
    assert (found["attention_factor"] > 1) == (family == "yarn")


def test_frequencies_answers_to_an_empty_object(course: TestClient) -> None:
    answer = course.post("/v1/rope/frequencies", json={})
    found = FrequenciesAnswer.model_validate_json(answer.content)
    kinds = [ladder.scaling.kind for ladder in found.ladders]
    assert kinds == ["none", "linear", "ntk", "dynamic", "yarn", "llama3"]
    plain, linear, ntk, _, yarn, _ = found.ladders
    assert plain.by_distance[0] == 1
    assert (plain.reach, linear.reach) == (None, 4 * 2048)
    assert ntk.inverse_frequencies[0] == 1
    assert yarn.attention_factor == pytest.approx(1.13862944, abs=5e-9)


def test_frequencies_slow_pairs_keep_their_digits(course: TestClient) -> None:
    body = {
        "base": 5e5,
        "scalings": [{"kind": "llama3", "factor": 32, "original_context": 8192}],
    }
    slowest = post(course, "/v1/rope/frequencies", body)["ladders"][0]["inverse_frequencies"][-1]
    assert slowest == pytest.approx(9.41830649e-8, rel=1e-8)


def test_model_rope_of_each_family(http: Servers) -> None:
    for name, client in http.items():
        answer = client.get("/v1/model/rope")
        found = ModelRopeAnswer.model_validate_json(answer.content)
        if name == "learned":
            assert found.positions == "learned"
            assert found.ladder is None
            continue
        assert found.ladder is not None
        assert found.rotary_dim is not None
        assert len(found.ladder.inverse_frequencies) == found.rotary_dim // 2
        assert found.context == 64
        assert found.distances is not None
        assert len(found.distances) == len(found.ladder.by_distance)
    yarn = http["yarn"].get("/v1/model/rope", params={"context": 32}).json()
    assert yarn["ladder"]["scaling"]["kind"] == "yarn"
    assert yarn["context"] == 32


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("rotate", {"q": [1, 2, 3], "k": [1, 2, 3]}, "q has 3 numbers; RoPE turns pairs"),
        ("rotate", {"q": [1, 2], "k": [1, 2, 3, 4]}, "k has 4 numbers; it must have 2"),
        ("rotate", {"q": [1, 2]}, "give both of q and k"),
        ("rotate", {"base": 0.5}, "base is 0.5; it must be over 1"),
        ("rotate", {"base": 5, "degrees_per_position": 5}, "give one of degrees_per_position"),
        ("rotate", {"q": [1, 2, 3, 4], "k": [1, 2, 3, 4], "degrees_per_position": 5}, "one pair"),
        ("rotate", {"positions": []}, "positions has 0 entries; allowed are 1 to 1024"),
        ("rotate", {"positions": [{"m": 10**8, "n": 0}]}, "m is 100000000; allowed are"),
        ("rotate", {"model": {}, "base": 100}, "are the model's"),
        ("rotate", {"model": {"head": 9}}, "head is 9; allowed are -4 to 3"),
        ("frequencies", {"d_head": 7}, "d_head is 7; RoPE turns pairs"),
        ("frequencies", {"d_head": 2048}, "d_head is 2048; allowed are 2 to 1024"),
        ("frequencies", {"scalings": [{"kind": "linear", "factor": -4}]}, "greater than or equal"),
        ("frequencies", {"scalings": [{"kind": "yarn", "factor": 2}]}, "needs original_context"),
        ("frequencies", {"distances": [-1]}, "distances is -1; allowed are 0 to"),
    ],
)
def test_rope_refuses(course: TestClient, path: str, body: dict[str, Any], says: str) -> None:
    answer = course.post(f"/v1/rope/{path}", json=body)
    assert answer.status_code == 422, answer.text
    assert says in answer.json()["detail"]


def test_rotate_from_a_model_that_does_not_rotate_is_refused(
    http: Servers,
) -> None:
    answer = http["learned"].post("/v1/rope/rotate", json={"model": {}})
    assert answer.status_code == 422
    assert "positions are 'learned'" in answer.json()["detail"]
