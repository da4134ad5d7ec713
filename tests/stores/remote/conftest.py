"""A cache of its own for each test, and a URL to put stores to."""

from __future__ import annotations

from pathlib import Path

import pytest

from packstore.cache import Cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The cache that readers take: an empty one."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "100MB")
    return Cache(tmp_path / "cache", 100_000_000)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The directory of a bucket; ``bucket.as_uri()`` is its URL."""
    return tmp_path / "bucket"
