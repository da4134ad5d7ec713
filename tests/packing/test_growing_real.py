"""``append``, ``merge`` and ``select`` of real photos."""

from __future__ import annotations

from pathlib import Path

import pytest

import packstore
from packstore.stores import open_store
from tests.conftest import SharedData


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_parted_and_put_together_again(shared_data: SharedData, tmp_path: Path, suffix: str) -> None:
    whole, half, rest, again = (tmp_path / f"{name}{suffix}" for name in ("whole", "half", "rest", "again"))
    manifest = packstore.convert(shared_data / "imagenet-600", whole, shard_size="10MB").manifest
    with open_store(whole) as reader:
        keys = [reader.key(i) for i in range(len(reader))]
    middle = keys[len(keys) // 2].replace("'", "\\'")
    packstore.select(whole, half, where=f"key < '{middle}'")
    packstore.select(whole, rest, where=f"not key < '{middle}'")
    assert packstore.verify(half).ok
    packstore.merge([half, rest], again)
    with open_store(again) as reader:
        assert sorted(reader.key(i) for i in range(len(reader))) == sorted(keys)
    report = packstore.append(half, rest)
    assert sum(report.added.values()) == len(packstore.open(rest))
    assert report.linked == len(packstore.open(rest).manifest.shards or ())
    for path in (half, again):
        assert packstore.verify(path).ok
        with open_store(path) as reader:
            found = [reader.key(i) for i in range(len(reader))]
            if found == keys:
                assert reader.manifest.dataset_digest == manifest.dataset_digest
    shared = packstore.select(whole, tmp_path / f"split{suffix}", splits={"train": 0.9, "val": 0.1}, stratify=True)
    assert [len(split) for split in shared.manifest.splits] == [
        round(0.9 * len(keys)),
        len(keys) - round(0.9 * len(keys)),
    ]
