"""URLs where paths go: a URL is a path whose text is the URL, so that reports and messages show what was given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable
from packstore.core.files import split_url

if TYPE_CHECKING:
    _LocalPath = Path
else:
    _LocalPath = type(Path())  # Path itself cannot be inherited from before Python 3.12


_NO_SLASHES = re.compile(r"(s3a?|gs|az|https?|file|memory):([^/].*)", re.IGNORECASE | re.DOTALL)
"""What somebody wrote for a URL, and what would else name a new folder here."""


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

    Raises :class:`UsageError` for a URL without slashes, and for one that has no bucket before its path."""
    if isinstance(path, UrlPath):
        return path
    url = split_url(path)
    if url is None:
        local = Path(path)
        meant = _NO_SLASHES.fullmatch(text := os.fspath(path))
        if meant is not None and not Path(local.parts[0]).exists():
            slashes = ":///" if meant[1].lower() == "file" else "://"
            raise UsageError(
                f"{printable(text)} is no URL without its slashes: write {meant[1]}{slashes}{printable(meant[2])}, "
                f"or ./{printable(text)} for a path on this machine"
            )
        return local
    if ":///" in (text := os.fspath(path)) and url[0] not in ("file", "memory"):
        raise UsageError(f"{printable(text)} names no bucket: write {url[0]}://bucket/path")
    return UrlPath(path)
