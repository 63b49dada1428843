"""The event loop stays free, whatever is tokenized, run, written or refused meanwhile.

A probe on the server's own loop sleeps 10 ms at a time; how much later it wakes is what a
health check, or anybody else, would have waited. Time that other processes took is left out.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from model.checkpoints import native
from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import Tokenizer
from service.app import create_app
from service.settings import Settings
from tests.conftest import VOCABULARY
from tests.listening import listening
from tests.service.pressure import Contention, Probe, least
from tests.service.raw import Connection, request

PROMISE = 0.1  # seconds
BODY = 2**20


def longest_gap(client: TestClient, work: Callable[[], None]) -> float:
    """Seconds that the loop was held at most while the work was done."""
    probe = Probe()
    watching = client.portal.start_task_soon(probe.watch)  # type: ignore[union-attr]
    try:
        work()
    finally:
        probe.stop()
        watching.result()
    return max(probe.gaps)


@pytest.fixture(scope="module")
def large(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A model whose largest answers are large: 6 layers, 6 heads, 512 tokens."""
    folder = tmp_path_factory.mktemp("large") / "model"
    shape = {"n_layer": 6, "d_model": 96, "n_head": 6, "n_ctx": 512}
    native.save(folder, GPT(GPTConfig(**shape, vocab_size=VOCABULARY)), tokenizer)
    return Settings(model=str(folder), max_answer_bytes=2**28)


@pytest.fixture(scope="module")
def server(large: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(large), base_url="http://localhost") as client:
        gc.collect()
        gc.freeze()  # as `fluoroscope serve` does, once the model is there
        yield client
        gc.unfreeze()


@pytest.mark.parametrize(
    ("form", "least_bytes"),
    [
        ({"encoding": "nested"}, 4.5),
        ({"encoding": "nested", "exact": True}, 4.5),
        ({"encoding": "base64"}, 5.3),
        ({"encoding": "sparse", "threshold": 0.002}, 1),
    ],
    ids=["nested", "exact", "base64", "sparse"],
)
def test_largest_tokenize_run_and_encode_leave_the_loop_free(
    form: dict[str, Any], least_bytes: float, server: TestClient
) -> None:
    text = "猫追老鼠" * 100
    n_tokens = server.post("/v1/tokenize", json={"text": text}).json()["n_tokens"]
    assert 480 < n_tokens <= 512
    body = {
        "text": text,
        "captures": [{"site": "attn.pattern"}],
        "format": form,
        "checks_level": "full",
        "compare": True,
    }

    def work() -> None:
        answer = server.post("/v1/inspect", json=body, headers={"accept-encoding": "identity"})
        assert answer.status_code == 200, answer.text
        assert len(answer.content) > least_bytes * 36 * n_tokens**2

    assert least(5, lambda: longest_gap(server, work), under=PROMISE) < PROMISE


def test_answer_of_60_megabytes_leaves_health_answering(large: Settings) -> None:
    """Over a socket, the whole answer read; health asked again and again meanwhile."""
    body = {
        "token_ids": [7] * 512,
        "captures": [{"site": "attn.pattern"}],
        "format": {"decimals": 6},
    }
    sizes: list[int] = []

    async def slowest_look(url: str) -> float:
        reading, looking = await Connection.to(url), await Connection.to(url)
        reading.send(request("/v1/inspect", body))
        answer = asyncio.create_task(reading.answer())
        waits: list[float] = []
        while not answer.done():
            others, start = Contention(), time.perf_counter()
            assert (await looking.ask(request("/health/live"))).status == 200
            waits.append(time.perf_counter() - start - others.seconds())
        sizes.append(len((await answer).body))
        reading.leave()
        looking.leave()
        assert len(waits) > 10
        return max(waits)

    with listening(create_app(large)) as url:
        assert least(5, lambda: asyncio.run(slowest_look(url)), under=PROMISE) < PROMISE
    assert all(size > 60_000_000 for size in sizes)


def test_longest_text_is_tokenized_off_the_loop(server: TestClient) -> None:
    text = ("The cat sat. " * 5042)[: 2**16]

    def work() -> None:
        assert server.post("/v1/tokenize", json={"text": text}).status_code == 200

    assert least(5, lambda: longest_gap(server, work), under=PROMISE) < PROMISE


def test_probe_sees_a_loop_that_is_held(server: TestClient) -> None:
    """The negative control: 200 ms of work on the loop itself are noticed."""

    async def hold() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    def work() -> None:
        server.portal.call(asyncio.sleep, 0.05)  # type: ignore[union-attr]
        server.portal.call(hold)  # type: ignore[union-attr]

    assert longest_gap(server, work) > PROMISE


def full(unit: str, begin: str, end: str) -> bytes:
    """As many units as a body holds."""
    count = (BODY - len(begin) - len(end)) // (len(unit) + 1)
    return (begin + ",".join([unit] * count) + end).encode()


def edited(begin: str = "", end: str = "") -> tuple[str, str]:
    """What stands before and after the flood: by default, in the list of edits."""
    return '{"text":"a","captures":[{"site":"embed"}],"edits":[' + begin, end + "]}"


VALUE = edited('{"op":"set","site":"embed","value":[', "]}")
SIX = dict.fromkeys(("layers", "heads", "kv_heads", "positions", "queries", "keys"), 1.5)
UNKNOWN = {f"k{number}": 1 for number in range(200)}
EMBED = {"text": "a", "captures": [{"site": "embed"}]}
DEEP = "[" * 400 + "1" + "]" * 400
# Each held the loop for 0.2 to 3 seconds before there was a bound against it.
FLOODS: dict[str, tuple[str, bytes]] = {
    "unknown keys": (
        "/v1/attention",
        json.dumps({"text": "a", **{f"k{number}": 1 for number in range(66_000)}}).encode(),
    ),
    "unknown keys in edits": (
        "/v1/inspect",
        json.dumps({**EMBED, "edits": [{"op": "zero", "site": "embed", **UNKNOWN}] * 256}).encode(),
    ),
    "faults in edits": (
        "/v1/inspect",
        json.dumps({**EMBED, "edits": [{"op": "zero", "site": "embed", **SIX}] * 256}).encode(),
    ),
    "empty arrays": ("/v1/inspect", full("[]", *VALUE)),
    "arrays of one": ("/v1/inspect", full("[1]", *VALUE)),
    "whole numbers": ("/v1/inspect", full("1", *VALUE)),
    "numbers": ("/v1/inspect", full("1.5", *VALUE)),
    "deep arrays": (
        "/v1/inspect",
        full('{"op":"set","site":"embed","value":' + DEEP + "}", *edited()),
    ),
    "token ids": ("/v1/attention", full("1", '{"token_ids":[', "]}")),
    "token ids that are none": ("/v1/attention", full("1.5", '{"token_ids":[', "]}")),
    "rows of a lab": (
        "/v1/labs/attention",
        full("[1,2]", '{"source":{"kind":"vectors","q":[', '],"k":[],"v":[]}}'),
    ),
    "places": ("/v1/rope/rotate", full('{"m":1,"n":2}', '{"positions":[', "]}")),
    "long numbers": ("/v1/attention", full("1" * 4_200, '{"token_ids":[', "]}")),
}


@pytest.mark.parametrize("name", FLOODS)
def test_body_made_to_keep_the_loop_is_refused_before_it_can(name: str, server: TestClient) -> None:
    path, body = FLOODS[name]
    assert len(body) <= BODY

    def work() -> None:
        answer = server.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text[:300]

    assert least(5, lambda: longest_gap(server, work), under=PROMISE) < PROMISE


def test_brackets_in_a_text_are_no_arrays(client: TestClient) -> None:
    """Twice as many as there may be arrays, and escapes that could hide where the text ends."""
    for text in ("[{" * 20_480, '\\"[' * 20_500):
        answer = client.post("/v1/tokenize", json={"text": text})
        assert answer.status_code == 200, answer.text[:300]


@pytest.mark.parametrize(("count", "status"), [(20_480, 200), (20_481, 422)])
def test_arrays_are_counted_exactly(count: int, status: int, client: TestClient) -> None:
    """The body itself is one object; `]"[` in the text is none."""
    value = ",".join(["[1]"] * (count - 5))  # the body, captures, edits, one edit, the value
    body = '{"text":"\\"[{","captures":[],"edits":[{"value":[' + value + "]}]}"
    answer = client.post(
        "/v1/inspect", content=body.encode(), headers={"content-type": "application/json"}
    )
    problem: Any = answer.json()
    if status == 422:
        assert (problem["limit"], problem["actual"]) == (20_480, 20_481)
    else:
        assert "limit" not in problem  # refused by the schema, which read it
