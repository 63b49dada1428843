"""The parameter routes over HTTP: reports, comparisons, one tensor in every form, refusals."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from pydantic import TypeAdapter
from safetensors.torch import load
from starlette.testclient import TestClient

from model.checkpoints.open import OpenedModel
from model.config import GPTConfig
from model.gpt import GPT
from model.presets import PRESETS
from service import errors
from service.inspector import Inspector
from service.routes import parameters as routes
from service.schemas import parameters as schemas
from service.settings import Settings
from service.wire.parameters import preset_fields

CONFIG = GPTConfig(
    n_layer=2,
    d_model=20,
    n_head=4,
    n_kv_head=2,
    d_head=6,
    vocab_size=17,
    n_ctx=9,
    positions="learned",
    tied=True,
)
MODEL = GPT(CONFIG, seed=5).eval().requires_grad_(False)
SAFETENSORS = {"accept": "application/vnd.safetensors"}


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    """These routes alone, over a small model with random weights."""
    opened = OpenedModel(MODEL, None, "small", "0" * 64, False, "random weights", "preset")
    app = FastAPI()
    errors.install(app)
    app.include_router(routes.router)
    app.state.inspector = Inspector(opened, Settings(max_answer_bytes=20_000))
    with TestClient(app) as client:
        yield client
    app.state.inspector.close()


def get(http: TestClient, name: str, **query: Any) -> dict[str, Any]:
    answer = http.get(f"/v1/model/parameters/{name}", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    schemas.TensorAnswer.model_validate(body)
    return body


def problem(answer: Any, status: int, *words: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert answer.status_code == status, body
    assert answer.headers["content-type"] == "application/problem+json"
    for word in words:
        assert word in body["detail"], body["detail"]
    return body


def test_loaded_model_is_accounted_for_to_the_last_number(http: TestClient) -> None:
    body = http.get("/v1/model/parameters").json()
    schemas.ParametersAnswer.model_validate(body)
    held = sum(weight.numel() for weight in MODEL.parameters())
    assert body["totals"]["unique"] == body["tree"]["count"] == held
    assert body["checks"] == {
        "leaves": held,
        "tensors": held,
        "held": held,
        "exact": True,
        "differences": [],
    }
    assert sum(t["count"] for t in body["tensors"] if t["tied_to"] is None) == held
    assert body["totals"]["with_ties_twice"] == held + 17 * 20
    assert body["model"]["id"] == "small"
    assert body["costs"]["context"] == 9
    assert body["explain"] is None


def test_bytes_and_dtype_are_those_of_the_loaded_tensors() -> None:
    model = GPT(CONFIG).bfloat16()
    body = routes.full_report(CONFIG, context=None, depth=0, explained=False, model=model)
    assert {tensor["dtype"] for tensor in body["tensors"]} == {"bfloat16"}
    stored = sum(tensor["bytes"] for tensor in body["tensors"] if tensor["tied_to"] is None)
    assert stored == sum(weight.nbytes for weight in model.parameters())


def test_report_takes_context_depth_and_explain(http: TestClient) -> None:
    query = {"context": 5, "depth": 1, "explain": "true"}
    body = http.get("/v1/model/parameters", params=query).json()
    schemas.ParametersAnswer.model_validate(body)
    assert body["costs"]["bytes"]["attention_maps"]["count"] == 4 * 2 * 4 * 5 * 5
    assert all(child["children"] == [] for child in body["tree"]["children"])
    assert "tied, it is" in body["explain"]["en"]
    assert "推" not in body["explain"]["en"]
    assert "与词嵌入共享（tied）" in body["explain"]["zh"]


def test_context_over_the_models_is_refused(http: TestClient) -> None:
    problem(http.get("/v1/model/parameters?context=10"), 422, "context is 10", "1 to 9")
    problem(http.get("/v1/model/parameters?contxt=10"), 422, "no such field")


def test_presets_are_listed_with_their_counts(http: TestClient) -> None:
    body = http.get("/v1/presets").json()
    schemas.PresetsAnswer.model_validate(body)
    counts = {preset["name"]: preset["parameters"] for preset in body["presets"]}
    assert list(counts) == list(PRESETS)
    assert counts["gpt2"] == 124_439_808
    assert counts["gpt3"] == 174_604_259_328


def post(http: TestClient, **body: Any) -> Any:
    return http.post("/v1/parameters", json=body)


@pytest.mark.parametrize("preset", PRESETS)
def test_any_preset_is_reported_without_weights(http: TestClient, preset: str) -> None:
    body = post(http, preset=preset, depth=2).json()
    TypeAdapter(schemas.AnyParametersAnswer).validate_python(body)
    expected = preset_fields(preset, PRESETS[preset])
    assert (body["totals"], body["config"]) == (
        expected["totals"],
        json.loads(json.dumps(expected["config"])),
    )
    assert body["checks"]["held"] is None
    assert body["checks"]["exact"] is True


def test_largest_tree_is_given_whole(http: TestClient) -> None:
    tree = post(http, preset="gpt3").json()["tree"]
    head = tree["children"][2]["children"][95]["children"][1]["children"][95]
    assert head["id"] == "blocks.95.attn.heads.95"
    assert head["worked"] == "4 × 128 × 12,288 + 3 × 128 = 6,291,840"
    assert [child["kind"] for child in head["children"]] == ["query", "key", "value", "output"]


def test_preset_with_a_change_follows_through(http: TestClient) -> None:
    body = post(http, preset="course", config={"n_layer": 8, "d_model": 512, "n_head": 8}).json()
    assert body["config"]["d_head"] == 64
    assert body["config"]["d_mlp"] == 2048
    assert body["tree"]["count"] == 2 * 50257 * 512 + 8 * (12 * 512**2 + 13 * 512) + 2 * 512


COURSE = {"n_layer": 6, "d_model": 384, "n_head": 6, "vocab_size": 50257, "n_ctx": 1024}


def test_config_alone_is_the_course_model(http: TestClient) -> None:
    assert post(http, config=COURSE).json()["totals"]["unique"] == 49_244_928


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**COURSE, "n_head": 7}, ["d_model 384 is not divisible by n_head 7"]),
        ({**COURSE, "d_head": 63}, ["rotary_dim 63 is odd"]),
        ({**COURSE, "n_kv_head": 4}, ["n_head 6 is not divisible by n_kv_head 4"]),
        ({**COURSE, "norm": "rmsnorm"}, ["rmsnorm has no bias"]),
        ({"n_layer": 6}, ["d_model", "missing"]),
        ({**COURSE, "rope_scaling": {"kind": "yarn", "factor": 4}}, ["original_context"]),
    ],
)
def test_impossible_config_is_refused_with_the_reason(
    http: TestClient, config: dict[str, Any], words: list[str]
) -> None:
    body = problem(post(http, config=config), 422, *words)
    assert body["type"].endswith("invalid-config")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["preset, config"]),
        ({"preset": "gpt2", "configs": ["gpt2", "gpt3"]}, ["preset, config"]),
        ({"preset": "gpt5"}, ["no preset 'gpt5'", "smollm2-135m"]),
        ({"preset": "gpt2", "context": 2000}, ["context is 2000", "1 to 1024"]),
        ({"preset": "gpt2", "config": {"layers": 3}}, ["no such field"]),
        ({"preset": "gpt2", "config": {"n_layer": 0}}, ["/config/n_layer"]),
        ({"preset": "gpt2", "config": {"n_layer": "6"}}, ["/config/n_layer"]),
        ({"configs": ["gpt2"]}, ["/configs"]),
        ({"configs": ["gpt2", "gpt3"], "explain": True}, ["explain"]),
        ({"configs": ["nano", "gpt3"], "context": 12}, ["context is 12"]),
        ({"configs": [{"name": "a", "preset": "nano"}, {"name": "a", "preset": "gpt2"}]}, ["'a'"]),
    ],
)
def test_question_that_makes_no_sense_is_refused(
    http: TestClient, body: dict[str, Any], words: list[str]
) -> None:
    problem(post(http, **body), 422, *words)


def test_tree_that_nobody_can_read_is_refused_but_not_its_trunk(http: TestClient) -> None:
    config = {**COURSE, "n_layer": 1024, "n_head": 1024, "d_model": 1024 * 64}
    body = problem(post(http, config=config), 422, "depth")
    assert body["limit"] == schemas.MAX_NODES < body["actual"]
    trunk = post(http, config=config, depth=3)
    assert trunk.status_code == 200


def test_numbers_beyond_64_bits_are_written_out(http: TestClient) -> None:
    config = {**COURSE, "d_model": 96_000_000, "n_ctx": 100_000_000}
    answer = post(http, config=config, depth=0, context=100_000_000)
    flops = answer.json()["costs"]["flops"]["training_sequence"]["count"]
    assert flops > 2**64


def test_configs_side_by_side_have_ratios(http: TestClient) -> None:
    changed = {"preset": "course", "config": {"n_layer": 8, "vocab_size": 6144}}
    body = post(http, configs=[{"name": "now", "preset": "course"}, changed, COURSE]).json()
    TypeAdapter(schemas.AnyParametersAnswer).validate_python(body)
    assert body["names"] == ["now", "course", "config 3"]
    assert body["changed"] == {"n_layer": [6, 8, 6], "vocab_size": [50257, 6144, 50257]}
    rows = {row["name"]: row for row in body["rows"]}
    assert rows["totals.unique"]["values"][0] == 49_244_928
    assert rows["totals.unique"]["values"][1] == 2 * 6144 * 384 + 8 * 1_774_464 + 768
    assert rows["bytes.attention_maps"]["ratios"] == [1.0, 8 / 6, 1.0]


def test_wire_config_has_every_field_of_the_models() -> None:
    assert set(schemas.ConfigWire.model_fields) == {field.name for field in fields(GPTConfig)}
    scaled = replace(CONFIG, positions="rope", rope_scaling=PRESETS["llama-3.2-1b"].rope_scaling)
    plain = json.loads(json.dumps(scaled.to_dict()))
    assert routes.config_of(None, schemas.ConfigWire.model_validate(plain)) == scaled


Q = MODEL.state_dict()["blocks.1.attn.q.weight"]


def test_tensor_alone_gives_statistics_and_no_values(http: TestClient) -> None:
    body = get(http, "blocks.1.attn.q.weight", bins=10)
    assert body["tensor"]["axes"] == ["head*d_head", "d_model"]
    assert body["tensors"] == {}
    exact = Q.double()
    found = body["statistics"]
    assert found["mean"] == pytest.approx(exact.mean().item(), rel=1e-12)
    assert found["std"] == pytest.approx(exact.std(correction=0).item(), rel=1e-12)
    assert (found["min"], found["max"]) == (exact.min().item(), exact.max().item())
    assert found["norm"] == pytest.approx(exact.norm().item(), rel=1e-12)
    assert not found["any_nan"]
    counts, edges = np.histogram(exact.numpy(), 10)
    assert body["histogram"]["counts"] == counts.tolist()
    assert body["histogram"]["edges"] == pytest.approx(edges.tolist())


def test_head_gives_its_rows_and_their_statistics(http: TestClient) -> None:
    body = get(http, "blocks.1.attn.q.weight", head=3, exact=True)
    values = body["tensors"]["values"]
    assert values["axes"] == ["d_head", "d_model"]
    assert (values["shape"], values["coords"]) == ([6, 20], {})
    assert torch.equal(torch.tensor(values["data"]), Q[18:24])
    assert body["selected"] == {"head": 3}
    assert body["statistics"]["max"] == Q[18:24].max().item()


def test_head_of_grouped_keys_is_said_in_the_answer(http: TestClient) -> None:
    body = get(http, "blocks.0.attn.k.weight", head=-1)
    assert body["selected"] == {"head": 3, "kv_head": 1}
    assert get(http, "blocks.0.attn.k.weight", kv_head=1)["tensors"] == body["tensors"]


@pytest.mark.parametrize(
    ("rows", "columns", "coords"),
    [
        ("0:4", "3", {"head*d_head": [0, 1, 2, 3], "d_model": [3]}),
        ("5,-1,0", "all", {"head*d_head": [5, 23, 0]}),
        ("::12", "18:", {"head*d_head": [0, 12], "d_model": [18, 19]}),
        ("3::-1", "-2:", {"head*d_head": [3, 2, 1, 0], "d_model": [18, 19]}),
    ],
)
def test_rows_and_columns_are_those_asked_for(
    http: TestClient, rows: str, columns: str, coords: dict[str, list[int]]
) -> None:
    query = {"rows": rows, "columns": columns, "exact": True}
    values = get(http, "blocks.1.attn.q.weight", **query)["tensors"]["values"]
    assert values["coords"] == coords
    expected = Q[coords["head*d_head"]][:, coords.get("d_model", list(range(20)))]
    assert torch.equal(torch.tensor(values["data"]), expected)


def test_reduced_picture_has_at_most_the_cells_asked_for(http: TestClient) -> None:
    query = {"reduce": "max", "max_rows": 5, "max_columns": 4, "exact": True}
    body = get(http, "blocks.1.attn.q.weight", **query)
    values = body["tensors"]["values"]
    assert body["picture"] == {"reduce": "max", "cell": [5, 5]}
    assert values["shape"] == [5, 4]
    assert values["coords"] == {"head*d_head": [0, 5, 10, 15, 20], "d_model": [0, 5, 10, 15]}
    assert torch.tensor(values["data"])[4, 3] == Q[20:24, 15:20].max()
    assert body["statistics"]["count"] == Q.numel()


def test_values_come_in_every_form(http: TestClient) -> None:
    path = "/v1/model/parameters/blocks.1.attn.q.weight"
    query = {"rows": "0:2"}
    rounded = get(http, "blocks.1.attn.q.weight", decimals=3, **query)["tensors"]["values"]
    assert rounded["data"] == np.round(Q[:2].double().numpy(), 3).tolist()
    packed = get(http, "blocks.1.attn.q.weight", encoding="base64", **query)["tensors"]["values"]
    bits = np.frombuffer(base64.b64decode(packed["data"]), dtype="<f4").reshape(2, 20)
    assert np.array_equal(bits, Q[:2].numpy())
    answer = http.get(path, params=query, headers=SAFETENSORS)
    assert torch.equal(load(answer.content)["values"], Q[:2])
    size = int.from_bytes(answer.content[:8], "little")
    header = json.loads(answer.content[8 : 8 + size])
    assert json.loads(header["__metadata__"]["answer"])["tensor"]["count"] == 480
    half = http.get(path, params={**query, "dtype": "float16"}, headers=SAFETENSORS)
    assert torch.equal(load(half.content)["values"], Q[:2].half())


def test_vector_and_tied_matrix_are_tensors_too(http: TestClient) -> None:
    bias = get(http, "ln_final.weight", rows="0:3")["tensors"]["values"]
    assert (bias["axes"], bias["data"]) == (["d_model"], [1.0, 1.0, 1.0])
    body = get(http, "unembed.weight", rows="4", exact=True)
    assert body["tensor"]["tied_to"] == "embed.weight"
    assert torch.equal(torch.tensor(body["tensors"]["values"]["data"][0]), MODEL.embed.weight[4])


@pytest.mark.parametrize(
    ("name", "query", "status", "words"),
    [
        ("blocks.2.attn.q.weight", "", 404, ["no tensor 'blocks.2.attn.q.weight'", "lists all"]),
        ("embed.weight", "head=0", 422, ["not shared out by head", "vocab, d_model"]),
        ("blocks.0.attn.q.weight", "head=4", 422, ["head 4", "-4 to 3"]),
        ("blocks.0.attn.q.weight", "kv_head=0", 422, ["ask for head"]),
        ("blocks.0.attn.k.weight", "head=0&kv_head=0", 422, ["one of head and kv_head"]),
        ("embed.weight", "rows=17", 422, ["vocab 17", "-17 to 16"]),
        ("embed.weight", "rows=3:3", 422, ["selects nothing"]),
        ("embed.weight", "rows=first", 422, ["no selection", "0:8:2"]),
        ("embed.weight", "rows=0:8:2:1", 422, ["no selection"]),
        ("ln_final.weight", "columns=0", 422, ["vector over d_model"]),
        ("embed.weight", "reduce=median", 422, ["mean"]),
        ("embed.weight", "row=1", 422, ["no such field"]),
        ("embed.weight", "bins=0", 422, ["/query/bins"]),
    ],
)
def test_look_at_what_is_not_there_is_refused(
    http: TestClient, name: str, query: str, status: int, words: list[str]
) -> None:
    problem(http.get(f"/v1/model/parameters/{name}?{query}"), status, *words)


def test_answer_over_the_limit_is_refused_before_it_is_made(http: TestClient) -> None:
    path = "/v1/model/parameters/blocks.0.mlp.up.weight"
    body = problem(http.get(path, params={"rows": "all"}), 422, "at most 20000")
    assert body["actual"] > 20_000
    assert http.get(path, params={"reduce": "mean", "max_rows": 8}).status_code == 200


def test_form_that_is_not_offered_is_refused(http: TestClient) -> None:
    answer = http.get("/v1/model/parameters/embed.weight", headers={"accept": "image/png"})
    problem(answer, 406, "application/vnd.safetensors")


def test_broken_weights_are_counted_and_their_values_refused_in_json(http: TestClient) -> None:
    weight = MODEL.ln_final.bias
    weight[2] = float("nan")
    try:
        body = get(http, "ln_final.bias")
        assert body["statistics"]["any_nan"] is True
        assert body["statistics"]["nan_count"] == 1
        problem(http.get("/v1/model/parameters/ln_final.bias?rows=all"), 422, "nan")
        held = http.get("/v1/model/parameters/ln_final.bias?rows=all", headers=SAFETENSORS)
        assert load(held.content)["values"][2].isnan()
    finally:
        weight[2] = 0.0


def test_large_report_is_compressed_and_openapi_describes_it(http: TestClient) -> None:
    answer = http.post(
        "/v1/parameters", json={"preset": "gpt2"}, headers={"accept-encoding": "gzip"}
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["totals"]["unique"] == 124_439_808
    paths = http.get("/openapi.json").json()["paths"]
    operations = {o["operationId"] for path in paths.values() for o in path.values()}
    assert operations == {"model_parameters", "model_tensor", "presets", "parameters"}
