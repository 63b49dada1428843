"""Requests drawn from the committed OpenAPI document, such as fit it and such as do not: none is
answered with a 5xx, and every answer is one that the document declares."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings

from service.app import create_app
from service.settings import Settings
from tests.answers import strict_json

DOCUMENT: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "openapi.json").read_text("utf-8")
)
OPERATIONS = {
    operation["operationId"]: f"{method.upper()} {path}"
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
# What can be asked wrongly: the others take nothing at all.
ASKING = [
    operation["operationId"]
    for methods in DOCUMENT["paths"].values()
    for operation in methods.values()
    if "requestBody" in operation or "parameters" in operation
]
ORIGIN = "http://localhost:5173"
EXAMPLES, IN_A_SOAK = 4, 100
QUIET = list(HealthCheck)


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[TestClient]:
    app = create_app(Settings(model=str(folders["course"])))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """schemathesis' operations by id. Its import takes a second: only who runs these pays it."""
    import schemathesis

    found = schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
    by_label = {operation.ok().label: operation.ok() for operation in found}
    return {name: by_label[label] for name, label in OPERATIONS.items()}


def prepared(case: Any) -> requests.PreparedRequest:
    """What schemathesis would put on the wire, every byte of it."""
    given = case.as_transport_kwargs(base_url="http://localhost")
    given.pop("timeout", None)
    return requests.Request(**given).prepare()


def answered(server: TestClient, case: Any) -> int:
    """Send it; the status, once everything that is promised of every answer was checked."""
    wanted = prepared(case)
    body = wanted.body.encode() if isinstance(wanted.body, str) else wanted.body
    headers = {**wanted.headers, "origin": ORIGIN}
    answer = server.request(str(wanted.method), str(wanted.url), content=body, headers=headers)
    said = f"{wanted.method} {wanted.url} {str(body)[:2000]}: {answer.text[:1000]}"
    assert answer.status_code < 500, said
    assert answer.headers["access-control-allow-origin"] == ORIGIN, said
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", said
        assert strict_json(answer.content)["status"] == answer.status_code, said
    elif answer.headers["content-type"] == "application/json":
        strict_json(answer.content)
    declared = case.operation.definition.raw["responses"]
    # A path that is drawn may be no path of this operation, but of another or of none.
    drawn_path = "{" in case.operation.path
    assert str(answer.status_code) in declared or drawn_path, said
    return answer.status_code


def run(server: TestClient, operation: Any, mode: str, examples: int) -> Counter[int]:
    from schemathesis import GenerationMode

    statuses: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        derandomize=examples == EXAMPLES,  # the soak draws others every time
        phases=[Phase.generate],
        suppress_health_check=QUIET,
    )
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def draw(case: Any) -> None:
        statuses[answered(server, case)] += 1

    draw()
    return statuses


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_that_fit_the_document_are_answered_as_it_says(
    name: str, server: TestClient, operations: dict[str, Any]
) -> None:
    assert sum(run(server, operations[name], "positive", EXAMPLES).values()) > 0


@pytest.mark.parametrize("name", ASKING)
def test_requests_that_do_not_fit_it_are_refused_and_never_a_5xx(
    name: str, server: TestClient, operations: dict[str, Any]
) -> None:
    statuses = run(server, operations[name], "negative", EXAMPLES)
    assert sum(statuses.values()) > 0
    assert any(400 <= status < 500 for status in statuses)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", ASKING)
def test_a_hundred_requests_of_either_kind(
    name: str, mode: str, server: TestClient, operations: dict[str, Any]
) -> None:
    assert sum(run(server, operations[name], mode, IN_A_SOAK).values()) > 0


def test_server_that_fails_is_found_out(
    operations: dict[str, Any], folders: dict[str, Path]
) -> None:
    """The negative control: a model that no run gets through."""
    app = create_app(Settings(model=str(folders["course"])))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        app.state.inspector.opened.tokenizer.read = None
        with pytest.raises(AssertionError, match="internal-error"):
            run(client, operations["tokenize"], "positive", EXAMPLES)
