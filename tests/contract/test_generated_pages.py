"""The pages that the registries fill are committed as they are generated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import chinese
from docs.generate import pages
from model.sites import SITES
from service.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ["sites.md", "sites.zh-CN.md", "settings.md", "settings.zh-CN.md", "openapi.json"]


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return pages()


@pytest.mark.parametrize("name", NAMES)
def test_committed_page_is_the_generated_one(name: str, generated: dict[str, str]) -> None:
    same = (DOCS / name).read_text(encoding="utf-8") == generated[name]
    assert same, f"docs/{name} is not what `python -m docs.generate` writes: run it"


def test_nothing_else_is_generated(generated: dict[str, str]) -> None:
    assert list(generated) == NAMES


def test_every_site_and_setting_has_its_words_in_chinese() -> None:
    assert set(chinese.SITES) == set(SITES)
    assert set(chinese.SETTINGS) == set(Settings.model_fields)


def test_pages_in_both_languages_have_the_same_rows(generated: dict[str, str]) -> None:
    for page in ("sites", "settings"):
        english, other = (
            re.findall(r"^\| (`[^`]+`) \|", generated[f"{page}{ending}"], re.MULTILINE)
            for ending in (".md", ".zh-CN.md")
        )
        assert english == other
        assert len(english) >= 21


def test_traits_stand_beside_the_sites_that_need_them(generated: dict[str, str]) -> None:
    rows = {
        row.split("`")[1]: row.rstrip(" |").rpartition("| ")[2]
        for row in generated["sites.md"].splitlines()
        if row.startswith("| `")
    }
    assert rows["pos_embed"] == "learned positions"
    assert rows["mlp.pre_linear"] == "a gated feed-forward"
    assert rows["resid_mid"] == "feed-forward after attention, not beside it"
