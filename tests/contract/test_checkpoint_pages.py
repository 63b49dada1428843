"""The pages on checkpoints: every name in them exists, every command line is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from model.checkpoints.families import FAMILIES
from model.checkpoints.gguf import ARCHITECTURES
from model.checkpoints.gguf_tensors import BLOCKS, PLAIN
from model.parity import CLEARLY, GATE, LONGEST
from service.cli import app
from service.schemas.parity import ParityAnswer

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("checkpoints.md", "checkpoints.zh-CN.md")


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return (DOCS / request.param).read_text("utf-8")


def commands(text: str) -> list[str]:
    return [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.split("\n")
    ]


def test_everything_that_opens_is_named(page: str) -> None:
    formats = [kind.name for kind in (*PLAIN, *BLOCKS)]
    for name in (*FAMILIES, *ARCHITECTURES, *formats, "BF16"):
        assert name in page, name
    architectures = set(re.findall(r"`(\w+(?:ForCausalLM|LMHeadModel))`", page))
    assert architectures == set(FAMILIES)


def test_every_field_of_the_parity_report_is_explained_and_no_other(page: str) -> None:
    table = page[page.index("| `against`") : page.index("| `model` |") + 20]
    explained = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert explained == set(ParityAnswer.model_fields)
    assert f"{GATE:.0e}".replace("e-05", "e-5") in table and (CLEARLY, LONGEST) == (10, 32)
    assert "32" in page


def test_every_command_line_shown_is_understood(page: str) -> None:
    known = typer.main.get_command(app)
    lines = [shlex.split(line) for line in commands(page) if line.startswith("fluoroscope")]
    assert {words[1] for words in lines} == {"serve", "check-model", "parameters", "convert"}
    for words in lines:
        command = known.get_command(None, words[1])  # type: ignore[attr-defined]
        command.make_context(words[1], words[2:], resilient_parsing=False)


def test_both_languages_show_the_same_commands() -> None:
    english, chinese = ((DOCS / name).read_text("utf-8") for name in PAGES)
    assert commands(english) == commands(chinese)
    assert english.count("\n## ") == chinese.count("\n## ")
    assert english.count("\n| ") == chinese.count("\n| ")
