"""Metrics, and one log line for each request. Knows routes by their templates, never by a path.

A registry belongs to one app, so that several in a process do not meet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.admission import Admission
from service.security import route_path

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
STAGES = ("queue", "tokenize", "forward", "encode")
METHODS = ("GET", "HEAD", "POST", "OPTIONS")
NO_ROUTE = "none"  # nothing at this address, or refused before a route was looked for
_PAGES = ("/docs", "/openapi.json")  # FastAPI's own, which leave no route in the scope
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
log = logging.getLogger("fluoroscope.access")


class Metrics:
    """What `/metrics` shows. Safe to call from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Histogram(
            "fluoroscope_request_seconds",
            "From a request's headers to the last byte of its answer",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._stages = Histogram(
            "fluoroscope_stage_seconds",
            "One stage of a request: waiting in the queue, tokenize, forward, encode",
            ["stage"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._rejections = Counter(
            "fluoroscope_rejections",
            "Answers that were a problem, by its type in docs/problems.md",
            ["reason"],
            registry=self._registry,
        )
        self._model = Info("fluoroscope_model", "The loaded model", registry=self._registry)
        self._gauges = {
            name: Gauge(f"fluoroscope_{name}", meaning, registry=self._registry)
            for name, meaning in (
                ("running", "Requests that have the device"),
                ("waiting", "Requests that wait for the device"),
                ("in_flight_bytes", "Estimated bytes of the answers under way"),
            )
        }
        for stage in STAGES:
            self._stages.labels(stage)

    def watch(self, admission: Admission, model: Mapping[str, Any]) -> None:
        """Show this admission's gauges, read when asked for, and what the model is."""
        self._gauges["running"].set_function(lambda: admission.running)
        self._gauges["waiting"].set_function(lambda: admission.waiting)
        self._gauges["in_flight_bytes"].set_function(lambda: admission.bytes_in_flight)
        self._model.info({name: str(value) for name, value in model.items()})

    def stage(self, name: str, seconds: float) -> None:
        self._stages.labels(name).observe(seconds)

    def request(self, method: str, route: str, status: str, seconds: float) -> None:
        self._requests.labels(method, route, status).observe(seconds)

    def rejection(self, reason: str) -> None:
        self._rejections.labels(reason).inc()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class Observed:
    """Measures every request and writes its line: id, method, route, status, time, bytes."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status, size, whole = 0, 0, False

        async def watched(message: Message) -> None:
            nonlocal status, size, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            seconds = time.perf_counter() - start
            self._note(scope, status if whole else None, seconds, size)

    def _note(self, scope: Scope, status: int | None, seconds: float, size: int) -> None:
        """A status of None: the client left, or the answer broke off."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = route_template(scope)
        self.metrics.request(
            method, route, "aborted" if status is None else f"{status // 100}xx", seconds
        )
        reason = scope.get("state", {}).get("problem")
        if reason is not None:
            self.metrics.rejection(reason)
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1e3, 3),
            "bytes": size,
            "problem": reason,
        }
        log.info(
            "%s %s %s in %.1f ms, %d bytes",
            method,
            route,
            "aborted" if status is None else status,
            seconds * 1e3,
            size,
            extra={"fields": {name: value for name, value in fields.items() if value is not None}},
        )


def route_template(scope: Scope) -> str:
    """`/v1/model/parameters/{name}`; what was routed nowhere is all one."""
    template = getattr(scope.get("route"), "path", None)
    if template is not None:
        return str(template)
    path = route_path(scope)
    return path if path in _PAGES else NO_ROUTE
