"""The whole API over one tiny checkpoint of each family, opened from its own format.

Nothing a route does may lean on one architecture. Where a family lacks what is asked for, the
answer is the 422 that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.answers import EXACT, ask, refused, single, strict_json
from tests.contract.tiny_checkpoints import CONTEXT, FAMILIES, VOCABULARY, Tiny

TEXT = "The cat chased 猫 mice, 因为它饿了。"
GATE = 2e-5
FULL = {"checks_level": "full"}
KNOCKOUT = {"op": "zero", "site": "attn.z", "layers": [0], "heads": [1]}
# Every route; a body makes it a POST.
REQUESTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "live": ("/health/live", None),
    "ready": ("/health/ready", None),
    "model": ("/v1/model", None),
    "sites": ("/v1/sites", None),
    "parity": ("/v1/model/parity", None),
    "parameters": ("/v1/model/parameters?explain=true&context=8", None),
    "one tensor": ("/v1/model/parameters/blocks.0.attn.k.weight?head=1&reduce=mean", None),
    "rope": ("/v1/model/rope", None),
    "presets": ("/v1/presets", None),
    "course": ("/v1/course", None),
    "other parameters": ("/v1/parameters", {"preset": "gpt2"}),
    "tokenize": ("/v1/tokenize", {"text": TEXT}),
    "detokenize": ("/v1/detokenize", {"token_ids": [300, 301]}),
    "attention": ("/v1/attention", {"text": TEXT, "stages": ["scores", "pattern"], **FULL}),
    "attention, averaged": ("/v1/attention", {"text": TEXT, "aggregate": "mean", "keys": [0]}),
    "cell": ("/v1/attention/cell", {"text": TEXT, "layer": 1, "head": 5, "query": -1, "key": 2}),
    "logits": ("/v1/logits", {"text": TEXT, "positions": "all", "full": True, **FULL}),
    "inspect": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "mlp.post", "reduce": "stats"}], **FULL},
    ),
    "inspect, edited": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "logits"}], "edits": [KNOCKOUT], "compare": True},
    ),
    "inspect, key heads": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "attn.v", "kv_heads": [-1]}, {"site": "attn.result"}]},
    ),
    "inspect, wired": (
        "/v1/inspect",
        {
            "text": TEXT,
            "captures": [{"site": "resid_post"}],
            "wiring": {"causal": False, "score_scale": 1, "residual": False, "positions": "none"},
        },
    ),
    "inspect, to be estimated": (
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "attn.pattern"}], "dry_run": True},
    ),
    "generate": (
        "/v1/generate",
        {
            "text": TEXT,
            "temperature": 0,
            "max_new_tokens": 3,
            "trace": {"captures": [{"site": "attn.pattern"}, {"site": "attn.v"}]},
            "edits": [KNOCKOUT],
        },
    ),
    "sample": ("/v1/sample", {"text": TEXT, "settings": [{}, {"top_k": 5, "top_p": 0.9}]}),
    "attention lab": ("/v1/labs/attention", {"source": {"kind": "model", "layer": 1, "head": 5}}),
    "heads lab": ("/v1/labs/heads", {"source": {"kind": "model", "layer": 1}}),
    "block lab": ("/v1/labs/block", {"layer": 1}),
    "scaling lab": ("/v1/labs/scaling", {}),
    "order lab": ("/v1/labs/order", {}),
    "diagnostics lab": ("/v1/labs/diagnostics", {}),
    "rotate": ("/v1/rope/rotate", {}),
    "frequencies": ("/v1/rope/frequencies", {}),
}
# What a family cannot be asked: a SentencePiece model marks the word that begins a text.
REFUSED = {("llama", "order lab"): "the texts must have the same tokens"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tiny]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make(root / name) for name, make in FAMILIES.items()}


@pytest.fixture(scope="module")
def served(checkpoints: Mapping[str, Tiny]) -> Iterator[Mapping[str, TestClient]]:
    running = {
        name: TestClient(
            create_app(Settings(model=str(tiny.path), device="cpu")), base_url="http://localhost"
        )
        for name, tiny in checkpoints.items()
    }
    for client in running.values():
        client.__enter__()
    yield running
    for client in running.values():
        client.__exit__(None, None, None)


@pytest.fixture(params=list(FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(name: str, served: Mapping[str, TestClient]) -> TestClient:
    return served[name]


def asked(client: TestClient, title: str) -> dict[str, Any]:
    path, body = REQUESTS[title]
    answer = client.get(path) if body is None else client.post(path, json=body)
    assert answer.status_code == 200, f"{title}: {answer.text}"
    found: dict[str, Any] = strict_json(answer.content)
    return found


def test_every_route_is_among_the_requests(served: Mapping[str, TestClient]) -> None:
    paths = served["gpt2"].get("/openapi.json").json()["paths"]
    addresses = {path.partition("?")[0] for path, _ in REQUESTS.values()}
    patterns = {path: re.sub(r"\{\w+\}", "[^/]+", path) for path in paths}
    missing = [
        path
        for path, pattern in patterns.items()
        if path != "/metrics"  # says nothing of a model's family, and not in JSON
        and not any(re.fullmatch(pattern, address) for address in addresses)
    ]
    assert missing == []


@pytest.mark.parametrize("title", REQUESTS)
def test_every_family_answers_and_its_checks_hold(
    name: str, title: str, client: TestClient
) -> None:
    if (name, title) in REFUSED:
        path, body = REQUESTS[title]
        assert (
            REFUSED[name, title]
            in refused(client, path, "invalid-request", **(body or {}))["detail"]
        )
        return
    answer = asked(client, title)
    checks = answer.get("checks")
    if not isinstance(checks, dict) or "row_sum_error" not in checks or "estimate" in answer:
        return
    assert checks["finite"] is True and checks["row_sum_error"] < 2e-6
    assert checks["empty_rows"] == 0
    wiring = answer["input"]["wiring"]
    assert (checks["future_mass"] == 0) == wiring["causal"]
    sums = {"residual_sum_error", "head_sum_error", "logits_error"}
    full = (REQUESTS[title][1] or {}).get("checks_level") == "full"
    assert (sums & set(checks)) == (sums if full else set())
    assert all(checks[each] < 1e-4 for each in sums & set(checks))


def test_every_family_opens_to_the_numbers_of_its_own_library(
    name: str, client: TestClient, checkpoints: Mapping[str, Tiny]
) -> None:
    ids = ask(client, "/v1/tokenize", text=TEXT)["token_ids"]
    logits, patterns = checkpoints[name].computes(ids)
    answer = ask(client, "/v1/logits", text=TEXT, positions="all", full=True, format=EXACT)
    ours = single(answer["tensors"]["logits"])
    assert np.abs(ours - logits.numpy()).max() < GATE * max(1.0, float(logits.abs().max()))
    maps = single(ask(client, "/v1/attention", text=TEXT, format=EXACT)["tensors"]["attn.pattern"])
    assert np.abs(maps - patterns.numpy()).max() < GATE
    assert patterns.std(-1).mean() > 0.02
    assert np.abs(maps[::-1] - patterns.numpy()).max() > 100 * GATE  # layers the other way round


def test_every_family_reads_both_languages_with_right_offsets(client: TestClient) -> None:
    answer = ask(client, "/v1/tokenize", text=TEXT)
    tokens = [token for token in answer["tokens"] if not token["special"]]
    assert "".join(token["display"] for token in tokens) == TEXT
    data = bytes.fromhex("".join(token["bytes_hex"] for token in tokens))
    assert data in (TEXT.encode(), b" " + TEXT.encode())  # SentencePiece puts a space before
    for token in tokens:
        if not token["continuation"]:
            start = token["char_start"]
            assert TEXT[start:].startswith(token["display"]), token
    back = ask(client, "/v1/detokenize", token_ids=[token["id"] for token in tokens])
    assert back["text"] == TEXT


def test_every_family_s_parity_holds_and_its_control_misses(name: str, client: TestClient) -> None:
    answer = asked(client, "parity")
    assert answer["passed"] and answer["control_missed"] and answer["against"] == "reference"
    assert answer["deviations"]["logits"]["relative"] < answer["gate"] == GATE
    assert answer["control"] == {
        "gpt2": "no positions",
        "llama in GGUF": "rotation with half pairs",
    }.get(name, "rotation with interleaved pairs")


def test_every_family_shows_what_the_course_can_show_of_it(name: str, client: TestClient) -> None:
    items = asked(client, "course")["items"]
    shown = [item for item in items if item["available"]]
    assert len(shown) > len(items) / 2
    missing = next(item["missing"] for item in items if item["id"] == "order")
    assert (missing is not None) == ((name, "order lab") in REFUSED)
    for item in shown:
        if item["body"] is None:
            answer = client.get(item["path"])
        else:
            answer = client.post(item["path"], json=item["body"])
        assert answer.status_code == 200, f"{item['id']}: {answer.text}"


def test_what_the_model_says_of_itself(
    name: str, client: TestClient, checkpoints: Mapping[str, Tiny]
) -> None:
    answer = asked(client, "model")
    expected = {
        "gpt2": ("huggingface GPT-2", "learned", [0, 1, 2, 3, 4, 5], False),
        "gpt-neox": ("huggingface GPT-NeoX", "rope", [0, 1, 2, 3, 4, 5], False),
        "llama": ("huggingface Llama", "rope", [0, 0, 0, 1, 1, 1], True),
        "qwen3": ("huggingface Qwen3", "rope", [0, 0, 0, 1, 1, 1], False),
        "llama in GGUF": ("gguf llama", "rope", [0, 0, 0, 1, 1, 1], False),
    }[name]
    config = answer["config"]
    found = (answer["format"], config["positions"], answer["kv_head_of_head"])
    assert (*found, answer["tokenizer"]["adds_bos"]) == expected
    assert (config["vocab_size"], config["n_ctx"]) == (VOCABULARY, CONTEXT)
    assert config["parallel_residual"] == (name == "gpt-neox")
    assert answer["source"] == checkpoints[name].path.name
    assert str(checkpoints[name].path.parent) not in client.get("/v1/model").text
    theirs = sum(weight.numel() for weight in checkpoints[name].oracle.parameters())
    assert answer["parameters"] == theirs


LACKING: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    "rotary wiring": {
        "gpt2": (
            "/v1/attention",
            "invalid-wiring",
            {"text": TEXT, "wiring": {"rope": {"pairing": "half"}}},
        )
    },
    "resid_mid": {
        "gpt-neox": (
            "/v1/inspect",
            "invalid-site",
            {"text": TEXT, "captures": [{"site": "resid_mid"}]},
        )
    },
    "pos_embed": {
        family: (
            "/v1/inspect",
            "invalid-site",
            {"text": TEXT, "captures": [{"site": "pos_embed"}]},
        )
        for family in FAMILIES
        if family != "gpt2"
    },
    "mlp.pre_linear": {
        family: (
            "/v1/inspect",
            "invalid-site",
            {"text": TEXT, "captures": [{"site": "mlp.pre_linear"}]},
        )
        for family in ("gpt2", "gpt-neox")
    },
}


@pytest.mark.parametrize("what", LACKING)
def test_what_a_family_lacks_is_refused_and_the_others_have_it(
    what: str, served: Mapping[str, TestClient]
) -> None:
    path, slug, body = next(iter(LACKING[what].values()))
    for family, client in served.items():
        if family in LACKING[what]:
            refused(client, path, slug, **body)
        else:
            ask(client, path, **body)


def test_every_family_goes_on_in_one_text_with_the_prompt(client: TestClient) -> None:
    """Also where a tokenizer writes a space before a text's first word."""
    answer = ask(client, "/v1/generate", text=TEXT, seed=4, max_new_tokens=24, stop_ids=[])
    (sample,) = answer["done"]["samples"]
    drawn = [step["token"] for step in answer["steps"]]
    known = [token["id"] for token in drawn if token["text"] is not None]  # no rows that only pad
    ids = ask(client, "/v1/tokenize", text=TEXT)["token_ids"] + known
    bos = answer["meta"]["input"]["bos_added"]
    whole = ask(client, "/v1/detokenize", token_ids=ids[bos:])["text"]
    assert whole == answer["meta"]["input"]["text"] + sample["text"]
    assert "".join(step["text"] for step in answer["steps"]) == sample["text"]
    assert len(known) > 12
