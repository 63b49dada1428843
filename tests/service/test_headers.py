"""Headers that every answer carries: ids, CORS, nosniff, timings, caching."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.answers import SAFETENSORS, strict_json
from tests.conftest import Serve

ORIGIN = "http://localhost:5173"
JSON = {"content-type": "application/json"}
# One request for each status, as (method, path, keyword arguments).
ANSWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "200 of a GET": ("GET", "/v1/model", {}),
    "200 of a run": ("POST", "/v1/attention", {"json": {"text": "a"}}),
    "200 in bytes": (
        "POST",
        "/v1/attention",
        {"json": {"text": "a"}, "headers": {"accept": SAFETENSORS}},
    ),
    "200 of health": ("GET", "/health/ready", {}),
    "200 of the document": ("GET", "/openapi.json", {}),
    "304": ("GET", "/v1/sites", {"headers": {"if-none-match": "*"}}),
    "400 not JSON": ("POST", "/v1/attention", {"content": "{", "headers": JSON}),
    "400 foreign host": ("GET", "/v1/model", {"headers": {"host": "evil.example"}}),
    "404": ("GET", "/nothing/here", {}),
    "405": ("GET", "/v1/attention", {}),
    "406": ("POST", "/v1/attention", {"json": {"text": "a"}, "headers": {"accept": "text/csv"}}),
    "413": ("POST", "/v1/attention", {"content": b"0" * (1 << 20) + b"0", "headers": JSON}),
    "415": ("POST", "/v1/attention", {"content": "{}", "headers": {"content-type": "text/plain"}}),
    "422": ("POST", "/v1/attention", {"json": {"text": ""}}),
    "431": ("GET", "/v1/model", {"headers": {"x-padding": "p" * 33_000}}),
}


def sent(client: TestClient, name: str, **headers: str) -> Any:
    method, path, given = ANSWERS[name]
    headers = {**headers, **given.get("headers", {})}
    answer = client.request(method, path, **{**given, "headers": headers})
    assert str(answer.status_code) == name[:3], answer.text
    return answer


@pytest.mark.parametrize("name", ANSWERS)
def test_browser_of_a_local_page_may_read_every_answer(name: str, client: TestClient) -> None:
    headers = sent(client, name, origin=ORIGIN).headers
    assert headers["access-control-allow-origin"] == ORIGIN
    exposed = headers["access-control-expose-headers"].lower().split(", ")
    assert {"x-request-id", "server-timing", "retry-after", "etag"} <= set(exposed)
    assert "origin" in headers["vary"].lower()


@pytest.mark.parametrize("name", ANSWERS)
def test_browser_of_a_foreign_page_may_not(name: str, client: TestClient) -> None:
    headers = sent(client, name, origin="https://evil.example").headers
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_is_sniffed_and_each_has_its_own_id(name: str, client: TestClient) -> None:
    first, second = sent(client, name).headers, sent(client, name).headers
    assert first["x-content-type-options"] == "nosniff"
    assert re.fullmatch("[A-Za-z0-9-]{1,64}", first["x-request-id"])
    assert first["x-request-id"] != second["x-request-id"]


@pytest.mark.parametrize("name", [name for name in ANSWERS if name[0] == "4"])
def test_every_refusal_is_a_problem_that_names_its_request(name: str, client: TestClient) -> None:
    answer = sent(client, name, **{"x-request-id": "mine-1"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    problem = answer.json()
    assert {"type", "title", "status", "detail", "instance", "errors"} <= set(problem)
    assert problem["status"] == answer.status_code
    assert problem["instance"] == answer.headers["x-request-id"] == "mine-1"
    assert problem["type"].startswith("urn:fluoroscope:problem:")


@pytest.mark.parametrize("good", ["a", "A-9", "0" * 64])
def test_good_request_id_is_taken(good: str, client: TestClient) -> None:
    headers = sent(client, "200 of a run", **{"x-request-id": good}).headers
    assert headers["x-request-id"] == good


@pytest.mark.parametrize("bad", ["", "0" * 65, "a b", "a_b", "a\tb", "<script>", "é"])
def test_bad_request_id_is_replaced(bad: str, client: TestClient) -> None:
    answer = client.get("/v1/model", headers={b"x-request-id": bad.encode("latin-1")})
    assert answer.status_code == 200
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "https://localhost:8443", "http://127.0.0.1:3000", "http://[::1]:80"],
)
def test_pages_on_this_machine_are_let_in_on_any_port(origin: str, client: TestClient) -> None:
    headers = client.get("/v1/model", headers={"origin": origin}).headers
    assert headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://localhost.evil.example",
        "http://evil.example/localhost",
        "http://localhost:80.evil.example",
        "http://127.0.0.1.evil.example",
        "file://",
    ],
)
def test_pages_that_only_look_local_are_not(origin: str, client: TestClient) -> None:
    headers = client.get("/v1/model", headers={"origin": origin}).headers
    assert "access-control-allow-origin" not in headers


def test_origin_in_the_list_is_let_in_and_null_only_if_named(serve: Serve) -> None:
    client = serve(origins="https://viewer.example, null")
    for origin in ("https://viewer.example", "null", ORIGIN):
        headers = client.get("/v1/model", headers={"origin": origin}).headers
        assert headers["access-control-allow-origin"] == origin
    headers = client.get("/v1/model", headers={"origin": "https://other.example"}).headers
    assert "access-control-allow-origin" not in headers


def preflight(client: TestClient, **headers: str) -> Any:
    return client.options(
        "/v1/attention",
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,authorization,x-request-id",
            **headers,
        },
    )


def test_preflight_is_answered_and_kept_for_ten_minutes(client: TestClient) -> None:
    answer = preflight(client)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"content-type", "authorization", "x-request-id"} <= set(allowed.split(", "))
    assert answer.headers["access-control-max-age"] == "600"


def test_preflight_of_a_public_page_to_this_private_network_is_answered(
    client: TestClient,
) -> None:
    answer = preflight(client, **{"access-control-request-private-network": "true"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"


def test_preflight_of_a_foreign_page_is_refused(client: TestClient) -> None:
    answer = preflight(client, origin="https://evil.example")
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", ["200 of a run", "200 in bytes"])
def test_run_says_where_its_time_went_and_is_not_kept(name: str, client: TestClient) -> None:
    answer = sent(client, name)
    parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert list(parts) == ["queue", "tokenize", "forward", "encode"]
    assert all(float(value) >= 0 for value in parts.values())
    assert float(parts["forward"]) > 0
    assert answer.headers["cache-control"] == "no-store"
    assert {"accept", "accept-encoding", "origin"} <= {
        name.strip().lower() for name in answer.headers["vary"].split(",")
    }
    if name == "200 of a run":
        timing = answer.json()["timing_ms"]
        assert list(timing) == list(parts)
        assert timing["forward"] == pytest.approx(float(parts["forward"]), abs=1e-3)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_large_answer_is_written_while_it_is_sent_and_says_at_its_end_how_long_that_took(
    coding: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header is on its way before the numbers are written, so only the body can say it."""
    monkeypatch.setattr("service.inspection.AT_ONCE", 1 << 20)
    stages = ["dots", "scores", "masked_scores", "pattern"]
    ids = [n % 50 for n in range(64)]
    question = {"token_ids": ids, "stages": stages, "format": {"decimals": 8}}
    answer = client.post("/v1/attention", json=question, headers={"accept-encoding": coding})
    assert len(answer.content) > 1 << 20
    assert "encode" not in answer.headers["server-timing"]
    if coding == "identity":
        assert int(answer.headers["content-length"]) == len(answer.content)
    else:
        assert answer.headers["content-encoding"] == coding
    found = strict_json(answer.content)
    assert list(found)[-1] == "timing_ms"
    assert list(found["timing_ms"]) == ["queue", "tokenize", "forward", "encode"]
    assert 0 < found["timing_ms"]["encode"] < 60_000
    pattern = np.array(found["tensors"]["attn.pattern"]["data"])
    assert pattern.shape[-2:] == (64, 64)
    assert pattern.sum(-1) == pytest.approx(1, abs=1e-6)


def test_failure_of_ours_is_a_500_with_the_same_headers_and_a_trace_in_the_log_alone(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve()
    client.app.state.inspector.opened.model.forward = None  # type: ignore[attr-defined]
    answer = client.post(
        "/v1/attention",
        json={"text": "canary"},
        headers={"origin": ORIGIN, "x-request-id": "mine-2"},
    )
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem = answer.json()
    assert problem["instance"] == "mine-2"
    assert problem["detail"] == "the error is in the server's log under this request's id"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == ["request mine-2 failed"]
    assert errors[0].exc_info and "canary" not in caplog.text
