"""What is wrong with a request, by JSON pointer. What was sent is never echoed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 32  # findings told
READ = 8 * MOST  # errors looked at: a body can hold hundreds of thousands
LONGEST_KEY = 128  # of a client's own key in a pointer; what lies below a longer one is not told
CONTAINERS = 20_480  # arrays and objects that a body may hold
_SHOULD_BE = "Input should be "


def containers(body: bytes) -> int:
    """How many arrays and objects a JSON body holds. A megabyte can hold 500,000, whose parsing and
    checking keep the event loop for a second; brackets within texts are none.
    """
    if body.count(b"[") + body.count(b"{") <= CONTAINERS:
        return 0  # so few that nobody needs to know
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{")


def findings(errors: Sequence[Mapping[str, Any]], body: Any) -> list[dict[str, str]]:
    """One entry a place, {detail, pointer}.

    Of a union's members the one that the value came closest to is told: an entry goes where
    another one points further down the same way.
    """
    said: dict[str, list[str]] = {}
    for error in errors[:READ]:
        location = error["loc"]
        pointer = _pointer(location, body, missing=error["type"] == "missing")
        details = said.setdefault(pointer, [])
        if (detail := _detail(error, at_root=len(location) == 1)) not in details:
            details.append(detail)
    deepest = [
        pointer
        for pointer in said
        if not any(other != pointer and other.startswith(f"{pointer}/") for other in said)
    ]
    return [{"detail": _joined(said[pointer]), "pointer": pointer} for pointer in deepest[:MOST]]


def _pointer(location: Sequence[str | int], body: Any, *, missing: bool) -> str:
    """RFC 6901. Pydantic's locations also name the members of unions, which no body contains:
    whatever is not found in the body is left out, but for the name of a missing field."""
    source, *parts = location
    if source != "body":
        return "".join(_step(part) for part in location)
    pointer, value = "", body
    for place, part in enumerate(parts):
        if _holds(value, part):
            value = value[part]
        elif not (missing and place == len(parts) - 1):
            continue
        pointer += _step(part)
    return pointer


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value and len(str(part)) <= LONGEST_KEY


def _step(part: str | int) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1")


def _detail(error: Mapping[str, Any], *, at_root: bool) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "union_tag_invalid":  # pydantic's own words repeat what was sent
        return f"{context['discriminator']} must be one of {context['expected_tags']}"
    if kind == "model_attributes_type":
        if at_root:
            return "a JSON object is needed; send it as application/json (curl --json)"
        return _SHOULD_BE + "an object"
    return str(error["msg"]).removeprefix("Value error, ")


def _joined(details: list[str]) -> str:
    """One sentence. Where a value has the kind of one of a union's members and is refused for
    more than its kind, that is what to say; the other members' kinds are not."""
    closer = [detail for detail in details if not detail.startswith(_SHOULD_BE)]
    if closer:
        return "; ".join(closer)
    return _SHOULD_BE + " or ".join(detail.removeprefix(_SHOULD_BE) for detail in details)
