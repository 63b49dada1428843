"""The pages on /v1/generate and /v1/sample: what they show is what the service says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from docs.examples import PAGES
from service.app import create_app
from service.cli import app
from service.schemas.generation import GenerateRequest, Reason
from service.settings import Settings
from tests.answers import ask

ROOT = Path(__file__).parents[2]
BOTH = ["docs/generate.md", "docs/generate.zh-CN.md"]


@pytest.fixture(scope="module")
def demo() -> Iterator[TestClient]:
    with TestClient(create_app(Settings()), base_url="http://localhost") as client:
        yield client


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", BOTH)
def test_every_request_shown_is_answered(page: str, demo: TestClient) -> None:
    blocks = re.findall(r"```json\n(.*?)```", text_of(page), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        body = json.loads(block)
        ask(demo, "/v1/sample" if "settings" in body else "/v1/generate", **body)


@pytest.mark.parametrize("page", [*BOTH, *PAGES])
def test_every_curl_line_streams(page: str, demo: TestClient) -> None:
    lines = re.findall(r"^curl -N .*$", text_of(page), re.MULTILINE)
    assert len(lines) == 1
    words = shlex.split(lines[0])
    header, _, accept = words[words.index("-H") + 1].partition(": ")
    body = json.loads(words[words.index("--json") + 1])
    answer = demo.post("/v1/generate", json=body, headers={header: accept})
    assert answer.status_code == 200 and answer.text.startswith("event: meta\n")


@pytest.mark.parametrize("page", BOTH)
def test_step_shown_is_the_fourth_of_the_request(page: str, demo: TestClient) -> None:
    """Numbers to what is shown of them."""
    (shown,) = re.findall(r"```\n(\{.*?)```", text_of(page), re.DOTALL)
    request = json.loads(re.findall(r"```json\n(.*?)```", text_of(BOTH[0]), re.DOTALL)[0])
    step = ask(demo, "/v1/generate", **request)["steps"][3]
    first = step["candidates"][0]
    for name in ("logit", "scaled", "uncut", "probability", "cumulative"):
        assert number(shown, name) == pytest.approx(first[name], abs=0.006), name
    for name in ("entropy_nats", "draw", "step", "position", "n_kept"):
        assert number(shown, name) == pytest.approx(step[name], abs=0.006), name
    assert number(shown, "mass") == pytest.approx(step["top_p_cut"]["mass"], abs=0.006)
    assert f'"id": {step["token"]["id"]}' in shown and f'"text": "{step["text"]}"' in shown


def number(shown: str, name: str) -> float:
    found = re.search(rf'"{name}": ([0-9.]+)', shown)
    assert found, name
    return float(found[1])


@pytest.mark.parametrize("page", BOTH)
def test_every_field_and_reason_has_its_words(page: str) -> None:
    text = text_of(page)
    for name in GenerateRequest.model_fields:
        if name not in ("add_bos", "parse_special"):  # those of every input
            assert f"`{name}`" in text, name
    for reason in Reason.__args__:  # type: ignore[attr-defined]
        assert f"`{reason}`" in text
    defaults = dict(re.findall(r"^\| `(\w+)` \| ([\w\[\]]+) \|", text, re.MULTILINE))
    for name, shown in defaults.items():
        default = GenerateRequest.model_fields[name].get_default(call_default_factory=True)
        said = (
            "null" if default is None else f"{default:g}" if isinstance(default, float) else default
        )
        assert name == "max_new_tokens" or shown == str(said)
    assert len(defaults) >= 9


@pytest.mark.parametrize("page", PAGES)
def test_terminal_shows_what_the_readme_shows(page: str) -> None:
    """Shares to a percent: another processor may round another way."""
    (command, shown), *rest = re.findall(
        r"```sh\nfluoroscope (generate .*)\n```\n\n```\n(.*?)```", text_of(page), re.DOTALL
    )
    assert not rest
    result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "120", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    for ours, line in zip(result.output.splitlines(), shown.splitlines(), strict=False):
        assert words(line) == words(ours)
        for one, other in zip(shares(line), shares(ours), strict=True):
            assert abs(one - other) <= 1
    assert len(shown.splitlines()) >= 3


def words(line: str) -> Any:
    return re.sub(r"[█░]+|\s+\d+%", "", line).split()


def shares(line: str) -> list[int]:
    return [int(share) for share in re.findall(r"(\d+)%", line)]
