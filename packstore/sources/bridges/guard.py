"""Prevents unpickling and connections to other machines in calls of another library, and lists the files that a call
opens.

An audit hook (PEP 578) sees them in the calling thread, and in calls that asyncio makes for it; other threads of a
library may still look up the name of a host. The hook cannot be removed, so it is added with the first bridge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable

_library: ContextVar[str] = ContextVar("library", default="")
_unpickles: ContextVar[bool] = ContextVar("unpickles", default=False)
_opened: ContextVar[list[Path] | None] = ContextVar("opened", default=None)
_NEAR = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, on which FiftyOne's database runs."""
_hooks: list[str] = []


@contextmanager
def restrict_library(library: str, *, unpickles: bool = False) -> Iterator[None]:
    """Blocks unpickling and connections to other machines within the block, in this thread. Both raise
    :class:`SourceError`. A pickle that names no class or function passes: it runs nothing. The first call adds an audit
    hook to the process, which cannot be removed.

    Args:
        library: Name of the library, for the message.
        unpickles: Allows unpickling, since the library verifies the checksum of each file before.
    """
    if not _hooks:
        _hooks.append("open")
        sys.addaudithook(_audit)
    tokens = _library.set(library), _unpickles.set(unpickles)
    try:
        yield
    finally:
        _library.reset(tokens[0])
        _unpickles.reset(tokens[1])


@contextmanager
def record_opened_files() -> Iterator[list[Path]]:
    """Yields a list, to which each file that Python opens within the block, in this thread, is appended. Needs the
    audit hook: the list stays empty until the first :func:`restrict_library`."""
    paths: list[Path] = []
    token = _opened.set(paths)
    try:
        yield paths
    finally:
        _opened.reset(token)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: records opened files within :func:`record_opened_files`.

    Raises :class:`SourceError` for unpickling and connections that :func:`restrict_library` blocks. Allows connections
    to this machine, and Unix sockets.
    """
    if event == "open":
        files = _opened.get()
        if files is not None and isinstance(arguments[0], (str, Path)):
            files.append(Path(arguments[0]))
    elif event == "pickle.find_class":
        if _library.get() and not _unpickles.get():
            named = printable(".".join(map(str, arguments)))
            raise SourceError(
                f"{_library.get()} would unpickle a file that no checksum vouches for ({named}), and unpickling runs "
                "what the file says: give packstore the folder itself"
            )
    elif event in ("socket.getaddrinfo", "socket.connect") and _library.get():
        host = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        host = host[0] if isinstance(host, tuple) else host
        if event == "socket.connect" and not isinstance(arguments[1], tuple):
            return  # a socket of this machine
        if isinstance(host, str) and host not in _NEAR:
            raise SourceError(f"{_library.get()} would connect to {printable(host)}: bridges read this machine alone")
