"""The response that sends a body in parts: all of it, or as much as its client takes."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import AsyncExitStack

import numpy as np
import pytest
import zstandard
from starlette.types import Message

from service.wire.body import ChunkedBody
from service.wire.decimals import Nested
from service.wire.negotiation import JSON, Coding
from service.wire.parts import Chunk, Written
from service.wire.tensors import Base64
from tests.service.asgi import never

PARTS = [b"[" + b"1," * 200_000, b"2," * 200_000 + b"3]"]  # 800 KB


def body_of(coding: Coding) -> tuple[ChunkedBody, list[str]]:
    """The response, and what it let go of."""
    body = ChunkedBody(list(PARTS), JSON, coding)
    let_go: list[str] = []
    held = AsyncExitStack()
    held.callback(let_go.append, "let go")
    body.when_sent(held)
    return body, let_go


@pytest.mark.parametrize("coding", ["identity", "zstd"])
def test_all_parts_are_sent_and_then_let_go_of(coding: Coding) -> None:
    async def scenario() -> None:
        body, let_go = body_of(coding)
        sent: list[Message] = []

        async def send(message: Message) -> None:
            assert not let_go
            sent.append(message)

        await body({}, never, send)
        whole = b"".join(message["body"] for message in sent[1:])
        if coding == "zstd":
            whole = zstandard.ZstdDecompressor().decompressobj().decompress(whole)
        assert whole == b"".join(PARTS)
        assert [message["more_body"] for message in sent[1:]][-2:] == [True, False]
        assert let_go == ["let go"]

    asyncio.run(scenario())


@pytest.mark.parametrize("coding", ["identity", "zstd"])
@pytest.mark.parametrize("stuck_at", ["first", "end"])
def test_client_that_takes_nothing_is_given_up(
    stuck_at: str, coding: Coding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.wire.body.STALLED_SECONDS", 0.05)

    async def scenario() -> None:
        body, let_go = body_of(coding)
        taken: list[Message] = []

        async def send(message: Message) -> None:
            ends = not message.get("more_body", True)
            if (stuck_at == "end" and ends) or (stuck_at == "first" and "body" in message):
                await asyncio.Event().wait()
            taken.append(message)

        await asyncio.wait_for(body({}, never, send), 10)
        assert let_go == ["let go"]
        assert all(message.get("more_body", True) for message in taken)  # cut, and it shows

    asyncio.run(scenario())


class Counted:
    """40 MB that do not compress, in pieces of 1 MB, which counts those that were asked for."""

    n_bytes = 40 << 20

    def __init__(self) -> None:
        self.made = 0
        self._random = np.random.default_rng(0)

    def pieces(self) -> Iterator[Chunk]:
        for _ in range(40):
            self.made += 1
            yield self._random.bytes(1 << 20)


@pytest.mark.parametrize("coding", ["identity", "zstd"])
def test_what_a_client_that_left_would_not_get_is_not_written(coding: Coding) -> None:
    """The server says that it left, and from then on takes every piece and drops it."""

    async def scenario(*, leaves: bool) -> tuple[int, list[Message], list[str]]:
        text, let_go = Counted(), list[str]()
        body = ChunkedBody([b"[", text, b"]"], JSON, coding)
        held = AsyncExitStack()
        held.callback(let_go.append, "let go")
        body.when_sent(held)
        left = asyncio.Event()
        taken: list[Message] = []

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            taken.append(message)
            if leaves and len(taken) == 3:
                left.set()
            await asyncio.sleep(0)

        await asyncio.wait_for(body({}, receive, send), 30)
        return text.made, taken, let_go

    made, taken, let_go = asyncio.run(scenario(leaves=True))
    assert made <= 8
    assert all(message.get("more_body", True) for message in taken)
    assert let_go == ["let go"]
    made, taken, _ = asyncio.run(scenario(leaves=False))
    assert made == 40
    assert not taken[-1]["more_body"]


@pytest.mark.parametrize("coding", ["identity", "zstd"])
@pytest.mark.parametrize("form", ["nested", "base64"])
def test_text_is_never_held_as_a_whole(form: str, coding: Coding) -> None:
    """Text of 12 to 17 MB, half of it at most in memory at any time: turns of 2 MiB and the pieces
    that are begun. Without the collector, so that nothing hangs on in a cycle unnoticed."""
    values = np.random.default_rng(0).random((8, 512, 512), dtype=np.float32)
    written: Written = Nested(values, 4, weights=True) if form == "nested" else Base64(values)
    assert written.n_bytes > 11_000_000
    body = ChunkedBody([written], JSON, coding)
    length = 0

    async def send(message: Message) -> None:
        nonlocal length
        length += len(message.get("body", b""))
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        asyncio.run(body({}, never, send))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert length == written.n_bytes or coding == "zstd"
    assert peak - before < written.n_bytes / 2
