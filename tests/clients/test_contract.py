"""The client against the committed OpenAPI: every route, every option and every answer's keys."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from fluoroscope_client import (
    answers,
    answers_of_generation,
    answers_of_labs,
    answers_of_parameters,
    answers_of_rope,
    answers_on_models,
    capture,
    edits,
)
from fluoroscope_client.generation import Prompt, Step
from fluoroscope_client.parameter import Parameter

from tests.clients.test_asking import CALLS, Unsent, sent

OPENAPI = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text("utf-8"))
SCHEMAS = OPENAPI["components"]["schemas"]
ROUTES = {
    (method.upper(), path): operation
    for path, operations in OPENAPI["paths"].items()
    for method, operation in operations.items()
    if path != "/metrics"  # for a program that collects numbers
}

RUN: dict[str, Any] = {"add_bos": True, "parse_special": True, "tokens": "ids", "dtype": "float16"}
CHANGED = {**RUN, "edits": [edits.block(keys=0)], "wiring": {"causal": False}, "dry_run": True}
COMMON = {**CHANGED, "compare": True, "checks_level": "full"}
GENERATING = {
    **CHANGED,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "max_new_tokens": 2,
    "n": 2,
    "seed": 1,
    "stop": "a",
    "stop_ids": [1],
    "top": 3,
    "captures": "attn.z",
}
SAMPLE = {"position": 0, "top": 2, "seed": 1, "add_bos": True, "parse_special": True}
LAB = {"source": {"kind": "example"}, "scaled": False, "causal": True, "decimals": 3}
WHERE = {"layer": 0, "head": 0, "query": 0, "key": 0}
# Every method with every option, several times where options exclude each other.
ASKED: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "live": [((), {})],
    "ready": [((), {})],
    "model": [((), {})],
    "sites": [((), {})],
    "parity": [((), {})],
    "presets": [((), {})],
    "course": [((), {})],
    "rope": [((), {"context": 8})],
    "tokenize": [(("a",), {"add_bos": True, "parse_special": True})],
    "detokenize": [(([1],), {})],
    "parameters": [((), {"context": 8, "depth": 1, "explain": True})],
    "parameters_of": [(("gpt2", {"n_layer": 2}), {"context": 8, "depth": 1, "explain": True})],
    "compare_parameters": [((["gpt2", "course"],), {"context": 8})],
    "parameter": [
        (("a",), {"rows": 0, "columns": 0, "head": 0, "reduce": "mean", "max_rows": 2}),
        (("a",), {"kv_head": 0, "max_columns": 2, "bins": 4, "wire": "json", "decimals": 2}),
        (("a",), {"wire": "json"}),
    ],
    "attention": [
        (("a",), {**COMMON, "aggregate": "mean"}),
        (([1],), {"layers": 0, "heads": 0, "queries": 0, "keys": 0, "stages": ["dots"]}),
    ],
    "attention_cell": [(("a",), {**COMMON, **WHERE}), (([1],), WHERE)],
    "logits": [(("a",), {**COMMON, "positions": 0, "top": 2, "full": True}), (([1],), {})],
    "inspect": [(("a", [capture("embed")]), COMMON), (([1], "embed"), {})],
    "generate": [(("a",), {**GENERATING, "dry_run": False}), (([1],), {})],
    "completion": [(("a",), GENERATING), (([1],), {})],
    "sample": [(("a", [{}]), SAMPLE), (([1],), {}), ((), {"logits": [0.0]})],
    "attention_lab": [((), {**LAB, "query": 0})],
    "heads_lab": [((), {**LAB, "position": 0, "results": True})],
    "scaling_lab": [((), {"head_sizes": [2], "samples": 2, "keys": 2, "seed": 1, "decimals": 2})],
    "block_lab": [(("a",), {"layer": 0, "position": 0, "top": 1, "decimals": 2}), (([1],), {})],
    "order_lab": [((("a", "b"),), {}), ((([1], [2]),), {})],
    "diagnostics_lab": [(("a",), {}), (([1],), {})],
    "rope_rotate": [
        (([1, 0], [0, 1]), {"positions": [(1, 0)], "pairing": "half", "base": 10.0, "shift": 2}),
        ((), {"model": {}, "degrees_per_position": 1.0, "decimals": 2}),
    ],
    "rope_frequencies": [
        ((), {"d_head": 4, "base": 9.0, "context": 8, "scalings": [], "distances": [0]})
    ],
}
# Options that the client settles itself, or says by other words.
SETTLED = {
    # Numbers travel as safetensors or as exact JSON; base64 is for events.
    ("GET", "/v1/model/parameters/{name}"): {"encoding"},
    # A lab reads a text as any other route does: what the tokenizer wants.
    ("POST", "/v1/labs/block"): {"add_bos"},
    ("POST", "/v1/labs/diagnostics"): {"add_bos"},
}


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def route_of(method: str, path: str) -> tuple[str, str]:
    found = [
        route
        for route in ROUTES
        if route[0] == method
        and (route[1] == path or re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route[1]), path))
    ]
    return min(found, key=lambda route: "{" in route[1])


def test_every_method_is_tried_here() -> None:
    methods = {name for name in dir(Unsent) if not name.startswith("_")}
    assert ASKED.keys() == methods


def test_every_route_has_a_method_and_every_option_a_name() -> None:
    said: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for name, examples in ASKED.items():
        for args, options in examples:
            call = getattr(CALLS, name)(*args, **options)
            names = sent(call) if call.method == "POST" else call.query or {}
            said[route_of(call.method, call.path)].update(names)
    assert ROUTES.keys() == said.keys()
    for route, operation in ROUTES.items():
        offered = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            offered = set(resolved(body)["properties"])
        assert said[route] | SETTLED.get(route, set()) == offered, route


ANSWERS: dict[Any, str] = {
    answers_on_models.Health: "Health",
    answers_on_models.Model: "ModelAnswer",
    answers_on_models.Site: "SiteReport",
    answers_on_models.Tokenized: "TokenizeAnswer",
    answers_on_models.Parity: "ParityAnswer",
    answers.InputReport: "InputReport",
    answers.Checks: "Checks",
    answers.Prediction: "Prediction",
    answers.Comparison: "Comparison",
    answers.Estimate: "Estimate",
    answers.Timing: "Timing",
    answers.Cell: "CellReport",
    answers_of_parameters.Parameters: "ParametersAnswer",
    answers_of_parameters.ParametersCompared: "ComparisonAnswer",
    answers_of_parameters.Preset: "PresetReport",
    answers_of_parameters.Statistics: "Statistics",
    answers_of_parameters.Histogram: "Histogram",
    answers_of_parameters.Picture: "Picture",
    answers_of_labs.AttentionLab: "AttentionLabAnswer",
    answers_of_labs.HeadsLab: "HeadsLabAnswer",
    answers_of_labs.ScalingLab: "ScalingLabAnswer",
    answers_of_labs.BlockLab: "BlockLabAnswer",
    answers_of_labs.OrderLab: "OrderLabAnswer",
    answers_of_labs.Diagnostics: "DiagnosticsAnswer",
    answers_of_rope.Rotated: "RotateAnswer",
    answers_of_rope.Frequencies: "FrequenciesAnswer",
    answers_of_rope.ModelRope: "ModelRopeAnswer",
    answers_of_labs.CourseItem: "CourseItem",
    answers_of_generation.Meta: "GenerateMeta",
    answers_of_generation.StepToken: "StepToken",
    answers_of_generation.Done: "GenerateDone",
    answers_of_generation.GenerateEstimate: "GenerateEstimate",
    answers_of_generation.Sampled: "SampleAnswer",
}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def differences(hint: Any, schema: Mapping[str, Any], met: set[Any], at: str) -> Iterator[str]:
    """Where a type of the client and a schema of the wire do not say the same."""
    schema = resolved(schema)
    if hint is Any:
        return
    options = schema.get("anyOf") or schema.get("oneOf")
    if options or get_origin(hint) in (Union, UnionType):
        hints, options = get_args(hint) or (hint,), options or [schema]
        for one in options:
            if not any(not [*differences(mine, one, met, at)] for mine in hints):
                yield f"{at}: {hint} is not {one}"
        if len(hints) != len(options):
            yield f"{at}: {hint} has not as many kinds as {options}"
    elif is_typeddict(hint):
        if (hint, id(schema)) in met:
            return
        met.add((hint, id(schema)))
        mine = get_type_hints(hint)
        its = schema.get("properties", {})
        if mine.keys() != its.keys() or hint.__required_keys__ != set(schema.get("required", ())):
            yield f"{at}: {hint.__name__} has {sorted(mine)}, the wire {sorted(its)}"
        for name in mine.keys() & its.keys():
            yield from differences(mine[name], its[name], met, f"{at}.{name}")
    elif get_origin(hint) is Literal:
        if set(get_args(hint)) != set(schema.get("enum", [schema.get("const")])):
            yield f"{at}: {hint} is not {schema}"
    elif get_origin(hint) is list:
        for one in schema.get("prefixItems") or [schema.get("items", {"type": "nothing"})]:
            yield from differences(get_args(hint)[0], one, met, f"{at}[]")
    elif get_origin(hint) is dict:
        every = schema.get("additionalProperties", {"type": "nothing"})
        if every is not True:
            yield from differences(get_args(hint)[1], every, met, f"{at}{{}}")
    elif schema.get("type") != PLAIN[hint]:
        yield f"{at}: {hint.__name__} is not {schema}"


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_answer_has_the_keys_and_kinds_of_the_wire(kind: Any) -> None:
    assert [*differences(kind, SCHEMAS[ANSWERS[kind]], set(), kind.__name__)] == []


@pytest.mark.parametrize(
    ("kind", "schema", "renamed"),
    [
        (Step, "GenerateStep", {}),
        (Prompt, "GeneratePrompt", {"token_ids": None}),
        (Parameter, "TensorAnswer", {"about": "tensor", "values": "tensors"}),
    ],
)
def test_what_is_read_off_an_answer_is_all_of_it(
    kind: Any, schema: str, renamed: Mapping[str, str | None]
) -> None:
    held = {renamed.get(name, name) for name in kind.__dataclass_fields__} - {None}
    assert held == set(SCHEMAS[schema]["properties"])


def is_base(kind: Any, other: Any) -> bool:
    return kind is not other and kind.__annotations__.items() < other.__annotations__.items()


def test_no_answer_is_left_unchecked() -> None:
    met: set[Any] = set()
    for kind, schema in ANSWERS.items():
        assert [*differences(kind, SCHEMAS[schema], met, kind.__name__)] == []
    named = {kind.__name__ for kind, _ in met}
    modules = (
        answers,
        answers_of_generation,
        answers_of_labs,
        answers_of_parameters,
        answers_of_rope,
        answers_on_models,
    )
    every = {
        kind
        for module in modules
        for kind in vars(module).values()
        if is_typeddict(kind) and kind.__module__ == module.__name__
    }
    # A TypedDict forgets its bases: one whose keys all stand in another is taken for its base.
    own = {kind for kind in every if not any(is_base(kind, other) for other in every)}
    assert {kind.__name__ for kind in own} <= named


def test_comparison_finds_a_key_and_a_kind_that_differ() -> None:
    cut = SCHEMAS["Histogram"]
    for changed in (
        {**cut, "properties": {**cut["properties"], "width": {"type": "number"}}},
        {**cut, "properties": {**cut["properties"], "counts": {"type": "string"}}},
        {**cut, "required": ["edges"]},
    ):
        assert [*differences(answers_of_parameters.Histogram, changed, set(), "")]
