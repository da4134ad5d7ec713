"""Exports one after the other: the dataset stays what it was; and exports without ``packstore.json``, as others see
them."""

from __future__ import annotations

import errno
import io
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from packstore.stores import open_store
from packstore.testing.exports import Stop, kill, picture
from tests.conftest import SharedData
from tests.internals import (
    EXPORTS,
    DestinationError,
    ExportOptions,
    SampleError,
    UsageError,
    WorkDirectory,
    convert,
    export,
    exports_base,
    plan_export,
    writing,
)


@pytest.fixture
def cats_and_dogs(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for i in range(9):
        path = root / ("train", "val")[i % 3 == 2] / ("cat", "dog")[i // 2 % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i))
    return root


def chain(folder: Path, work: Path) -> list[str]:
    """Packs a folder, then exports and packs again, one kind after the other, and checks the digest each time. Returns
    the kinds that took part."""
    store = work / "0.lmdb"
    digest = convert(folder, store).manifest.dataset_digest
    kinds = []
    for number, kind in enumerate(EXPORTS.values(), 1):
        if "files" not in kind.image_forms:
            continue
        out = work / f"out-{number}{kind.suffixes[0] if kind.suffixes else ''}"
        try:
            export(store, out, to=kind.name)
        except UsageError:
            continue  # needs columns that these images have not: boxes
        store = work / f"{number}.lmdb"
        assert convert(out, store).manifest.dataset_digest == digest, kind.name
        kinds.append(kind.name)
    return kinds


@pytest.mark.slow
def test_one_digest_throughout(cats_and_dogs: Path, tmp_path: Path) -> None:
    assert {"imagefolder", "tar", "zip", "webdataset", "parquet"} <= set(chain(cats_and_dogs, tmp_path))


@pytest.mark.soak
def test_one_digest_throughout_for_imagenet(shared_data: SharedData, tmp_path: Path) -> None:
    assert {"webdataset", "parquet"} <= set(chain(shared_data / "imagenet-600", tmp_path))


@pytest.mark.parametrize("kind", ["imagefolder", "tar", "zip"])
def test_without_its_manifest_an_export_is_a_folder_like_any_other(
    cats_and_dogs: Path, tmp_path: Path, kind: str
) -> None:
    digest = convert(cats_and_dogs, tmp_path / "in.lmdb").manifest.dataset_digest
    out = tmp_path / "out"
    export(tmp_path / "in.lmdb", out, to=kind)
    for name in ("packstore.json", "packstore.rows.jsonl"):
        if kind == "imagefolder":
            (out / name).unlink()
    source = None if kind == "imagefolder" else "imagefolder"
    manifest = convert(out, tmp_path / "again.lmdb", source_kind=source).manifest
    assert manifest.origin.kind == "imagefolder"
    assert manifest.dataset_digest == digest  # since its keys and classes are those that a folder has


def test_without_its_manifest_shards_have_images_labels_and_classes(cats_and_dogs: Path, tmp_path: Path) -> None:
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset")
    (tmp_path / "out/packstore.json").unlink()
    manifest = convert(tmp_path / "out", tmp_path / "again.lmdb", source_kind="webdataset").manifest
    with open_store(tmp_path / "in.lmdb") as old, open_store(tmp_path / "again.lmdb") as new:
        assert manifest.classes == old.manifest.classes
        assert [split.name for split in manifest.splits] == ["train", "val"]
        for i in range(len(old)):
            assert bytes(new.read(i)) == bytes(old.read(i))
            assert new.value("label", i) == old.value("label", i)


def test_a_full_disk_in_the_words_of_hdf5() -> None:
    said = "Can't close file (file write failed: time = x, errno = 28, error message = 'No space left', buf = 0x55)"
    with pytest.raises(DestinationError, match=r"^cannot write out: No space left$"), writing(Path("out")):
        raise OSError(said)


def test_a_run_with_other_options_starts_afresh_and_says_so(
    cats_and_dogs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    said = []
    for size, stop in ((1000, 6), (1000, 7), (2000, 7), (2000, 99)):
        caplog.clear()
        with suppress(KeyboardInterrupt):
            export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset", shard_size=size, progress=Stop(stop))
        said.append("starting again" in caplog.text)
    assert said == [False, False, True, False]
    assert (tmp_path / "out").is_dir()


@pytest.mark.slow
def test_an_export_is_replaced_by_one_of_another_kind(cats_and_dogs: Path, tmp_path: Path) -> None:
    digest = convert(cats_and_dogs, tmp_path / "in.lmdb").manifest.dataset_digest
    for kind in ("zip", "tar", "webdataset", "zip"):
        export(tmp_path / "in.lmdb", tmp_path / "out", to=kind, overwrite=True)
        assert convert(tmp_path / "out", tmp_path / "again.h5", overwrite=True).manifest.dataset_digest == digest
        with ExitStack() as stack, pytest.raises(DestinationError, match="--overwrite"):  # before anything is done
            plan_export(tmp_path / "in.lmdb", tmp_path / "out", ExportOptions(to=kind), stack)


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    cats_and_dogs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third shard does not fit."""
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    out = tmp_path / "out"

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = exports_base.open_file
    names: list[str] = []

    def limited(path: Path, mode: str) -> Any:
        names.append(path.name)
        return Full() if len(names) == 3 else real(path, mode)

    monkeypatch.setattr(exports_base, "open_file", limited)
    monkeypatch.setattr(exports_base, "drop", lambda file: file.close())
    with pytest.raises(DestinationError, match="No space left on device") as caught:
        export(tmp_path / "in.lmdb", out, to="webdataset", shard_size=1000)
    assert "the same command goes on" in "".join(caught.value.__notes__)
    assert not out.exists()
    monkeypatch.undo()
    assert export(tmp_path / "in.lmdb", out, to="webdataset", shard_size=1000).resumed > 0


@pytest.mark.slow
@pytest.mark.parametrize("encode", ["png", "jpeg"])
def test_a_store_of_shards_is_encoded_again_as_one_of_one_file(
    encode: Any, cats_and_dogs: Path, tmp_path: Path
) -> None:
    digests = []
    for name, shard_size in (("one.lmdb", None), ("shards.lmdb", 2000)):
        convert(cats_and_dogs, tmp_path / name, shard_size=shard_size)
        export(tmp_path / name, tmp_path / f"{name}.zip", encode=encode)
        digests.append(convert(tmp_path / f"{name}.zip", tmp_path / f"again {name}").manifest.dataset_digest)
    assert digests[0] == digests[1]


def test_an_image_that_cannot_be_encoded_again_is_named(cats_and_dogs: Path, tmp_path: Path) -> None:
    first = cats_and_dogs / "train/cat/0.jpg"
    first.write_bytes(first.read_bytes()[:150])
    convert(cats_and_dogs, tmp_path / "in.lmdb", check="none")
    for encode in ("png", "jpeg"):
        with pytest.raises(SampleError, match=r"train/cat/0\.jpg"):
            export(tmp_path / "in.lmdb", tmp_path / "out.zip", encode=encode)  # type: ignore[arg-type]


def test_a_killed_run_that_had_published_reports_the_published_export(
    cats_and_dogs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(cats_and_dogs, tmp_path / "in.lmdb")
    whole = export(tmp_path / "in.lmdb", tmp_path / "whole", to="webdataset", encode="png")
    monkeypatch.setattr(WorkDirectory, "remove", kill)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset", encode="png")
    monkeypatch.undo()
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="webdataset", encode="png")
    assert (report.resumed, report.shards) == (9, whole.shards)
    assert report.manifest.dataset_digest == whole.manifest.dataset_digest
