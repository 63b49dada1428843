"""The labs over HTTP: answers to {}, numbers against /v1/inspect, refusals with pointers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from service.schemas import labs as schemas
from service.schemas import model_labs

Servers = Mapping[str, TestClient]
TEXT = "猫追老鼠，因为它饿了。"


@pytest.fixture
def course(clients: Servers) -> TestClient:
    return clients["course"]


def post(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: TestClient, path: str, body: dict[str, Any], pointer: str, says: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert says in problem["detail"]
    assert problem["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("attention", schemas.AttentionLabAnswer),
        ("heads", schemas.HeadsLabAnswer),
        ("scaling", schemas.ScalingLabAnswer),
        ("block", model_labs.BlockLabAnswer),
        ("order", model_labs.OrderLabAnswer),
        ("diagnostics", model_labs.DiagnosticsAnswer),
    ],
)
def test_lab_answers_to_an_empty_object(
    course: TestClient, path: str, schema: type[BaseModel]
) -> None:
    answer = course.post(f"/v1/labs/{path}", json={})
    assert answer.status_code == 200, answer.text
    schema.model_validate_json(answer.content)
    assert answer.headers["cache-control"] == "no-store"


def test_attention_lab_on_the_course_example(course: TestClient) -> None:
    plain = post(course, "/v1/labs/attention", {"scaled": False, "query": 4})
    scaled = post(course, "/v1/labs/attention", {"query": 4})
    assert plain["tokens"][4] == "它"
    assert (plain["scale"], scaled["scale"]) == (1, 0.5)
    assert plain["top_keys"] == scaled["top_keys"] == [0]
    assert plain["top_weights"][0] >= 0.95
    assert scaled["top_weights"][0] <= 0.75
    assert plain["dots"] == [[6, 1, 2.5, 0.5, 1, 0]]
    # Ten decimals of e^(-3.5), the unscaled exp of 老鼠.
    assert plain["exps"][0][2] == round(math.exp(-3.5), 10)


def test_attention_lab_single_query_is_the_matrix_row(course: TestClient) -> None:
    matrix = post(course, "/v1/labs/attention", {"causal": True, "decimals": 15})
    row = post(course, "/v1/labs/attention", {"causal": True, "decimals": 15, "query": 2})
    for name in ("products", "dots", "masked_scores", "exps", "row_sum", "pattern", "z"):
        assert row[name] == [matrix[name][2]], name
    assert matrix["masked_scores"][2][3:] == [None] * 3
    assert matrix["pattern"][2][3:] == [0] * 3
    assert matrix["queries"] == list(range(6))
    assert row["queries"] == [2]


def test_attention_lab_on_projections(course: TestClient) -> None:
    source = {"kind": "projections", "x": [[2.0]], "w_q": [[3]], "w_k": [[0.5]], "w_v": [[1, -1]]}
    found = post(course, "/v1/labs/attention", {"source": source})
    assert (found["q"], found["k"], found["z"]) == ([[6]], [[1]], [[2, -2]])
    assert found["model"] is None


def test_attention_lab_on_the_model_agrees_with_inspect(clients: Servers, family: str) -> None:
    client = clients[family]
    lab = post(
        client,
        "/v1/labs/attention",
        {"source": {"kind": "model", "text": TEXT, "layer": 1, "head": 2}},
    )
    assert lab["causal"]
    assert lab["model"]["id"] == family
    assert lab["model_error"] <= 2e-6
    captures = [{"site": "attn.pattern", "layers": [1], "heads": [2]}]
    whole = post(
        client, "/v1/inspect", {"text": TEXT, "captures": captures, "format": {"exact": True}}
    )
    own = np.array(whole["tensors"]["attn.pattern"]["data"])[0, 0]
    np.testing.assert_allclose(lab["pattern"], own, atol=2e-6)
    assert lab["tokens"][0] == "猫"
    assert lab["token_ids"] == [token["id"] for token in whole["tokens"]]
    changed = {"source": {"kind": "model", "text": TEXT}, "scaled": False}
    assert post(client, "/v1/labs/attention", changed)["model_error"] is None


def test_heads_lab_course_links_with_and_without_the_mask(course: TestClient) -> None:
    for causal, links in (
        (False, ["它→猫", "追→老鼠", "饿了→它"]),
        (True, ["它→猫", "追→猫", "饿了→它"]),
    ):
        lab = post(course, "/v1/labs/heads", {"causal": causal})
        found = []
        for head in lab["heads"]:
            link = head["readings"]["strongest"]
            query, key = lab["tokens"][link["query"]], lab["tokens"][link["key"]]
            found.append(f"{query}→{key}")
            assert f"「{query}」→「{key}」" in head["sentence"]["zh"]
            assert f"“{query}” → “{key}”" in head["sentence"]["en"]
        assert found == links
        assert lab["tokens"][lab["position"]] == "它"


def test_heads_lab_on_the_model_agrees_with_inspect(clients: Servers, family: str) -> None:
    client = clients[family]
    lab = post(
        client,
        "/v1/labs/heads",
        {"source": {"kind": "model", "text": TEXT, "layer": -1}, "position": 3, "results": True},
    )
    captures = [{"site": site, "layers": [-1]} for site in ("attn_out", "attn.result", "attn.z")]
    whole = post(
        client, "/v1/inspect", {"text": TEXT, "captures": captures, "format": {"exact": True}}
    )
    own = {name: np.array(found["data"])[0] for name, found in whole["tensors"].items()}
    np.testing.assert_allclose(lab["attn_out"], own["attn_out"], atol=2e-5)
    assert lab["model_error"] <= 2e-5
    assert lab["mixing_error"] <= 1e-12
    for index, head in enumerate(lab["heads"]):
        np.testing.assert_allclose(head["z"], own["attn.z"][index], atol=2e-5)
        np.testing.assert_allclose(head["result"], own["attn.result"][index], atol=2e-5)
        assert head["writes"] == head["result"][3]
        norm = float(np.linalg.norm(head["writes"]))
        assert head["write_norm"] == pytest.approx(norm, abs=1e-8)
    # What the heads write and the bias make up attn_out, of printed numbers too.
    total = np.sum([head["result"] for head in lab["heads"]], axis=0) + lab["b_o"]
    np.testing.assert_allclose(total, lab["attn_out"], atol=1e-8)


def test_heads_lab_on_given_heads_without_w_o(course: TestClient) -> None:
    head = {"q": [[1]], "k": [[1]], "v": [[2]]}
    lab = post(course, "/v1/labs/heads", {"source": {"kind": "vectors", "heads": [head, head]}})
    assert lab["concatenation"] == [[2, 2]]
    assert lab["attn_out"] is None
    assert lab["heads"][0]["result"] is None


def test_scaling_lab_same_seed_same_numbers(course: TestClient) -> None:
    body = {"head_sizes": [64], "samples": 500, "seed": 3}
    first, again = (post(course, "/v1/labs/scaling", body) for _ in range(2))
    assert first == again
    size = first["sizes"][0]
    assert abs(size["unscaled"]["variance"] - 64) < 3 * size["unscaled"]["variance_error"]
    assert size["scaled"]["expected_variance"] == 1


def test_block_lab_agrees_with_inspect(clients: Servers, family: str) -> None:
    client = clients[family]
    lab = post(client, "/v1/labs/block", {"text": TEXT, "layer": 1, "position": 2, "top": 3})
    sites = ["resid_pre", "ln1.normalized", "attn_out", "mlp.post", "resid_post"]
    captures = [{"site": site, "layers": [1], "positions": [2]} for site in sites]
    whole = post(
        client, "/v1/inspect", {"text": TEXT, "captures": captures, "format": {"exact": True}}
    )
    own = {name: np.array(found["data"])[0, 0] for name, found in whole["tensors"].items()}
    for name in ("resid_pre", "attn_out", "resid_post"):
        np.testing.assert_allclose(lab[name]["values"], own[name], atol=1e-6)
        assert lab[name]["variance"] == pytest.approx(own[name].var(), rel=1e-5)
    np.testing.assert_allclose(lab["ln1"]["normalized"]["values"], own["ln1.normalized"], atol=1e-6)
    assert lab["parallel"] == (family == "parallel")
    assert (lab["resid_mid"] is None) == (family == "parallel")
    assert len(lab["neurons"]) == 3
    assert lab["neurons"][0]["post"] == pytest.approx(
        own["mlp.post"][lab["neurons"][0]["index"]], abs=1e-6
    )
    assert lab["mlp_sum_error"] <= 1e-5


def test_order_lab_sets_and_sequences(clients: Servers, family: str) -> None:
    lab = post(clients[family], "/v1/labs/order", {})
    assert lab["texts"] == ["猫追老鼠", "老鼠追猫"]
    same = {(case["positions"], case["causal"]): case["same_set"] for case in lab["cases"]}
    assert same[("none", False)]
    assert not same[("model", False)]
    assert not same[("model", True)]
    for index, other in enumerate(lab["matches"]):
        assert lab["token_ids"][index] == lab["second_ids"][other]


def test_diagnostics_are_kept(course: TestClient) -> None:
    body = {"text": "The cat chased the mouse."}
    first = post(course, "/v1/labs/diagnostics", body)
    again = post(course, "/v1/labs/diagnostics", body)
    assert (first["cached"], again["cached"]) == (False, True)
    assert first["mistakes"] == again["mistakes"]
    assert first["timing_ms"]["forward"] > 0
    assert again["timing_ms"] is None
    leak = first["mistakes"][0]["numbers"][0]
    assert (leak["id"], leak["now"]) == ("future_leak", 0)
    assert not first["mistakes"][0]["symptom"]["measured"]


def test_diagnostics_wiring_is_one_request_each(course: TestClient) -> None:
    found = post(course, "/v1/labs/diagnostics", {})
    for mistake in found["mistakes"]:
        if mistake["wiring"] is not None:
            body = {"text": TEXT, "wiring": mistake["wiring"], "layers": [0], "heads": [0]}
            post(course, "/v1/attention", body)


VECTORS = {"kind": "vectors", "q": [[1, 0]], "k": [[0, 1]], "v": [[1]]}


@pytest.mark.parametrize(
    ("path", "body", "pointer", "says"),
    [
        ("attention", {"source": {**VECTORS, "k": [[1]]}}, "/source/k", "has 1 columns"),
        ("attention", {"source": {**VECTORS, "q": [[1, 0]] * 65}}, "/source/q", "65 rows"),
        ("attention", {"source": {**VECTORS, "tokens": []}}, "/source/tokens", "0 names for 1"),
        ("attention", {"query": 6}, "/query", "query is 6; allowed are -6 to 5"),
        ("attention", {"source": {"kind": "example", "name": "x"}}, "/source/name", "six-words"),
        ("attention", {"source": {"kind": "model", "layer": 3}}, "/source/layer", "-3 to 2"),
        ("attention", {"source": {"kind": "model", "head": 4}}, "/source/head", "-4 to 3"),
        ("attention", {"source": {"kind": "model"}, "query": 99}, "/query", "query is 99"),
        ("heads", {"source": {"kind": "model"}, "position": -99}, "/position", "position is -99"),
        ("heads", {"position": 6}, "/position", "position is 6; allowed are -6 to 5"),
        ("scaling", {"head_sizes": [2048]}, "/head_sizes", "2048; allowed are 1 to 1024"),
        ("scaling", {"keys": 1}, "/keys", "keys is 1; allowed are 2 to 64"),
        ("block", {"layer": 3}, "/layer", "layer is 3; allowed are -3 to 2"),
        ("block", {"position": 60}, "/position", "position is 60"),
        ("order", {"texts": ["猫", "鼠"]}, "/texts", "the texts must have the same tokens"),
        ("diagnostics", {"text": "猫"}, "/text", "the text has 1 tokens; at least 3"),
    ],
)
def test_lab_refuses_with_numbers_and_a_pointer(
    course: TestClient, path: str, body: dict[str, Any], pointer: str, says: str
) -> None:
    refused(course, f"/v1/labs/{path}", body, pointer, says)


@pytest.mark.parametrize("number", ["NaN", "1e999", '"1"', "true", "null"])
def test_lab_refuses_what_is_no_number(course: TestClient, number: str) -> None:
    body = f'{{"source": {{"kind": "vectors", "q": [[{number}]], "k": [[1]], "v": [[1]]}}}}'
    answer = course.post(
        "/v1/labs/attention", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422), answer.text


def test_lab_refuses_unknown_fields_and_kinds(course: TestClient) -> None:
    assert course.post("/v1/labs/attention", json={"scale": True}).status_code == 422
    answer = course.post("/v1/labs/attention", json={"source": {"kind": "drawing"}})
    assert answer.status_code == 422
    both = {"source": {"kind": "model", "text": "a", "token_ids": [1]}}
    assert course.post("/v1/labs/attention", json=both).status_code == 422


def test_lab_limits_are_settings(serve: Callable[..., TestClient]) -> None:
    client = serve(lab_dimensions=2, lab_tokens=3)
    limits = client.get("/v1/model").json()["limits"]
    assert (limits["lab_dimensions"], limits["lab_tokens"]) == (2, 3)
    wide = {"kind": "vectors", "q": [[1, 2, 3]], "k": [[1, 2, 3]], "v": [[1]]}
    refused(client, "/v1/labs/attention", {"source": wide}, "/source/q", "allowed are 1 to 2")
    refused(client, "/v1/labs/block", {"text": TEXT}, "/text", "a lab takes 1 to 3")
    refused(client, "/v1/rope/frequencies", {"d_head": 4}, "/d_head", "allowed are 2 to 2")
