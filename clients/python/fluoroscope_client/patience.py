"""Patience: whether and how long to wait for a server that is busy. Does not wait itself."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import httpx


class Patience:
    """Of one call: at most `retries` more tries, and `seconds` of waiting for all of them."""

    def __init__(self, retries: int, seconds: float) -> None:
        self._retries, self._seconds = retries, seconds

    def after(self, response: httpx.Response) -> float | None:
        """Seconds to wait before the next try, or None where this answer has to do.

        Only a 429 or 503 that names a time is worth it: a 503 without one will not pass by itself.
        """
        if response.status_code not in (429, 503) or self._retries < 1:
            return None
        wait = retry_after(response)
        if wait is None or wait > self._seconds:
            return None
        self._retries -= 1
        self._seconds -= wait
        return wait


def retry_after(response: httpx.Response) -> float | None:
    """The header's seconds from now, whether it says seconds or a date (RFC 9110 §10.2.3)."""
    said = response.headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
