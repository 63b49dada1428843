"""The OpenAPI document: what a generated client needs of it, and every example run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Serve

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def document(client: TestClient) -> Any:
    return client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def operations(document: Any) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema-like object in the document, at any depth."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from schemas(value)


def test_every_operation_has_a_summary_a_tag_and_an_id_of_its_own(
    operations: dict[str, Any],
) -> None:
    assert len(operations) >= 9
    for name, operation in operations.items():
        assert operation["summary"] and operation["tags"], name
        assert operation["operationId"].isidentifier(), name
    ids = [operation["operationId"] for operation in operations.values()]
    assert len(set(ids)) == len(ids)


def test_ids_that_clients_are_built_on_stay(operations: dict[str, Any]) -> None:
    expected = {
        "GET /health/live": "live",
        "GET /health/ready": "ready",
        "GET /v1/model": "model",
        "GET /v1/sites": "sites",
        "POST /v1/tokenize": "tokenize",
        "POST /v1/detokenize": "detokenize",
        "POST /v1/attention": "attention",
        "POST /v1/logits": "logits",
        "POST /v1/inspect": "inspect",
    }
    assert {name: operations[name]["operationId"] for name in expected} == expected


def test_unions_of_objects_carry_a_discriminator(document: Any) -> None:
    known = document["components"]["schemas"]
    for schema in schemas(document):
        for word in ("oneOf", "anyOf"):
            objects = [
                member
                for member in schema.get(word, [])
                if "$ref" in member
                and known[member["$ref"].rpartition("/")[2]].get("type") == "object"
            ]
            if len(objects) > 1:
                assert "discriminator" in schema, schema


def test_every_reference_leads_somewhere(document: Any) -> None:
    known = document["components"]["schemas"]
    for schema in schemas(document):
        if isinstance(schema.get("$ref"), str):
            assert schema["$ref"].rpartition("/")[2] in known, schema["$ref"]


def test_request_bodies_refuse_unknown_fields(document: Any, operations: dict[str, Any]) -> None:
    known = document["components"]["schemas"]
    for name, operation in operations.items():
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            top = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            if "properties" in top:
                assert top["additionalProperties"] is False, name


def test_errors_are_documented_as_problems(operations: dict[str, Any]) -> None:
    for name, operation in operations.items():
        for status, response in operation["responses"].items():
            if status[0] in "45":
                assert "application/problem+json" in response["content"], f"{name} {status}"
        if name.startswith("POST"):
            assert {"400", "401", "413", "415", "422"} <= set(operation["responses"]), name


def test_inspecting_routes_document_both_forms(operations: dict[str, Any]) -> None:
    for path in ("/v1/attention", "/v1/logits", "/v1/inspect"):
        content = operations[f"POST {path}"]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "application/vnd.safetensors"}
        assert "406" in operations[f"POST {path}"]["responses"]


def test_minus_infinity_as_null_is_said(document: Any) -> None:
    assert (
        "null"
        in document["components"]["schemas"]["NestedTensor"]["properties"]["data"]["description"]
    )


def test_every_post_has_examples_and_each_of_them_runs(
    operations: dict[str, Any], serve: Serve
) -> None:
    client = serve()  # one that keeps nothing of it for other tests
    for name, operation in operations.items():
        method, path = name.split()
        if method != "POST":
            continue
        examples = operation["requestBody"]["content"]["application/json"].get("examples")
        assert examples, f"{name} has no example"
        for title, example in examples.items():
            answer = client.post(path, json=example["value"])
            assert answer.status_code == 200, f"{name}, {title}: {answer.text[:300]}"


def test_every_get_without_a_name_in_it_answers(operations: dict[str, Any], serve: Serve) -> None:
    client = serve()
    for name in operations:
        method, path = name.split()
        if method == "GET" and "{" not in path:
            assert client.get(path).status_code == 200, name
