"""Prompts stay private: one is sent through everything that can become of a request, to a process
of its own at its most talkative, and is then looked for in all that the process said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.pressure import eventually
from tests.service.raw import Connection, ask, request
from tests.service.test_shutdown import Process

CANARY = "canary-5d10"
# As it may turn up: itself, in JSON's and Python's escapes, in hexadecimal, in base64's middle.
SPELLINGS = ("canary-5d10", CANARY.encode().hex(), "Y2FuYXJ5LTVkMT", "anary-5d1")
GOOD = {"text": CANARY}


@pytest.fixture
def process(folders: dict[str, Path]) -> Iterator[Process]:
    settings = {"log_format": "json", "log_level": "debug", "run_seconds": "2"}
    process = Process(folders["course"], **settings)
    try:
        assert eventually(lambda: process.status("/health/ready") == 200, 60), process.log
        yield process
    finally:
        process.close()


def told(said: str) -> list[str]:
    return [spelling for spelling in SPELLINGS if spelling in said]


def url_of(process: Process) -> str:
    return str(process.http.base_url)


def refusals(process: Process) -> list[str]:
    """The problems of requests that are refused in every way that a text can meet."""
    asked: list[bytes] = [
        request("/v1/attention", {**GOOD, "layers": [99]}),
        request("/v1/attention", {"text": CANARY * 100}),
        request("/v1/attention", {"text": CANARY * 10_000}),
        request("/v1/attention", {"text": [CANARY]}),
        request("/v1/attention", {**GOOD, "heads": CANARY}),
        request("/v1/attention", {**GOOD, "nonsense": CANARY}),
        request("/v1/attention", {"text": CANARY + "\ud800"}),
        request("/v1/attention", json.dumps(GOOD).encode()[:-1]),
        request("/v1/attention", GOOD, content_type=f"text/{CANARY}"[:5]),
        request(f"/v1/attention?text={CANARY}", {"text": 7}),
        request("/v1/generate", {**GOOD, "stop": [CANARY] * 20}),
        request("/v1/generate", {**GOOD, "max_new_tokens": 10**6}),
        request("/v1/inspect", {**GOOD, "captures": [{"site": "pos_embed"}]}),
        request("/v1/labs/order", {"texts": [CANARY, CANARY + "b"]}),
        request("/v1/labs/block", {**GOOD, "layer": 99}),
        request("/v1/detokenize", {**GOOD}),
    ]
    problems = []
    for one in asked:
        answer = asyncio.run(ask(url_of(process), one))
        assert 400 <= answer.status < 500, (one, answer)
        problems.append(answer.body.decode())
    return problems


async def abort(process: Process) -> None:
    """Three ways to hang up: while it runs, while it streams, with the body half sent."""
    running, streaming, sending = [await Connection.to(url_of(process)) for _ in range(3)]
    running.send(request("/v1/logits", GOOD))
    streaming.send(request("/v1/generate", GOOD, accept="text/event-stream"))
    sending.send(request("/v1/attention", GOOD)[:-3])

    async def becomes(name: str, value: int) -> bool:
        return await asyncio.to_thread(
            eventually, lambda: process.gauge(f"fluoroscope_{name}") == value
        )

    assert await becomes("running", 1) and await becomes("waiting", 1)
    for client in (running, streaming, sending):
        client.leave()
    assert await becomes("waiting", 0)
    process.order("pass")
    assert await becomes("running", 0)


def late(process: Process) -> str:
    """A run past its deadline."""
    answer = asyncio.run(ask(url_of(process), request("/v1/attention", GOOD)))
    process.order("pass")
    assert answer.status == 503
    return answer.body.decode()


def test_prompt_is_in_no_log_metric_trace_or_problem(process: Process) -> None:
    url = url_of(process)
    for path in ("/v1/attention", "/v1/logits", "/v1/tokenize", "/v1/labs/block", "/v1/generate"):
        answer = asyncio.run(ask(url, request(path, GOOD)))
        assert answer.status == 200, answer
    answer = asyncio.run(ask(url, request("/v1/attention", GOOD)))
    assert told(answer.body.decode())  # where it belongs, it is found
    said = refusals(process)
    process.order("shut")
    asyncio.run(abort(process))
    said.append(late(process))
    said.append(process.http.get("/metrics").text)
    assert "fluoroscope_request_seconds" in said[-1]
    process.order("open", "lose")
    answer = asyncio.run(ask(url, request("/v1/attention", GOOD)))
    assert answer.status >= 500
    said.append(answer.body.decode())
    process.process.wait(30)
    log = "".join(process.log)
    assert "Traceback" in log and log.count("/v1/attention") > 10  # it was talkative indeed
    for text in [*said, log]:
        assert not told(text), text
