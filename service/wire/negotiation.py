"""Which form an answer takes: Accept and Accept-Encoding, quality values and all (RFC 9110 §12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
EVENTS = "text/event-stream"
OFFERED = (JSON, SAFETENSORS)
VARY = "Accept, Accept-Encoding"  # and Origin, which CORS adds to every answer
Coding = Literal["zstd", "gzip", "identity"]


class NotAcceptableError(ValueError):
    """None of the forms that the client accepts is offered; the message lists what is."""


def media_type(accept: str | None, forms: Sequence[str] = OFFERED) -> str:
    """The offered type that the client likes best; JSON where it does not mind.

    Raises NotAcceptableError where every offered type is refused.
    """
    if not accept or not accept.strip():
        return JSON
    best, best_quality = None, 0.0
    for offered in forms:
        quality = _quality(accept, offered)
        if quality > best_quality:
            best, best_quality = offered, quality
    if best is None:
        raise NotAcceptableError(f"this route answers {', '.join(forms[:-1])} or {forms[-1]}")
    return best


def coding(accept_encoding: str | None) -> Coding:
    """zstd, gzip or identity: what the client likes best, zstd before gzip where it is even."""
    best: Coding = "identity"
    best_quality = 0.0
    offers: tuple[Coding, ...] = ("zstd", "gzip")
    for offered in offers:
        quality = _quality(accept_encoding or "", offered)
        if quality > best_quality:
            best, best_quality = offered, quality
    if best_quality < _named_quality(accept_encoding or "", "identity"):
        return "identity"
    return best


def _named_quality(header: str, name: str) -> float:
    for part in header.split(","):
        value, _, parameters = part.partition(";")
        if value.strip().lower() == name:
            return _q(parameters)
    return 0.0


def _quality(header: str, offered: str) -> float:
    """Of the most specific range in the header that covers `offered`; 0 where none does."""
    found: tuple[int, float] = (-1, 0.0)
    for part in header.split(","):
        value, _, parameters = part.partition(";")
        value = value.strip().lower()
        main, _, _ = offered.partition("/")
        if value == offered:
            rank = 2
        elif value == f"{main}/*" and "/" in offered:
            rank = 1
        elif value in ("*/*", "*"):
            rank = 0
        else:
            continue
        if rank > found[0]:
            found = (rank, _q(parameters))
    return found[1]


def _q(parameters: str) -> float:
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                return min(max(float(value.strip()), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
