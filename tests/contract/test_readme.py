"""The READMEs' answers are what the embedded model really says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from docs.examples import PAGES, ROOT, ask, examples, filled
from service.app import create_app
from service.settings import Settings


@pytest.fixture(scope="module")
def demo() -> Iterator[TestClient]:
    with TestClient(create_app(Settings()), base_url="http://localhost:8000") as client:
        yield client


@pytest.mark.parametrize("page", PAGES)
def test_readme_answers_are_the_demo_models(page: str, demo: TestClient) -> None:
    text = (ROOT / page).read_text("utf-8")
    now = filled(text, lambda command: ask(demo, command))
    shown = [json.loads(answer) for _, answer in examples(text)]
    real = [json.loads(answer) for _, answer in examples(now)]
    assert len(shown) == 5
    for one, other in zip(shown, real, strict=True):
        _require_close(one, other)


def test_readme_comparison_sees_a_wrong_number() -> None:
    with pytest.raises(AssertionError):
        _require_close({"a": [0.5]}, {"a": [0.52]})


def _require_close(shown: Any, real: Any) -> None:
    """Equal, numbers to 1e-3: another processor may round the last digits another way."""
    if isinstance(shown, dict):
        assert shown.keys() == real.keys()
        for key in shown:
            _require_close(shown[key], real[key])
    elif isinstance(shown, list):
        assert len(shown) == len(real)
        for one, other in zip(shown, real, strict=True):
            _require_close(one, other)
    elif isinstance(shown, float):
        assert shown == pytest.approx(real, abs=1e-3)
    else:
        assert shown == real
