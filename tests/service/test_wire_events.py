"""The response that sends events: as they come, with comments in silence, closed at every end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import pytest
from starlette.types import Message

from service.wire.events import PING, EventStream, event_text
from tests.service.asgi import gone, never


class Source:
    """Events that come when `more` says so; it notes that it was closed."""

    def __init__(self, *events: bytes) -> None:
        self.closed = False
        self.asked = 0
        self.more = asyncio.Event()
        self._events = events

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for event in self._events:
                self.asked += 1
                await self.more.wait()
                yield event
        finally:
            self.closed = True


def stream_of(source: Source, **given: Any) -> tuple[EventStream, list[str]]:
    """The response, and what it let go of."""
    stream = EventStream(source.events(), **{"patience": 5.0, **given})
    let_go: list[str] = []
    held = AsyncExitStack()
    held.callback(let_go.append, "let go")
    stream.when_sent(held)
    return stream, let_go


def test_event_is_two_lines_and_an_empty_one() -> None:
    assert event_text("step", b'{"a":1}') == b'event: step\ndata: {"a":1}\n\n'


def test_events_are_sent_in_order_then_the_end() -> None:
    async def scenario() -> None:
        source = Source(b"one", b"two")
        source.more.set()
        stream, let_go = stream_of(source)
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await stream({}, never, send)
        assert sent[0]["status"] == 200
        assert [message["body"] for message in sent[1:]] == [b"one", b"two", b""]
        assert [message["more_body"] for message in sent[1:]] == [True, True, False]
        assert b"content-length" not in dict(sent[0]["headers"])
        assert source.closed and let_go == ["let go"]

    asyncio.run(scenario())


def test_comments_are_sent_while_there_is_no_event() -> None:
    async def scenario() -> None:
        source = Source(b"one")
        stream, _ = stream_of(source, ping_seconds=0.001)
        bodies: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                bodies.append(message["body"])
            if bodies.count(PING) == 3:
                source.more.set()

        await asyncio.wait_for(stream({}, never, send), 10)
        assert bodies[:3] == [PING] * 3
        assert bodies[-2:] == [b"one", b""]
        assert source.asked == 1  # the pings did not ask again, nor lose what was coming

    asyncio.run(scenario())


def test_event_is_not_asked_for_before_the_one_before_it_is_taken() -> None:
    async def scenario() -> None:
        source = Source(b"one", b"two")
        source.more.set()
        stream, _ = stream_of(source)
        taken = asyncio.Event()

        async def send(message: Message) -> None:
            if message.get("body") == b"one":
                await taken.wait()

        running = asyncio.ensure_future(stream({}, never, send))
        for _ in range(20):
            await asyncio.sleep(0)
        assert source.asked == 1
        taken.set()
        await running
        assert source.asked == 2

    asyncio.run(scenario())


def test_client_that_leaves_closes_the_events() -> None:
    async def scenario() -> None:
        source = Source(b"one")
        stream, let_go = stream_of(source)

        async def send(message: Message) -> None:
            assert message["type"] == "http.response.start"

        await asyncio.wait_for(stream({}, gone, send), 10)
        assert source.closed and let_go == ["let go"]

    asyncio.run(scenario())


@pytest.mark.parametrize("piece", [None, b"one", b""], ids=["the head", "an event", "the end"])
def test_client_that_takes_nothing_is_given_up(piece: bytes | None) -> None:
    async def scenario() -> None:
        source = Source(b"one", b"two")
        source.more.set()
        stream, let_go = stream_of(source, patience=0.01)
        taken: list[Message] = []

        async def send(message: Message) -> None:
            if message.get("body") == piece:
                await asyncio.Event().wait()
            taken.append(message)

        await asyncio.wait_for(stream({}, never, send), 10)
        assert let_go == ["let go"] and source.asked == {None: 0, b"one": 1, b"": 2}[piece]
        assert source.closed is (source.asked > 0)
        assert all(message.get("more_body", True) for message in taken)  # cut, and it shows

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["leaves", "takes nothing", "breaks off"])
def test_client_that_goes_while_a_comment_is_sent_closes_the_events(end: str) -> None:
    """The next event is being made meanwhile: it is ended first, and nothing stays held."""

    async def scenario() -> None:
        source = Source(b"one")
        patience = 0.01 if end == "takes nothing" else 5.0
        stream, let_go = stream_of(source, ping_seconds=0.001, patience=patience)
        pinged = asyncio.Event()

        async def send(message: Message) -> None:
            if message.get("body") == PING:
                pinged.set()
                if end == "breaks off":
                    raise OSError("the connection is gone")
                await asyncio.Event().wait()

        async def leaves() -> Message:
            await pinged.wait()
            return await gone()

        receive = leaves if end == "leaves" else never
        with pytest.raises(OSError, match="gone") if end == "breaks off" else nullcontext():
            await asyncio.wait_for(stream({}, receive, send), 10)
        assert source.closed and let_go == ["let go"]

    asyncio.run(scenario())


def test_connection_that_breaks_closes_the_events_and_is_said() -> None:
    async def scenario() -> None:
        source = Source(b"one")
        source.more.set()
        stream, let_go = stream_of(source)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the connection is gone")

        with pytest.raises(OSError, match="gone"):
            await stream({}, never, send)
        assert source.closed and let_go == ["let go"]

    asyncio.run(scenario())


def test_server_that_cancels_it_closes_the_events() -> None:
    async def scenario() -> None:
        source = Source(b"one")
        stream, let_go = stream_of(source)

        async def send(message: Message) -> None:
            pass

        running = asyncio.ensure_future(stream({}, never, send))
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert source.closed and let_go == ["let go"]

    asyncio.run(scenario())
