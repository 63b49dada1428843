"""Who may ask: the key, the host names, the origins of browser pages. Knows nothing of routes."""

from __future__ import annotations

import hmac
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Problem
from service.settings import LOOPBACK, Settings

OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/docs", "/openapi.json"})
LOCAL_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


class Access:
    """Refuses host names that are not served here, and requests without the key."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        key = settings.key
        self._key = None if key is None else key.get_secret_value().encode()
        self._hosts = {host.lower() for host in (*LOOPBACK, settings.host, *settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            self._check_host(headers)
            if route_path(scope) not in OPEN_PATHS:
                self._check_key(headers)
        await self.app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = _host_name(headers.get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            raise Problem("host-not-allowed", "the Host header names no host that is served here")

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.encode("latin-1"), self._key
        ):
            raise Problem(
                "key-required",
                "send the key as `Authorization: Bearer KEY`",
                headers={"www-authenticate": "Bearer"},
            )


def route_path(scope: Scope) -> str:
    """The path below whatever prefix the app is mounted under."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def cors(settings: Settings) -> dict[str, Any]:
    """What Starlette's CORSMiddleware is told: local pages on any port, others by list."""
    return {
        "allow_origins": settings.origins,
        "allow_origin_regex": LOCAL_ORIGIN,
        "allow_methods": ["GET", "HEAD", "POST"],
        "allow_headers": [
            "Authorization",
            "Content-Type",
            "Accept",
            "X-Request-Id",
            "If-None-Match",
        ],
        "expose_headers": [
            "X-Request-Id",
            "Server-Timing",
            "Content-Length",
            "Retry-After",
            "ETag",
        ],
        "allow_private_network": True,
        "max_age": 600,
    }


def _host_name(host: str) -> str:
    """The name without the port: `localhost:8000`, `[::1]:8000`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
