"""The cache: proven copies of the objects of remote stores on a local disk, within a budget.

:mod:`packstore.cache.folder` documents its files.
"""

from __future__ import annotations

from packstore.cache.cache import Cache, Fetch, default_cache
from packstore.cache.folder import CacheEntry

__all__ = ["Cache", "CacheEntry", "Fetch", "default_cache"]
