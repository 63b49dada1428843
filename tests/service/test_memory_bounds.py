"""Memory is bounded by what is asked: what is too much is refused before anything is run."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient

from model.comparison import compare_logits
from model.reading import RunCancelled
from service.choices import ROW_BYTES
from service.plan import make_plan
from service.predictions import predictions
from service.schemas.logits import LogitsRequest
from service.schemas.reading import Capture
from service.wire.negotiation import JSON, SAFETENSORS
from service.wire.tensors import safetensors_answer
from tests.answers import ask, refused
from tests.conftest import Serve
from tests.service.asgi import Exchange
from tests.service.pressure import gated, idle

MIB = 2**20
IDS = [n % 300 + 1 for n in range(64)]


def held_now() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    pytest.skip("this kernel does not say")


def admission(client: TestClient) -> Any:
    return client.app.state.inspector.admission  # type: ignore[attr-defined]


def test_oversize_asks_are_refused_with_both_numbers_and_never_run(serve: Serve) -> None:
    client = serve(max_answer_bytes=MIB // 8)
    ask(client, "/v1/attention", token_ids=IDS[:4])
    with gated(client.app) as gate:  # type: ignore[arg-type]
        before = held_now()
        for number in range(20):
            captures = [{"site": "attn.pattern", "name": f"p{n}"} for n in range(1 + number)]
            problem = refused(
                client, "/v1/inspect", "answer-too-large", token_ids=IDS, captures=captures
            )
            assert problem["limit"] == MIB // 8
            # 3 layers of 4 heads over 64 × 64 cells, 4 bytes each, and their text beside them
            assert problem["actual"] > (1 + number) * 3 * 4 * 64 * 64 * 4
        assert held_now() - before < 32 * MIB
        assert gate.runs == 0 and idle(gate.inspector)


def test_the_very_same_asks_are_run_where_they_are_allowed(serve: Serve) -> None:
    """What is refused above is refused for its size alone."""
    client = serve()
    captures = [{"site": "attn.pattern", "name": f"p{n}"} for n in range(20)]
    assert len(ask(client, "/v1/inspect", token_ids=IDS, captures=captures)["tensors"]) == 20


V, T = 360, 40


@pytest.mark.parametrize(
    ("path", "body", "beside"),
    [
        # both runs' logits of all positions, in float32
        (
            "/v1/inspect",
            {"captures": [{"site": "embed", "positions": [0]}], "compare": True},
            2 * T * V * 4,
        ),
        # the rows that predictions are made of
        ("/v1/logits", {"positions": "all"}, T * V * 4),
        ("/v1/logits", {"positions": [-1]}, V * 4),
        # what two patches bring from their sources: 3 layers of T × 48, and 4 heads of 40 × 40
        (
            "/v1/inspect",
            {
                "captures": [{"site": "resid_post", "layers": [2], "positions": [0]}],
                "edits": [
                    {"op": "patch", "site": "resid_pre", "source": {"token_ids": IDS[:T]}},
                    {
                        "op": "patch",
                        "site": "attn.z",
                        "layers": [1],
                        "source": {"token_ids": IDS[:T]},
                    },
                ],
            },
            4 * (3 * T * 48 + 4 * T * 12),
        ),
        # float32 values that are sent as float16
        (
            "/v1/inspect",
            {
                "captures": [{"site": "embed"}],
                "format": {"encoding": "base64", "dtype": "float16"},
            },
            4 * T * 48,
        ),
        ("/v1/inspect", {"captures": [{"site": "embed"}]}, 0),
    ],
    ids=["compare", "predictions", "one prediction", "patches", "float16", "nothing"],
)
def test_what_a_run_keeps_beside_its_answer_is_in_the_budget(
    path: str, body: dict[str, Any], beside: int, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve()
    counted: list[int] = []
    held = admission(client).answer_bytes

    def noting(estimated: int, *, beside: int = 0) -> Any:
        counted.append(beside)
        return held(estimated, beside=beside)

    monkeypatch.setattr(admission(client), "answer_bytes", noting)
    ask(client, path, token_ids=IDS[:T], **body)
    assert counted == [beside]


def test_run_that_can_never_fit_the_budget_is_a_422_and_not_asked_to_come_back(
    serve: Serve,
) -> None:
    budget = 2 * T * V * 4  # the answer comes on top
    client = serve(max_answer_bytes=budget, max_in_flight_bytes=budget)
    body = {"captures": [{"site": "embed", "positions": [0]}], "compare": True}
    with gated(client.app) as gate:  # type: ignore[arg-type]
        problem = refused(client, "/v1/inspect", "answer-too-large", token_ids=IDS[:T], **body)
        assert problem["limit"] == budget < problem["actual"]
        assert gate.runs == 0 and idle(gate.inspector)
        gate.open.set()
    ask(client, "/v1/inspect", token_ids=IDS[: T - 2], **body)


def stops_at_the_fourth() -> tuple[list[int], Any]:
    """How often it was asked, and a stop question that is answered no three times."""
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(len(asked))
        return len(asked) > 3

    return asked, stopped


def test_rows_of_a_comparison_end_once_nobody_waits() -> None:
    asked, stopped = stops_at_the_fourth()
    logits = torch.zeros(T, V)
    with pytest.raises(RunCancelled):
        compare_logits(logits, logits + 1, stopped=stopped)
    assert len(asked) == 4


def test_rows_of_predictions_end_once_nobody_waits(client: TestClient) -> None:
    inspector = client.app.state.inspector  # type: ignore[attr-defined]
    wanted = LogitsRequest(token_ids=IDS[:T], positions="all")
    capture = Capture(site="logits")
    plan = make_plan(inspector.opened, inspector.settings, wanted, [capture])
    asked, stopped = stops_at_the_fourth()
    with pytest.raises(RunCancelled):
        predictions(None, wanted)(plan, {"logits": torch.zeros(T, V)}, stopped)
    assert len(asked) == 4


def test_steps_wait_for_the_end_as_text(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the budget of their rows; as objects they take twice as much, with a large vocabulary
    three times."""
    app: FastAPI = serve().app  # type: ignore[assignment]
    body = {"token_ids": IDS[:4], "max_new_tokens": 40, "top": V, "seed": 1, "stop_ids": []}
    rows = 40 * V
    weights: list[int] = []

    def weighed(answer: dict[str, Any], tensors: Any) -> Any:
        weights.append(tracemalloc.get_traced_memory()[0])
        return safetensors_answer(answer, tensors)

    monkeypatch.setattr("service.generation_forms.safetensors_answer", weighed)

    async def generate() -> int:
        async with app.router.lifespan_context(app):
            for _ in range(2):  # the first one also makes what is made once
                before = tracemalloc.get_traced_memory()[0]
                sent = Exchange(json.dumps(body).encode(), accept=SAFETENSORS)
                await sent.run(app, "/v1/generate")
                assert sent.status == 200 and len(sent.body) > 150 * rows
                sent.sent.clear()
                gc.collect()
            return weights[1] - before

    tracemalloc.start()
    try:
        assert asyncio.run(generate()) < ROW_BYTES * rows
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("media_type", "times"), [(JSON, 1), (SAFETENSORS, 3)])
def test_text_of_steps_within_a_header_is_in_the_budget(
    serve: Serve, media_type: str, times: int
) -> None:
    """It is there three times while the header is made: step by step, as one, and quoted."""
    client = serve()
    body = {"token_ids": IDS[:4], "max_new_tokens": 40, "top": V}
    said = 40 * (V + 4) * ROW_BYTES
    accept = {"accept": media_type}
    with gated(client.app) as gate, ThreadPoolExecutor(1) as pool:  # type: ignore[arg-type]
        asked = pool.submit(client.post, "/v1/generate", json=body, headers=accept)
        assert gate.entered.wait(10)
        held = admission(client).bytes_in_flight
        gate.open.set()
        assert asked.result().status_code == 200
    assert times * said <= held < (times + 1) * said
