"""``verify`` finds what is wrong, names it, and finds nothing where nothing is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

import packstore
from tests.internals import Buffer, Part, Progress, UsageError
from tests.makers.datasets import make_cifar10, write_image

SUFFIXES = ("lmdb", "h5", "pth")


@pytest.mark.slow
def test_a_plain_store_is_verified_without_sources_decoders_and_object_stores(tmp_path: Path) -> None:
    write_image(tmp_path / "photos" / "a.png", 9, 9, 1)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb")
    code = (
        "import sys, packstore\n"
        f"assert packstore.verify({str(tmp_path / 'a.lmdb')!r}).ok\n"
        "print(*(name for name in sys.modules if name.startswith('packstore')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    rooms = ("packstore.sources", "packstore.objects", "packstore.images.decoders", "packstore.images.engine")
    assert not [name for name in loaded if name.startswith((*rooms, "packstore.stores.remote_", "packstore.training"))]
    assert len(loaded) < 100


def change_pixels(root: Path) -> str:
    write_image(root / "train" / "bee" / "001.png", 47, 59, 99)
    return "train/bee/001.png"


def change_class(root: Path) -> str:
    (root / "train" / "bee" / "001.png").rename(root / "train" / "cat" / "xyz.png")
    return "train/cat/xyz.png"


def add_file(root: Path) -> str:
    write_image(root / "val" / "ant" / "new.png", 20, 20, 1)
    return "val/ant/new.png"


def remove_file(root: Path) -> str:
    (root / "val" / "ant" / "001.png").unlink()
    return "val/ant/001.png"


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("encoding", ["original", "jpeg", "uint8", "float16"])
@pytest.mark.parametrize("change", [change_pixels, change_class, add_file, remove_file])
def test_against_names_what_differs_from_the_source(
    photos: Path, tmp_path: Path, suffix: str, encoding: str, change: object
) -> None:
    root, out = tmp_path / "photos", tmp_path / f"a.{suffix}"
    shutil.copytree(photos, root)
    packstore.convert(root, out, encoding=encoding, size=20 if encoding == "float16" else None)
    assert packstore.verify(out, against=root).ok
    key = change(root)  # type: ignore[operator]
    report = packstore.verify(out, against=root)
    assert 1 <= report.problem_count <= 3
    assert any(p.key == key or key in p.what for p in report.problems)
    assert packstore.verify(out).ok


@pytest.mark.slow
def test_against_a_source_with_other_classes_or_labels(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    write_image(root / "val" / "aardvark" / "0.png", 9, 9, 1)
    report = packstore.verify(tmp_path / "a.lmdb", against=root)
    assert any("classes" in p.what for p in report.problems)


@pytest.mark.slow
def test_against_one_split(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "val.lmdb", split="val")
    assert packstore.verify(tmp_path / "val.lmdb", against=photos).ok


def test_against_labels(tmp_path: Path) -> None:
    write_image(tmp_path / "photos" / "a.png", 9, 9, 1)
    write_image(tmp_path / "photos" / "b.png", 9, 9, 2)
    csv, other = tmp_path / "labels.csv", tmp_path / "other.csv"
    csv.write_text("file,label\na.png,0\nb.png,1\n")
    other.write_text("file,label\na.png,0\nb.png,2\n")
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", labels=csv)
    assert packstore.verify(tmp_path / "a.lmdb", against=tmp_path / "photos", labels=csv).ok
    report = packstore.verify(tmp_path / "a.lmdb", against=tmp_path / "photos", labels=other)
    assert [(p.record, p.key) for p in report.problems] == [(1, "b.png")]
    assert not packstore.verify(tmp_path / "a.lmdb", against=tmp_path / "photos").ok


@pytest.mark.slow
def test_against_something_that_cannot_be_compared(photos: Path, tmp_path: Path) -> None:
    packstore.convert(make_cifar10(tmp_path), tmp_path / "f.pth")
    packstore.convert(tmp_path / "f.pth", tmp_path / "f.h5")
    packstore.convert(tmp_path / "cifar-10-batches-py", tmp_path / "u.h5")
    assert packstore.verify(tmp_path / "f.h5", against=tmp_path / "u.h5").ok
    with pytest.raises(UsageError, match="cannot be compared"):
        packstore.verify(tmp_path / "u.h5", against=tmp_path / "f.h5")


def test_decode_finds_what_checksums_cannot(tmp_path: Path) -> None:
    write_image(tmp_path / "photos" / "a.png", 40, 40, 1)
    data = bytearray((tmp_path / "photos" / "a.png").read_bytes())
    data[1000] ^= 0x10
    (tmp_path / "photos" / "a.png").write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb")
    assert packstore.verify(tmp_path / "a.lmdb").ok
    report = packstore.verify(tmp_path / "a.lmdb", decode=True)
    assert [(p.record, p.key) for p in report.problems] == [(0, "a.png")]


@pytest.mark.slow
def test_progress_and_checks_are_reported(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.h5", index=False)
    seen: list[Progress] = []
    report = packstore.verify(tmp_path / "a.h5", decode=True, against=photos, progress=seen.append)
    last = [p for p in seen if p.stage == "verify"][-1]
    assert last.done == last.total == 24
    assert last.done_bytes == report.checked_bytes
    assert len(report.checks) == 7
    assert report.checked_bytes == report.manifest.image.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 20_000])
def test_each_image_is_read_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, shard_size: int | None
) -> None:
    """Also those that are damaged, and those that the source lacks."""
    out, root = tmp_path / f"a.{suffix}", tmp_path / "photos"
    packstore.convert(photos, out, encoding="original", shard_size=shard_size)
    shutil.copytree(photos, root)
    remove_file(root)
    add_file(root)
    reads: Counter[tuple[Path, int]] = Counter()
    with packstore.open(out) as store:
        parts = [*store.parts()]
        places = Counter((part.path, record) for part in parts for record in range(len(part)))
        damaged = parts[-1].path, len(parts[-1]) - 1
        part = type(parts[0].rows)
    view = part.view

    def count_reads(self: Part, index: int) -> Buffer:
        reads[self.path, index] += 1
        data = view(self, index)
        return b"?" + bytes(data)[1:] if (self.path, index) == damaged else data

    monkeypatch.setattr(part, "view", count_reads)
    for decode, against in product((False, True), (None, root)):
        reads.clear()
        report = packstore.verify(out, decode=decode, against=against)
        assert reads == places
        assert report.problem_count - report.differences == 1
        assert report.differences == (0 if against is None else 3)  # the lost file, the new one, and the paths' digest
