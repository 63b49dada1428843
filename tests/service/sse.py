"""Reading an event stream as strictly as its form allows."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.answers import Json, strict_json

EVENTS = "text/event-stream"
Event = tuple[str, Any]


def events_of(body: str | bytes) -> list[Event]:
    """The events, comments left out. Each is two lines and an empty one, and the last is whole."""
    text = body.decode() if isinstance(body, bytes) else body
    assert text.endswith("\n\n")
    found: list[Event] = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        event, data = block.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        found.append((event.removeprefix("event: "), strict_json(data.removeprefix("data: "))))
    return found


def stream(client: TestClient, /, **body: Any) -> list[Event]:
    """Every event of a generation that began well."""
    answer = client.post("/v1/generate", json=body, headers={"accept": EVENTS})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == EVENTS
    return events_of(answer.content)


def in_one_piece(events: list[Event]) -> Json:
    """What the JSON answer is to say, told by the events."""
    names = [name for name, _ in events]
    assert names[:2] == ["meta", "prompt"] and names[-1] == "done"
    assert set(names[2:-1]) == {"step"}
    told = dict(event for event in events if event[0] != "step")
    steps = [data for name, data in events if name == "step"]
    return {**told, "steps": steps, "estimate": None}


def without_times(answer: Any) -> Any:
    if isinstance(answer, list):
        return [without_times(item) for item in answer]
    if isinstance(answer, dict):
        return {key: without_times(item) for key, item in answer.items() if key != "timing_ms"}
    return answer
