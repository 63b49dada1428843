"""Who may ask: the key, the host names, and where the server may listen."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from pydantic import ValidationError

from service.settings import Settings
from tests.conftest import Serve

KEY = "s3cret-ключ"
OPEN = ("/health/live", "/health/ready", "/docs", "/openapi.json")


@pytest.fixture
def locked(serve: Serve) -> TestClient:
    return serve(key=KEY)


def operations(client: TestClient) -> list[tuple[str, str]]:
    document = client.get("/openapi.json").json()
    return [
        (method.upper(), path.replace("{name}", "embed.weight"))
        for path, methods in document["paths"].items()
        for method in methods
    ]


def test_the_document_names_every_route_but_the_two_pages_about_it(locked: TestClient) -> None:
    """So that enumerating the document, as the tests below do, is enumerating the app."""
    app: Any = locked.app
    found = {context.path for context in iter_route_contexts(app.routes)}
    assert found - set(locked.get("/openapi.json").json()["paths"]) == {"/docs", "/openapi.json"}


def test_every_route_but_the_open_ones_asks_for_the_key(locked: TestClient) -> None:
    routes = operations(locked)
    assert len(routes) > 20 and ("GET", "/metrics") in routes
    routes += [("HEAD", path) for method, path in routes if method == "GET"]
    for method, path in routes:
        answer = locked.request(method, path)
        if path in OPEN:
            assert answer.status_code == 200, path
        else:
            assert answer.status_code == 401, path
            assert method == "HEAD" or answer.json()["type"].endswith(":key-required")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY not in answer.text
    for path in OPEN:
        assert locked.get(path).status_code == 200
    assert locked.get("/no/such/route").status_code == 401
    assert locked.get("/metrics").status_code == 401


@pytest.mark.parametrize(
    "given",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Bearer " + KEY.encode()[:-1],
        b"Bearer " + KEY.encode() + b"x",
        b"Basic " + KEY.encode(),
        KEY.encode(),
    ],
)
def test_wrong_key_is_refused(given: bytes, locked: TestClient) -> None:
    answer = locked.get("/v1/model", headers={b"authorization": given})
    assert answer.status_code == 401


def test_key_is_compared_in_constant_time(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append((given, key))
        return True

    monkeypatch.setattr("service.security.hmac.compare_digest", compare)
    for given in (b"x", b""):
        answer = locked.get("/v1/model", headers={b"authorization": b"Bearer " + given})
        assert answer.status_code == 200
    assert compared == [(b"x", KEY.encode()), (b"", KEY.encode())]


def test_right_key_opens_every_route(locked: TestClient) -> None:
    # A body in a form that no route takes, so that none has to work.
    headers = {b"authorization": b"Bearer " + KEY.encode(), b"content-type": b"text/none"}
    for method, path in operations(locked):
        answer = locked.request(method, path, headers=headers, content=b"0")
        assert answer.status_code != 401, path
    answer = locked.post(
        "/v1/attention",
        json={"text": "a"},
        headers={b"authorization": b"bearer " + KEY.encode()},
    )
    assert answer.status_code == 200


def test_preflight_passes_without_the_key(locked: TestClient) -> None:
    answer = locked.options(
        "/v1/attention",
        headers={
            "origin": "http://localhost:3000",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        },
    )
    assert answer.status_code == 200
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


def test_refusal_can_be_read_by_a_page(locked: TestClient) -> None:
    answer = locked.get("/v1/model", headers={"origin": "http://localhost:3000"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_key_is_not_shown_by_the_settings(locked: TestClient) -> None:
    assert KEY not in repr(Settings(key=KEY)) and KEY not in str(Settings(key=KEY).model_dump())


def test_path_that_only_begins_like_an_open_one_is_closed(locked: TestClient) -> None:
    for path in ("/docs/x", "/docsx", "/openapi.json/x", "/health/other", "/health/live/x"):
        assert locked.get(path).status_code == 401, path


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:9", "[::1]", "[::1]:8000"]
)
def test_loopback_names_are_served(host: str, client: TestClient) -> None:
    assert client.get("/v1/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "localhost@evil.example", "", "127.0.0.1.evil", "*"],
)
def test_foreign_names_are_refused_on_every_route(host: str, client: TestClient) -> None:
    for method, path in [*operations(client), ("GET", "/health/live"), ("GET", "/docs")]:
        answer = client.request(method, path, headers={"host": host})
        assert answer.status_code == 400, path
        assert answer.json()["type"].endswith(":host-not-allowed")
        assert host == "" or host == "*" or host not in answer.text


def test_names_can_be_added_one_by_one_or_all_at_once(serve: Serve) -> None:
    one = serve(hosts="Lab.example,FE80::7")
    for name in ("lab.example:80", "LAB.Example", "[fe80::7]:80", "[FE80::7]"):  # RFC 9110, 4.2.3
        assert one.get("/v1/model", headers={"host": name}).status_code == 200, name
    assert one.get("/v1/model", headers={"host": "other.example"}).status_code == 400
    every = serve(hosts="*")
    assert every.get("/v1/model", headers={"host": "other.example"}).status_code == 200


def test_address_that_it_listens_on_is_served(serve: Serve) -> None:
    client = serve(host="10.0.0.7", key=KEY)
    headers = {b"authorization": b"Bearer " + KEY.encode(), b"host": b"10.0.0.7:8000"}
    assert client.get("/v1/model", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "example.org"])
def test_listening_beyond_loopback_without_a_key_is_refused(host: str) -> None:
    with pytest.raises(ValidationError, match=f"listening on {host} lets others in"):
        Settings(host=host)
    Settings(host=host, key="k")
    Settings(host=host, allow_open=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_listening_on_loopback_needs_no_key(host: str) -> None:
    assert Settings(host=host).key is None


def test_every_origin_together_with_a_key_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"origins \* with a key"):
        Settings(origins="*", key="k")


@pytest.mark.parametrize("key", ["", " "])
def test_empty_key_is_no_key(key: str) -> None:
    for host in ("0.0.0.0", "127.0.0.1"):
        with pytest.raises(ValidationError, match="the key is empty"):
            Settings(host=host, key=key)


def test_environment_is_read_and_what_is_unknown_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv("FLUOROSCOPE_MAX_TOKENS", "12")
    monkeypatch.setenv("FLUOROSCOPE_ORIGINS", "https://a.example, https://b.example")
    settings = Settings()
    assert settings.max_tokens == 12
    assert settings.origins == ["https://a.example", "https://b.example"]
    with pytest.raises(ValidationError):
        Settings(max_token=12)  # type: ignore[call-arg]
