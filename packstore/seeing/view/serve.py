"""Runs the server of the page, for this machine only, until it is interrupted."""

from __future__ import annotations

import errno
import importlib
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from packstore.core.errors import UsageError
from packstore.images.reading import Window, check_window
from packstore.stores import open_store

_HOST = "127.0.0.1"


def serve_page(
    path: Path,
    announce: Callable[[str], None],
    stopping: Callable[[], None],
    *,
    port: int = 0,
    browser: bool = True,
    audit: Path | None = None,
    verified: Path | None = None,
    window: Window | None = None,
) -> None:
    """Serves the page of the store at ``path`` until a signal arrives.

    Args:
        path: A store of any format.
        announce: Called with the secret address when the port is open, before the server answers.
        stopping: Called when a signal arrives. After it, the server waits two seconds for running requests.
        port: Port to listen at; 0 for a free one.
        browser: Also open the address in the browser.
        audit: Report of ``packstore audit --json FILE``. Its findings are marked.
        verified: Report of ``packstore verify --json``. Its problems are marked.
        window: For images of more than 8 bits: the value shown as black, and the value shown as white. None for the
            1st and 99th percentile of each image.

    Raises:
        StoreError: The store does not open.
        UsageError: A library is not installed, or the port cannot be used. A file is no report about this store. The
            window is empty.
    """
    check_window(window)
    for name in ("starlette", "uvicorn"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(f"packstore view needs {name}: pip install 'packstore[view]'") from None
    from packstore.seeing.view.app import make_app
    from packstore.seeing.view.server import Server
    from packstore.seeing.view.site import Site, read_findings

    with open_store(path) as reader, closing(_open_listener(port)) as listener:
        findings = read_findings(audit, verified, reader.manifest)
        token = secrets.token_urlsafe(24)
        site = Site(reader, findings, window)
        address = f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}"
        server = Server(make_app(site, token), stopping)
        announce(address)
        if browser:
            # In a thread, since it may wait for the browser to start.
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            site.close()


def _open_listener(port: int) -> socket.socket:
    """Opens the listening socket at 127.0.0.1; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except OSError as error:
        listener.close()
        taken = "is taken by another program" if error.errno == errno.EADDRINUSE else f"is not usable: {error.strerror}"
        raise UsageError(f"port {port} {taken}; leave --port out for a free port") from None
    listener.listen(128)
    return listener


def _open_browser(address: str) -> None:
    """Opens ``address`` in the user's browser."""
    import webbrowser

    webbrowser.open(address)
