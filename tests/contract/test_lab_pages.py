"""The pages on the labs: every curl line runs, every shown answer is part of the real one."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

FOLDER = Path(__file__).parents[2] / "docs/labs"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
ENGLISH = [name for name in PAGES if not name.endswith(".zh-CN.md")]
EXAMPLE = re.compile(r"```bash\n(curl [^\n]*)\n```(?:\n\n```json\n(.*?)```)?", re.DOTALL)


def ask(client: TestClient, command: str) -> Any:
    words = shlex.split(command)
    assert words[0] == "curl"
    path = words[-1].removeprefix("localhost:8000")
    if "--json" not in words:
        answer = client.get(path)
    else:
        answer = client.post(path, json=json.loads(words[words.index("--json") + 1]))
    assert answer.status_code == 200, answer.text
    return answer.json()


def parts_missing(shown: Any, real: Any, where: str = "") -> list[str]:
    """Where the shown answer is not part of the real one; numbers to the digits that are shown."""
    if isinstance(shown, dict):
        return [
            fault
            for key, value in shown.items()
            for fault in (
                parts_missing(value, real[key], f"{where}/{key}")
                if key in real
                else [f"{where}/{key} is not in the answer"]
            )
        ]
    if isinstance(shown, list):
        if len(shown) != len(real):
            return [f"{where} has {len(real)} entries, {len(shown)} are shown"]
        return [
            fault
            for index, (one, other) in enumerate(zip(shown, real, strict=True))
            for fault in parts_missing(one, other, f"{where}/{index}")
        ]
    if isinstance(shown, float):
        same = isinstance(real, float) and shown == pytest.approx(real, rel=1e-9, abs=1e-12)
    else:
        same = shown == real
    return [] if same else [f"{where} is {real}, {shown} is shown"]


@pytest.mark.parametrize("page", PAGES)
def test_lab_page_examples_are_real(client: TestClient, page: str) -> None:
    found = EXAMPLE.findall((FOLDER / page).read_text("utf-8"))
    assert found
    for command, shown in found:
        answer = ask(client, command)
        assert parts_missing(json.loads(shown or "{}"), answer) == []


@pytest.mark.parametrize("page", ENGLISH)
def test_lab_page_asks_the_same_in_both_languages(page: str) -> None:
    both = [
        [command for command, _ in EXAMPLE.findall((FOLDER / name).read_text("utf-8"))]
        for name in (page, page.replace(".md", ".zh-CN.md"))
    ]
    assert both[0] == both[1]


def test_every_lab_route_has_a_page(client: TestClient) -> None:
    text = "".join((FOLDER / name).read_text("utf-8") for name in ENGLISH)
    paths = [path for path in client.get("/openapi.json").json()["paths"] if "labs" in path]
    assert len(paths) == 6
    for path in [*paths, "/v1/rope/rotate", "/v1/rope/frequencies", "/v1/model/rope", "/v1/course"]:
        assert f"localhost:8000{path}\n" in text, path


def test_every_key_that_a_page_explains_is_in_an_answer(client: TestClient) -> None:
    """The tables' first column, against all answers of that page."""
    for page in ENGLISH:
        if page == "README.md":
            continue
        text = (FOLDER / page).read_text("utf-8")
        answers = json.dumps([ask(client, c) for c, _ in EXAMPLE.findall(text)])
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
            for key in re.findall(r"`(\w+)`", row):
                assert f'"{key}":' in answers, (page, key)


def test_a_wrong_number_on_a_page_is_found() -> None:
    real = {"a": [1.5, None], "b": {"c": 2}}
    assert parts_missing({"a": [1.5, None]}, real) == []
    assert parts_missing({"a": [1.6, None]}, real) == ["/a/0 is 1.5, 1.6 is shown"]
    assert parts_missing({"b": {"d": 2}}, real) == ["/b/d is not in the answer"]
