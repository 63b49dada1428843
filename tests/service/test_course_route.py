"""The course runs: every item's request is sent, every observation must hold, for each family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.course import COURSE

Servers = Mapping[str, TestClient]


def at(answer: Any, pointer: str) -> Any:
    """RFC 6901."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return answer


def holds(answer: Any, observation: Mapping[str, Any]) -> bool:
    found, value = at(answer, observation["pointer"]), observation["value"]
    if isinstance(value, dict) and set(value) == {"pointer"}:
        value = at(answer, value["pointer"])
    match observation["op"]:
        case "equals":
            return bool(found == value)
        case "at_least":
            return bool(found >= value)
        case "at_most":
            return bool(found <= value)
        case "above":
            return bool(found > value)
        case "below":
            return bool(found < value)
        case "between":
            return bool(value[0] <= found <= value[1])
    raise AssertionError(observation["op"])


def items(client: TestClient) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in client.get("/v1/course").json()["items"]}


@pytest.mark.parametrize("name", [item.id for item in COURSE])
def test_course_item_shows_what_it_says(clients: Servers, family: str, name: str) -> None:
    client = clients[family]
    item = items(client)[name]
    if not item["available"]:
        assert item["missing"]
        return
    answer = client.request(item["method"], item["path"], json=item["body"])
    assert answer.status_code == 200, answer.text
    for observation in item["observe"]:
        assert holds(answer.json(), observation), observation


def test_course_is_whole_and_in_two_languages(clients: Servers) -> None:
    found = items(clients["course"])
    assert len(found) == len(COURSE)
    assert all(item["available"] for item in found.values())
    kinds = [item["kind"] for item in found.values()]
    assert kinds.count("pitfall") == 5
    for item in found.values():
        assert item["observe"]
        says = [observation["says"] for observation in item["observe"]]
        assert all(each["zh"] and each["en"] for each in [item["title"], *says])
        assert (item["body"] is None) == (item["method"] == "GET")


def test_course_says_what_a_model_lacks(clients: Servers) -> None:
    learned, grouped = items(clients["learned"]), items(clients["grouped"])
    assert learned["rope_of_the_model"]["missing"] == (
        "this model's positions are learned, not rotary"
    )
    assert grouped["the_norm"]["missing"] == "this model's norm is rmsnorm"
    assert learned["order"]["available"]


def test_an_observation_that_does_not_hold_is_found() -> None:
    answer = {"a": [1, 2], "b": 2}
    assert holds(answer, {"pointer": "/a/1", "op": "equals", "value": {"pointer": "/b"}})
    assert not holds(answer, {"pointer": "/a/0", "op": "equals", "value": {"pointer": "/b"}})
    assert not holds(answer, {"pointer": "/b", "op": "below", "value": 2})
    assert not holds(answer, {"pointer": "/b", "op": "between", "value": [3, 4]})
