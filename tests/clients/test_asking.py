"""What the Python client sends, against API.md's spelling. No server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fluoroscope_client import capture, edits
from fluoroscope_client.asking import select
from fluoroscope_client.call import Call
from fluoroscope_client.calls_of_generation import GenerationCalls
from fluoroscope_client.calls_of_labs import LabCalls
from fluoroscope_client.calls_on_models import ModelCalls
from fluoroscope_client.calls_on_runs import RunCalls


class Unsent(ModelCalls, RunCalls, GenerationCalls, LabCalls):
    """Hands out the calls that a client would send."""

    _wire = "safetensors"

    def _send(self, call: Call[Any]) -> Call[Any]:
        return call

    _steps = _send


CALLS: Any = Unsent()


def sent(call: Call[Any]) -> dict[str, Any]:
    content = call.content()
    assert content is not None
    body: dict[str, Any] = json.loads(content)
    return body


@pytest.mark.parametrize(
    ("readable", "on_the_wire"),
    [
        ("all", "all"),
        (2, [2]),
        (-1, [-1]),
        (np.int64(3), [3]),
        ([3, 0], [3, 0]),
        ((1,), [1]),
        (np.array([2, 4]), [2, 4]),
        (range(3), [0, 1, 2]),
        (range(3, -1, -1), [3, 2, 1, 0]),  # as a span its stop would count from the end
        (slice(None), {"start": None, "stop": None, "step": 1}),
        (slice(1, -1, 2), {"start": 1, "stop": -1, "step": 2}),
        ({"start": 0, "stop": 4}, {"start": 0, "stop": 4}),
    ],
)
def test_selection_is_spelled_as_the_wire_wants(readable: Any, on_the_wire: Any) -> None:
    assert select(readable) == on_the_wire


@pytest.mark.parametrize("wrong", [True, "every", 1.5, [0.5], [True], None, slice(0.5, 1)])
def test_selection_that_is_none_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError):
        select(wrong)


def test_attention_request_has_every_choice() -> None:
    call = CALLS.attention(
        "猫",
        layers=0,
        heads=range(2),
        queries=slice(0, 3),
        stages=("scores", "pattern"),
        aggregate="mean",
        tokens="ids",
        dtype="float16",
    )
    assert (call.method, call.path) == ("POST", "/v1/attention")
    assert call.accept == "application/vnd.safetensors"
    assert sent(call) == {
        "text": "猫",
        "layers": [0],
        "heads": [0, 1],
        "queries": {"start": 0, "stop": 3, "step": 1},
        "keys": "all",
        "stages": ["scores", "pattern"],
        "aggregate": "mean",
        "tokens": "ids",
        "edits": [],
        "format": {"dtype": "float16"},
    }


def test_token_ids_are_sent_instead_of_text() -> None:
    assert sent(CALLS.logits(np.array([5, 6])))["token_ids"] == [5, 6]
    assert "text" not in sent(CALLS.logits([5, 6]))


def test_json_wire_asks_for_exact_numbers_unless_rounded() -> None:
    exact = CALLS.attention("a", wire="json")
    assert exact.accept == "application/json"
    assert sent(exact)["format"] == {"exact": True}
    assert sent(CALLS.attention("a", wire="json", decimals=2))["format"] == {"decimals": 2}


@pytest.mark.parametrize(
    "options", [{"decimals": 2}, {"wire": "json", "dtype": "float16"}, {"wire": "pickle"}]
)
def test_choice_that_the_wire_does_not_have_is_a_value_error(options: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|wire"):
        CALLS.attention("a", **options)


def test_misspelled_option_is_a_type_error() -> None:
    wrong: Any = {"laers": 2}
    with pytest.raises(TypeError, match="laers"):
        CALLS.attention("a", **wrong)


def test_inspect_request_spells_captures_and_edits() -> None:
    call = CALLS.inspect(
        "a cat",
        ["resid_post", capture("attn.z", layers=2, heads=[0, 1], name="z", reduce="stats")],
        edits=[
            edits.zero("attn.z", layers=[1], heads=3),
            edits.block(queries=-1, keys=range(2)),
            edits.scale("mlp_out", 0.5, layers=0),
            edits.add("resid_pre", np.float32(1.5), layers=0),
            edits.set_to("embed", np.array([[1.0, 2.0]]), positions=0),
            edits.mean("attn.z", over="all"),
            edits.patch("resid_pre", "a dog", layers=0, source_positions=slice(1, None)),
            {"op": "zero", "site": "attn_out", "layers": slice(0, 2)},
        ],
        wiring={"causal": False},
        compare=True,
        checks_level="full",
    )
    body = sent(call)
    assert body["captures"] == [
        {"site": "resid_post"},
        {"site": "attn.z", "name": "z", "reduce": "stats", "layers": [2], "heads": [0, 1]},
    ]
    assert body["edits"] == [
        {"op": "zero", "site": "attn.z", "layers": [1], "heads": [3]},
        {"op": "block", "queries": [-1], "keys": [0, 1]},
        {"op": "scale", "site": "mlp_out", "by": 0.5, "layers": [0]},
        {"op": "add", "site": "resid_pre", "value": 1.5, "layers": [0]},
        {"op": "set", "site": "embed", "value": [[1.0, 2.0]], "positions": [0]},
        {"op": "mean", "site": "attn.z", "over": "all"},
        {
            "op": "patch",
            "site": "resid_pre",
            "source": {"text": "a dog", "positions": {"start": 1, "stop": None, "step": 1}},
            "layers": [0],
        },
        {"op": "zero", "site": "attn_out", "layers": {"start": 0, "stop": 2, "step": 1}},
    ]
    assert body["wiring"] == {"causal": False}
    assert (body["compare"], body["checks_level"]) == (True, "full")


def test_one_capture_needs_no_list() -> None:
    assert sent(CALLS.inspect("a", "embed"))["captures"] == [{"site": "embed"}]
    one = capture("attn.q", layers=1)
    assert sent(CALLS.inspect("a", one))["captures"] == [{"site": "attn.q", "layers": [1]}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.array([np.nan])])
def test_number_that_json_cannot_say_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        CALLS.inspect("a", "embed", edits=[edits.add("embed", value)]).content()


def test_lone_surrogate_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        CALLS.tokenize("\ud800").content()


def test_parameters_asks_by_query() -> None:
    assert CALLS.parameters().query == {"explain": "false"}
    call = CALLS.parameters(context=256, depth=2, explain=True)
    assert call.query == {"context": "256", "depth": "2", "explain": "true"}
    assert call.content() is None


def test_parameter_is_cut_as_python_slices() -> None:
    call = CALLS.parameter(
        "blocks.0.attn.q.weight", rows=slice(0, 8), columns=[3, -1], head=1, reduce="mean"
    )
    assert call.path == "/v1/model/parameters/blocks.0.attn.q.weight"
    assert call.query == {
        "rows": "0:8:1",
        "columns": "3,-1",
        "head": "1",
        "reduce": "mean",
        "dtype": "float32",
    }
    exact = CALLS.parameter("a", rows=slice(None, None, 4), columns="all", wire="json")
    assert exact.query == {"rows": "::4", "columns": ":", "exact": "true"}
    assert CALLS.parameter("../presets?x").path == "/v1/model/parameters/..%2Fpresets%3Fx"


def test_generation_request_has_every_choice() -> None:
    call = CALLS.generate(
        "猫",
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        seed=7,
        max_new_tokens=5,
        n=2,
        stop="。",
        stop_ids=[np.int64(0)],
        top=3,
        captures=capture("attn.pattern", layers=2),
        trace_prompt=False,
        tokens="ids",
        edits=[edits.zero("attn.z", layers=1, heads=0)],
    )
    assert (call.path, call.accept) == ("/v1/generate", "text/event-stream")
    assert sent(call) == {
        "text": "猫",
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "seed": 7,
        "max_new_tokens": 5,
        "n": 2,
        "stop": ["。"],
        "stop_ids": [0],
        "top": 3,
        "trace": {"captures": [{"site": "attn.pattern", "layers": [2]}], "prompt": False},
        "tokens": "ids",
        "edits": [{"op": "zero", "site": "attn.z", "layers": [1], "heads": [0]}],
        "format": {"dtype": "float32", "encoding": "base64"},
    }
    assert sent(CALLS.generate("a", wire="json", decimals=3))["format"] == {"decimals": 3}
    whole = CALLS.completion([5, 6])
    assert whole.accept == "application/vnd.safetensors, application/json;q=0.1"
    assert sent(whole) == {
        "token_ids": [5, 6],
        "stop": [],
        "edits": [],
        "format": {"dtype": "float32"},
    }
    with pytest.raises(ValueError, match="dry run"):
        CALLS.generate("a", dry_run=True)
    with pytest.raises(TypeError, match="tmp"):
        CALLS.generate("a", tmp=1)


def test_sample_sends_minus_infinity_as_null() -> None:
    call = CALLS.sample(logits=np.array([1.5, -np.inf]), settings=[{"temperature": 2}], seed=1)
    assert sent(call) == {"logits": [1.5, None], "settings": [{"temperature": 2}], "seed": 1}
    assert sent(CALLS.sample("猫", position=-2, top=3)) == {
        "text": "猫",
        "settings": [{}],
        "position": -2,
        "top": 3,
    }
    with pytest.raises(ValueError, match="JSON"):
        CALLS.sample(logits=[np.inf]).content()
    with pytest.raises(ValueError, match="shape"):
        CALLS.sample(logits=[[1.0]])
    with pytest.raises(TypeError, match="logits"):
        CALLS.sample()


def test_order_lab_takes_two_of_a_kind() -> None:
    assert sent(CALLS.order_lab(("a b", "b a"))) == {"texts": ["a b", "b a"]}
    assert sent(CALLS.order_lab(([1, 2], [2, 1]))) == {"token_ids": [[1, 2], [2, 1]]}
    with pytest.raises(TypeError, match="two"):
        CALLS.order_lab(("a b", [2, 1]))


def test_rotation_takes_arrays_and_places() -> None:
    call = CALLS.rope_rotate(np.array([1.0, 0.5]), [0.5, 1.0], positions=[(3, 1)], base=100.0)
    assert sent(call) == {
        "q": [1.0, 0.5],
        "k": [0.5, 1.0],
        "positions": [{"m": 3, "n": 1}],
        "base": 100.0,
    }


def test_model_compared_is_a_name_or_a_config() -> None:
    body = sent(CALLS.compare_parameters(["gpt2", {"preset": "course", "config": {"n_layer": 8}}]))
    assert body["configs"] == ["gpt2", {"preset": "course", "config": {"n_layer": 8}}]
