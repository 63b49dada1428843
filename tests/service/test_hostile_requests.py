"""Requests that no client of good will sends, over a socket: each is answered under 500, as a
problem that a browser's script may read, and the prompt is in none of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.app import create_app
from service.settings import Settings
from tests.answers import strict_json
from tests.listening import listening
from tests.service.pressure import gated
from tests.service.raw import Answer, Connection, ask, head, request

ORIGIN = "http://localhost:5173"
CANARY = "canary-91be"
PATH = "/v1/attention"
GOOD = {"text": CANARY}
JSON = json.dumps(GOOD).encode()
KEY = "a key that nobody guesses"
Folders = dict[str, Path]


@pytest.fixture(scope="module")
def url(folders: Folders) -> Iterator[str]:
    settings = Settings(
        model=str(folders["course"]),
        max_body_bytes=2000,
        body_seconds=0.3,
        max_text_bytes=1000,
        max_answer_bytes=100_000,
    )
    with listening(create_app(settings)) as url:
        yield url


def chunked(*parts: bytes, **headers: str) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    fields = {"content_type": "application/json", "origin": ORIGIN, **headers}
    return head(PATH, transfer_encoding="chunked", **fields) + framed


def post(body: object, path: str = PATH, **headers: str) -> bytes:
    return request(path, body, **{"origin": ORIGIN, **headers})


def text(value: str) -> dict[str, str]:
    return {"text": value}


ARRAY = b'{"text":"%s","edits":[{"op":"set","site":"embed","value":' % CANARY.encode()
CORPUS: dict[str, tuple[bytes, int, str]] = {
    "not JSON": (post(JSON[:-1]), 400, "not-json"),
    "not UTF-8": (post(JSON.replace(b"91", b"\xff\xfe")), 400, "not-json"),
    "arrays without an end": (post(b"[" * 1000 + JSON), 400, "not-json"),
    "NaN": (post(ARRAY + b"NaN}]}"), 422, "invalid-request"),
    "1e999": (post(ARRAY + b"1e999}]}"), 422, "invalid-request"),
    "huge integer": (post(ARRAY + b"1" + b"0" * 400 + b"}]}"), 422, "invalid-request"),
    "lone surrogate": (post(b'{"text":"canary-91be\\ud800"}'), 422, "invalid-text"),
    "duplicate keys": (post(b'{"text":"canary-91be","text":7}'), 422, "invalid-request"),
    "empty": (post(b""), 422, "invalid-request"),
    "unknown field": (post({**GOOD, "nonsense": CANARY}), 422, "invalid-request"),
    "a thousand unknown fields": (
        post({**GOOD, **{f"{n}": CANARY[:2] for n in range(150)}}),
        422,
        "invalid-request",
    ),
    "layer out of range": (post({**GOOD, "layers": [99]}), 422, "invalid-selection"),
    "text too long": (post(text(CANARY + "a" * 1000)), 422, "text-too-long"),
    "too many tokens": (post(text(CANARY * 40)), 422, "too-many-tokens"),
    "no tokens": (post({"text": ""}), 422, "no-tokens"),
    "an answer too large": (
        post({"token_ids": [1] * 64, "layers": "all"}),
        422,
        "answer-too-large",
    ),
    "another path": (post(GOOD, f"/v1/{CANARY}"), 404, "not-found"),
    "a path of dots": (post(GOOD, "/v1/../../etc/passwd"), 404, "not-found"),
    "a path of bytes": (post(GOOD, "/v1/%ff%00"), 404, "not-found"),
    "another method": (request(PATH, GOOD, method="DELETE", origin=ORIGIN), 405, ""),
    "a form that is not offered": (post(GOOD, accept="image/png"), 406, "not-acceptable"),
    "text": (post(JSON, content_type="text/plain"), 415, "unsupported-media-type"),
    "a form": (
        post(JSON, content_type="application/x-www-form-urlencoded"),
        415,
        "unsupported-media-type",
    ),
    "no content type": (post(JSON, content_type=""), 415, "unsupported-media-type"),
    "too large": (post(JSON + b" " * 2000), 413, "body-too-large"),
    "too large in chunks": (chunked(JSON, b" " * 1000, b" " * 1000), 413, "body-too-large"),
    "declared too large": (
        head(PATH, content_type="application/json", content_length="999999999", origin=ORIGIN),
        413,
        "body-too-large",
    ),
    "half-sent": (
        head(PATH, content_type="application/json", content_length="100", origin=ORIGIN) + JSON,
        408,
        "body-timeout",
    ),
    "half-sent in chunks": (chunked(JSON)[:-5], 408, "body-timeout"),
    "headers of 50 KB": (post(GOOD, x_padding="p" * 50_000), 431, "headers-too-large"),
    "another host": (post(GOOD, host="rebound.example"), 400, "host-not-allowed"),
    "no host at all": (
        post(GOOD).replace(b"host: localhost\r\n", b""),
        400,
        "host-not-allowed",
    ),
}


def is_a_problem(answer: Answer, status: int, slug: str) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    problem = strict_json(answer.body)
    assert problem["status"] == status and problem["type"].endswith(slug)
    assert problem["instance"] == answer.headers["x-request-id"]
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    said = answer.body + json.dumps(answer.headers).encode()
    assert CANARY.encode() not in said


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_request_is_a_problem_that_a_browser_may_read(name: str, url: str) -> None:
    sent, status, slug = CORPUS[name]
    is_a_problem(asyncio.run(ask(url, sent)), status, slug)


def test_the_same_request_in_good_will_is_answered(url: str) -> None:
    for sent in (post(GOOD), chunked(JSON[:5], JSON[5:])):
        answer = asyncio.run(ask(url, sent))
        assert answer.status == 200 and CANARY.encode() in answer.body
        assert answer.headers["access-control-allow-origin"] == ORIGIN


def test_refusal_for_a_key_carries_the_headers_of_cors(folders: Folders) -> None:
    with listening(create_app(Settings(model=str(folders["course"]), key=KEY))) as url:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "\xff\xfe"}):
            is_a_problem(asyncio.run(ask(url, post(GOOD, **headers))), 401, "key-required")
        right = post(GOOD, authorization=f"Bearer {KEY}")
        assert asyncio.run(ask(url, right)).status == 200


def test_refusals_under_load_and_past_the_deadline_carry_the_headers_of_cors(
    folders: Folders,
) -> None:
    app = create_app(Settings(model=str(folders["course"]), waiting=0, run_seconds=1))
    with listening(app) as url, gated(app) as gate:

        async def both() -> tuple[Answer, Answer]:
            first = await Connection.to(url)
            first.send(post(GOOD))
            assert await asyncio.to_thread(gate.entered.wait, 30)
            busy = await ask(url, post(GOOD))
            late = await first.answer()
            first.leave()
            return busy, late

        busy, late = asyncio.run(both())
        is_a_problem(busy, 429, "too-busy")
        is_a_problem(late, 503, "deadline-passed")


def test_failure_of_the_server_itself_is_a_problem_without_the_prompt(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(model=str(folders["course"])))
    with listening(app) as url:
        app.state.inspector.opened.model.blocks[1] = None  # no run gets through it
        is_a_problem(asyncio.run(ask(url, post(GOOD))), 500, "internal-error")
    assert "failed" in caplog.text and CANARY not in caplog.text


def test_many_half_sent_requests_leave_nothing_behind(url: str) -> None:
    sent = head(PATH, content_type="application/json", content_length="100") + JSON

    async def storm() -> list[Answer]:
        crowd = [await Connection.to(url) for _ in range(30)]
        for number, client in enumerate(crowd):
            client.send(sent)
            if number % 2:
                client.leave()
        answers = [await client.answer() for client in crowd[::2]]
        for client in crowd:
            client.leave()
        return answers

    assert {answer.status for answer in asyncio.run(storm())} == {408}
    assert asyncio.run(ask(url, post(GOOD))).status == 200
