"""The log: one line a request, as text or JSON, each with the request's id and nothing it said."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
import re
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from service.logs import REQUEST_ID, JsonForm, TextForm, WithRequestId, log_config
from tests.conftest import Serve

CANARY = "canary-猫-7421"


class Log:
    """What a server would write to stderr, caught."""

    def __init__(self, form: Literal["text", "json"], level: str = "info") -> None:
        made: Any = log_config(form, level)["formatters"]["line"]["()"]()
        self._text = io.StringIO()
        handler = logging.StreamHandler(self._text)
        handler.setFormatter(made)
        handler.addFilter(WithRequestId())
        self.handler = handler

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture(params=["text", "json"])
def either(request: pytest.FixtureRequest) -> Iterator[Log]:
    yield from attached(Log(request.param))


@pytest.fixture
def as_json() -> Iterator[Log]:
    yield from attached(Log("json"))


@pytest.fixture
def as_text() -> Iterator[Log]:
    yield from attached(Log("text"))


def attached(log: Log) -> Iterator[Log]:
    root, ours = logging.getLogger(), logging.getLogger("fluoroscope")
    level = ours.level
    root.addHandler(log.handler)
    ours.setLevel(logging.INFO)
    yield log
    ours.setLevel(level)
    root.removeHandler(log.handler)


def test_each_request_is_one_line_with_all_that_is_known_of_it(serve: Serve, as_json: Log) -> None:
    client = serve()
    answer = client.post("/v1/attention", json={"text": "a"}, headers={"x-request-id": "mine-1"})
    client.get("/v1/model/parameters/embed.weight?rows=0:2")
    client.get("/no/such/place")
    first, second, third = [
        line for line in as_json.lines if line["logger"] == "fluoroscope.access"
    ]
    milliseconds = first.pop("milliseconds")
    assert 0 < milliseconds < 60_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}\+00:00", first.pop("time"))
    assert first.pop("message").startswith("POST /v1/attention 200 in ")
    assert first == {
        "level": "info",
        "logger": "fluoroscope.access",
        "request_id": "mine-1",
        "method": "POST",
        "route": "/v1/attention",
        "status": 200,
        "bytes": len(answer.content),
    }
    assert second["route"] == "/v1/model/parameters/{name}"
    assert (third["route"], third["status"], third["problem"]) == ("none", 404, "not-found")
    assert "rows" not in as_json.text and "place" not in as_json.text


def test_text_line_reads_like_a_sentence(serve: Serve, as_text: Log) -> None:
    serve().get("/v1/model", headers={"x-request-id": "mine-2"})
    line = as_text.text.splitlines()[-1]
    assert re.fullmatch(
        r"[-\d]{10} [:\d]{8},\d{3} INFO fluoroscope\.access \[mine-2\] "
        r"GET /v1/model 200 in \d+\.\d ms, \d+ bytes",
        line,
    )


def test_nothing_that_a_request_said_is_in_the_log(serve: Serve, either: Log) -> None:
    client = serve()
    for body in (
        {"text": CANARY},
        {"text": CANARY, "layers": [99]},
        {"text": CANARY, CANARY: 1},
        {"text": CANARY * 10_000},
    ):
        client.post(f"/v1/attention?text={CANARY}", json=body)
    client.post("/v1/attention", content=f'{{"text": "{CANARY}'.encode())
    client.get(f"/v1/{CANARY}")
    client.get("/v1/model", headers={"x-request-id": "a canary-7421", "host": "canary-7421"})
    assert "canary" not in either.text and "猫" not in either.text
    assert either.text.count("\n") >= 7


def test_fault_whose_words_quote_the_prompt_is_logged_without_them(
    serve: Serve, either: Log
) -> None:
    client = serve()
    model = client.app.state.inspector.opened.model  # type: ignore[attr-defined]

    def fail(*_: Any) -> None:
        try:
            raise KeyError(CANARY)
        except KeyError as cause:
            raise RuntimeError(f"no such token: {CANARY}") from cause

    model.blocks[0].register_forward_pre_hook(fail)
    answer = client.post("/v1/logits", json={"text": "a"}, headers={"x-request-id": "mine-3"})
    assert answer.status_code == 500
    assert "canary" not in either.text and "猫" not in either.text
    assert "request mine-3 failed" in either.text
    for word in ("Withheld: RuntimeError", "Withheld: KeyError", "in fail", "test_logs.py"):
        assert word in either.text


def formatted(form: logging.Formatter, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, "it %s", ("failed",), info)
    WithRequestId().filter(record)
    return form.format(record)


@pytest.mark.parametrize("form", [TextForm(), JsonForm()])
def test_error_of_any_library_is_written_without_its_words(form: logging.Formatter) -> None:
    try:
        int(CANARY)
    except ValueError as error:
        text = formatted(form, error)
    assert "Withheld: ValueError" in text and "test_logs.py" in text
    assert "canary" not in text and "invalid literal" not in text


def test_record_outside_of_a_request_has_no_id() -> None:
    assert formatted(TextForm()).endswith("ERROR asyncio it failed")
    assert "request_id" not in json.loads(formatted(JsonForm()))


def test_every_record_made_for_a_request_has_its_id_on_all_threads(
    serve: Serve, as_json: Log
) -> None:
    client = serve()
    log = logging.getLogger("fluoroscope")
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    inspector.opened.model.register_forward_pre_hook(lambda *_: log.info("on the device"))

    async def ask() -> None:
        REQUEST_ID.set("mine-4")
        await inspector.off_loop(log.info, "on a codec thread")

    client.portal.call(ask)  # type: ignore[union-attr]
    client.post("/v1/logits", json={"text": "a"}, headers={"x-request-id": "mine-5"})
    found = {line["message"]: line.get("request_id") for line in as_json.lines}
    assert found["on a codec thread"] == "mine-4"
    assert found["on the device"] == "mine-5"
    assert REQUEST_ID.get() == ""


def test_requests_at_once_keep_their_ids_apart() -> None:
    async def one(name: str) -> str:
        REQUEST_ID.set(name)
        await asyncio.sleep(0)
        return REQUEST_ID.get()

    async def both() -> list[str]:
        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(both()) == ["a", "b"]


def test_config_is_one_that_logging_takes_and_its_level_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a copy of logging's own world, so that nothing of it stays."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    root = logging.RootLogger(logging.WARNING)
    manager = logging.Manager(root)
    monkeypatch.setattr(logging, "root", root)
    monkeypatch.setattr(logging.Logger, "root", root)
    monkeypatch.setattr(logging.Logger, "manager", manager)
    logging.config.dictConfig(log_config("json", "warning"))
    for name in ("fluoroscope.access", "uvicorn.error", "somebody"):
        logging.getLogger(name).info("too quiet")
        logging.getLogger(name).warning("heard")
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("fluoroscope.access", "heard"),
        ("uvicorn.error", "heard"),
        ("somebody", "heard"),
    ]
