"""What stands before every route: request ids, the last catch, sizes, HEAD, ETags. Pure ASGI.

Knows nothing of the routes. service/app.py puts these, access and draining in their order.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.draining import shutting_down
from service.errors import Problem, as_problem, log, problem_response
from service.logs import REQUEST_ID, withheld
from service.security import route_path
from service.settings import Settings
from service.validation import CONTAINERS, containers
from service.wire.leaving import ClientGone
from service.wire.negotiation import VARY

MAX_HEADER_BYTES = 32 * 1024
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


class RequestId:
    """Gives every request an id, its own if it brought a good one; every answer and every record
    of the log carries it. Outermost, so that nothing is answered without."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        brought = Headers(scope=scope).get("x-request-id", "")
        request_id = brought if _ID.fullmatch(brought) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            REQUEST_ID.reset(token)


class LastCatch:
    """Answers as a problem what no route and no handler did: refusals of the middleware inside,
    faults of ours, and a run that outlived the server's grace."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            try:
                await send(message)
            except OSError:  # as servers say that nobody listens any more
                raise ClientGone from None

        try:
            await self.app(scope, receive, watched)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if started or not scope["app"].state.drain.begun.is_set():
                raise
            # The server ends what outlived its grace; the client is still told why.
            await self._answer(shutting_down(), scope, receive, send)
        except Exception as error:
            problem = as_problem(error)
            if problem.slug == "internal-error":
                request_id = scope["state"]["request_id"]
                log.error("request %s failed", request_id, exc_info=withheld(error))
            if started:
                raise withheld(error) from None  # the server breaks the connection off
            await self._answer(problem, scope, receive, send)

    async def _answer(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        state["problem"] = problem.slug
        await problem_response(problem, state["request_id"])(scope, receive, send)


class ConditionalGet:
    """Every GET under /v1 carries an ETag over its body; a client that has it gets a 304."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        if not route_path(scope).startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        known = {tag.strip() for tag in Headers(scope=scope).get("if-none-match", "").split(",")}
        start: Message = {}
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._send(start, b"".join(parts), known, send)

        await self.app(scope, receive, keep)

    async def _send(self, start: Message, body: bytes, known: set[str], send: Send) -> None:
        headers = MutableHeaders(scope=start)
        if start["status"] == 200:
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers["etag"] = etag
            headers["cache-control"] = "no-cache"  # keep it, but ask each time
            headers["vary"] = VARY
            if known & {etag, f"W/{etag}", "*"}:
                start["status"], body = 304, b""
                del headers["content-length"]
        await send(start)
        await send({"type": "http.response.body", "body": body})


class HeadAsGet:
    """Answers HEAD wherever GET is answered: the same status and headers, and no body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        as_get = {**scope, "method": "GET"}
        try:
            await self.app(as_get, receive, send_head)
        finally:
            scope["route"] = as_get.get("route")  # for whoever measures outside


class Sizes:
    """Refuses headers and bodies that are too large, and bodies that trickle in or are no JSON."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        _check_headers(headers)
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        body = await self._read_body(headers, receive)
        await self.app(scope, _replay(body, receive), send)

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self.settings.max_body_bytes
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit, int(declared))
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem("bad-request", "the client left before its body was whole")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _too_large(limit, size)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            seconds = self.settings.body_seconds
            raise Problem(
                "body-timeout", f"the body was not whole after {seconds:g} s", limit=seconds
            ) from None
        if size and (kind := _media_type(headers)) != "application/json":
            said = f"was sent as {kind}" if kind else "was sent without a content type"
            raise Problem(
                "unsupported-media-type",
                f"the body {said}; send application/json, with curl: curl --json '{{…}}' URL",
            )
        whole = b"".join(parts)
        if (held := containers(whole)) > CONTAINERS:
            raise Problem(
                "invalid-request",
                f"the body holds {held} arrays and objects; at most {CONTAINERS} are read",
                limit=CONTAINERS,
                actual=held,
            )
        return whole


def _check_headers(headers: Headers) -> None:
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > MAX_HEADER_BYTES:
        raise Problem(
            "headers-too-large",
            f"the headers are {size} bytes; at most {MAX_HEADER_BYTES} are read",
            limit=MAX_HEADER_BYTES,
            actual=size,
        )


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """The body as one message, then whatever the connection says next."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _too_large(limit: int, size: int) -> Problem:
    return Problem(
        "body-too-large",
        f"the body has {size} bytes or more; at most {limit} are read",
        limit=limit,
        actual=size,
    )


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()[:64]
