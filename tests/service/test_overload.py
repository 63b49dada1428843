"""More clients than may run and wait: the rest is refused at once, and everything is given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings
from tests.listening import listening
from tests.service.pressure import Contention, Gate, Stopwatch, eventually, gated, idle, least
from tests.service.raw import Answer, Connection, request

PROMISE = 0.1  # seconds
Folders = dict[str, Path]


async def storm(
    url: str, gate: Gate, asked: bytes, *, clients: int, refusals: int
) -> tuple[list[Answer], float]:
    """All clients at once; a hundred looks at health while the model stands still; then the gate
    opens. All answers, and the seconds that other processes took from the refusals."""
    crowd = [await Connection.to(url) for _ in range(clients)]
    others = Contention()
    for client in crowd:
        client.send(asked)
    answering = [asyncio.create_task(client.answer()) for client in crowd]
    refused = asyncio.as_completed(answering)
    for _ in range(refusals):
        assert (await next(refused)).status == 429
    taken = others.seconds()
    looking = await Connection.to(url)
    for _ in range(100):
        assert (await looking.ask(request("/health/live"))).status == 200
    assert (await looking.ask(request("/health/ready"))).status == 200  # busy is ready
    gate.open.set()
    answers = await asyncio.gather(*answering)
    for client in [*crowd, looking]:
        client.leave()
    return answers, taken


@pytest.mark.parametrize("path", ["/v1/attention", "/v1/labs/block"])
def test_of_64_clients_17_are_served_and_47_are_told_at_once_to_come_back(
    path: str, folders: Folders
) -> None:
    found: list[tuple[float, float, float]] = []

    def slowest() -> float:
        app = create_app(Settings(model=str(folders["course"]), waiting=16, wait_seconds=60))
        watch = Stopwatch(app)
        with listening(watch) as url, gated(app) as gate:
            asked = request(path, {"text": "a"})
            answers, taken = asyncio.run(storm(url, gate, asked, clients=64, refusals=47))
            assert Counter(answer.status for answer in answers) == {200: 17, 429: 47}
            for answer in answers:
                if answer.status == 429:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json["type"].endswith(":too-busy")
                    assert int(answer.headers["retry-after"]) >= 1
            assert eventually(lambda: idle(gate.inspector))
        refused, live = watch.seconds(path, 429)[-1], watch.seconds("/health/live", 200)[98]
        found.append((refused, taken, live))
        return max(refused - taken, live)

    assert least(3, slowest, under=PROMISE) < PROMISE, found


def test_queue_is_as_long_as_it_is_set_to_be(folders: Folders) -> None:
    app = create_app(Settings(model=str(folders["course"]), waiting=3, wait_seconds=60))
    with listening(app) as url, gated(app) as gate:
        asked = request("/v1/attention", {"text": "a"})
        answers, _ = asyncio.run(storm(url, gate, asked, clients=12, refusals=8))
    assert Counter(answer.status for answer in answers) == {200: 4, 429: 8}


@pytest.mark.parametrize(
    ("path", "more", "full"),
    [
        ("/v1/attention", {}, {"waiting": 0}),
        ("/v1/inspect", {"captures": [{"site": "embed"}]}, {"waiting": 0}),
        ("/v1/labs/block", {}, {"waiting": 0}),
        ("/v1/sample", {"settings": [{}]}, {"waiting": 0}),
        ("/v1/generate", {}, {"waiting": 0}),
        ("/v1/generate", {}, {"generations": 1}),
    ],
)
def test_refused_request_is_not_even_tokenized(
    path: str, more: dict[str, Any], full: dict[str, int], folders: Folders
) -> None:
    app = create_app(Settings.model_validate({"model": str(folders["course"]), **full}))
    first = request("/v1/generate", {"text": "first", "max_new_tokens": 1})
    with listening(app) as url, gated(app) as gate:
        tokenizer = gate.inspector.opened.tokenizer
        read, texts = tokenizer.read, []

        def noting(text: str, **given: Any) -> Any:
            texts.append(text)
            return read(text, **given)

        tokenizer.read = noting

        async def ask() -> tuple[int, int]:
            one, other = await Connection.to(url), await Connection.to(url)
            one.send(first)
            assert await asyncio.to_thread(gate.entered.wait, 30)
            refused = await other.ask(request(path, {"text": "second", **more}))
            gate.open.set()
            served = await one.answer()
            one.leave()
            other.leave()
            return served.status, refused.status

        assert asyncio.run(ask()) == (200, 429)
    assert texts == ["first"]


def test_lab_that_computes_with_torch_on_given_numbers_takes_its_turn_too(folders: Folders) -> None:
    app = create_app(Settings(model=str(folders["course"]), waiting=1, wait_seconds=60))
    lab = request("/v1/rope/rotate", {})
    with listening(app) as url, gated(app) as gate:

        async def ask() -> list[int]:
            run, *labs = [await Connection.to(url) for _ in range(3)]
            run.send(request("/v1/attention", {"text": "a"}))
            assert await asyncio.to_thread(gate.entered.wait, 30)
            for client in labs:
                client.send(lab)
            answering = [asyncio.create_task(client.answer()) for client in labs]
            done, _ = await asyncio.wait(answering, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().status for task in done] == [429]
            gate.open.set()
            statuses = [(await run.answer()).status, *[(await task).status for task in answering]]
            for client in (run, *labs):
                client.leave()
            return statuses

        assert sorted(asyncio.run(ask())) == [200, 200, 429]
