"""Damaged copies of shards in the cache: they are fetched again, and nothing else is noticed of them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import CenterCrop
from tests.internals import CorruptRecordError, StoreError, UrlPath, upload_store
from tests.makers.batches import same
from tests.makers.datasets import make_folder

FORMS: dict[str, dict[str, Any]] = {"files": {"encoding": "original"}, "pixels": {"encoding": "uint8", "size": 24}}


class Remote:
    """A store on this machine, the same at a URL, and copies of its shards in the cache."""

    def __init__(self, root: Path, suffix: str, form: str) -> None:
        self.form = form
        self.photos = make_folder(root / "photos", per_class=6)
        self.local = root / f"x{suffix}"
        packstore.convert(self.photos, self.local, split="train", shard_size=9000, **FORMS[form])
        self.folder = root / "bucket" / f"x{suffix}"
        self.url = self.folder.as_uri()
        upload_store(self.local, UrlPath(self.url))
        self.cache = root / "cache" / "whole"

    def copies(self) -> list[Path]:
        return sorted(path for path in self.cache.iterdir() if path.stat().st_size > 1000)

    def damage(self, how: str) -> None:
        """Damages every copy, and leaves its dates as they are."""
        for thread in threading.enumerate():  # that fetch shards ahead, and still check copies
            if thread.name.startswith("packstore-shards"):
                thread.join()
        with packstore.open(self.local) as reader:
            values = [bytes(reader.view(int(start))) for start in reader.table.starts]
            columns = [part.fixed_column("row_checksum").tobytes() for part in reader.parts()]
            keys = [reader.key(int(start)).encode() for start in reader.table.starts]
        others = [path.read_bytes() for path in self.copies()]
        assert len(others) == len(values) > 2
        for number, path in enumerate(self.copies()):
            dates, data = path.stat(), bytearray(others[number])
            if how == "deleted":
                path.unlink()
                continue
            if how == "truncated":
                os.truncate(path, len(data) // 3)
            elif how == "replaced":
                path.unlink()
                path.write_bytes(others[number - 1])
            else:
                wanted, last = {"image": (values, 100), "fields": (columns, 0), "key": (keys, 0)}[how]
                rotten = bytes(data)
                for value in wanted:  # wherever it stands: an LMDB may have pages that are no longer used
                    rotten = rotten.replace(value, value[:last] + bytes([value[last] ^ 1]) + value[last + 1 :])
                assert rotten != data
                with path.open("r+b") as file:
                    file.write(rotten)
            os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[".lmdb", ".h5", ".pth"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACKSTORE_CACHE_SIZE", "50MB")
    return Remote(tmp_path, request.param, form)


DAMAGES = ["image", "fields", "key", "truncated", "replaced", "deleted"]
Batches = list[tuple[torch.Tensor, ...]]


def epoch(dataset: Any, **options: Any) -> tuple[Batches, dict[str, float]]:
    loader = PackedLoader(dataset, 8, augment=[CenterCrop(8)], **options)
    batches = [tuple(part.clone() for part in batch) for batch in loader]
    return batches, loader.stats()


LOADERS: dict[str, dict[str, Any]] = {
    "streaming": {},
    "skip": {"on_error": "skip"},
    "one thread": {"workers": 1, "prefetch": 1},
    "resident": {"resident": True},
    "resident, skip": {"resident": True, "on_error": "skip"},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("opened", ["again", "before"])
def test_a_loader_reads_on(remote: Remote, how: str, options: dict[str, Any], opened: str) -> None:
    """Whether the copies are damaged before the dataset is opened, or between its epochs."""
    checks: Any = {"checksums": "always"}  # "auto" checks one array in sixteen
    dataset = PackedDataset(remote.url, **checks)
    if "resident" in options and remote.form == "files":
        options = options | {"resident": False}  # the images differ in size
    before, _ = epoch(dataset, **options)
    remote.damage(how)
    after, stats = epoch(PackedDataset(remote.url, **checks) if opened == "again" else dataset, **options)
    assert same(before, after)
    assert stats["skipped"] == 0
    if how == "image" or (how in ("truncated", "replaced") and opened == "again"):
        assert stats["cache_damaged"] > 0


Read = Callable[[Remote, Path], Any]


def items(remote: Remote, out: Path) -> Any:
    dataset = PackedDataset(remote.url, columns=["image", "label", "key"], checksums="always", output="numpy")
    return [(image.tolist(), label, key) for image, label, key in (dataset[i] for i in range(len(dataset)))]


def items_at_once(remote: Remote, out: Path) -> Any:
    dataset = PackedDataset(remote.url, checksums="always", output="numpy")
    return [(image.tolist(), label) for image, label in dataset.__getitems__(list(range(len(dataset))))]


def workers(method: str) -> Read:
    def read(remote: Remote, out: Path) -> Any:
        dataset = PackedDataset(remote.url, checksums="always")
        dataset[0]  # the parent has used the object store, too
        loader = DataLoader(dataset, num_workers=2, multiprocessing_context=method)
        return [(image.tolist(), label.tolist()) for image, label in loader]

    return read


def written(write: Callable[[str, Path], object]) -> Read:
    def read(remote: Remote, out: Path) -> Any:
        write(remote.url, out)
        return packstore.open(out).manifest.dataset_digest

    return read


READS: dict[str, Read] = {
    "items": items,
    "items at once": items_at_once,
    "fork": workers("fork"),
    "spawn": workers("spawn"),
    "export": lambda remote, out: (
        packstore.export(remote.url, out.with_suffix(""), to="webdataset", overwrite=True).manifest
    ),
    "select": written(lambda url, out: packstore.select(url, out, overwrite=True, sample=9)),
    "convert": written(lambda url, out: packstore.convert(url, out, encoding="uint8", size=9, overwrite=True)),
    "verify": lambda remote, out: packstore.verify(remote.url).problems,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("what", READS)
def test_everything_reads_on(remote: Remote, tmp_path: Path, how: str, what: str) -> None:
    before = READS[what](remote, tmp_path / "out.h5")
    if len(remote.copies()) < len(list((remote.folder / "shards").iterdir())):
        list(PackedLoader(PackedDataset(remote.url), 8, augment=[CenterCrop(8)]))  # fetches the others
    remote.damage(how)
    assert READS[what](remote, tmp_path / "out.h5") == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["image", "fields"])
def test_a_damaged_object_is_an_error(remote: Remote, how: str) -> None:
    """Its copy cannot be replaced, and the error says how the store is repaired."""
    epoch(PackedDataset(remote.url))
    remote.damage(how)
    for path in (remote.folder / "shards").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    for read in (lambda: epoch(PackedDataset(remote.url, checksums="always")), lambda: items(remote, remote.folder)):
        with pytest.raises(StoreError, match=r"packstore repair"):
            read()
    assert not packstore.verify(remote.url).ok
    shutil.rmtree(remote.cache)
    assert packstore.repair(remote.url, remote.local).identical
    assert len(items(remote, remote.folder)) == 18


@pytest.mark.slow
def test_a_damaged_store_on_this_machine_is_an_error(remote: Remote) -> None:
    with packstore.open(remote.local) as reader:
        image = bytes(reader.view(3))
    for path in (p for p in remote.local.rglob("*") if p.is_file()):
        data = path.read_bytes()
        path.write_bytes(data.replace(image, image[:50] + bytes([image[50] ^ 1]) + image[51:]))
    with pytest.raises(CorruptRecordError, match="record 3 "):
        epoch(PackedDataset(remote.local, checksums="always"))
