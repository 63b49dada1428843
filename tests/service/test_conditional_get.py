"""GET answers are kept by clients and asked about by their ETag."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Serve

PATHS = ["/v1/model", "/v1/sites", "/v1/model/parameters", "/v1/presets"]


@pytest.mark.parametrize("path", PATHS)
def test_answer_that_is_known_is_not_sent_again(path: str, client: TestClient) -> None:
    first = client.get(path)
    assert first.status_code == 200
    tag = first.headers["etag"]
    assert tag.startswith('"') and tag.endswith('"')
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"if-none-match": known})
        assert again.status_code == 304
        assert again.content == b"" and again.headers["etag"] == tag
        assert "content-length" not in again.headers
    other = client.get(path, headers={"if-none-match": '"other"'})
    assert other.status_code == 200 and other.content == first.content


def test_other_model_has_another_tag(clients: dict[str, TestClient]) -> None:
    tags = {client.get("/v1/model").headers["etag"] for client in clients.values()}
    assert len(tags) == len(clients)


def test_refusal_has_no_tag(client: TestClient, serve: Serve) -> None:
    assert "etag" not in client.get("/v1/nothing").headers
    assert "etag" not in serve(key="k").get("/v1/model", headers={"if-none-match": "*"}).headers


def test_run_has_no_tag(client: TestClient) -> None:
    assert "etag" not in client.post("/v1/attention", json={"text": "a"}).headers
