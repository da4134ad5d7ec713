"""Exports as npz and as plain HDF5: the contract, and what numpy and h5py read."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from packstore import convert, export
from packstore.stores import open_store
from packstore.testing.exports import contents, kill
from tests.internals import ExportStaging, SourceError, work_path
from tests.makers.annotated import without_export_manifest
from tests.makers.images import tiny
from tests.makers.typed import COLUMNS, make_typed


def make_images(path: Path) -> Path:
    for number in range(9):
        file = path / ("train", "val")[number % 3 == 2] / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tiny(number))
    return path


def arrays(path: Path) -> dict[str, Any]:
    """By numpy or h5py alone."""
    if path.suffix == ".npz":
        return dict(np.load(path))
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_pixels_are_one_array(kind: str, tmp_path: Path) -> None:
    convert(make_images(tmp_path / "in"), tmp_path / "in.h5", encoding="uint8", size=4)
    report = export(tmp_path / "in.h5", tmp_path / "out", to=kind)
    assert "keys: samples have numbers" in report.losses
    suffix = {"npz": "npz", "hdf5": "h5"}[kind]
    with open_store(tmp_path / "in.h5") as reader:
        for split in ("train", "val"):
            found = arrays(tmp_path / "out" / f"{split}-000000.{suffix}")
            numbers = range(reader.manifest.split(split).start, reader.manifest.split(split).stop)
            assert np.array_equal(found["images"], [reader.array(i) for i in numbers])
            assert found["labels"].tolist() == [int(reader.value("label", i)) for i in numbers]
            assert [n.decode() if isinstance(n, bytes) else n for n in found["class_names"].tolist()] == ["a", "b"]
    # Without the export manifest it is a source like any other, of the same images, labels, classes and splits.
    manifest = convert(without_export_manifest(tmp_path / "out"), tmp_path / "again.h5").manifest
    assert manifest.origin.kind == kind
    assert manifest.classes == ("a", "b")
    with open_store(tmp_path / "in.h5") as old, open_store(tmp_path / "again.h5") as new:
        assert all(np.array_equal(old.array(i), new.array(i)) for i in range(9))
        assert [old.value("label", i) for i in range(9)] == [new.value("label", i) for i in range(9)]


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_files_and_other_columns(kind: str, tmp_path: Path) -> None:
    typed = make_typed(tmp_path / "typed.lmdb", [column.name for column in COLUMNS], 6)
    export(typed.path, tmp_path / "out", to=kind)
    (file,) = (path for path in (tmp_path / "out").iterdir() if path.suffix in (".npz", ".h5"))
    found = arrays(file)
    with open_store(typed.path) as reader:
        for i, values in enumerate(typed.values):
            if kind == "npz":
                first, last = found["images_offsets"][i : i + 2]
                data = found["images"][first:last].tobytes()
            else:
                data = found["images"][i].tobytes()
            assert data == bytes(reader.read(i))
            assert found["labels"][i] == values["label"]
            assert np.array_equal(found["vector"][i], values["vector"])
            assert (found["image_id"][i], found["crowd"][i]) == (values["image_id"], values["crowd"])


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_an_array_that_is_missing(kind: str, tmp_path: Path) -> None:
    convert(make_images(tmp_path / "in"), tmp_path / "in.h5")
    export(tmp_path / "in.h5", tmp_path / "out", to=kind)
    file = next(path for path in (tmp_path / "out").iterdir() if path.name.startswith("val"))
    if kind == "npz":
        np.savez(file, images=np.zeros((3, 4, 4, 3), np.uint8))
    else:
        with h5py.File(file, "r+") as opened:
            del opened["labels"]
    with pytest.raises(SourceError, match="has no array labels of 3 values; remove"):
        convert(tmp_path / "out", tmp_path / "again.h5")


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_pixels_as_png_files(kind: str, tmp_path: Path) -> None:
    digest = convert(make_images(tmp_path / "in"), tmp_path / "in.h5", encoding="uint8", size=4).manifest.dataset_digest
    export(tmp_path / "in.h5", tmp_path / "out", to=kind, encode="png")
    assert convert(tmp_path / "out", tmp_path / "again.h5").manifest.dataset_digest == digest


@pytest.mark.slow
def test_what_zarrs_library_leaves_behind_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr")
    convert(make_images(tmp_path / "in"), tmp_path / "in.h5")
    monkeypatch.setattr(ExportStaging, "publish", kill)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "in.h5", tmp_path / "out.zarr")
    monkeypatch.undo()
    staged = work_path(tmp_path / "out.zarr") / "run-00001" / "export"
    (staged / "train" / "images" / ".zarray.0123.partial").write_bytes(b"{")
    assert export(tmp_path / "in.h5", tmp_path / "out.zarr").resumed == 9
    export(tmp_path / "in.h5", tmp_path / "whole.zarr")
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 4])
def test_zarrs_library_reads_it(size: int | None, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    convert(make_images(tmp_path / "in"), tmp_path / "in.h5", encoding="uint8" if size else "original", size=size)
    export(tmp_path / "in.h5", tmp_path / "out.zarr", shard_size=200)
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    assert group["class_names"][:].tolist() == ["a", "b"]
    with open_store(tmp_path / "in.h5") as reader:
        for split in reader.manifest.splits:
            numbers = range(split.start, split.stop)
            images = group[f"{split.name}/images"][:]
            for i, image in zip(numbers, images, strict=True):
                assert np.array_equal(image, reader.array(i)) if size else image == bytes(reader.read(i))
            assert group[f"{split.name}/labels"][:].tolist() == [int(reader.value("label", i)) for i in numbers]
    manifest = convert(without_export_manifest(tmp_path / "out.zarr"), tmp_path / "again.h5").manifest
    assert (manifest.origin.kind, manifest.classes, manifest.records) == ("zarr", ("a", "b"), 9)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [0, 3000, 5000, 9000, 12000, 14000])
def test_hdf5_where_the_disk_fills_is_one_line(allowed: int, tmp_path: Path) -> None:
    """The library of HDF5 crashed the process when a write failed while it closed a file."""
    convert(noisy(tmp_path / "in", 60), tmp_path / "in.lmdb")
    images = sum(file.stat().st_size for file in (tmp_path / "in").rglob("*.png"))
    command = [sys.executable, "-B", "-m", "packstore", "export", "-q", tmp_path / "in.lmdb", tmp_path / "out.hdf5s"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (images + allowed, images + allowed))

    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr.startswith(f"packstore: error: cannot write {tmp_path / 'out.hdf5s'}: File too large: ")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "in.lmdb"]
    export(tmp_path / "in.lmdb", tmp_path / "out.hdf5s")
    digest = convert(tmp_path / "out.hdf5s", tmp_path / "again.lmdb").manifest.dataset_digest
    assert digest == convert(tmp_path / "in", tmp_path / "in.lmdb", overwrite=True).manifest.dataset_digest


def noisy(path: Path, count: int) -> Path:
    """A folder of PNG files of some kilobytes each."""
    random = np.random.default_rng(0)
    (path / "a").mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 256, (40 + number % 7, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path / "a" / f"{number}.png")
    return path
