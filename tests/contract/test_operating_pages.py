"""The pages on operating: every metric, flag, log field and problem in them is a real one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import connection, middleware, server
from service.errors import PROBLEMS
from service.inspector import PROBE_AFTER, PROBE_SECONDS
from service.security import OPEN_PATHS
from service.settings import Settings
from tests.conftest import Serve

ROOT = Path(__file__).parents[2]
PAGES = ("operating.md", "operating.zh-CN.md")


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_is_named_with_its_labels_and_no_other(page: str, serve: Serve) -> None:
    client = serve()
    client.post("/v1/attention", json={"text": "a"})
    client.get("/nothing")
    real = {
        re.sub("_(bucket|count|sum)$", "", sample.name): set(sample.labels) - {"le"}
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("fluoroscope_") and not sample.name.endswith("_created")
    }
    told: dict[str, set[str]] = {}
    for names, labels in re.findall(r"^\| (`fluoroscope_[^|]*) \| ([^|]*)\|", read(page), re.M):
        for name in re.findall(r"`(\w+)`", names):
            told[name] = {label for label in labels.strip().split(", ") if label}
    assert told == real


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_is_a_setting_and_every_problem_is_explained(page: str) -> None:
    text = read(page)
    flags = set(re.findall(r"`--([a-z-]+)", text))
    assert {flag.replace("-", "_") for flag in flags} <= set(Settings.model_fields)
    assert len(flags) > 10
    slugs = set(re.findall(r"503 `([a-z-]+)`", text))
    assert slugs == {"deadline-passed", "out-of-memory", "shutting-down"} <= set(PROBLEMS)


@pytest.mark.parametrize("page", PAGES)
def test_line_of_the_log_is_what_the_server_writes(
    page: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    (shown,) = re.findall(r"^\{.*\}$", read(page), re.MULTILINE)
    fields = json.loads(shown)
    caplog.set_level("INFO", "fluoroscope.access")
    serve().post("/v1/attention", json={"text": "a"})
    real = caplog.records[-1].fields  # type: ignore[attr-defined]
    around = {"time", "level", "logger", "message", "request_id"}
    assert set(fields) == set(real) | around
    assert fields["message"] in read(page).split("```json")[0]


@pytest.mark.parametrize("page", PAGES)
def test_fixed_numbers_are_those_of_the_code(page: str) -> None:
    text = read(page)
    assert f"{middleware.MAX_HEADER_BYTES >> 10} KiB" in text
    assert f"{connection.HEAD_BYTES >> 10} KiB" in text
    assert f"| {server.MAX_CONNECTIONS:,} |" in text
    assert re.search(f"{connection.HEAD_SECONDS:g} (s|秒)", text)
    assert re.search(f"{PROBE_AFTER:g} (seconds|秒)", text)
    assert re.search(f"{PROBE_SECONDS:g} (seconds|秒)", text)


def test_both_languages_have_the_same_tables_and_code() -> None:
    one, other = (read(page) for page in PAGES)
    for pattern in (r"^## ", r"^\|", r"^- ", r"^\d\. "):
        assert len(re.findall(pattern, one, re.M)) == len(re.findall(pattern, other, re.M))
    code = [re.findall(r"^```\w*\n(.*?)^```", page, re.M | re.S) for page in (one, other)]
    assert code[0] == code[1]


@pytest.mark.parametrize("page", ["SECURITY.md", "SECURITY.zh-CN.md"])
def test_open_routes_are_all_named_in_the_page_on_security(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {path for path in OPEN_PATHS if f"`{path}`" in text} == OPEN_PATHS
