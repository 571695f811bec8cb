"""Checks of every request before its route, and headers of every response, as an ASGI middleware.

A page of another site can make a visitor's browser send requests to this server (also by pointing its own name at
127.0.0.1, DNS rebinding). Such requests carry that site's name in ``Host`` or ``Origin``, and are refused. No header ever
allows other sites to read an answer (no CORS). Where the server can be reached from other machines, all but the page
itself and the health checks needs a bearer token.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from vitshap.serving.schemas import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN_PATHS = ("/", "/healthz", "/readyz")
"""Addresses that need no token, besides those under ``/static/``: they reveal nothing."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that binds to this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Protection:
    """The middleware."""

    def __init__(
        self,
        app: Any,
        *,
        token: str | None = None,
        hosts: Collection[str] = (),
        addresses: bool = False,
        observe: Callable[[str, int, float], None] = lambda path, status, seconds: None,
    ) -> None:
        """``hosts``: names besides the loopback's that ``Host`` may have; ``addresses``: it may be any IP address, which no
        site can claim as its name; ``observe`` is called with address, status and seconds of every response."""
        self.app, self._token, self._addresses, self._observe = app, token, addresses, observe
        self._hosts = {host.lower() for host in (*LOOPBACK_NAMES, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error, or pass the request on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path: str = scope["path"]
        started = time.perf_counter()

        async def send_protected(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "no-cache" if path == "/" or path.startswith("/static/") else "no-store"
                self._observe(path, message["status"], time.perf_counter() - started)
            await send(message)

        try:
            self._check(path, Headers(scope=scope))
        except ApiError as error:
            await error.response()(scope, receive, send_protected)
            return
        await self.app(scope, receive, send_protected)

    def _check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._known(host):
            raise ApiError(403, "forbidden_host", "this name of the server is not allowed (vitshap serve --allow-host)")
        origin = headers.get("origin")
        if origin is not None and _origin_host(origin) != host.lower():
            raise ApiError(403, "forbidden_origin", "requests from pages of other sites are not allowed")
        if self._token is None or path in OPEN_PATHS or path.startswith("/static/"):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise ApiError(
                401,
                "unauthorized",
                "this server needs the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="vitshap"'},
            )

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        if not self._addresses:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _origin_host(origin: str) -> str | None:
    """Return host and port of an origin; None if it has none ("null")."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
