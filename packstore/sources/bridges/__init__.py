"""Bridges: sources that another library reads, such as ``torchvision:OxfordIIITPet:ROOT``.

A library reads data on this machine: bridges never download. Nothing is unpickled, unless the library has verified
the file by a checksum of its own before, as torchvision does for CIFAR.

An audit hook (PEP 578) sees unpickling, connections and opened files in the calling thread, and in calls that asyncio
makes for it; other threads of a library may still look up the name of a host. The hook cannot be removed, so it is
added with the first bridge.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import PackstoreError, SourceError, UsageError, printable
from packstore.core.fields import Field
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import BRIDGES, find_bridge
from packstore.sources.base import Source, SourceOptions, Survey
from packstore.sources.dataset import DatasetSource
from packstore.sources.ledger import Claims
from packstore.sources.rows import in_packing_order

_LONG = 300
_INSTALL = {
    "tensorflow_datasets": "tensorflow-datasets",
    "torchvision": "torchvision, from the index that torch is from (packstore guide troubleshooting)",
}
"""Package for pip, if its name is not that of the module."""
_MODULES = {"datumaro": "annotated", "fiftyone": "annotated", "tfds": "datasets"}
"""Module here that reads with a library, if its name is not that of the library."""
_library: ContextVar[str] = ContextVar("library", default="")
_unpickles: ContextVar[bool] = ContextVar("unpickles", default=False)
_opened: ContextVar[list[Path] | None] = ContextVar("opened", default=None)
_NEAR = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, on which FiftyOne's database runs."""
_hooks: list[str] = []


class BridgedData(NamedTuple):
    """Data that a library has read.

    Attributes:
        splits: Map-style datasets by split, as :func:`packstore.convert` takes them; ``""`` for data without splits.
        fields: Declarations by name; None infers them.
        left: Number of values that are left out, by reason.
    """

    splits: Mapping[str, Any]
    fields: Mapping[str, Field] | None = None
    left: Mapping[str, int] = {}


def open_bridge(path: str | os.PathLike[str], options: SourceOptions) -> Source:
    """Reads a source with the library that its name begins with. Blocks connections and unpickling meanwhile, and
    discards what the library prints on standard output.

    Raises:
        UsageError: The library is not installed, the name has another form than in :data:`BRIDGES`, or nothing exists
            at its path. Also for the option ``layout`` with another library than ``datasets``.
        SourceError: The library cannot read the source, would unpickle it, or would connect to another machine.
    """
    named = find_bridge(path)
    assert named is not None
    library, rest = named
    if options.layout is not None and library != "datasets":
        raise UsageError(f"{printable(str(path))}: layout is for tables with boxes, and {library} reads none")
    with redirect_stdout(io.StringIO()), restrict_library(library), explain_errors(library, printable(str(path))):
        module = import_module(f"{__name__}.{_MODULES.get(library, library)}")
        data: Source | BridgedData = getattr(module, f"read_{library}")(rest, options)
        return BridgeSource(Path(path), data, options) if isinstance(data, BridgedData) else data


@contextmanager
def explain_errors(library: str, what: str, hint: str = "") -> Iterator[None]:
    """Converts errors of a library, in a ``with`` block, to a :class:`SourceError` of one line.

    The line has the first cause, at most 300 characters, and ``hint``. A missing module becomes a :class:`UsageError`
    with the command that installs it. packstore's own errors pass unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or library).partition(".")[0]
        raise UsageError(f"{what} needs {missing}: pip install {_INSTALL.get(missing, missing)}") from None
    except PackstoreError:
        raise
    except Exception as error:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        said = printable(" ".join(str(causes[-1]).split())[:_LONG])
        reason = ": ".join(part for part in (type(causes[-1]).__name__, said) if part)
        raise SourceError(f"{what}: {library} cannot read it: {reason}{hint}") from error


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


def split_name_and_path(rest: str, library: str) -> tuple[str, Path]:
    """Splits ``NAME:PATH`` into name and path. Raises :class:`UsageError` for another form, and if nothing exists at
    the path."""
    name, colon, path = rest.partition(":")
    if not (name and colon and path):
        raise UsageError(f"{library}:{printable(rest)}: write {BRIDGES[library]}")
    return name, require_path(path)


def require_path(path: str) -> Path:
    """Converts a text to a path. Raises :class:`UsageError` if nothing exists at the path."""
    if not Path(path).exists():
        raise UsageError(f"{printable(path)}: no such file or directory on this machine")
    return Path(path)


class BridgeSource(DatasetSource):
    """Source of data that a library has read; splits are in packing order. Images that are arrays are packed as pixels.
    Its ledger has no files, only the number of values that were left out."""

    asks_about_left = False

    def __init__(self, path: Path, bridged: BridgedData, options: SourceOptions) -> None:
        splits = {split: bridged.splits[split] for split in in_packing_order(bridged.splits)}
        super().__init__(splits, options, fields=bridged.fields, encoding="uint8", further="uint8")
        self.path = path
        self._left = bridged.left

    def identity(self) -> str:
        """Returns the source as the user named it, ``LIBRARY:NAME``, and the identity of the data."""
        return f"{self.path} {super().identity()}"

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the data. The ledger counts what the library has left out."""
        return replace(super().survey(split, progress), ledger=self.ledger(Claims(), split))

    def count_left_parts(self) -> Mapping[str, int]:
        """Returns :attr:`BridgedData.left`: the number of values that are left out, by reason."""
        return self._left
