"""A generation read while it comes: scripted streams, broken ones, and a real server's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fluoroscope_client import (
    AnswerError,
    AsyncFluoroscope,
    ConnectError,
    Fluoroscope,
    FluoroscopeError,
    InvalidRequest,
    NotReady,
    Step,
    TooBusy,
    capture,
    edits,
)
from fluoroscope_client import client as sending

from tests.clients.test_refusals import Script, refusal

TEXT = "猫追老鼠，因为"
TIMING = {"queue": 0.0, "tokenize": 0.0, "forward": 1.0, "encode": 0.0}
META = {
    "model": {"id": "tiny"},
    "input": {"n_tokens": 2},
    "sampling": {"seed": 7},
    "cache": True,
    "room": 9,
}
PROMPT: dict[str, Any] = {
    "tokens": [{"id": 4, "display": "猫"}, {"id": 5, "display": ""}],
    "tensors": {},
    "checks": {"finite": True},
    "timing_ms": TIMING,
}
DONE = {"samples": [{"sample": 0, "text": "ab", "reason": "stop_id"}], "n_steps": 2}


def step(number: int, **changes: Any) -> dict[str, Any]:
    said = {
        "sample": 0,
        "step": number,
        "position": 2 + number,
        "token": {"id": 6, "display": "ab"[number]},
        "text": "ab"[number],
        "candidates": [{"id": 6, "probability": 0.25, "drawn": True}],
        "n_kept": 8,
        "top_k_cut": None,
        "top_p_cut": None,
        "entropy_nats": 1.5,
        "draw": 0.5,
        "tensors": {},
        "checks": None,
        "timing_ms": TIMING,
    }
    return {**said, **changes}


# The newest row of a map: query 2 of an input of three tokens, as the bytes of three floats.
ROW = {
    "name": "row",
    "site": "attn.pattern",
    "axes": ["query", "key"],
    "shape": [1, 3],
    "coords": {"query": [2]},
    "dtype": "float32",
    "encoding": "base64",
    "data": "AAAAPwAAgD4AAIA+",  # 0.5, 0.25, 0.25
}
EVENTS: list[tuple[str, Any]] = [
    ("meta", META),
    ("prompt", PROMPT),
    ("step", step(0)),
    ("step", step(1, tensors={"row": ROW})),
    ("done", {**DONE, "timing_ms": TIMING}),
]


def body(events: list[tuple[str, Any]]) -> bytes:
    lines = [f"event: {name}\ndata: {json.dumps(said)}\n\n" for name, said in events]
    return ": ping\n\n".join(lines).encode()


def stream(events: list[tuple[str, Any]] = EVENTS, **headers: str) -> httpx.Response:
    kind = {"content-type": "text/event-stream; charset=utf-8", **headers}
    return httpx.Response(200, content=body(events), headers=kind)


def client(answer: Any, **options: Any) -> Fluoroscope:
    script = answer if callable(answer) else Script(answer)
    return Fluoroscope(transport=httpx.MockTransport(script), **options)


def test_steps_come_one_by_one_and_all_else_around_them() -> None:
    script = Script(stream())
    generation = client(script).generate("猫")
    assert script.requests == []  # nothing is sent before the first step is wanted
    steps = iter(generation)
    first = next(steps)
    assert script.requests[0].headers["accept"] == "text/event-stream"
    assert generation.meta is not None and generation.meta["room"] == 9
    assert generation.prompt is not None and generation.prompt.token_ids == [4, 5]
    assert (generation.done, generation.samples) == (None, [])
    assert (first.text, first.candidates[0]["probability"], first.draw) == ("a", 0.25, 0.5)
    assert repr(first) == "Step 0.0: 'a' (0.250)"
    second = next(steps)
    row = second["row"]
    assert row.values.tolist() == [[0.5, 0.25, 0.25]]
    assert (row.labels("query"), row.labels("key")) == (["a"], ["猫", "·", "a"])
    assert row.sel(query=-1, key=-1).values == 0.25
    assert next(steps, None) is None
    assert generation.samples[0]["reason"] == "stop_id"
    with pytest.raises(RuntimeError, match="once"):
        next(iter(generation))


def test_tokens_not_asked_for_leave_indices() -> None:
    events = [EVENTS[0], ("prompt", {**PROMPT, "tokens": [4, 5]}), *EVENTS[2:]]
    generation = client(stream(events)).generate("猫", tokens="ids")
    *_, last = generation
    assert generation.prompt is not None and generation.prompt.token_ids == [4, 5]
    assert last["row"].labels("key") == ["0", "1", "2"]


def test_awaited_generation_is_the_same() -> None:
    async def ask() -> list[Step]:
        script = Script(refusal(429, **{"retry-after": "0"}), stream())
        async with AsyncFluoroscope(transport=httpx.MockTransport(script)) as scope:
            async with scope.generate("猫") as generation:
                steps = [step async for step in generation]
            assert generation.samples[0]["text"] == "ab"
            with pytest.raises(RuntimeError, match="once"):
                await anext(aiter(generation))
        return steps

    assert [one.text for one in asyncio.run(ask())] == ["a", "b"]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(sending, "time", SimpleNamespace(sleep=waits.append))
    return waits


def test_generation_refused_for_a_while_is_asked_again(slept: list[float]) -> None:
    script = Script(refusal(429, **{"retry-after": "2"}), stream())
    assert [one.text for one in client(script).generate("猫")] == ["a", "b"]
    assert slept == [2.0]
    with pytest.raises(TooBusy):
        list(client(refusal(429, **{"retry-after": "2"}), retries=0).generate("猫"))
    with pytest.raises(InvalidRequest, match="at most 64"):
        list(client(refusal(422)).generate("猫"))


PROBLEM = {
    "type": "urn:fluoroscope:problem:shutting-down",
    "title": "The server is shutting down",
    "status": 503,
    "detail": "ask again",
    "instance": "r1",
}


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        ([*EVENTS[:3], ("error", PROBLEM)], NotReady, "shutting down: ask again"),
        (EVENTS[:3], ConnectError, "cut before its end"),
        ([*EVENTS[:2], ("step", {"sample": 0})], AnswerError, "step of the answer lacks a part"),
        ([("meta", {})], AnswerError, "meta of the answer lacks a part"),
        ([("meta", [])], AnswerError, "not an object"),
        ([*EVENTS[:2], ("step", step(0, tensors=7))], AnswerError, "nothing of its tensors"),
        (
            [*EVENTS[:2], ("step", step(0, tensors={"row": {**ROW, "shape": [1, 4]}}))],
            AnswerError,
            "no array of its shape",
        ),
        (
            [*EVENTS[:2], ("step", step(0, tensors={"row": {**ROW, "data": "AAAA?"}}))],
            AnswerError,
            "no array of its shape",
        ),
    ],
)
def test_stream_that_breaks_says_how(
    events: list[tuple[str, Any]], kind: type[FluoroscopeError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        list(client(stream(events)).generate("猫"))


def test_answer_that_is_no_stream_is_refused() -> None:
    with pytest.raises(AnswerError, match="application/json, not text/event-stream"):
        list(client(httpx.Response(200, json={})).generate("猫"))
    bytes_of_another = httpx.Response(
        200, content=b"data: \xff\n\n", headers={"content-type": "text/event-stream"}
    )
    with pytest.raises(AnswerError, match="UTF-8"):
        list(client(bytes_of_another).generate("猫"))


def test_events_of_a_newer_server_do_no_harm() -> None:
    events = [*EVENTS[:3], ("weather", {"fine": True}), *EVENTS[3:]]
    assert len(list(client(stream(events)).generate("猫"))) == 2


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Two steps, and then the connection breaks, or waits for ever to be closed."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.closed = error, 0

    def __iter__(self) -> Iterator[bytes]:
        yield body(EVENTS[:4])
        if self.error is not None:
            raise self.error
        raise AssertionError("more was read than was wanted")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def answering(cut: Cut) -> httpx.MockTransport:
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(200, stream=cut, headers=headers))


def test_connection_that_breaks_midway_is_the_clients_own_exception() -> None:
    cause = httpx.ReadError("cut off")
    for ask in (
        lambda: list(Fluoroscope(transport=answering(Cut(cause))).generate("猫")),
        lambda: asyncio.run(all_of(AsyncFluoroscope(transport=answering(Cut(cause))))),
    ):
        with pytest.raises(ConnectError, match="cut off") as caught:
            ask()
        assert caught.value.__cause__ is cause


async def all_of(scope: AsyncFluoroscope) -> list[Step]:
    return [step async for step in scope.generate("猫")]


def test_leaving_closes_the_answer() -> None:
    cut = Cut(None)
    for _ in Fluoroscope(transport=answering(cut)).generate("猫"):
        break
    assert cut.closed == 1
    cut = Cut(None)
    with Fluoroscope(transport=answering(cut)).generate("猫") as generation:
        held = iter(generation)
        next(held)
    assert cut.closed == 1

    async def leave() -> int:
        mine = Cut(None)
        async with AsyncFluoroscope(transport=answering(mine)).generate("猫") as generation:
            async for _ in generation:
                break
        return mine.closed

    assert asyncio.run(leave()) == 1


TRACED: Any = {
    "seed": 3,
    "max_new_tokens": 4,
    "n": 2,
    "captures": ["attn.pattern", capture("resid_post", layers=-1)],
    "edits": [edits.zero("attn.z", layers=1, heads=0)],
}


@pytest.mark.parametrize("wire", ["safetensors", "json"])
def test_stream_and_one_piece_are_the_same(wire: Any, remote: Fluoroscope) -> None:
    generation = remote.generate(TEXT, wire=wire, **TRACED)
    steps = list(generation)
    whole = remote.completion(TEXT, wire=wire, **TRACED)
    assert whole.meta == generation.meta
    assert [sample["text"] for sample in whole.samples] == [
        "".join(step.text or "" for step in steps if step.sample == sample) for sample in (0, 1)
    ]
    assert whole.samples == generation.samples
    assert whole.prompt is not None and generation.prompt is not None
    pairs: list[tuple[Any, Any]] = [(whole.prompt, generation.prompt)]
    pairs += zip(whole.steps, steps, strict=True)
    assert len(pairs) == 9
    for one, other in pairs:
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            np.testing.assert_array_equal(tensor.values, other.tensors[name].values)
            assert (tensor.coords, tensor.tokens) == (
                other.tensors[name].coords,
                other.tensors[name].tokens,
            )
    for one, other in zip(whole.steps, steps, strict=True):
        assert (one.token, one.candidates, one.checks) == (
            other.token,
            other.candidates,
            other.checks,
        )


def test_traced_row_is_that_of_the_whole_text(remote: Fluoroscope) -> None:
    whole = remote.completion(TEXT, **{**TRACED, "n": 1})
    ids = [*remote.tokenize(TEXT)["token_ids"], *whole.samples[0]["token_ids"]]
    last = whole.steps[3]
    length = last.position
    full = remote.attention(ids[:length], edits=TRACED["edits"])["attn.pattern"]
    row = last["attn.pattern"]
    assert row.coords == {"query": (length - 1,)}
    np.testing.assert_allclose(
        row.sel(query=-1).values, full.sel(query=-1).values, atol=2e-5, rtol=0
    )
    assert whole.prompt is not None
    np.testing.assert_allclose(
        whole.prompt.tensors["attn.pattern"].sel(query=0).values,
        full.sel(query=0, key=range(whole.meta["input"]["n_tokens"])).values,
        atol=2e-5,
        rtol=0,
    )


def test_dry_run_only_estimates(remote: Fluoroscope) -> None:
    dry = remote.completion(TEXT, dry_run=True, max_new_tokens=5, n=2)
    assert dry.estimate is not None and dry.estimate["max_steps"] == 10
    assert (dry.prompt, dry.steps, dry.samples) == (None, [], [])


def test_sample_agrees_with_the_first_step(remote: Fluoroscope) -> None:
    setting: Any = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    first = next(iter(remote.generate(TEXT, seed=11, top=5, **setting)))
    said = remote.sample(TEXT, [setting, {"temperature": 0}], seed=11, top=5)
    drawn, greedy = said["choices"]
    assert drawn["drawn"] == first.token["id"]
    assert drawn["candidates"] == first.candidates
    logits = remote.logits(TEXT, full=True)["logits"].values[0]
    assert greedy["drawn"] == int(logits.argmax())
    given = remote.sample(logits=logits, settings=[setting], seed=11, top=5)["choices"][0]
    assert given["drawn"] == drawn["drawn"]


def test_server_refuses_before_the_first_event(remote: Fluoroscope) -> None:
    with pytest.raises(InvalidRequest) as caught:
        next(iter(remote.generate(TEXT, temperature=-1)))
    assert caught.value.errors[0]["pointer"] == "/temperature"


def test_generation_left_early_lets_the_next_one_run(remote: Fluoroscope) -> None:
    for _ in range(3):
        for _step in remote.generate(TEXT, max_new_tokens=50):
            break
    assert len(list(remote.generate(TEXT, max_new_tokens=2, stop_ids=[]))) == 2


def test_awaited_generation_of_a_server(base_url: str, remote: Fluoroscope) -> None:
    async def ask() -> list[Step]:
        async with AsyncFluoroscope(base_url) as scope:
            return [step async for step in scope.generate(TEXT, seed=5, max_new_tokens=3)]

    steps = asyncio.run(ask())
    blocking = list(remote.generate(TEXT, seed=5, max_new_tokens=3))
    assert [one.token for one in steps] == [one.token for one in blocking]
