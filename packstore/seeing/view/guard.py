"""Who may ask: only the browser that was given the address, and only for what it may read.

The server listens on 127.0.0.1, where every user and every web page that the browser has open can reach it. So each
request must name this machine as its host (a page elsewhere whose name resolves to 127.0.0.1 does not), must not come
from another page, and must carry the token: at first in the address, then in a cookie that no other site is sent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
"""Names of this machine in an address. The port is left open: it is another one behind ``ssh -L``."""

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
    """An ASGI application around another, which sees only requests that may be answered."""

    def __init__(self, app: App, token: str) -> None:
        """``token`` is a secret of URL-safe letters."""
        self._app, self._token = app, token
        self._cookie = f"packstore-{secrets.token_hex(4)}"  # one a server: cookies do not tell ports apart

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return  # a web socket is closed by that

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in given]
                kept = [] if b"cache-control" in given else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*message["headers"], *added, *kept]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            status, why, more = refusal
            await _answer(guarded, status, json.dumps({"error": why}).encode(), more)
            return
        if scope["path"] == "/" and b"token=" in scope["query_string"]:
            # The token leaves the address, which people copy; what follows # stays.
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(guarded, 303, b"", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Message, headers: dict[str, str]) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """Status, reason and headers where a request is not to be answered."""
        if scope["method"] != "GET":
            return 405, "only GET is answered: nothing here changes anything", [(b"allow", b"GET")]
        host = headers.get("host", "")
        if host.partition(":")[0] not in HOSTS:
            return 421, f"this server answers as {' or '.join(HOSTS)} only", []
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return 403, "a request from another page is not answered", []
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "a request from another page is not answered", []
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        given = asked if scope["path"] == "/" and asked else self._of_cookie(headers.get("cookie", ""))
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            return 403, "the token is missing or wrong: open the address that packstore view has printed", []
        return None

    def _of_cookie(self, text: str) -> str:
        """The token in the cookies of a request. Those of other applications on this machine may be anything."""
        pairs = (pair.strip().partition("=") for pair in text.split(";"))
        return next((value for name, _, value in pairs if name == self._cookie), "")


async def _answer(
    send: Callable[[Message], Awaitable[None]], status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
