"""Chooses the default cache: by PACKSTORE_CACHE and PACKSTORE_CACHE_SIZE, else in the user's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from packstore.cache.cache import Cache
from packstore.cache.folder import CacheFolder
from packstore.core.arguments import parse_bytes
from packstore.core.errors import UsageError
from packstore.core.files import url_message

FOLDER, SIZE = "PACKSTORE_CACHE", "PACKSTORE_CACHE_SIZE"
"""Environment variables."""


def default_cache() -> Cache:
    """Returns the default cache. Creates no folder.

    - Its folder is PACKSTORE_CACHE, or by default ``packstore`` in the user's cache folder.
    - Its budget is PACKSTORE_CACHE_SIZE. By default it is half of the bytes that are free on the disk or taken by the
      cache.

    Raises :class:`UsageError` if PACKSTORE_CACHE_SIZE is not a size, or PACKSTORE_CACHE is a URL.
    """
    given = os.environ.get(FOLDER)
    if refusal := url_message(given):
        raise UsageError(f"{FOLDER}: {refusal}")
    root = Path(given or _find_user_folder()).absolute()
    size = os.environ.get(SIZE)
    if not size:
        return Cache(root, CacheFolder(root).count_available_bytes() // 2)
    try:
        return Cache(root, parse_bytes(size))
    except UsageError as error:
        raise UsageError(f"{SIZE}: {error}") from None


def _find_user_folder() -> Path:
    """Returns the folder ``packstore`` in the user's cache folder: in XDG_CACHE_HOME, else in ``~/.cache``. On macOS,
    in ``~/Library/Caches``."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/packstore"
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard ignores a relative one.
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "packstore"
