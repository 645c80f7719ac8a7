"""What every request passes first: its host, its origin, its size, its token."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.config import Gateway as GatewayConfig
from coterie.core.errors import CoterieError, Forbidden, RateLimited, TooLarge
from coterie.engine.access import Access

log = logging.getLogger("coterie.api")

MAX_BODY = 8 * 1024 * 1024
PUBLIC = frozenset(
    {"/", "/healthz", "/docs", "/docs/home.js", "/docs/page.js", "/docs/page.css", "/favicon.ico"}
)
"""Served without a token: health, and static files that hold no data."""


class Guard:
    """Wraps the whole application."""

    def __init__(
        self, app: ASGIApp, access: Access, settings: Callable[[], GatewayConfig], host: str
    ) -> None:
        self._app = app
        self._host = host.lower()
        """The address that we listen on; `--host` may differ from the settings."""
        self._machine = socket.gethostname().lower()
        self._access = access
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers, scope)
            self._check_origin(headers)
            if scope["type"] == "websocket":
                await self._app(scope, receive, send)
                return
            if scope["path"] not in PUBLIC:
                client = scope["client"][0] if scope.get("client") else "?"
                scope.setdefault("state", {})["caller"] = self._access.check(_bearer(headers), client)
            if int(headers.get("content-length") or 0) > MAX_BODY:
                raise TooLarge(f"a request has at most {MAX_BODY} bytes")
        except CoterieError as error:
            await _refuse(scope, send, error)
            return
        await self._app(scope, _counted(receive), _with_safe_headers(send))

    def _check_host(self, headers: Headers, scope: Scope) -> None:
        """Only names we answer to: a page that points its own name at us (DNS rebinding) gets nothing.

        The address at which a connection arrived is our own, and nobody can make a number mean another machine.
        """
        host = _host_name(headers.get("host", ""))
        settings = self._settings()
        named = (self._host, settings.host.lower(), self._machine, _host_name_of(settings.public_url))
        if not (
            is_loopback(host)
            or (host and host in named)
            or host in map(str.lower, settings.allowed_hosts)
            or _is_address(host, (scope.get("server") or ("",))[0])
        ):
            raise Forbidden(
                f"{host[:100]!r} is no name of this gateway; to reach it by that name, set gateway.public_url "
                "or gateway.allowed_hosts in agent.yaml where the gateway runs"
            )

    def _check_origin(self, headers: Headers) -> None:
        """A browser names the page that asks; only our own pages and those configured may."""
        origin = headers.get("origin")
        settings = self._settings()
        if origin is None or origin in settings.allowed_origins:
            return
        if settings.public_url is not None and origin.lower() == settings.public_url.rstrip("/").lower():
            return
        try:
            own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:
            own = False
        if not own:
            raise Forbidden(
                f"pages of {origin[:100]!r} may not use this gateway; see gateway.allowed_origins"
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(host: str, arrived_at: str) -> bool:
    """A number, and the one at which the connection came in."""
    try:
        return _address(host) == _address(arrived_at)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def _host_name_of(url: str | None) -> str:
    return (urlsplit(url).hostname or "").lower() if url else ""


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _counted(receive: Receive) -> Receive:
    """Bodies without a declared length are counted as they come."""
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY:
                raise TooLarge(f"a request has at most {MAX_BODY} bytes")
        return message

    return counting


SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
]


def _with_safe_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *SAFE_HEADERS]}
        await send(message)

    return sending


def error_body(error: CoterieError, path: str) -> dict[str, Any]:
    """An error as HTTP spells it: its details in camelCase, but for OpenAI's protocol; a field as one writes it here."""
    body = error.payload()
    if error.details is not None and not path.startswith("/v1/"):
        details = {to_camel(key): value for key, value in error.details.items()}
        if isinstance(field := details.get("field"), str):
            details["field"] = ".".join(map(to_camel, field.split(".")))
        body["details"] = details
    return {"error": body}


async def _refuse(scope: Scope, send: Send, error: CoterieError) -> None:
    log.info("refused %s: %s", scope["path"], error.message)
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
        return
    body = json.dumps(error_body(error, scope["path"])).encode()
    headers: list[Any] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", b"3"))
    await send(
        {"type": "http.response.start", "status": error.http_status, "headers": [*headers, *SAFE_HEADERS]}
    )
    await send({"type": "http.response.body", "body": body})
