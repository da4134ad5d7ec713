"""Bridges: sources that another library reads, such as ``torchvision:OxfordIIITPet:ROOT``.

A library reads data on this machine: bridges never download. Nothing is unpickled, unless the library has verified
the file by a checksum of its own before, as torchvision does for CIFAR.

An audit hook (PEP 578) sees unpickling and connections in the calling thread; other threads of a library may still look
up the name of a host. The hook cannot be removed, so it is added with the first bridge.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from packstore.core.errors import PackstoreError, SourceError, UsageError, printable
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import find_bridge
from packstore.sources.base import Entry, Source, SourceOptions, Survey
from packstore.sources.ledger import Claims
from packstore.sources.wrapped import WrappedSource
from packstore.stores.link_files import Location

_LONG = 300
_INSTALL = {
    "tensorflow_datasets": "tensorflow-datasets",
    "torchvision": "torchvision, from the index that torch is from (packstore guide troubleshooting)",
}
"""Package for pip, if its name is not that of the module."""
_library: ContextVar[str] = ContextVar("library", default="")
_unpickles: ContextVar[bool] = ContextVar("unpickles", default=False)
_NEAR = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, on which FiftyOne's database runs."""


def open_bridge(path: str | os.PathLike[str], options: SourceOptions) -> Source:
    """Opens a source with the library that its name begins with. Blocks connections and unpickling meanwhile, and
    discards what the library prints on standard output.

    Raises:
        UsageError: The library is not installed, the name has another form than in
            :data:`packstore.core.urls.BRIDGES`, or nothing exists at its path. Also for the option ``layout`` with
            another library than ``datasets``.
        SourceError: The library cannot read the source, would unpickle it, or would connect to another machine.
    """
    named = find_bridge(path)
    assert named is not None
    library, rest = named
    if options.layout is not None and library != "datasets":
        raise UsageError(f"{printable(str(path))}: layout is for tables with boxes, and {library} reads none")
    from packstore.sources.bridges.openers import OPENERS

    folder = Path(mkdtemp(prefix="packstore-bridge-"))
    try:
        with redirect_stdout(io.StringIO()), restrict_library(library), explain_errors(library, printable(str(path))):
            source, stamp = OPENERS[library](rest, options, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return BridgeSource(Path(path), source, folder, stamp)


class BridgeSource(WrappedSource):
    """Source of data that a library has found, under the name that the user gave.

    The folder has the annotations that the library has converted, and links to the files of images. :meth:`close`
    removes it."""

    def __init__(self, path: Path, source: Source, folder: Path, stamp: str | None) -> None:
        """``stamp``: replaces that of ``source``, whose files are new at each opening; None keeps it."""
        super().__init__(source, source.options)
        self.path = path
        self._folder, self._stamp = folder, stamp
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, True)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the data. The ledger has no files, only the number of values that are left out."""
        survey: Survey = self._source.survey(split, progress)
        return replace(survey, ledger=self.ledger(Claims(), split))

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists no files: the library does not tell which it has read."""
        return iter(())

    def stamp(self) -> str:
        """Returns the given stamp, else that of the wrapped source."""
        return self._source.stamp() if self._stamp is None else self._stamp

    def nbytes(self, entry: Entry) -> int:
        """Estimates the bytes of an entry, by the wrapped source."""
        return self._source.nbytes(entry)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image in the file behind a link; None for an image that lies in the folder itself."""
        place: Location | None = self._source.locate(entry)
        if place is None or not Path(place.path).is_relative_to(self._folder):
            return place
        link = Path(place.path)
        return place._replace(path=str(link.resolve())) if link.is_symlink() else None

    def close(self) -> None:
        """Closes the wrapped source, and removes the folder."""
        self._source.close()
        self._remove_folder()


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
        said = printable(" ".join(str(cause).split())[:_LONG])
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
    """Raises :class:`SourceError` for unpickling and connections that :func:`restrict_library` blocks. Allows
    connections to this machine, and Unix sockets."""
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
