"""Eight clients that ask for as much as they may, again and again: the process's peak stays under
what it held before, the budget, and a quarter of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.service.raw import Connection, request
from tests.soak.served import serving

MIB = 2**20
ANSWER, BUDGET = 24 * MIB, 96 * MIB
CLIENTS = 8
IDS = [n % 300 for n in range(64)]
ONE = 3 * 4 * 64 * 64 * 4  # bytes of one capture: layers, heads, queries, keys, float32


def asking(copies: int, **headers: str) -> bytes:
    captures = [{"site": "attn.scores", "name": f"n{n}"} for n in range(copies)]
    body: dict[str, Any] = {"token_ids": IDS, "captures": captures}
    if not headers:
        body["format"] = {"encoding": "base64"}
    return request("/v1/inspect", body, **headers)


# As many captures as just fit: as bytes their own size, as base64 7/3 of it with the text.
AT_THE_CAP = [
    asking(ANSWER // ONE, accept="application/vnd.safetensors"),
    asking(int(ANSWER / ONE * 3 / 7) - 1),
]


async def pull(url: str, seconds: float) -> Counter[int]:
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        client = await Connection.to(url)
        while time.monotonic() < end:
            answer = await client.ask(AT_THE_CAP[number % 2])
            statuses[answer.status] += 1
            if answer.status == 429:
                await asyncio.sleep(0.02)
        client.leave()

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return statuses


async def small(url: str) -> None:
    client = await Connection.to(url)
    for _ in range(5):
        assert (await client.ask(asking(1))).status == 200
    client.leave()


def grown(folder: Path, seconds: float, budget: int) -> int:
    """How much over what was held before the peak was. Before: after small requests alone, since a
    server keeps what larger ones have freed."""
    limits = {"max_answer_bytes": ANSWER, "max_in_flight_bytes": budget}
    with serving(folder, **limits) as served:
        asyncio.run(small(served.url))  # what is made once is there
        before = served.use().memory
        served.forget_peak()
        statuses = asyncio.run(pull(served.url, seconds))
        assert set(statuses) <= {200, 429} and statuses[200] > CLIENTS
        return served.peak() - before


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_eight_clients_at_the_cap_stay_within_the_budget(
    seconds: float, folders: dict[str, Path]
) -> None:
    assert grown(folders["course"], seconds, BUDGET) < 1.25 * BUDGET


@pytest.mark.soak
def test_clients_do_take_what_the_budget_gives(folders: dict[str, Path]) -> None:
    """The negative control: of a budget that lets all eight in, more is taken than of this one."""
    assert grown(folders["course"], 2, 8 * ANSWER) > ANSWER
