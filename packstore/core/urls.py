"""URLs where paths go: a URL is a path whose text is the URL, so that reports and messages show what was given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable
from packstore.core.files import shown_url, split_url

if TYPE_CHECKING:
    _LocalPath = Path
else:
    _LocalPath = type(Path())  # Path itself cannot be inherited from before Python 3.12


_NO_SLASHES = re.compile(r"(s3a?|gs|az|https?|file|memory):([^/].*)", re.IGNORECASE | re.DOTALL)
"""What somebody wrote for a URL, and what would else name a new folder here."""


_FILE_HOST = re.compile(r"file://([^/]+)", re.IGNORECASE)
"""RFC 8089: what follows two slashes is a machine. After :class:`Path` has made one slash of two it is not seen."""


class UrlPath(_LocalPath):
    """A URL of an object store as a path. Nothing is at such a path on this machine.

    ``name``, ``parent`` and ``/`` are as for any path. It is absolute, and no link.
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
        return self

    def resolve(self, strict: bool = False) -> UrlPath:
        return self

    def is_symlink(self) -> bool:
        return False


def location(path: str | os.PathLike[str]) -> Path:
    """``path`` as a :class:`Path`; as a :class:`UrlPath` where it is a URL, also after :class:`Path` has made one slash
    of two. A local path that looks like a URL, and whose first folder is there, stays one.

    Raises :class:`UsageError` for a URL without slashes, one that has no bucket before its path, and a file on another
    machine."""
    if isinstance(path, UrlPath):
        return path
    found, text = split_url(path), os.fspath(path)
    if found is None:
        local, meant = Path(path), _NO_SLASHES.fullmatch(text)
        if meant is not None and not Path(local.parts[0]).exists():
            url = shown_url(meant[1].lower(), meant[2])
            raise UsageError(
                f"{meant[1]}: begins a URL, and its slashes are missing: write {url}, or put ./ before a path on this "
                "machine"
            )
        return local
    if ":///" in text and found[0] not in ("file", "memory"):
        shown = shown_url(*found).replace("://", ":///", 1)
        raise UsageError(f"{shown} names no bucket: write {found[0]}://bucket/path")
    if (host := _FILE_HOST.match(text)) is not None:
        machine = printable(host[1].rpartition("@")[2])
        raise UsageError(f"file://{machine}/… is a file of the machine {machine!r}; write file:///path for one of this")
    return UrlPath(path)
