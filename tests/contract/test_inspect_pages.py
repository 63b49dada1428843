"""The pages on /v1/inspect: every request that they show is taken as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["inspect.md", "inspect.zh-CN.md"])
def test_every_request_shown_is_answered(page: str, client: TestClient) -> None:
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    bodies = [json.loads(block) for block in blocks if '"captures"' in block]
    assert bodies
    for body in bodies:
        answer = client.post("/v1/inspect", json=body)
        assert answer.status_code == 200, answer.text
