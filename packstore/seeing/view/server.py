"""The web server of the page: uvicorn, made quiet about broken requests, and access control.

The server answers only the browser that has opened the secret address. It listens on 127.0.0.1, which every user of the
machine and every web page in the browser can reach. So a request must name this machine as its host (a page elsewhere
whose name resolves to 127.0.0.1 does not), must not come from another page, and must carry the token: first in the
address, later in a cookie that other sites do not get.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any
from urllib.parse import parse_qs

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
"""Names of this machine in an address. The port is not checked, since ``ssh -L`` changes it."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """ASGI application that passes only permitted requests to another application. Adds security headers to all
    responses.

    Refuses other methods than GET, other hosts, requests from other pages, and requests without the token. Closes web
    sockets.

    Answers a request for ``/`` with the right token itself. It sets a cookie, and redirects to the address without the
    token. Answers 503 for a request that is still running when the server stops.
    """

    def __init__(self, app: App, token: str) -> None:
        """``token`` is a secret of URL-safe characters."""
        self._app, self._token = app, token
        self._cookie = f"packstore-{secrets.token_hex(4)}"  # unique for each server, since cookies ignore ports

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return  # which closes a web socket

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                given = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in given]
                kept = [] if b"cache-control" in given else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*message["headers"], *added, *kept]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._find_refusal(scope, headers)
        if refusal is not None:
            status, why, more = refusal
            await _error_response(why, status, more)(scope, receive, send_with_headers)
            return
        if scope["path"] == "/" and b"token=" in scope["query_string"]:
            # Removes the token from the address, which people copy; the fragment after # stays.
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            moved = Response(status_code=303, headers={"location": "/", "set-cookie": cookie})
            await moved(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # uvicorn would log it with its traceback
            if not begun:
                stopped = _error_response("the server stops", 503, {"connection": "close"})
                await stopped(scope, receive, send_with_headers)

    def _find_refusal(self, scope: Message, headers: dict[str, str]) -> tuple[int, str, dict[str, str]] | None:
        """Returns the status, reason and headers that refuse a request, or None to permit it."""
        if scope["method"] != "GET":
            return 405, "only GET is allowed: this server changes nothing", {"allow": "GET"}
        host = headers.get("host", "")
        if host.partition(":")[0] not in HOSTS:
            return 421, f"this server answers only as {' or '.join(HOSTS)}", {}
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return 403, "requests from other pages are refused", {}
        # A browser may follow a link from another page.
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "requests from other pages are refused", {}
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        given = asked if scope["path"] == "/" and asked else self._cookie_token(headers.get("cookie", ""))
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            return 403, "the token is missing or wrong: open the address that packstore view has printed", {}
        return None

    def _cookie_token(self, text: str) -> str:
        """Returns the token from a request's cookies; empty if there is none."""
        pairs = (pair.strip().partition("=") for pair in text.split(";"))
        return next((value for name, _, value in pairs if name == self._cookie), "")


def _error_response(text: str, status: int, headers: dict[str, str]) -> Response:
    """Creates a response with an error as JSON."""
    return Response(json.dumps({"error": text}), status, headers, "application/json")


class Protocol(H11Protocol):
    """Connection that answers a broken request with 400, or ends without an answer if another one has begun.

    uvicorn's own logs a traceback if a request is found broken after its headers, for example in its body.
    """

    def send_400_response(self, msg: str) -> None:
        """Sends the response 400 if no response has begun, and closes the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # uvicorn then drops what the application sends
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


class Server(uvicorn.Server):
    """Server that calls a function when a signal arrives."""

    def __init__(self, app: Any, stopping: Callable[[], None]) -> None:
        """
        Args:
            app: ASGI application.
            stopping: Called when a signal arrives. After it, the server waits two seconds for running requests.
        """
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_level="error",  # a broken request is a warning, and anyone on this machine can send one
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Calls ``stopping`` first."""
        self._stopping()
        super().handle_exit(sig, frame)
