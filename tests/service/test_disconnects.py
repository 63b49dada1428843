"""Clients that hang up: their work stops, their place and their bytes are given back.

Over real sockets and through all middleware; the model stands at a gate, so that it is known
which request runs and which wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from model.checkpoints import native
from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import Tokenizer
from service.app import create_app
from service.settings import Settings
from tests.conftest import VOCABULARY
from tests.listening import listening
from tests.service.pressure import Contention, Gate, eventually, gated, idle, least
from tests.service.raw import Connection, ask, request

LAYERS = 12
PROMISE = 2.0  # seconds to the next answer
IDS = [n % 300 for n in range(64)]
GENERATION = {"token_ids": IDS[:8], "max_new_tokens": 50, "stop_ids": []}
# What is sent, and how many runs pass before the one in which the client leaves.
WAYS: dict[str, tuple[bytes, int]] = {
    "reading": (request("/v1/attention", {"token_ids": IDS}), 0),
    "both runs and every check": (
        request("/v1/logits", {"token_ids": IDS, "checks_level": "full", "compare": True}),
        1,
    ),
    "lab": (request("/v1/labs/order", {"token_ids": [IDS, IDS[::-1]]}), 3),
    "generation": (request("/v1/generate", GENERATION), 5),
    "stream": (request("/v1/generate", GENERATION, accept="text/event-stream"), 5),
}


@dataclass
class Server:
    url: str
    app: Any


@pytest.fixture
def server(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Server]:
    config = GPTConfig(n_layer=LAYERS, d_model=48, n_head=4, vocab_size=VOCABULARY, n_ctx=64)
    native.save(tmp_path / "model", GPT(config), tokenizer)
    app = create_app(Settings(model=str(tmp_path / "model"), wait_seconds=60))
    with listening(app) as url:
        yield Server(url, app)


async def leave_one_by_one(server: Server, gate: Gate, way: str, count: int) -> None:
    """Each is let into the first block, hangs up there, and only then may the model go on."""
    asked, passes = WAYS[way]
    drain = server.app.state.drain
    for _ in range(count):
        gate.entered.clear()
        gate.open.clear()
        gate.passes = passes
        client = await Connection.to(server.url)
        client.send(asked)
        assert await asyncio.to_thread(gate.entered.wait, 30)
        before = gate.blocks
        client.leave()
        assert await asyncio.to_thread(eventually, lambda: not drain.under_way)  # it has noticed
        gate.open.set()
        assert await asyncio.to_thread(eventually, lambda: idle(gate.inspector))
        assert gate.blocks - before <= 2


async def leave_in_the_queue(server: Server, gate: Gate, way: str) -> None:
    """One runs, the rest waits, and all of those hang up: none of them may run."""
    admission = gate.inspector.admission
    first = await Connection.to(server.url)
    first.send(WAYS["reading"][0])
    assert await asyncio.to_thread(gate.entered.wait, 30)
    waits = 4 if way in ("generation", "stream") else 16  # as many as are let in
    waiting = [await Connection.to(server.url) for _ in range(waits)]
    for client in waiting:
        client.send(WAYS[way][0])
    assert await asyncio.to_thread(eventually, lambda: admission.waiting == waits)
    for client in waiting:
        client.leave()
    assert await asyncio.to_thread(eventually, lambda: admission.waiting == 0)
    first.leave()
    runs = gate.runs
    gate.open.set()
    assert await asyncio.to_thread(eventually, lambda: idle(gate.inspector))
    assert gate.runs == runs


def next_answer(server: Server) -> float:
    others, start = Contention(), time.perf_counter()
    answer = asyncio.run(ask(server.url, WAYS["reading"][0]))
    assert answer.status == 200
    return time.perf_counter() - start - others.seconds()


@pytest.mark.parametrize("way", WAYS)
def test_run_of_a_client_that_left_ends_within_two_layers(way: str, server: Server) -> None:
    with gated(server.app) as gate:
        asyncio.run(leave_one_by_one(server, gate, way, 10))
        assert gate.runs >= 10
    assert least(3, lambda: next_answer(server), under=PROMISE) < PROMISE


@pytest.mark.parametrize("way", WAYS)
def test_clients_that_leave_the_queue_are_never_run(way: str, server: Server) -> None:
    with gated(server.app) as gate:
        asyncio.run(leave_in_the_queue(server, gate, way))
    assert least(3, lambda: next_answer(server), under=PROMISE) < PROMISE
    assert gate.inspector.fatal is None


def test_run_of_a_client_that_stays_goes_through_every_layer(server: Server) -> None:
    """What ends early above ends for the client's leaving alone."""
    with gated(server.app) as gate:
        gate.open.set()
        assert asyncio.run(ask(server.url, WAYS["reading"][0])).status == 200
        assert gate.blocks == LAYERS


MUCH = {
    "token_ids": IDS,
    "captures": [{"site": "attn.scores", "name": f"n{n}"} for n in range(25)],
}


async def ask_for_much_and_read_nothing(server: Server) -> Connection:
    """Back once the answer is made and lies there."""
    admission = server.app.state.inspector.admission
    client = await Connection.to(server.url)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(request("/v1/inspect", MUCH))
    assert await asyncio.to_thread(eventually, lambda: admission.bytes_in_flight > 0)
    assert await asyncio.to_thread(eventually, lambda: not admission.running)
    return client


def test_answer_that_nobody_reads_is_given_up_when_its_client_leaves(server: Server) -> None:
    """A client that asks for much, reads nothing and hangs up: its bytes are given back."""

    async def leave() -> None:
        client = await ask_for_much_and_read_nothing(server)
        assert server.app.state.inspector.admission.bytes_in_flight > 0
        client.leave()

    asyncio.run(leave())
    assert eventually(lambda: idle(server.app.state.inspector))
    assert least(3, lambda: next_answer(server), under=PROMISE) < PROMISE


def test_client_that_stays_and_reads_nothing_does_not_hold_its_bytes_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.wire.body.STALLED_SECONDS", 0.3)

    async def stay() -> None:
        client = await ask_for_much_and_read_nothing(server)
        given_back = await asyncio.to_thread(eventually, lambda: idle(server.app.state.inspector))
        client.leave()
        assert given_back

    asyncio.run(stay())


def test_client_that_reads_slowly_gets_its_whole_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the limit as a whole, but never so long over one piece."""
    monkeypatch.setattr("service.wire.body.STALLED_SECONDS", 1.5)
    took: list[float] = []

    async def read_slowly() -> int:
        start = time.monotonic()
        client = await ask_for_much_and_read_nothing(server)
        for _ in range(8):  # a little at a time: what is read makes room for more
            await asyncio.sleep(0.25)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await client.answer()
        took.append(time.monotonic() - start)
        client.leave()
        return answer.status

    assert asyncio.run(read_slowly()) == 200
    assert took[0] > 1.5
