"""What breaks while a model trains from a store at a URL: the batches stay those of the local store, or one line says
why there are none."""

from __future__ import annotations

import errno
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomResizedCrop
from packstore.stores import open_store
from tests.internals import DiskFullError, StoreError, UrlPath, files, location, shard_object_name, upload_store
from tests.makers.datasets import make_folder

RECORDS, SHARDS, SIDE = 96, 12, 16
_ALLOCATE = files.allocate_bytes


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "x.lmdb"
    rng = np.random.default_rng(3)
    images = [(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), number % 7) for number in range(RECORDS)]
    packstore.convert(images, path, encoding="uint8", shard_size=RECORDS // SHARDS * SIDE * SIDE * 3)
    return path


@pytest.fixture
def url(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UrlPath:
    """Its copy in the folder ``bucket``; the cache is the folder ``cache``."""
    place = location(f"{(tmp_path / 'bucket').as_uri()}/x.lmdb")
    upload_store(local, place)
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "100MB")
    return place


@pytest.fixture
def shards(url: UrlPath, tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bucket" / url.name / "shards").iterdir())


def batches(path: str | Path, epochs: int = 2, **options: Any) -> Iterator[torch.Tensor]:
    dataset = PackedDataset(path)
    loader = PackedLoader(dataset, 4, shuffle="lanes", window=3, resident=False, workers=1, prefetch=1, **options)
    for _ in range(epochs):
        for images, _labels in loader:
            yield images


def trained(local: Path, path: str | Path, breaking: Callable[[int], None] = lambda batch: None) -> int:
    """Trains, with ``breaking`` called before each batch; how many batches there were, all of them right."""
    given = 0
    for expected, found in zip(batches(local), batches(path), strict=True):
        assert torch.equal(found, expected)
        given += 1
        breaking(given)
    return given


def rot(path: Path, place: int | None = None) -> None:
    """Changes a byte as a bad disk does, without a new date; all of them without ``place``."""
    found = path.stat()
    data = bytearray(path.read_bytes())
    if place is None:
        data[:] = bytes(len(data))
    else:
        data[place] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_cache_is_removed_while_a_model_trains(
    local: Path, url: UrlPath, tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(local) as reader:
        sizes = [shard.nbytes for shard in reader.manifest.shards]
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(int(share * sum(sizes))))

    def remove(batch: int) -> None:
        if batch % 5 == 0:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    assert trained(local, url, remove) == 2 * RECORDS // 4


@pytest.mark.slow
def test_a_disk_that_others_fill_is_shared(
    local: Path, url: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the tenth batch on it has room for as many shards as batches need, and not for all that were open."""
    room = 1 << 40

    def allocate(descriptor: int, nbytes: int) -> None:
        if nbytes + sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        _ALLOCATE(descriptor, nbytes)

    def fill(batch: int) -> None:
        nonlocal room
        if batch == 10:
            room = max(5 * nbytes + 1000, 0)

    with open_store(local) as reader:
        nbytes = max(shard.nbytes for shard in reader.manifest.shards)
    monkeypatch.setattr(files, "allocate_bytes", allocate)
    assert trained(local, url, fill) == 2 * RECORDS // 4
    room = nbytes
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr("packstore.stores.remote_shards._PATIENCE_SECONDS", 0.05)
    with pytest.raises(DiskFullError, match=r"the disk of the cache .* is full: an object needs [\d,]+ bytes"):
        trained(local, url)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "changed", "cut", "swapped"])
def test_objects_change_on_the_server(
    local: Path, url: UrlPath, shards: list[Path], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first epoch; the cache has room for less than half of them."""
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", str(5 * max(path.stat().st_size for path in shards)))

    def change(batch: int) -> None:
        if batch == 2:
            contents = [path.read_bytes() for path in shards]
            for number, path in enumerate(shards):
                match how:
                    case "deleted":
                        path.unlink()
                    case "changed":
                        path.write_bytes(bytes(len(contents[number])))
                    case "cut":
                        path.write_bytes(contents[number][:-100])
                    case _:
                        path.write_bytes(contents[number - 1])

    with pytest.raises(StoreError, match=r"shard shard-000\d\d.lmdb of .* (is missing|cannot be fetched)"):
        trained(local, url, change)


@pytest.mark.slow
@pytest.mark.parametrize("checksums", ["always", "auto"])
def test_a_rotten_copy_is_fetched_again_once_it_is_found(
    local: Path, url: UrlPath, tmp_path: Path, checksums: Any
) -> None:
    """The file is no longer than its date says: nothing shows that it has changed but its bytes."""
    with open_store(local) as beside:
        expected = [bytes(beside.read(record)) for record in range(RECORDS)]
    with open_store(url) as reader:
        assert bytes(reader.read(0)) == expected[0]
    (copy,) = (tmp_path / "cache" / "whole").iterdir()
    rot(copy, copy.read_bytes().index(expected[0][:64]))
    with open_store(url, checksums) as reader:
        read = [bytes(reader.read(0)) for _ in range(16)]  # one of them at least is compared with its checksum
        assert expected[0] in read if checksums == "auto" else {*read} == {expected[0]}
        assert [bytes(reader.read(record)) for record in range(RECORDS)] == expected
    rot(copy)
    with open_store(url, checksums) as reader:
        assert bytes(reader.read(0)) == expected[0]


@pytest.mark.slow
def test_verify_is_about_the_objects_and_not_about_their_copies(
    url: UrlPath, tmp_path: Path, shards: list[Path]
) -> None:
    assert packstore.verify(url).ok
    for copy in (tmp_path / "cache" / "whole").iterdir():
        rot(copy, 5000)
    assert packstore.verify(url).ok
    rot(shards[3], 5000)
    assert not packstore.verify(url).ok


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
def test_a_server_of_files_without_ranges(local: Path, url: UrlPath, tmp_path: Path, copied: bool) -> None:
    """``python -m http.server``, over the objects of a store and over a plain copy of a local one."""
    handler = functools.partial(_Files, directory=str(tmp_path if copied else tmp_path / "bucket"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            assert trained(local, f"http://127.0.0.1:{server.server_address[1]}/x.lmdb") == 2 * RECORDS // 4
        finally:
            server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("suffix", "resident"), [(".lmdb", False), (".h5", False), (".h5", True)])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_damaged_shard_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, suffix: str, resident: bool, batch_size: int
) -> None:
    """All other records come, and as many batches as ever, some of them empty."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    options: dict[str, Any] = {"encoding": "uint8", "size": 16} if suffix == ".h5" else {"encoding": "original"}
    packstore.convert(make_folder(tmp_path / "photos", per_class=6), tmp_path / f"x{suffix}", split="train",
                      shard_size=6000, **options)  # fmt: skip
    url = UrlPath(f"{(tmp_path / 'bucket').as_uri()}/x{suffix}")
    manifest = upload_store(tmp_path / f"x{suffix}", url)
    shard = next(iter(manifest.shards))
    damaged = tmp_path / "bucket" / f"x{suffix}" / shard_object_name(shard)
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    dataset = packstore.PackedDataset(url, columns=["image", "key"])
    loader = packstore.PackedLoader(
        dataset, batch_size, shuffle=shuffle, on_error="skip", augment=[RandomResizedCrop(8)], resident=resident
    )
    batches = list(loader)
    with open_store(tmp_path / f"x{suffix}") as reader:
        whole = sorted(reader.key(i) for i in range(shard.records, len(reader)))
    assert sorted(key for _, keys in batches for key in keys) == whole
    assert len(batches) == len(loader)
    assert loader.stats()["skipped"] == shard.records
    for images, keys in batches:
        assert images.shape == (len(keys), 3, 8, 8)
    with pytest.raises(StoreError, match="came damaged 3 times"):
        list(
            packstore.PackedLoader(dataset, batch_size, shuffle=shuffle, augment=[RandomResizedCrop(8)], resident=False)
        )
