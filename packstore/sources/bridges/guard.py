"""Guards the calls of a library: blocks unpickling and connections, and explains errors.

An audit hook (PEP 578) sees unpickling and connections in the calling thread; other threads of a library may still look
up the name of a host. The hook cannot be removed, so it is added with the first bridge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from packstore.core.errors import PackstoreError, SourceError, UsageError, printable

# Package for pip, if its name is not that of the module.
_INSTALL = {
    "tensorflow_datasets": "tensorflow-datasets",
    "torchvision": "torchvision, from the index that torch is from (packstore guide troubleshooting)",
}
_library: ContextVar[str] = ContextVar("library", default="")
_unpickles: ContextVar[bool] = ContextVar("unpickles", default=False)
# Names of this machine, on which FiftyOne's database runs.
_NEAR = ("localhost", "127.0.0.1", "::1")


@contextmanager
def explain_errors(library: str, what: str) -> Iterator[None]:
    """Converts errors of a library, in a ``with`` block, to a :class:`SourceError` of one line with the first cause.

    A missing module becomes a :class:`UsageError` with the command that installs it. packstore's own errors pass
    unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or library).partition(".")[0]
        raise UsageError(f"{what} needs {missing}: pip install {_INSTALL.get(missing, missing)}") from None
    except PackstoreError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        said = printable(" ".join(str(cause).split())[:300])
        raise SourceError(f"{what}: {library} cannot read it: {type(cause).__name__}: {said}") from error


@contextmanager
def restrict_library(library: str, *, unpickles: bool = False) -> Iterator[None]:
    """Blocks unpickling and connections to other machines within the block, in this thread. Both raise
    :class:`SourceError`. A pickle that names no class or function passes: it runs nothing. The first call adds an audit
    hook to the process, which cannot be removed.

    Args:
        library: Name of the library, for the message.
        unpickles: Allows unpickling, since the library verifies the checksum of each file before.
    """
    _add_audit_hook()
    tokens = _library.set(library), _unpickles.set(unpickles)
    try:
        yield
    finally:
        _library.reset(tokens[0])
        _unpickles.reset(tokens[1])


@cache
def _add_audit_hook() -> None:
    """Adds :func:`_audit` to the process, once."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises :class:`SourceError` for unpickling and connections that :func:`restrict_library` blocks."""
    library = _library.get()
    if not library:
        return
    if event == "pickle.find_class" and not _unpickles.get():
        raise SourceError(
            f"{library} would unpickle a file that no checksum vouches for ({printable('.'.join(arguments))}), and "
            "unpickling runs what the file says: give packstore the folder itself"
        )
    if event in ("socket.getaddrinfo", "socket.connect"):
        host = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        if isinstance(host, tuple):
            host = host[0]
        elif event == "socket.connect":
            return  # a Unix socket has a path instead of a tuple
        if isinstance(host, str) and host not in _NEAR:
            raise SourceError(f"{library} would connect to {printable(host)}: bridges read this machine alone")
