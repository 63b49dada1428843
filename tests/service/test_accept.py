"""Which form an answer takes: Accept, Accept-Encoding and their quality values."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
import zstandard
from fastapi.testclient import TestClient

from service.wire.negotiation import NotAcceptableError, coding, media_type
from tests.answers import strict_json

JSON, BYTES = "application/json", "application/vnd.safetensors"
PATH = "/v1/attention"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        (BYTES, BYTES),
        ("APPLICATION/VND.SAFETENSORS", BYTES),
        (f"{BYTES}, {JSON}", JSON),
        (f"{BYTES}, {JSON};q=0.9", BYTES),
        (f"{BYTES};q=0.5, */*;q=0.8", JSON),
        (f"{BYTES};q=0.5, */*;q=0.3", BYTES),
        (f"{JSON};q=0, */*", BYTES),
        (f"text/html, {BYTES};q=0.1", BYTES),
        (f"{JSON}; charset=utf-8; q=0.2, {BYTES};q=0.3", BYTES),
        (f"{JSON};q=2, {BYTES}", JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
    ],
)
def test_form_liked_best_is_chosen(accept: str | None, chosen: str) -> None:
    assert media_type(accept) == chosen


@pytest.mark.parametrize(
    "accept", ["text/html", f"{JSON};q=0", "*/*;q=0", "image/*", f"{JSON};q=x", "application/jso"]
)
def test_what_is_not_offered_is_refused_with_what_is(accept: str) -> None:
    with pytest.raises(NotAcceptableError, match=f"{JSON} or {BYTES}"):
        media_type(accept)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "identity"),
        ("", "identity"),
        ("identity", "identity"),
        ("br", "identity"),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, zstd;q=0.5", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("*", "zstd"),
        ("*;q=0", "identity"),
        ("gzip;q=0.5, identity", "identity"),
        ("GZIP", "gzip"),
    ],
)
def test_coding_liked_best_is_chosen(accept: str | None, chosen: str) -> None:
    assert coding(accept) == chosen


@pytest.mark.parametrize("path", ["/v1/attention", "/v1/logits", "/v1/inspect"])
def test_refusal_lists_what_is_offered_and_runs_nothing(
    path: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.app.state.inspector, "inspect", None)  # type: ignore[attr-defined]
    captures = {"captures": [{"site": "embed"}]} if path == "/v1/inspect" else {}
    answer = client.post(path, json={"text": "a", **captures}, headers={"accept": "text/csv"})
    assert answer.status_code == 406
    assert answer.headers["content-type"] == "application/problem+json"
    assert JSON in answer.json()["detail"] and BYTES in answer.json()["detail"]


LARGE = {"token_ids": [65, 66, 67] * 20, "format": {"decimals": 8}}
SMALL = {"token_ids": [65, 66, 67], "layers": [0]}


def raw(client: TestClient, body: Any, **headers: str) -> tuple[Any, bytes]:
    with client.stream("POST", PATH, json=body, headers=headers) as answer:
        assert answer.status_code == 200
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize("accept", [JSON, BYTES])
@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_large_answer_is_compressed_and_is_the_same(
    encoding: str, accept: str, client: TestClient
) -> None:
    body = {**LARGE, "tokens": "none"}
    answer, sent = raw(client, body, **{"accept": accept, "accept-encoding": encoding})
    assert answer.headers["content-encoding"] == encoding
    assert "content-length" not in answer.headers
    unpacked = (
        gzip.decompress(sent)
        if encoding == "gzip"
        else zstandard.ZstdDecompressor().decompressobj().decompress(sent)
    )
    assert len(unpacked) > 64 * 1024
    assert len(sent) < 0.7 * len(unpacked)  # half of every pattern is zeros
    plain, whole = raw(client, body, **{"accept": accept, "accept-encoding": "identity"})
    assert int(plain.headers["content-length"]) == len(whole)
    if accept == JSON:
        assert strict_json(unpacked)["tensors"] == strict_json(whole)["tensors"]
    else:
        numbers = 4 * 3 * 4 * 60 * 60
        assert unpacked[-numbers:] == whole[-numbers:]


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_small_answer_is_sent_as_it_is(encoding: str, client: TestClient) -> None:
    answer, sent = raw(client, SMALL, **{"accept-encoding": encoding})
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(sent)
    assert strict_json(sent)


def test_large_answer_is_not_compressed_for_who_does_not_ask(client: TestClient) -> None:
    answer, sent = raw(client, LARGE, **{"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert len(sent) > 64 * 1024
