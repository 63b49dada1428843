"""What is seen inside a generation, and what is changed in it, against runs of the whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from model.capture import Recording
from tests.answers import EXACT, Json, array, ask, refused, safetensors, single
from tests.service.sse import stream

GATE = 2e-5
TEXT = "The cat chased the mouse"
SITES = [
    "embed",
    "resid_pre",
    "resid_post",
    "ln1.scale",
    "ln2.out",
    "attn.q",
    "attn.k",
    "attn.v",
    "attn.rot_q",
    "attn.rot_k",
    "attn.scores",
    "attn.masked_scores",
    "attn.pattern",
    "attn.z",
    "attn.result",
    "attn_out",
    "mlp.post",
    "mlp_out",
    "ln_final.out",
    "logits",
]
WIRINGS: list[dict[str, Any]] = [
    {},
    {"causal": False},
    {"score_scale": 1.0},
    {"positions": "none"},
    {"residual": False},
]
ROTATED: list[dict[str, Any]] = [
    {"rope": {"base": 100.0, "offset": 7}},
    {"rope": {"scaling": {"kind": "dynamic", "factor": 4, "original_context": 8}}},
]
EDITS: list[list[dict[str, Any]]] = [
    [{"op": "zero", "site": "attn.z", "layers": [1], "heads": [0]}],
    [{"op": "block", "layers": [0, 2], "keys": [0]}],
    [{"op": "scale", "site": "mlp_out", "by": 0.5, "layers": [2]}],
    [{"op": "add", "site": "attn.k", "value": 0.3, "layers": [0], "positions": {"start": 2}}],
    [{"op": "set", "site": "resid_pre", "value": 0.1, "layers": [1], "positions": [0, 1]}],
    [{"op": "zero", "site": "attn.rot_k", "layers": [1], "positions": [1]}],
]


def traced(client: TestClient, captures: list[dict[str, Any]], **body: Any) -> Json:
    body = {"text": TEXT, "max_new_tokens": 5, "seed": 6, "stop_ids": [], **body}
    return ask(client, "/v1/generate", trace={"captures": captures}, format=EXACT, **body)


def whole_run(
    client: TestClient, answer: Json, step: Json, captures: list[dict[str, Any]], **body: Any
) -> Json:
    """The same captures from one run of the text as far as this step's choice saw it."""
    ids = ask(client, "/v1/tokenize", text=TEXT)["token_ids"]
    ids += answer["done"]["samples"][0]["token_ids"][: step["step"]]
    assert len(ids) == step["position"]
    found = ask(client, "/v1/inspect", token_ids=ids, captures=captures, format=EXACT, **body)
    tensors: Json = found["tensors"]
    return tensors


def newest(tensor: Json) -> np.ndarray[Any, Any]:
    """The part of a whole run's tensor that belongs to its last position."""
    values = array(tensor)
    along = "position" if "position" in tensor["axes"] else "query"
    return values.take([-1], axis=tensor["axes"].index(along))


def apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    assert one.shape == other.shape
    both = np.isneginf(one) & np.isneginf(other)
    return float(np.abs(np.where(both, 0, one) - np.where(both, 0, other)).max())


def test_each_step_shows_what_a_run_of_the_whole_text_shows_of_its_last_token(
    clients: dict[str, TestClient], family: str
) -> None:
    client = clients[family]
    captures = [{"site": site} for site in SITES]
    answer = traced(client, captures)
    ids = ask(client, "/v1/tokenize", text=TEXT)["token_ids"]
    prompt = ask(client, "/v1/inspect", token_ids=ids, captures=captures, format=EXACT)
    for site in SITES:
        assert apart(*(array(a["tensors"][site]) for a in (answer["prompt"], prompt))) <= GATE
    assert answer["steps"][0]["tensors"] == {} and answer["steps"][0]["checks"] is None
    for step in answer["steps"][1:]:
        expected = whole_run(client, answer, step, captures)
        assert set(step["tensors"]) == set(SITES)
        for site in SITES:
            tensor = step["tensors"][site]
            assert apart(array(tensor), newest(expected[site])) <= GATE, site
            along = "query" if "query" in tensor["axes"] else "position"
            assert tensor["coords"][along] == [step["position"] - 1]
        assert step["checks"]["finite"] and step["checks"]["row_sum_error"] < 1e-5


def test_selections_speak_of_absolute_positions(client: TestClient) -> None:
    captures = [
        {"site": "attn.pattern", "layers": [1], "heads": [2, 0], "keys": [0, 3], "name": "two"},
        {"site": "attn.pattern", "keys": {"start": 4}, "reduce": "head_mean", "name": "late"},
        {"site": "attn.v", "layers": [-1], "reduce": "stats", "name": "values"},
        {"site": "resid_post", "positions": [2], "name": "of the prompt".replace(" ", "-")},
        {"site": "resid_post", "positions": {"start": 1, "step": 2}, "name": "odd"},
    ]
    answer = traced(client, captures)
    n_tokens = answer["meta"]["input"]["n_tokens"]
    assert answer["prompt"]["tensors"]["of-the-prompt"]["coords"]["position"] == [2]
    for step in answer["steps"][1:]:
        tensors = step["tensors"]
        assert "of-the-prompt" not in tensors
        assert ("odd" in tensors) == ((step["position"] - 1) % 2 == 1)
        expected = whole_run(client, answer, step, captures)
        for name in set(tensors):
            assert apart(array(tensors[name]), newest(expected[name])) <= GATE
        assert tensors["two"]["shape"] == [1, 2, 1, 2]
        assert tensors["two"]["coords"]["key"] == [0, 3]
        assert tensors["late"]["coords"]["key"] == list(range(4, step["position"]))
    assert n_tokens == answer["steps"][0]["position"]


@pytest.mark.parametrize(
    "edits", EDITS, ids=lambda edits: edits[0]["op"] + edits[0].get("site", "")
)
def test_edits_stay_in_force_at_every_step(client: TestClient, edits: list[Json]) -> None:
    captures = [{"site": "logits", "positions": {"start": 0}}, {"site": "attn.pattern"}]
    answer = traced(client, captures, edits=edits)
    plain = traced(client, captures)
    moved = 0.0
    for step in answer["steps"][1:]:
        expected = whole_run(client, answer, step, captures, edits=edits)
        without = whole_run(client, answer, step, captures)
        assert apart(array(step["tensors"]["logits"]), newest(expected["logits"])) <= 2 * GATE
        pattern = array(step["tensors"]["attn.pattern"])
        assert apart(pattern, newest(expected["attn.pattern"])) <= GATE
        moved = max(moved, apart(newest(expected["logits"]), newest(without["logits"])))
    assert moved > 1e-3, "the edit changes nothing, so this test could not fail"
    report = answer["meta"]["input"]["edits"][0]
    assert report["op"] == edits[0]["op"] and report["values_touched"] > 0
    assert plain["meta"]["input"]["edits"] == []


def test_patch_has_the_values_of_its_source_at_every_step(client: TestClient) -> None:
    source = {"text": "Once upon a time", "positions": [1]}
    edit = {"op": "patch", "site": "resid_pre", "layers": [1], "positions": [1], "source": source}
    captures = [{"site": "logits"}]
    answer = traced(client, captures, edits=[edit])
    for step in answer["steps"][1:]:
        expected = whole_run(client, answer, step, captures, edits=[edit])
        assert apart(array(step["tensors"]["logits"]), newest(expected["logits"])) <= 2 * GATE


def test_patch_of_a_whole_pattern_ends_with_the_prompt_and_keeps_what_went_before(
    client: TestClient,
) -> None:
    body = {"text": TEXT, "max_new_tokens": 4, "seed": 1, "stop_ids": []}
    patch = {"op": "patch", "site": "attn.pattern", "layers": [0], "source": {"text": TEXT}}
    answer = ask(client, "/v1/generate", edits=[patch], **body)
    # Of its own text: it changes nothing, so that the unedited run tells what must come.
    plain = ask(client, "/v1/generate", **body)
    assert answer["done"]["samples"] == plain["done"]["samples"]
    assert answer["meta"]["cache"] is True
    dry = ask(client, "/v1/generate", edits=[patch], dry_run=True, **body)["estimate"]
    assert (
        dry["cache_bytes"]
        == ask(client, "/v1/generate", dry_run=True, **body)["estimate"]["cache_bytes"]
        > 0
    )


@pytest.mark.parametrize("wiring", WIRINGS + ROTATED, ids=str)
def test_wiring_holds_at_every_step(client: TestClient, wiring: Json) -> None:
    captures = [{"site": "attn.pattern"}, {"site": "logits"}]
    answer = traced(client, captures, wiring=wiring)
    for step in answer["steps"][1:]:
        expected = whole_run(client, answer, step, captures, wiring=wiring)
        for site in ("attn.pattern", "logits"):
            error = apart(array(step["tensors"][site]), newest(expected[site]))
            assert error <= 2 * GATE, site
    kept = wiring not in ({"causal": False}, ROTATED[1])
    assert answer["meta"]["cache"] is kept


def test_prompt_can_be_left_out_of_the_trace(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, ...]] = []
    take = Recording.take

    def noted(recording: Recording, layer: int | None, value: Any) -> None:
        taken.append(recording.capture.shape)
        take(recording, layer, value)

    monkeypatch.setattr(Recording, "take", noted)
    body = {"text": TEXT, "max_new_tokens": 3, "seed": 1, "stop_ids": []}
    trace = {"captures": [{"site": "attn.pattern", "layers": [1]}], "prompt": False}
    answer = ask(client, "/v1/generate", trace=trace, **body)
    n_tokens = answer["meta"]["input"]["n_tokens"]
    assert answer["prompt"]["tensors"] == {} and answer["prompt"]["checks"]["row_sum_error"] > 0
    # Nor was it ever held: the first that is taken is the first step's.
    assert taken == [(1, 4, 1, n_tokens + 1), (1, 4, 1, n_tokens + 2)]
    floats = 4 * (n_tokens + 1) + 4 * (n_tokens + 2)
    dry = ask(client, "/v1/generate", trace=trace, dry_run=True, **body)
    assert dry["estimate"]["tensor_floats"] == floats


def test_safetensors_carry_every_tensor_by_where_it_belongs(client: TestClient) -> None:
    captures = [{"site": "attn.pattern", "layers": [0]}, {"site": "resid_post", "name": "after"}]
    body = {"text": TEXT, "max_new_tokens": 4, "seed": 6, "stop_ids": [], "n": 2}
    body["trace"] = {"captures": captures}
    whole = ask(client, "/v1/generate", format=EXACT, **body)
    answer, arrays = safetensors(client, "/v1/generate", **body)
    expected = {f"prompt/{name}": tensor for name, tensor in whole["prompt"]["tensors"].items()}
    for step in whole["steps"]:
        for name, tensor in step["tensors"].items():
            expected[f"step/{step['sample']}/{step['step']}/{name}"] = tensor
    assert set(arrays) == set(expected) == set(answer["tensors"])
    assert len(arrays) == 2 + 2 * 3 * 2
    for name, tensor in expected.items():
        assert np.array_equal(arrays[name], single(tensor))
        head = answer["tensors"][name]
        assert head["name"] == name and head["coords"] == tensor["coords"]
    assert [step["token"] for step in answer["steps"]] == [step["token"] for step in whole["steps"]]
    assert answer["done"]["samples"] == whole["done"]["samples"]
    halves = safetensors(client, "/v1/generate", **body, format={"dtype": "float16"})[1]
    assert {array.dtype for array in halves.values()} == {np.dtype("float16")}


@pytest.mark.parametrize(
    "form",
    [{"encoding": "base64"}, {"encoding": "base64", "dtype": "float16"}, {"encoding": "sparse"}],
)
def test_every_encoding_works_in_a_stream(client: TestClient, form: Json) -> None:
    body = {"text": TEXT, "max_new_tokens": 3, "seed": 6, "stop_ids": []}
    body["trace"] = {"captures": [{"site": "attn.pattern"}]}
    exact = ask(client, "/v1/generate", format=EXACT, **body)
    events = stream(client, format=form, **body)
    steps = [data for name, data in events if name == "step"]
    for step, other in zip(steps[1:], exact["steps"][1:], strict=True):
        ours = array(step["tensors"]["attn.pattern"])
        assert apart(ours, array(other["tensors"]["attn.pattern"])) < 1e-3


def test_sparse_form_is_for_patterns_alone(client: TestClient) -> None:
    trace = {"captures": [{"site": "attn.pattern"}, {"site": "attn.v"}]}
    form = {"encoding": "sparse"}
    refused(client, "/v1/generate", "invalid-request", text=TEXT, trace=trace, format=form)
