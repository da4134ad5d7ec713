"""Zarr, made by its library."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packstore
from packstore import PackedDataset, convert, export
from packstore.sources import Source, open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError, SampleError, SourceError
from tests.makers.images import tiny
from tests.makers.lazy import import_on_use
from tests.makers.sources import look, not_packed, prove, question, refused

zarr = import_on_use("zarr")
pytestmark = pytest.mark.filterwarnings("ignore:.*Zarr V3.*")

RNG = np.random.default_rng(9)


def pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def images(source: Source) -> list[Any]:
    return [source.image(entry) for entry in source.entries()]


def write_zarr(path: Path, arrays: dict[str, Any], version: Any = 3, **options: Any) -> Path:
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, array in arrays.items():
        group.create_array(name, data=np.asarray(array), **options)
    return path


def splits(samples: int) -> dict[str, Any]:
    numbers, half = np.arange(samples, dtype=np.uint32), samples // 2
    x, y = numbers.view(np.uint8).reshape(samples, 2, 2), (numbers % 3).astype(np.uint8)
    return {"train/x": x[:half], "train/y": y[:half], "test/x": x[half:], "test/y": y[half:]}


class TestZarr(SourceSuite):
    kind = "zarr"
    undecodable_keys = False
    many = 600

    def make(self, folder: Path, samples: int) -> Path:
        return write_zarr(folder / "data.zarr", splits(samples))

    def change(self, path: Path) -> None:
        zarr.open_array(str(path / "train" / "y"))[1] = 2


OPTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "3": (3, {}),
    "3 sharded": (3, {"shards": (4, 6, 6, 3), "chunks": (2, 6, 6, 3)}),
    "3 plain": (3, {"compressors": None, "chunks": (2, 3, 4, 1)}),
    "2": (2, {}),
    "2 chunks": (2, {"chunks": (2, 3, 4, 1)}),
}


@pytest.mark.parametrize("name", ["2", *(pytest.param(n, marks=pytest.mark.slow) for n in OPTIONS if n != "2")])
def test_zarr_of_both_versions(name: str, tmp_path: Path) -> None:
    version, options = OPTIONS[name]
    x, y = pixels(7, 6, 6, 3), np.arange(7, dtype=">i4") if version == 2 else np.arange(7)
    write_zarr(tmp_path / "a.zarr", {"images": x}, version, **options)
    zarr.open_group(str(tmp_path / "a.zarr"), mode="a").create_array("labels", data=y)
    prove(tmp_path / "a.zarr", tmp_path / "o.h5")
    ds = PackedDataset(tmp_path / "o.h5", output="numpy")
    assert [label for _, label in ds] == list(range(7))
    assert all(np.array_equal(image, x[n]) for n, (image, _) in enumerate(ds))


def test_arrays_by_their_names(tmp_path: Path) -> None:
    x = pixels(5, 3, 6, 7)
    path = write_zarr(tmp_path / "a.zarr", {"raw/left": x, "raw/right": x + 1, "z": np.arange(5)})
    question(path, "--image-key raw/left; or --image-key raw/right")
    with closing(open_source(path, image_key="raw/right", label_key="z")) as source:
        assert all(np.array_equal(i, (x[n] + 1).transpose(1, 2, 0)) for n, i in enumerate(images(source)))
    with closing(open_source(path / "raw" / "left")) as source:  # one array
        assert source.survey().records == 5


@pytest.mark.slow
def test_encoded_files_and_texts_in_zarr(tmp_path: Path) -> None:
    from zarr.core.dtype import VariableLengthBytes

    files = np.array([tiny(n) for n in range(4)], object)
    for version in (2, 3):
        group = zarr.open_group(str(tmp_path / f"{version}.zarr"), mode="w", zarr_format=version)
        group.create_array("images", shape=(4,), dtype=VariableLengthBytes(), chunks=(2,))[:] = files
        group.create_array("caption", shape=(4,), dtype=str, chunks=(3,))[:] = np.array(["a", "ä", "", "d"])
        convert(tmp_path / f"{version}.zarr", tmp_path / f"{version}.lmdb")
        ds = PackedDataset(tmp_path / f"{version}.lmdb", columns=("image", "caption"), output="bytes")
        assert [(bytes(image), text) for image, text in ds] == list(zip(files, ["a", "ä", "", "d"], strict=True))


def test_codecs_that_could_run_something_are_never_opened(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", {"x": pixels(4, 6, 6, 3), "y": np.arange(4)}, 2)
    plain = json.loads((path / "x" / ".zarray").read_text())
    for wrong, said in (
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "the codec pickle is not run"),
        ({"filters": [{"id": "pickle"}]}, "the codec pickle is not run"),
        ({"filters": [{"id": []}]}, r"the codec \[\] is not run"),
        ({"filters": [{}]}, "the codec None is not run"),
        ({"filters": 5}, "cannot be read by zarr"),
    ):
        (path / "x" / ".zarray").write_text(json.dumps(plain | wrong))
        refused(SourceError, path, said)
    third = write_zarr(tmp_path / "b.zarr", {"x": pixels(4, 6, 6, 3)})
    plain = json.loads((third / "x" / "zarr.json").read_text())
    plain["codecs"].append({"name": "numcodecs.pickle", "configuration": {}})
    (third / "x" / "zarr.json").write_text(json.dumps(plain))
    refused(SourceError, third, r"the codec numcodecs\.pickle is not run")


def test_zarr_that_lies(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", {"x": pixels(4, 6, 6, 3)})
    file = path / "x" / "zarr.json"
    plain = json.loads(file.read_text())
    huge = {"name": "regular", "configuration": {"chunk_shape": [1, 10**6, 10**6, 3]}}
    for wrong, said in (
        ({"shape": [10**12, 6, 6, 3]}, "more than its files can hold"),
        ({"shape": [4, 6, 6]}, "cannot be read by zarr"),
        ({"shape": "4"}, "cannot be read by zarr"),
        ({"shape": [-1, 6, 6, 3]}, "cannot be read by zarr"),
        ({"chunk_grid": huge}, "have more than"),
        ({"codecs": 3}, "cannot be read by zarr"),
        ({"codecs": [{"name": "bytes", "configuration": "x"}]}, "cannot be read by zarr"),
        ({"codecs": [{"name": []}]}, r"the codec \[\] is not run"),
        ({"data_type": "complex128"}, "holds|cannot be read by zarr"),
    ):
        file.write_text(json.dumps(plain | wrong))
        refused(SourceError, path, said)
    file.write_text("[" * 100_000)
    refused(SourceError, path, "is not valid JSON")


def test_a_damaged_chunk_is_a_bad_sample(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", {"x": pixels(4, 6, 6, 3)}, chunks=(1, 6, 6, 3))
    chunk = path / "x" / "c" / "2" / "0" / "0" / "0"
    chunk.write_bytes(b"nothing")
    report = convert(path, tmp_path / "o.h5", on_error="skip")
    assert [skipped.key for skipped in report.manifest.skipped] == ["0000000002"]


def test_chunks_of_no_values_are_an_error(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", {"x": pixels(4, 6, 6, 3)}, chunks=(1, 6, 6, 3))
    metadata = json.loads((path / "x/zarr.json").read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [0, 6, 6, 3]
    (path / "x/zarr.json").write_text(json.dumps(metadata))
    refused(SourceError, path, "cannot be read by zarr")


def test_n5_is_refused(tmp_path: Path) -> None:
    for attributes in ({"n5": "2.5.1"}, {"dimensions": [4], "blockSize": [4], "dataType": "uint8"}):
        (tmp_path / "attributes.json").write_text(json.dumps(attributes))
        refused(SourceError, tmp_path, "is N5, which is not read: convert it to Zarr or HDF5")


def test_texts_that_name_classes_are_labels(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", {"images": pixels(4, 5, 5, 3)}, 2)
    group = zarr.open_group(str(path), mode="a")
    group.create_array("labels", shape=(4,), dtype=str)[:] = np.array(["dog", "cat", "cat", "dog"])
    assert convert(path, tmp_path / "o.h5", label_key="labels").manifest.classes == ("cat", "dog")
    assert list(PackedDataset(tmp_path / "o.h5", columns=("label",))) == [1, 0, 0, 1]


def _without(path: Path, *names: str) -> Path:
    """An array without some of its chunks."""
    for name in names:
        (path / name).unlink()
    return path


def _of_kind(kind: str, folder: Path, x: Any, y: Any) -> tuple[Path, list[str]]:
    """Images and labels of two rows a chunk, two chunks an image, without the images 2 and 3, a part of image 5, and
    the labels 6 and 7."""
    version, separator = (2, "./"["/" in kind]) if kind.startswith("2") else (3, "./"["/" in kind])
    options: dict[str, Any] = {"version": version}
    name = "v2" if version == 2 or "as 2" in kind else "default"
    options["chunk_key_encoding"] = {"name": name, "separator": separator}
    path = write_zarr(folder / "a.zarr", {"images": x}, chunks=(2, 5, 3, 3), **options)
    group = zarr.open_group(str(path), mode="a")
    group.create_array("labels", data=y, chunks=(2,), chunk_key_encoding=options["chunk_key_encoding"])
    place = "{}" if name == "v2" else f"c{separator}{{}}"
    chunks = [("images", (1, 0, 0, 0)), ("images", (1, 0, 1, 0)), ("images", (2, 0, 1, 0)), ("labels", (3,))]
    return path, [f"{name}/{place.format(separator.join(map(str, at)))}" for name, at in chunks]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["2 .", "2 /", "3 .", "3 /", "3 as 2 ."])
def test_images_and_labels_that_were_never_written_are_a_question(kind: str, tmp_path: Path) -> None:
    x, y = np.maximum(pixels(8, 5, 6, 3), 1), np.arange(1, 9)
    path, missing = _of_kind(kind, tmp_path, x, y)
    assert "chunks that were never written" not in look(path).ledger.passed_over
    _without(path, *missing)
    said = rf"of 4 of 8 samples .*\({len(missing)} chunks are missing, .*--on-error skip; or --source zarr"
    caught = not_packed(AmbiguousSourceError, path, tmp_path / "o.h5", said)
    assert [answer.options for answer in caught.answers] == [
        ("--on-error", "skip"),
        ("--source", "zarr"),
    ]
    report = prove(path, tmp_path / "skipped.h5", on_error="skip")
    assert [int(each.key) for each in report.skipped] == [2, 3, 6, 7]
    assert report.ledger.passed_over["chunks that were never written"] == len(missing)
    kept = prove(path, tmp_path / "kept.h5", source_kind="zarr")
    assert (kept.manifest.records, kept.ledger.passed_over["chunks that were never written"]) == (8, len(missing))
    with packstore.open(tmp_path / "kept.h5") as store:
        assert [bool(np.asarray(store.read(n)).any()) for n in range(8)] == [True, True, False, False, *[True] * 4]


def test_parts_of_images_that_were_never_written_are_said(tmp_path: Path) -> None:
    """A mask without anything in it, or a corner of an image that is black, is what programs leave out."""
    x, masks = np.maximum(pixels(4, 6, 6, 3), 1), np.zeros((4, 6, 6), np.uint8)
    masks[0], x[1, :3, :3] = 1, 0
    path = tmp_path / "a.zarr"
    write_zarr(path, {"images": x}, chunks=(1, 3, 3, 3))
    zarr.open_group(str(path), mode="a").create_array("masks", data=masks, chunks=(1, 6, 6))
    report = convert(path, tmp_path / "o.h5")
    assert (report.manifest.records, report.ledger.passed_over) == (4, {"chunks that were never written": 1 + 3})


@pytest.mark.slow
def test_an_export_writes_black_images_and_misses_those_that_are_gone(tmp_path: Path) -> None:
    x = np.zeros((40, 128, 128, 3), np.uint8)
    convert(write_zarr(tmp_path / "a.zarr", {"images": x}, config={"write_empty_chunks": True}), tmp_path / "o.h5")
    export(tmp_path / "o.h5", tmp_path / "out.zarr", to="zarr")
    assert convert(tmp_path / "out.zarr", tmp_path / "back.h5").manifest.records == 40
    next(file for file in sorted((tmp_path / "out.zarr" / "images").iterdir()) if file.name[0].isdigit()).unlink()
    not_packed(SampleError, tmp_path / "out.zarr", tmp_path / "gone.h5", "was never written")
