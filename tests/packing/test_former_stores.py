"""Stores of the encoding ``seekable``, which packstore had before the seek index: files like others, in old manifests.

``tests/corpus/former`` was written by packstore at a248c4e: six small JPEG files of a folder, one of them progressive,
one CMYK, one gray with an EXIF orientation; packed into an HDF5 file, into shards, and resized to
24 pixels; and exported to a tar.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomResizedCrop
from packstore.stores import open_store
from tests.makers.fuzz_targets import CORPUS
from tests.makers.stores import content

FORMER = CORPUS / "former"
PHOTOS, WHOLE, SHARDS, RESIZED, EXPORT = (
    FORMER / name for name in ("photos", "whole.h5", "shards.h5", "resized.h5", "export.tar.gz")
)
STORES = (WHOLE, SHARDS)


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old store."""
    copy = tmp_path / "old" / request.param.name
    copy.parent.mkdir()
    return Path((shutil.copytree if request.param.is_dir() else shutil.copy)(request.param, copy))


def test_they_say_seekable() -> None:
    with h5py.File(WHOLE) as file:
        assert json.loads(file.attrs["manifest"])["encoding"] == "seekable"
    assert json.loads((SHARDS / "manifest.json").read_text())["encoding"] == "seekable"


def test_a_manifest_that_was_changed_is_still_seen(store: Path) -> None:
    if not store.is_dir():
        pytest.skip("it is in the store's own file")
    manifest = store / "manifest.json"
    manifest.write_text(manifest.read_text().replace(":", ": ", 1))
    (problem,) = packstore.verify(store, quick=True).problems
    assert "was changed, although its values are the same" in problem.what


def test_they_are_loaded(store: Path) -> None:
    loader = PackedLoader(PackedDataset(store), 3, augment=[RandomResizedCrop(16)], seed=2)
    found = torch.cat([images.clone() for images, _ in loader])
    packstore.convert(PHOTOS, store.parent / "new.lmdb")
    loader = PackedLoader(PackedDataset(store.parent / "new.lmdb"), 3, augment=[RandomResizedCrop(16)], seed=2)
    assert torch.equal(found, torch.cat([images.clone() for images, _ in loader]))


def _indexed(store: Path, out: Path) -> None:
    packstore.add_index(store)
    shutil.move(store, out)


def _appended(store: Path, out: Path) -> None:
    packstore.append(store, PHOTOS, key_prefix="new/")
    shutil.move(store, out)


def _merged(store: Path, out: Path) -> None:
    """With a store of today, which has a seek index; the merged one has none."""
    for file in PHOTOS.rglob("*.jpg"):
        copy = store.parent / "more" / file.parent.name / f"new-{file.name}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    packstore.convert(store.parent / "more", store.parent / "more.h5")
    packstore.merge([store, store.parent / "more.h5"], out)


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "select": lambda store, out: packstore.select(store, out),
    "select some": lambda store, out: packstore.select(store, out, where="label == ant"),
    "merge": _merged,
    "index": _indexed,
    "append": _appended,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_command_takes_them(store: Path, tmp_path: Path, way: Callable[[Path, Path], object]) -> None:
    out = tmp_path / "out.h5"
    way(store, out)
    with open_store(out) as reader:
        assert reader.manifest.encoding == "original"
    assert packstore.verify(out, decode=True).problems == ()


def test_their_exports_are_read_and_they_are_exported(store: Path, tmp_path: Path) -> None:
    packstore.export(store, tmp_path / "out.tar")
    digest = open_store(store).manifest.dataset_digest
    for number, source in enumerate((EXPORT, tmp_path / "out.tar")):
        assert packstore.convert(source, tmp_path / f"{number}.lmdb").manifest.dataset_digest == digest
    assert packstore.verify(store, against=EXPORT).problems == ()


def test_resized_files_are_those_of_the_encoding_jpeg(tmp_path: Path) -> None:
    store = tmp_path / "old.h5"
    shutil.copy(RESIZED, store)
    manifest = open_store(store).manifest
    assert (manifest.encoding, manifest.options["resize"], manifest.options["quality"]) == ("jpeg", 24, 90)
    assert packstore.verify(store, decode=True).problems == ()
    packstore.append(store, PHOTOS, key_prefix="new/")
    assert packstore.verify(store, decode=True).problems == ()
    assert packstore.convert(store, tmp_path / "new.lmdb").manifest.encoding == "jpeg"


def test_their_source_has_other_bytes(store: Path) -> None:
    """Whether the pixels are the same only the encoding knew."""
    problems = packstore.verify(store, against=PHOTOS).problems
    assert len(problems) == 5


def test_damage_is_mended_from_a_copy(store: Path, tmp_path: Path) -> None:
    damaged = next(store.glob("shard-00001*")) if store.is_dir() else store
    with open_store(store) as reader:
        image = bytes(reader.read(5))
    whole = damaged.read_bytes()
    at = whole.index(image) + len(image) // 2
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert not packstore.verify(store).ok
    packstore.repair(store, FORMER / store.name, tmp_path / "mended.h5")
    assert packstore.verify(tmp_path / "mended.h5", decode=True, against=FORMER / store.name).problems == ()
    assert content(store) != content(FORMER / store.name)
