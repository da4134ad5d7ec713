"""The web server of the page: uvicorn, made quiet about broken requests."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


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
