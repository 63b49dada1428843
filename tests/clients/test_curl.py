"""clients/curl: every line of its README as pasted, and the smoke script, able to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings
from tests.clients.conftest import listening
from tests.service.sse import events_of

CURL = Path(__file__).parents[2] / "clients" / "curl"
KEY = 'open "sesame" 钥匙\\'
ADDRESS = "http://127.0.0.1:8000"
LINES = re.findall(r"^curl .*$", (CURL / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
REFUSED = [line for line in LINES if "1000" in line]
# Outside of /v1: nothing to show of them, or not a line for a terminal.
NOT_SHOWN = {"/metrics"}


@pytest.fixture
def shell(base_url: str, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a line as it stands but for the address; a refusal gives curl's code 22."""
    (tmp_path / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nnoproxy = "*"\n')

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line.replace(ADDRESS, base_url)],
            cwd=tmp_path,
            env={**os.environ, "CURL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    return run


@pytest.mark.parametrize("line", [line for line in LINES if line not in REFUSED])
def test_line_of_the_readme_works_as_pasted(
    line: str, shell: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = shell(line)
    assert done.returncode == 0, done.stdout + done.stderr
    if "-o " in line:
        assert any(tmp_path.glob("*.safetensors"))
    elif "text/event-stream" in line:
        names = [name for name, _ in events_of(done.stdout)]
        assert names == ["meta", "prompt", *["step"] * 8, "done"]
    else:
        json.loads(done.stdout)


def test_last_line_of_the_readme_is_refused_with_the_range(
    shell: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    (line,) = REFUSED
    done = shell(line)
    assert done.returncode == 22
    assert "valid are -3 to 2" in json.loads(done.stdout)["detail"]


def test_readme_has_a_line_for_every_route() -> None:
    paths = create_app(Settings()).openapi()["paths"]
    shown = [re.search(rf"{ADDRESS}(/[^'? ]*)", line) for line in LINES]
    addresses = {found[1] for found in shown if found}
    missing = [
        path
        for path in paths
        if path not in NOT_SHOWN
        and not any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), one) for one in addresses)
    ]
    assert missing == []


def smoke(base: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", CURL / "smoke.sh", base],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_smoke_script_passes_a_server_and_says_what_it_saw(base_url: str) -> None:
    done = smoke(base_url)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("ok ") for line in lines) == 15
    assert lines[-1] == f"{base_url} passes"
    assert "猫追老鼠，因为它饿了。" in done.stdout
    assert done.stderr == ""


def test_smoke_script_brings_a_key_where_it_has_one(folders: Mapping[str, Path]) -> None:
    with listening(create_app(Settings(model=str(folders["grouped"]), key=KEY))) as url:
        assert smoke(url, FLUOROSCOPE_KEY=KEY).returncode == 0
        refused = smoke(url)
    assert refused.returncode == 1
    assert "GET /v1/model: the status should be 200 and is 401" in refused.stderr


def test_smoke_script_says_that_nobody_is_there() -> None:
    done = smoke("http://127.0.0.1:9")
    assert done.returncode == 1
    assert "FAIL GET /health/live: no server answers" in done.stderr


def smoke_a_new_server(model: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.smoke", model],
        cwd=CURL.parents[1],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_make_smoke_starts_a_server_of_its_own(folders: Mapping[str, Path]) -> None:
    done = smoke_a_new_server(folders["course"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" passes")


def test_make_smoke_fails_where_the_server_does_not_start(tmp_path: Path) -> None:
    done = smoke_a_new_server(tmp_path / "nothing")
    assert done.returncode == 1
    assert "the server did not get ready: it ended with code 1" in done.stderr


class Liar:
    """The service with one answer changed on its way out."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.path = ""
        self.status: int | None = None
        self.lie: Callable[[Any], Any] = lambda answer: answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        parts: list[bytes] = []
        start: dict[str, Any] = {}

        async def keep(message: Any) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, keep)
        body = b"".join(parts)
        if start["status"] == 200:
            body = json.dumps(self.lie(json.loads(body))).encode()
        headers = [(k, v) for k, v in start["headers"] if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({**start, "headers": headers, "status": self.status or start["status"]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def liar(folders: Mapping[str, Path]) -> Iterator[tuple[Liar, str]]:
    app = Liar(create_app(Settings(model=str(folders["course"]))))
    with listening(app) as url:
        yield app, url


def changed(answer: Any, value: Any, *way: Any) -> Any:
    """The answer with what lies at the end of the way replaced, or computed from what was there."""
    *before, last = way
    holder = answer
    for step in before:
        holder = holder[step]
    holder[last] = value(holder[last]) if callable(value) else value
    return answer


PATTERN = ("tensors", "attn.pattern")
LIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "dead": ("/health/live", lambda a: changed(a, "dying", "status"), "should say that it is live"),
    "half a hash": (
        "/v1/model",
        lambda a: changed(a, "abc", "weights_sha256"),
        "should say what it is",
    ),
    "another count": (
        "/v1/model",
        lambda a: changed(a, lambda n: n + 1, "parameters"),
        "the total should be",
    ),
    "other axes": (
        "/v1/sites",
        lambda a: {"sites": [{**site, "axes": ["key", "query"]} for site in a["sites"]]},
        "should be a site",
    ),
    "a broken character": (
        "/v1/tokenize",
        lambda a: changed(a, "\ufffd", "tokens", 0, "display"),
        "whole Chinese characters",
    ),
    "another text": (
        "/v1/detokenize",
        lambda a: changed(a, "狗", "text"),
        "should give the text back",
    ),
    "a row of 1.002": (
        "/v1/attention",
        lambda a: changed(a, lambda weight: weight + 0.002, *PATTERN, "data", 0, 0, 3, 0),
        "each row should sum to 1",
    ),
    "a look ahead": (
        "/v1/attention",
        lambda a: changed(a, 0.0001, *PATTERN, "data", 0, 0, 0, 1),
        "nothing should look ahead",
    ),
    "checks that disagree": (
        "/v1/attention",
        lambda a: changed(a, 0.5, "checks", "future_mass"),
        "nothing should look ahead",
    ),
    "probabilities out of order": (
        "/v1/logits",
        lambda a: changed(a, lambda top: top[::-1], "predictions", 0, "top"),
        "likeliest first",
    ),
    "a token that was not the likeliest": (
        "/v1/generate",
        lambda a: changed(a, False, "steps", 2, "candidates", 0, "drawn"),
        "four tokens should be chosen",
    ),
    "a text that its pieces do not make": (
        "/v1/generate",
        lambda a: changed(a, lambda text: text + "!", "done", "samples", 0, "text"),
        "make up the text",
    ),
    "a softmax that is a little off": (
        "/v1/sample",
        lambda a: changed(a, lambda p: p + 1e-6, "choices", 0, "candidates", 0, "probability"),
        "should be the softmax",
    ),
    "probabilities over 1": (
        "/v1/logits",
        lambda a: changed(a, 1.5, "predictions", 0, "top", 0, "probability"),
        "likeliest first",
    ),
}


@pytest.mark.parametrize(("path", "lie", "sentence"), LIES.values(), ids=LIES.keys())
def test_smoke_script_finds_a_wrong_answer(
    liar: tuple[Liar, str], path: str, lie: Callable[[Any], Any], sentence: str
) -> None:
    app, url = liar
    app.path, app.lie, app.status = path, lie, None
    done = smoke(url)
    assert done.returncode == 1
    assert done.stderr.startswith("FAIL ")
    assert sentence in done.stderr
    assert "passes" not in done.stdout


@pytest.mark.parametrize("status", [200, 400, 500])
def test_smoke_script_finds_a_wrong_status(liar: tuple[Liar, str], status: int) -> None:
    app, url = liar
    app.path, app.lie, app.status = "/v1/attention", lambda answer: answer, status
    done = smoke(url)
    assert done.returncode == 1
    wanted = 422 if status == 200 else 200
    assert f"the status should be {wanted} and is {status}" in done.stderr
