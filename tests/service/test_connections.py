"""What a socket may send before it is an HTTP request: within limits of size and time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request

from service import connection
from service.server import connection_class

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """A server of one small route, on the connections that `fluoroscope serve` takes."""
    app = FastAPI()

    @app.post("/")
    @app.get("/")
    async def hello(http: Request) -> int:
        return len(await http.body())

    config = uvicorn.Config(app, http=connection_class(), log_level="error", ws="none")
    server = uvicorn.Server(config)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield bound.getsockname()
        server.should_exit = True
        thread.join()


@pytest.fixture
def plug(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=20) as plug:
        yield plug


def rest(plug: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := plug.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def problem(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head and b"connection: close" in head
    return json.loads(body)


def test_whole_requests_are_answered_one_after_the_other(plug: socket.socket) -> None:
    for _ in range(2):
        plug.sendall(HEAD + b"\r\n")
        assert plug.recv(65536).endswith(b"\r\n\r\n0")
    plug.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n")
    plug.sendall(b"x" * 600_000)  # a body is not a head
    assert plug.recv(65536).endswith(b"\r\n\r\n600000")
    plug.sendall(HEAD + b"Connection: close\r\n\r\n")
    assert rest(plug).endswith(b"\r\n\r\n0")


def test_head_of_200_kb_is_the_apps_to_refuse(plug: socket.socket) -> None:
    plug.sendall(HEAD + b"X: " + b"x" * 200_000 + b"\r\n\r\n")
    assert plug.recv(65536).startswith(b"HTTP/1.1 200 ")


def taken(plug: socket.socket, line: bytes, at_most: int) -> int:
    """Bytes of lines without end that are sent before the server closes."""
    sent = 0
    try:
        while sent < at_most:
            plug.sendall(line * 10_000)
            sent += len(line) * 10_000
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


@pytest.mark.parametrize("line", [b"X: x\r\n", b"x"], ids=["many headers", "one header"])
def test_head_without_end_is_refused_before_it_fills_the_memory(
    line: bytes, plug: socket.socket
) -> None:
    plug.sendall(HEAD + (b"" if line.endswith(b"\n") else b"X: "))
    assert taken(plug, line, at_most=64 << 20) < 64 << 20
    # What was sent after the refusal may reset the connection before the refusal is read.
    if answer := rest(plug):
        assert problem(answer)["type"].endswith(":headers-too-large")


@pytest.mark.parametrize("line", [b"X: x\r\n", b"x"], ids=["many headers", "one header"])
def test_headers_behind_a_body_are_no_way_around_it(line: bytes, plug: socket.socket) -> None:
    plug.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    plug.sendall(b"2\r\n{}\r\n0\r\n" + (b"" if line.endswith(b"\n") else b"X: "))
    assert taken(plug, line, at_most=16 << 20) < 16 << 20
    if answer := rest(plug):
        assert problem(answer)["type"].endswith(":headers-too-large")


def test_chunked_body_of_any_size_and_a_few_headers_behind_it_are_read(
    plug: socket.socket,
) -> None:
    plug.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(6):
        plug.sendall(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
    plug.sendall(b"0\r\nX-Sum: 1\r\n\r\n" + HEAD + b"Connection: close\r\n\r\n")
    answers = rest(plug)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\n600000HTTP" in answers and answers.endswith(b"\r\n\r\n0")


def test_refusal_of_a_large_head_is_a_problem(plug: socket.socket) -> None:
    plug.sendall(HEAD + b"X: " + b"x" * (connection.HEAD_BYTES - 10))
    found = problem(rest(plug))
    assert found["status"] == 431 and found["type"].endswith(":headers-too-large")


@pytest.mark.parametrize("bytes_sent", [b"", HEAD, b"GE"])
def test_head_that_does_not_come_closes_the_connection(
    bytes_sent: bytes, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with socket.create_connection(address, timeout=20) as plug:
        plug.sendall(bytes_sent)
        assert rest(plug) == b""


def test_second_head_that_does_not_come_closes_the_connection_too(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with socket.create_connection(address, timeout=20) as plug:
        plug.sendall(HEAD + b"\r\n")
        assert plug.recv(65536).endswith(b"\r\n\r\n0")
        plug.sendall(HEAD)
        assert rest(plug) == b""


def test_head_in_pieces_in_time_is_answered(plug: socket.socket) -> None:
    for piece in (b"GET", b" / HTTP/1.1\r\nHo", b"st: localhost\r\n", b"\r\n"):
        plug.sendall(piece)
        time.sleep(0.01)
    assert plug.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_is_told_so_as_a_problem(noise: bytes, plug: socket.socket) -> None:
    plug.sendall(noise)
    found = problem(rest(plug))
    assert found["status"] == 400 and found["type"].endswith(":bad-request")
