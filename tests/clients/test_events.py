"""Server-Sent Events cut anywhere, against the standard's own examples."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from fluoroscope_client.events import Events
from hypothesis import given
from hypothesis import strategies as st


def read(*chunks: bytes) -> list[tuple[str, str]]:
    events = Events()
    return [event for chunk in chunks for event in events.feed(chunk)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # https://html.spec.whatwg.org/multipage/server-sent-events.html, its examples
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("message", "YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n"
            b"data:  third event\n\n",
            [("message", "first event"), ("message", "second event"), ("message", " third event")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [("message", ""), ("message", "\n")]),
        (b"event: add\ndata: 1\n\nevent: x\n\ndata: 2\n\n", [("add", "1"), ("message", "2")]),
        (b"event: step\r\ndata: {}\r\n\r\n", [("step", "{}")]),
        (b"event: step\rdata: {}\r\rdata: 2\r\r\n", [("step", "{}"), ("message", "2")]),
        (b": ping\n\n: ping\n\n", []),
        (b"event: done\ndata: {}\n", []),  # cut before its empty line: no event
    ],
)
def test_stream_is_read_as_the_standard_says(body: bytes, expected: list[tuple[str, str]]) -> None:
    assert read(body) == expected
    assert read(*(bytes([byte]) for byte in body)) == expected


@given(
    st.lists(st.tuples(st.sampled_from(["step", "done"]), st.text()), max_size=5),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_events_are_whole_wherever_the_bytes_are_cut(
    sent: list[tuple[str, str]], cuts: list[int]
) -> None:
    """Any text at all, also of line separators that are none in this format."""
    said = [(name, json.dumps({"text": text}, ensure_ascii=False)) for name, text in sent]
    body = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in said).encode()
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    chunks = [body[start:stop] for start, stop in pairwise(edges)]
    assert read(*chunks) == said


def test_line_separator_inside_a_text_ends_no_line() -> None:
    data = '{"text":"\u2028\u2029\x85\x0b"}'
    assert read(f"data: {data}\n\n".encode()) == [("message", data)]


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        read(b"data: \xff\n\n")
