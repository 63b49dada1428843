"""The pages on scaling: their arithmetic is right, and both languages hold the same numbers."""

from __future__ import annotations

import math
import re

import pytest

from service.ray_app import FUSE, Fleet
from service.settings import Settings
from tests.fleet.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = ("scaling.md", "scaling.zh-CN.md")
SUM = re.compile(r"([\d,.]+) × ([\d.]+) ÷ 0\.6 = ([\d,.]+) → ([\d,]+)")


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("page", PAGES)
def test_fleets_follow_from_the_measured_costs(page: str) -> None:
    rows = re.findall(r"\| [\d.]+ MB \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", read(page))
    costs = [round(float(cost) / 1e3, 7) for row in rows for cost in row]
    sums = SUM.findall(read(page))
    assert len(costs) == 9 and [float(cost) for _, cost, _, _ in sums] == costs * 2
    for rate, cost, processors, whole in sums:
        shown = number(processors)
        digits = len(processors.partition(".")[2])
        assert shown == round(number(rate) * float(cost) / 0.6, digits)
        assert number(whole) == math.ceil(shown)
    rates = [number(rate) for rate, _, _, _ in sums]
    assert rates == [round(1_000 / 60, 1)] * 9 + [round(1_000_000 / 60)] * 9


def test_both_languages_hold_the_same_numbers() -> None:
    measured, translated = (re.findall(r"\d[\d,.]*\d|\d", read(page)) for page in PAGES)
    # 35 billion is 350 亿.
    assert sorted({*measured} ^ {*translated}) == ["35", "350"]


@pytest.mark.parametrize("page", PAGES)
def test_arguments_are_those_of_build_with_their_defaults(page: str) -> None:
    told = {}
    for names, defaults in re.findall(r"^\| (`[a-z_]+`[^|]*) \| ([\d, 、]+) \|", read(page), re.M):
        values = re.split(r"[,、] ?", defaults.strip())
        told.update(zip(re.findall(r"`([a-z_]+)`", names), map(float, values), strict=True))
    own = Fleet.model_fields.keys() - Settings.model_fields.keys()
    assert told == {name: Fleet.model_fields[name].default for name in own}
    assert f"{FUSE:,}" in read(page)
