"""URLs as paths. The text of such a path is the URL: reports and messages show it as it was given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable

if TYPE_CHECKING:
    _LocalPath = Path
else:
    _LocalPath = type(Path())  # Path itself cannot be inherited from before Python 3.12


_NO_SLASHES = re.compile(r"(s3a?|gs|az|https?|file|memory):([^/].*)", re.IGNORECASE | re.DOTALL)
"""A URL written without its slashes; as a path it would name a new local folder."""


BRIDGES = {
    "torchvision": "torchvision:NAME:ROOT",
    "datasets": "datasets:PATH",
    "tfds": "tfds:NAME:DATA_DIR",
    "datumaro": "datumaro:FORMAT:PATH",
    "fiftyone": "fiftyone:NAME",
}
"""Forms of sources that a library reads, by library; see :mod:`packstore.sources.bridges`."""
_BRIDGE = re.compile(rf"({'|'.join(BRIDGES)}):(.+)", re.DOTALL)


_FILE_HOST = re.compile(r"file://([^/]+)", re.IGNORECASE)
"""A file URL with a host name after two slashes (RFC 8089). Not recognised after :class:`Path` has merged slashes."""


_URL = re.compile(r"([a-z][a-z0-9+.-]+:)/{1,3}(.*)", re.IGNORECASE | re.DOTALL)
"""A URL, also after :class:`Path` has merged its slashes. A single letter is a drive of Windows and not a scheme."""


def split_url(path: str | bytes | os.PathLike[str]) -> tuple[str, str] | None:
    """Splits a URL into its scheme, in lower case, and the text after the slashes. Returns None for a local path.

    A path is also local if a folder with the scheme's name and colon exists, such as ``s3:``.
    """
    url = _URL.fullmatch(os.fsdecode(path))
    return None if url is None or Path(url[1]).exists() else (url[1][:-1].lower(), url[2])


def url_message(*paths: str | bytes | os.PathLike[str] | None) -> str | None:
    """Returns the error text for the first of ``paths`` that is a URL. None if all are local."""
    for path in paths:
        url = None if path is None else split_url(path)
        if url is not None:
            return f"{redact_url(*url)} is a URL; give a path on this machine"
    return None


def redact_url(scheme: str, rest: str) -> str:
    """Formats a URL for a message, without secrets.

    Leaves out user and password before the bucket, and a query that has a ``=``. A question mark without ``=`` may
    belong to a name and stays.
    """
    bucket, slash, path = rest.partition("/")
    path = re.sub(r"\?.*=.*", "?…", path, flags=re.DOTALL)
    return printable(f"{scheme}:{'///' if scheme == 'file' else '//'}{bucket.rpartition('@')[2]}{slash}{path}")


def refuse_empty(*paths: str | os.PathLike[str] | None) -> None:
    """Raises :class:`UsageError` if one of ``paths`` is empty: :class:`Path` would take it for the working
    directory."""
    if any(path is not None and not os.fspath(path) for path in paths):
        raise UsageError("a path is empty; use . for the working directory")


def check_paths(*paths: str | os.PathLike[str] | None) -> None:
    """Raises :class:`UsageError` if one of ``paths`` is empty or a URL."""
    refuse_empty(*paths)
    said = url_message(*paths)
    if said is not None:
        raise UsageError(said)


class UrlPath(_LocalPath):
    """A URL of an object store as a path, for which nothing exists on this machine.

    Its text keeps the slashes of the URL, which :class:`Path` would merge. ``name``, ``parent`` and ``/`` work as for
    any path. It is absolute and never a link.
    """

    def __str__(self) -> str:
        text = super().__str__()
        scheme, _, rest = text.partition(":")
        if rest and not rest.startswith("/"):  # relative to a URL
            return text
        return f"{scheme.lower()}:{'///' if scheme.lower() == 'file' else '//'}{rest.lstrip('/')}"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)

    def absolute(self) -> UrlPath:
        """Returns the URL itself."""
        return self

    def resolve(self, strict: bool = False) -> UrlPath:
        """Returns the URL itself; ignores ``strict``."""
        return self

    def is_symlink(self) -> bool:
        """Returns False."""
        return False


ShardPlace = str | UrlPath
"""Path of a shard as text, which is made in a tenth of a :class:`Path`'s time; or the URL of a shard to fetch."""


def find_bridge(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Splits the name of a dataset that a library reads, such as ``torchvision:CIFAR10:data``, into library and rest.

    Returns None for any other path, and if a file or folder of that name exists.
    """
    match = _BRIDGE.fullmatch(os.fspath(path))
    return None if match is None or os.path.lexists(path) else (match[1], match[2])


def location(path: str | os.PathLike[str]) -> Path:
    """Converts ``path`` to a :class:`UrlPath` if it is a URL, else to a :class:`Path`.

    Recognises a URL whose slashes :class:`Path` has merged. A path that looks like a URL stays local if its first
    folder exists. The name of a library's dataset (:data:`BRIDGES`) stays local, too.

    Raises :class:`UsageError` for an empty path, for a URL without slashes or without a bucket, and for a file on
    another machine.
    """
    if isinstance(path, UrlPath):
        return path
    refuse_empty(path)
    if find_bridge(path) is not None:
        return Path(path)
    parts, text = split_url(path), os.fspath(path)
    if parts is None:
        local, meant = Path(path), _NO_SLASHES.fullmatch(text)
        if meant is not None and not Path(local.parts[0]).exists():
            url = redact_url(meant[1].lower(), meant[2])
            raise UsageError(
                f"{meant[1]}: begins a URL whose slashes are missing: write {url}, or put ./ before a path on this "
                "machine"
            )
        return local
    if ":///" in text and parts[0] not in ("file", "memory"):
        shown = redact_url(*parts).replace("://", ":///", 1)
        raise UsageError(f"{shown} names no bucket: write {parts[0]}://bucket/path")
    if (host := _FILE_HOST.match(text)) is not None:
        machine = printable(host[1].rpartition("@")[2])
        raise UsageError(f"file://{machine}/… is on the machine {machine!r}; write file:///path for this machine")
    return UrlPath(path)
