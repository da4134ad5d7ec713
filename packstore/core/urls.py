"""URLs as paths. The text of such a path is the URL: reports and messages show it as it was given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable
from packstore.core.files import redact_url, split_url

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

    Raises :class:`UsageError` for a URL without slashes or without a bucket, and for a file on another machine.
    """
    if isinstance(path, UrlPath):
        return path
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
