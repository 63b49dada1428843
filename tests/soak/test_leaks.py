"""Nothing leaks: thousands of mixed requests, a fifth of them hung up on, and what the process
holds in their second half. A server that does leak fails the same check."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.service.raw import Connection, request
from tests.soak.served import Served, Use, serving

MIB = 2**20
GROWTH = 20 * MIB  # of memory, in the second half
CLIENTS = 8
LOOKS = 100  # at what the process holds
SAFETENSORS = "application/vnd.safetensors"
IDS = [n % 300 for n in range(48)]
EDITS = [
    {"op": "zero", "site": "attn.z", "layers": [1], "heads": [0]},
    {"op": "patch", "site": "resid_pre", "layers": [1], "source": {"token_ids": IDS}},
]
MIXED = [
    request("/v1/attention", {"token_ids": IDS}),
    request("/v1/attention", {"text": "猫追老鼠，因为它饿了。"}, accept_encoding="zstd"),
    request("/v1/attention", {"token_ids": IDS, "format": {"encoding": "sparse"}}),
    request("/v1/logits", {"token_ids": IDS, "positions": "all", "top": 5}),
    request(
        "/v1/inspect",
        {"token_ids": IDS, "captures": [{"site": "resid_post"}], "edits": EDITS, "compare": True},
    ),
    request(
        "/v1/inspect",
        {"token_ids": IDS, "captures": [{"site": "attn.scores"}, {"site": "mlp.post"}]},
        accept=SAFETENSORS,
    ),
    request("/v1/generate", {"text": "a", "max_new_tokens": 6}),
    request("/v1/generate", {"text": "a", "max_new_tokens": 6}, accept="text/event-stream"),
    request("/v1/tokenize", {"text": "The cat sat. " * 200}),
    request("/v1/labs/block", {"text": "The cat"}),
    request("/v1/labs/attention", {}),
    request("/v1/attention", {"token_ids": IDS, "layers": [99]}),
    request("/v1/attention", b'{"text": '),
    request("/v1/model/parameters"),
    request("/metrics"),
]


async def load(served: Served, count: int) -> tuple[list[Use], Counter[int]]:
    """So many requests by a few clients, a fifth hung up on; what the process held meanwhile."""
    draw = random.Random(7)
    looks: list[Use] = []
    statuses: Counter[int] = Counter()
    left = iter(range(count))

    async def one() -> None:
        for number in left:
            client = await Connection.to(served.url)
            try:
                client.send(draw.choice(MIXED))
                if number % 5 == 0:
                    await asyncio.sleep(draw.random() * 0.02)
                    statuses[0] += 1
                else:
                    statuses[(await client.answer()).status] += 1
            finally:
                client.leave()
            if number % (count // LOOKS) == 0:
                looks.append(served.use())

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return looks, statuses


def faults(looks: list[Use]) -> list[str]:
    """What grew in the second half: memory over its bound, threads and descriptors at all."""
    half = len(looks) // 2
    early, late = looks[:half], looks[half:]
    found = []
    # Of three looks the least: what is kept is kept at each of them, what is in use is not.
    before = min(use.memory for use in late[:3])
    after = min(use.memory for use in late[-3:])
    if after - before > GROWTH:
        found.append(f"memory grew by {(after - before) / MIB:.0f} MiB")
    for kind in ("threads", "descriptors"):
        # One for each client may be open or not at the moment of the look.
        most = max(getattr(use, kind) for use in early) + CLIENTS
        if max(getattr(use, kind) for use in late) > most:
            found.append(f"{kind} grew past {most}")
    return found


def check(folder: Path, count: int, leak: int) -> list[str]:
    with serving(folder, leak=leak) as served:
        looks, statuses = asyncio.run(load(served, count))
    assert sum(statuses.values()) == count and statuses[0] == -(-count // 5)
    assert statuses[200] > count // 2 and statuses[422] and statuses[400]
    assert not [status for status in statuses if status >= 500]
    return faults(looks)


@pytest.mark.soak
def test_five_thousand_mixed_requests_leave_nothing_behind(folders: dict[str, Path]) -> None:
    assert check(folders["course"], 5000, leak=0) == []


@pytest.mark.soak
def test_server_that_leaks_20_kb_a_request_fails_the_same_check(folders: dict[str, Path]) -> None:
    assert check(folders["course"], 5000, leak=20_000) != []


@pytest.mark.parametrize(("leak", "leaks"), [(0, False), (400_000, True)], ids=["ours", "leaky"])
def test_few_hundred_mixed_requests(leak: int, leaks: bool, folders: dict[str, Path]) -> None:
    """The short form, with a leak that shows in it."""
    assert bool(check(folders["course"], 300, leak)) == leaks
