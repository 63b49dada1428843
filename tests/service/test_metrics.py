"""/metrics: what is counted, under which labels, and that a stranger cannot make them many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Serve
from tests.service.asgi import Exchange, gone
from tests.service.test_health import Hanging, eventually

Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(client: TestClient) -> dict[Sample, float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: dict[Sample, float], name: str, **labels: str) -> float:
    return samples.get((f"fluoroscope_{name}", frozenset(labels.items())), 0.0)


def requests(samples: dict[Sample, float], method: str, route: str, status: str) -> float:
    return value(samples, "request_seconds_count", method=method, route=route, status=status)


def test_requests_are_counted_by_method_route_and_class_of_status(serve: Serve) -> None:
    client = serve()
    for _ in range(3):
        client.post("/v1/attention", json={"text": "a"})
    client.post("/v1/attention", json={"text": ""})
    client.get("/v1/attention")
    client.get("/v1/model/parameters/embed.weight")
    client.head("/v1/model/parameters/embed.weight")
    client.get("/docs")
    client.request("BREW", "/v1/model")
    samples = scrape(client)
    assert requests(samples, "POST", "/v1/attention", "2xx") == 3
    assert requests(samples, "POST", "/v1/attention", "4xx") == 1
    assert requests(samples, "GET", "/v1/attention", "4xx") == 1
    assert requests(samples, "GET", "/v1/model/parameters/{name}", "2xx") == 1
    assert requests(samples, "HEAD", "/v1/model/parameters/{name}", "2xx") == 1
    assert requests(samples, "GET", "/docs", "2xx") == 1
    assert requests(samples, "other", "/v1/model", "4xx") == 1
    total = sum(
        number for (name, _), number in samples.items() if name.endswith("request_seconds_count")
    )
    assert total == 9  # and the scrape is counted by the next one
    assert requests(scrape(client), "GET", "/metrics", "2xx") == 1


def test_a_thousand_random_paths_add_one_series(serve: Serve) -> None:
    client = serve()
    client.get("/v1/model")
    client.get("/metrics")  # the first scrape adds its own series
    before = set(scrape(client))
    for number in range(1000):
        client.get(f"/v1/{number:x}/canary-{number}")
    added = set(scrape(client)) - before
    labels = {
        series - {pair for pair in series if pair[0] == "le"}
        for name, series in added
        if "request_seconds" in name
    }
    assert labels == {frozenset({("method", "GET"), ("route", "none"), ("status", "4xx")})}
    reasons = {series for name, series in added if "rejections" in name}
    assert reasons == {frozenset({("reason", "not-found")})}
    assert "canary" not in client.get("/metrics").text


def test_stages_are_measured_once_for_each_run(serve: Serve) -> None:
    client = serve()
    timings = [
        client.post("/v1/attention", json={"text": text}).json()["timing_ms"]
        for text in ("a", "The cat chased the mouse.")
    ]
    samples = scrape(client)
    for stage in ("queue", "tokenize", "forward", "encode"):
        assert value(samples, "stage_seconds_count", stage=stage) == 2, stage
        told = sum(timing[stage] for timing in timings) / 1e3
        assert value(samples, "stage_seconds_sum", stage=stage) == pytest.approx(told, abs=1e-5)


def test_generation_put_together_at_its_end_is_encoded_once(serve: Serve) -> None:
    client = serve()
    answer = client.post(
        "/v1/generate",
        json={"text": "The cat", "max_new_tokens": 5, "stop_ids": []},
        headers={"accept": "application/vnd.safetensors"},
    )
    _, _, told = answer.headers["server-timing"].rpartition("encode;dur=")
    samples = scrape(client)
    assert value(samples, "stage_seconds_count", stage="encode") == 1
    took = value(samples, "stage_seconds_sum", stage="encode")
    assert took == pytest.approx(float(told) / 1e3, abs=1e-6) and took > 0
    assert value(samples, "stage_seconds_count", stage="forward") == 5


def test_large_answer_that_is_written_while_it_is_sent_is_measured_too(serve: Serve) -> None:
    client = serve(max_tokens=64)
    question = {"token_ids": list(range(64)), "stages": ["dots", "scores", "pattern"]}
    answer = client.post("/v1/attention", json=question)
    assert len(answer.content) > 1 << 18
    told = answer.json()["timing_ms"]["encode"] / 1e3
    samples = scrape(client)
    assert value(samples, "stage_seconds_count", stage="encode") == 1
    assert value(samples, "stage_seconds_sum", stage="encode") == pytest.approx(told, abs=1e-5)


@pytest.fixture
def held(serve: Serve) -> Iterator[tuple[TestClient, Hanging, list[threading.Thread]]]:
    client = serve(waiting=2)
    hanging = Hanging(client)
    threads = [
        threading.Thread(target=lambda: client.post("/v1/attention", json={"text": "a"}))
        for _ in range(3)
    ]
    yield client, hanging, threads
    hanging.go.set()
    for thread in threads:
        thread.join(10)


def test_gauges_show_what_runs_and_waits_and_refusals_their_reason(
    held: tuple[TestClient, Hanging, list[threading.Thread]],
) -> None:
    client, hanging, threads = held
    for thread in threads:
        thread.start()
    assert hanging.entered.wait(5)
    assert eventually(lambda: value(scrape(client), "waiting") == 2)
    samples = scrape(client)
    assert value(samples, "running") == 1
    one = value(samples, "in_flight_bytes") / 3
    assert one > 3 * 4 * 4  # of each: at least one weight of 3 layers and 4 heads
    assert client.post("/v1/attention", json={"text": "a"}).status_code == 429
    assert value(scrape(client), "rejections_total", reason="too-busy") == 1
    hanging.go.set()
    for thread in threads:
        thread.join(10)
    samples = scrape(client)
    for gauge in ("running", "waiting", "in_flight_bytes"):
        assert value(samples, gauge) == 0, gauge


def test_refusals_of_the_middleware_are_counted_by_reason_too(serve: Serve) -> None:
    client = serve(key="k")
    client.get("/v1/model")
    client.get("/v1/model", headers={"host": "evil.example"})
    answer = client.get("/metrics", headers={"authorization": "Bearer k"})
    assert 'fluoroscope_rejections_total{reason="key-required"} 1.0' in answer.text
    assert 'fluoroscope_rejections_total{reason="host-not-allowed"} 1.0' in answer.text


def test_metrics_need_the_key(serve: Serve) -> None:
    client = serve(key="k")
    assert client.get("/metrics").status_code == 401


def test_model_and_process_are_described(serve: Serve) -> None:
    client = serve("grouped")
    model: dict[str, Any] = client.get("/v1/model").json()
    samples = scrape(client)
    (info,) = [labels for name, labels in samples if name == "fluoroscope_model_info"]
    said = dict(info)
    assert said["id"] == "grouped" and said["device"] == "cpu"
    assert said["weights_sha256"] == model["weights_sha256"]
    names = {name for name, _ in samples}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= names


def test_two_apps_in_one_process_count_apart(serve: Serve) -> None:
    one, other = serve(), serve()
    one.get("/v1/model")
    assert requests(scrape(one), "GET", "/v1/model", "2xx") == 1
    assert requests(scrape(other), "GET", "/v1/model", "2xx") == 0


def test_client_that_left_is_no_success(serve: Serve) -> None:
    client = serve()
    exchange = Exchange(b'{"text":"a"}', after=gone)
    client.portal.call(exchange.run, client.app, "/v1/attention")  # type: ignore[union-attr]
    assert exchange.sent == []
    assert requests(scrape(client), "POST", "/v1/attention", "aborted") == 1
    assert requests(scrape(client), "POST", "/v1/attention", "2xx") == 0
