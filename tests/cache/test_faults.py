"""Faults on the way from an object store: the cache has the right bytes, or there is one line that says why."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from packstore.cache import Cache
from packstore.objects import open_objects
from tests.internals import StoreError
from tests.makers.s3 import Double, Fault

CONTENT = random.Random(5).randbytes(9 << 20)  # obstore gives it in several pieces
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def open_it(cache: Cache, content: bytes = CONTENT) -> None:
    objects = open_objects("s3://bucket")
    digest = hashlib.sha256(content).hexdigest()
    descriptor = cache.open(digest, len(content), lambda: objects.stream("x"))
    assert os.pread(descriptor, len(content) + 1, 0) == content
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["503", "cut", "flipped", "slow"])
@pytest.mark.parametrize("content", [CONTENT, b"small"])
def test_the_bytes_are_right_at_last(s3_double: Double, tmp_path: Path, kind: str, content: bytes) -> None:
    s3_double.objects["x"] = content
    s3_double.faults = [Fault(kind, "GET", times=2)]
    open_it(Cache(tmp_path, 10 << 20), content)
    assert s3_double.faults[0].times < 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [("flipped", "came damaged 3 times"), ("403", "s3://bucket/x"), ("expired", "s3://bucket/x")],
)
def test_it_is_one_line(s3_double: Double, tmp_path: Path, kind: str, said: str) -> None:
    s3_double.objects["x"] = CONTENT
    s3_double.faults = [Fault(kind, "GET", times=1000)]
    cache = Cache(tmp_path / "cache", 10 << 20)
    with pytest.raises(StoreError, match=said) as caught:
        open_it(cache)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert cache.entries() == []
    assert list((cache.root / "part").iterdir()) == []
