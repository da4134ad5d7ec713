"""``convert`` of datasets of a program: map-style, iterable, lists, generators, by split; what is inferred of them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from tests.internals import SampleError, SourceError, UsageError
from tests.makers.datasets import CLASSES, make_folder, pixels
from tests.makers.samples import COCO_CLASSES, VOC_CLASSES, Voc, coco, jpeg, palette_png, same
from tests.makers.torchvision import import_torchvision

FORMATS = [".lmdb", ".h5", ".pth"]


class Mapped(torch.utils.data.Dataset[Any]):
    """A map-style dataset of any samples. ``ill`` raises."""

    def __init__(self, samples: Any, ill: int | None = None) -> None:
        self.samples = samples
        self.ill = ill

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if index == self.ill:
            raise RuntimeError("the disk is on fire")
        return self.samples[index]


class Iterated(torch.utils.data.IterableDataset[Any]):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def columns_of(manifest: packstore.Manifest) -> dict[str, tuple[str, str]]:
    """Type and dtype of each column that is the user's."""
    internal = ("key", "checksum", "row_checksum", "seek_index", "shape")
    return {c.name: (c.type, c.dtype) for c in manifest.columns if c.name not in internal}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("form", [list, Mapped, Iterated, iter])
def test_samples_like_those_of_coco_come_back(tmp_path: Path, suffix: str, form: Any) -> None:
    path, samples = tmp_path / f"coco{suffix}", coco(30)
    manifest = packstore.convert(form(samples), path, split="train").manifest
    assert columns_of(manifest) == {
        "image": ("image", "uint8"),
        "boxes": ("boxes", "float32"),
        "labels": ("labels", "int64"),
        "captions": ("json", "uint8"),
        "mask": ("mask", "uint8"),
        "mask_shape": ("array", "int32"),
        "image_id": ("array", "int64"),
        "note": ("text", "uint8"),
        "note_valid": ("array", "bool"),
    }
    assert manifest.column("labels").parallel == "boxes"
    assert [(split.name, len(split)) for split in manifest.splits] == [("train", 30)]
    with packstore.open(path) as store:
        for record, sample in enumerate(samples):
            for name, value in sample.items():
                assert same(store.item(name, record), value), (record, name)
    assert packstore.verify(path, decode=True).ok


@pytest.mark.slow
def test_the_same_samples_give_the_same_store(tmp_path: Path) -> None:
    """However they come, and by the Writer."""
    fields: Any = {"image": "image", "mask": "mask", "boxes": "boxes", "labels": packstore.Labels(VOC_CLASSES)}
    data = Voc(tmp_path / "voc", 20)
    digests = {
        packstore.convert(form(data), tmp_path / f"{i}.lmdb", split="val", fields=fields).manifest.dataset_digest
        for i, form in enumerate((list, Mapped, Iterated, iter, lambda data: data))
    }
    with packstore.Writer(tmp_path / "w.h5", fields, split="val") as writer:
        for sample in data:
            writer.add(**sample)
    assert writer.report is not None
    assert digests == {writer.report.manifest.dataset_digest}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["list", "workers", "iterable", "writer"])
def test_pillow_images_of_other_colours_are_converted_and_said(tmp_path: Path, form: str) -> None:
    colour = Image.fromarray(pixels(16, 20, 0))
    file = io.BytesIO()
    colour.save(file, "gif", save_all=True, append_images=[Image.fromarray(pixels(16, 20, 1))])
    modes = ("RGB", "CMYK", "LAB", "HSV", "YCbCr", "L", "P", "CMYK")
    images = [*(colour.convert(mode) for mode in modes), Image.open(file).copy()]
    samples: list[Any] = [{"image": image} for image in images]
    path, fields = tmp_path / "s.lmdb", {"image": packstore.Image("uint8")}
    if form == "writer":
        with packstore.Writer(path, fields) as writer:
            for sample in samples:
                writer.add(**sample)
        report = writer.report
    else:
        given = {"list": list, "workers": Mapped, "iterable": iter}[form](samples)
        report = packstore.convert(given, path, fields=fields, workers=2 if form == "workers" else None)
    assert report is not None
    others = dict.fromkeys(("lab_to_rgb", "hsv_to_rgb", "ycbcr_to_rgb", "gray_to_colour"), 1)
    assert dict(report.unified) == {"cmyk_to_rgb": 2, **others}
    assert report.manifest.options["hsv_to_rgb"] == 1
    found = packstore.PackedDataset(path, output="numpy")
    for number, image in enumerate(images):
        np.testing.assert_array_equal(found[number], np.asarray(image.convert("RGB")))
    several = packstore.convert([{"image": Image.open(file)}], tmp_path / "t.lmdb", encoding="uint8")
    assert dict(several.unified) == {"current_frame": 1}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_store_of_a_store_keeps_every_column(tmp_path: Path, suffix: str) -> None:
    first = packstore.convert(coco(20), tmp_path / "a.h5", split="train").manifest
    again = packstore.convert(tmp_path / "a.h5", tmp_path / f"b{suffix}", encoding="original", shard_size=4000).manifest
    assert again.dataset_digest == first.dataset_digest
    assert [c.declaration for c in again.columns] == [c.declaration for c in first.columns]
    pixels = packstore.convert(tmp_path / f"b{suffix}", tmp_path / "c.lmdb", encoding="uint8").manifest
    assert columns_of(pixels) == columns_of(first)
    with packstore.open(tmp_path / "a.h5") as one, packstore.open(tmp_path / "c.lmdb") as other:
        assert all(same(other.item(name, 7), one.item(name, 7)) for name in columns_of(first) if name != "image")
    with pytest.raises(UsageError, match="resize and max_side would change the images and not 'boxes', 'mask'"):
        packstore.convert(tmp_path / "a.h5", tmp_path / "d.lmdb", encoding="jpeg", resize=8)


def test_splits_by_name(tmp_path: Path) -> None:
    train, val = coco(20), coco(5, seed=1)
    report = packstore.convert({"train": Mapped(train), "val": iter(val)}, tmp_path / "a.lmdb")
    assert [(split.name, len(split)) for split in report.manifest.splits] == [("train", 20), ("val", 5)]
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert store.key(20) == val[0]["key"]
    one = packstore.convert({"train": train, "val": val}, tmp_path / "b.lmdb", split="val").manifest
    assert [(split.name, len(split)) for split in one.splits] == [("val", 5)]


@pytest.mark.parametrize(
    ("second", "column", "value"),
    [
        (3, {"label": ("label", "int64")}, {"label": 3}),
        (np.int32(3), {"label": ("label", "int64")}, {"label": 3}),
        (torch.tensor(3), {"label": ("label", "int64")}, {"label": 3}),
        (palette_png(np.eye(3)), {"label": ("image", "uint8")}, None),
        (Image.open(io.BytesIO(palette_png(np.eye(3)))), {"mask": ("mask", "uint8")}, {"mask": np.eye(3)}),
        (np.eye(3, dtype=int), {"mask": ("mask", "int32")}, {"mask": np.eye(3)}),
        ("a cat", {"text": ("text", "uint8")}, {"text": "a cat"}),
        ([{"bbox": [1, 2]}], {"target": ("json", "uint8")}, {"target": [{"bbox": [1, 2]}]}),
        (
            {"boxes": torch.ones(2, 4), "labels": torch.tensor([1, 2]), "image_id": 7},
            {"boxes": ("boxes", "float32"), "labels": ("labels", "int64"), "image_id": ("array", "int64")},
            {"labels": np.array([1, 2])},
        ),
    ],
)
def test_tuples_of_an_image_and_something(tmp_path: Path, second: Any, column: Any, value: Any) -> None:
    samples = [(jpeg(i, 3, 3), second) for i in range(3)]
    manifest = packstore.convert(Mapped(samples), tmp_path / "a.lmdb").manifest
    found = {name: kind for name, kind in columns_of(manifest).items() if not name.endswith("_shape")}
    assert found == {"image": ("image", "uint8"), **column}
    with packstore.open(tmp_path / "a.lmdb") as store:
        for name, wanted in (value or {}).items():
            assert same(store.item(name, 1), wanted)


def test_images_alone_and_longer_tuples(tmp_path: Path) -> None:
    manifest = packstore.convert([jpeg(1), jpeg(2)], tmp_path / "a.lmdb").manifest
    assert list(columns_of(manifest)) == ["image"]
    triples = [(jpeg(1), "one", 0.5)]
    with pytest.raises(UsageError, match="a sample is a tuple of 3 values: give fields="):
        packstore.convert(triples, tmp_path / "b.lmdb")
    fields: Any = {"photo": "image", "caption": "text", "score": "float32"}
    manifest = packstore.convert(triples, tmp_path / "b.lmdb", fields=fields).manifest
    assert list(columns_of(manifest)) == ["image", "caption", "score"]


def test_fields_pick(tmp_path: Path) -> None:
    fields: Any = {"image": "image", "labels": packstore.Labels(COCO_CLASSES)}
    manifest = packstore.convert(coco(3), tmp_path / "a.lmdb", fields=fields).manifest
    assert list(columns_of(manifest)) == ["image", "labels"]
    assert manifest.column("labels").classes == COCO_CLASSES


def test_keys(tmp_path: Path) -> None:
    """A sample's own, else its index."""
    for key, wanted in (("a/b.jpg", "a/b.jpg"), (Path("a") / "b", "a/b"), (17, "17"), (None, "val/0000000000")):
        sample = {"image": jpeg(1)} if key is None else {"image": jpeg(1), "key": key}
        packstore.convert([sample], tmp_path / "a.lmdb", split="val", overwrite=True)
        with packstore.open(tmp_path / "a.lmdb") as store:
            assert store.key(0) == wanted
    with pytest.raises(UsageError, match="sample 0: key: found float, expected a string"):
        packstore.convert([{"image": jpeg(1), "key": 0.5}], tmp_path / "b.lmdb")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_worker_processes_change_nothing(tmp_path: Path, workers: int) -> None:
    samples = [(Image.fromarray(pixels(8 + i % 3, 9, i)), i % 3) for i in range(150)]
    here = packstore.convert(samples, tmp_path / "a.lmdb", encoding="uint8").manifest
    there = packstore.convert(Mapped(samples), tmp_path / "b.lmdb", encoding="uint8", workers=workers).manifest
    assert here.dataset_digest == there.dataset_digest


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_sample_that_raises_is_named(tmp_path: Path, workers: int) -> None:
    data = Mapped([(jpeg(1), 0)] * 200, ill=101)
    message = "^train/0000000101: sample 101: RuntimeError: the disk is on fire"
    with pytest.raises(SampleError, match=message) as caught:
        packstore.convert(data, tmp_path / "a.lmdb", split="train", workers=workers)
    assert any("in __getitem__" in note for note in caught.value.__notes__)
    assert list(tmp_path.iterdir()) == []
    report = packstore.convert(data, tmp_path / "a.lmdb", split="train", workers=workers, on_error="skip")
    assert [skipped.key for skipped in report.skipped] == ["train/0000000101"]
    assert report.manifest.records == 199


class Fatal(Mapped):
    """Ends the process that reads the last sample but one."""

    def __getitem__(self, index: int) -> Any:
        if index == len(self) - 2:
            os._exit(7)
        return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_worker_process_that_ends_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"a process that reads the dataset has ended .*; it may have run out of memory"
    ):
        packstore.convert(Fatal([(jpeg(1), 0)] * 200), tmp_path / "a.lmdb", workers=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Also while their samples fill the pipe to it."""
    script = f"""
import os, signal, sys
import packstore
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.makers.samples import jpeg

class Data:
    def __len__(self):
        return 300
    def __getitem__(self, index):
        return {{"image": jpeg(1), "blob": bytes(1_000_000)}}

def killed(progress):
    if progress.stage == "pack" and progress.done:
        os.kill(os.getpid(), signal.SIGKILL)

packstore.convert(Data(), {str(tmp_path / "a.lmdb")!r}, workers=2, progress=killed)
"""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], start_new_session=True)
    assert process.wait(120) == -signal.SIGKILL
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("the workers of a killed conversion are still there")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (3, {}, "int is not a dataset; give a path, a Dataset, a list"),
        (torch.utils.data.DataLoader([1]), {}, "a DataLoader gives batches; give its dataset"),  # type: ignore[arg-type]
        ([], {}, "list has no samples, so there is nothing to pack"),
        (iter([]), {}, "has no samples"),
        ({}, {}, "a dict of datasets is empty"),
        ({3: [jpeg(1)]}, {}, "has the names of the splits as its keys"),
        ([{"image": jpeg(1), "label": "cat"}], {}, r"label: found names of classes: declare it"),
        ([{"image": jpeg(1), "a": object()}], {}, "a: found object, which must be declared"),
        ([{"image": jpeg(1), "a": None}], {}, "a: the first 1 samples have no value; declare it"),
        ([{"image": jpeg(1), 3: 1}], {}, "a sample has the name 3; names are strings"),
        ([{"label": 1}], {}, "no field is an image"),
        ([{"image": jpeg(1), "a": np.zeros(shape)} for shape in (2, (2, 2))], {}, "a: found arrays of shapes"),
        ([{"image": torch.rand(3, 8, 8)}], {"encoding": "uint8"}, "of float32 and shape .* of whole numbers"),
        ([{"image": np.zeros((3, 8, 8), np.uint8)}], {"encoding": "uint8"}, r"and shape \(3, 8, 8\)"),
        ([jpeg(1)], {"labels": "labels.csv"}, "source_kind, labels, .* are for paths"),
        ([{"image": jpeg(1), "a": np.array(n, d)} for n, d in ((1, "u8"), (1, "i8"))], {}, "a: found int64 and uint"),
        ({"a": [jpeg(1)], "b": []}, {}, "split 'b' has no samples: leave it out"),
        ({"a": [], "b": [jpeg(1)]}, {}, "split 'a' has no samples: leave it out"),
        ({"a": [jpeg(1)], "b": iter([])}, {}, "split 'b' has no samples: leave it out"),
        (dict.fromkeys("ab", iter([jpeg(1)] * 40)), {}, "two splits are the same iterator"),
        ([jpeg(1)], {"encoding": "jpeg", "fields": {"image": packstore.Image("uint8")}}, "differ; give one of them"),
        (iter([jpeg(1)]), {"encoding": "float16", "size": 8, "normalize": "auto"}, "normalize='auto' reads all images"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed(tmp_path: Path, data: Any, options: Any, message: str) -> None:
    with pytest.raises((UsageError, SourceError), match=message):
        packstore.convert(data, tmp_path / "a.lmdb", **options)
    assert list(tmp_path.iterdir()) == []


def test_fields_are_for_datasets(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fields declare the values of a dataset"):
        packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "a.lmdb", fields={"image": "image"})


@pytest.mark.slow
def test_an_image_folder_gives_its_files(tmp_path: Path) -> None:
    """The dataset of ``convert(folder)``: the same keys, bytes, labels and classes."""
    datasets = import_torchvision().datasets
    folder = make_folder(tmp_path / "photos", splits=())
    expected = packstore.convert(folder, tmp_path / "a.lmdb").manifest
    data = datasets.ImageFolder(folder)
    found = packstore.convert(data, tmp_path / "b.lmdb").manifest
    assert found.dataset_digest == expected.dataset_digest
    assert found.classes == CLASSES
    half = torch.utils.data.Subset(data, range(0, len(data), 2))
    subset = packstore.convert(half, tmp_path / "c.lmdb").manifest
    assert (subset.records, subset.classes, subset.encoding) == (len(half), CLASSES, "original")
    data = datasets.ImageFolder(folder, target_transform=lambda label: 2 - label)
    packstore.convert(data, tmp_path / "d.lmdb")
    with packstore.open(tmp_path / "d.lmdb") as store:
        assert store.item("label", 0) == 2


@pytest.mark.slow
def test_image_folders_by_split_are_the_folder_of_both(tmp_path: Path) -> None:
    """Files of the same name lie in both."""
    datasets = import_torchvision().datasets
    folder = make_folder(tmp_path / "photos", splits=("train", "val"))
    for label in CLASSES:
        first = sorted((folder / "train" / label).iterdir())[0]
        (folder / "val" / label / first.name).write_bytes(first.read_bytes())
    expected = packstore.convert(folder, tmp_path / "a.lmdb").manifest
    both = {split: datasets.ImageFolder(folder / split) for split in ("train", "val")}
    assert packstore.convert(both, tmp_path / "b.lmdb").manifest.dataset_digest == expected.dataset_digest


@pytest.mark.slow
def test_other_datasets_of_torchvision_give_their_files(tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    food = tmp_path / "food-101"
    for name in ("ant", "bee"):
        (food / "images" / name).mkdir(parents=True)
        (food / "images" / name / "1.jpg").write_bytes(jpeg(len(name)))
    (food / "meta").mkdir()
    (food / "meta" / "train.json").write_text('{"ant": ["ant/1"], "bee": ["bee/1"]}')
    packstore.convert(datasets.Food101(tmp_path), tmp_path / "food.lmdb")
    with packstore.open(tmp_path / "food.lmdb") as store:
        assert store.manifest.classes == ("ant", "bee")
        assert store.item("label", 1) == 1
        assert store.item("image", 1) == (food / "images" / "bee" / "1.jpg").read_bytes()


@pytest.mark.slow
def test_a_dataset_that_transforms_gives_what_it_makes(tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    folder = make_folder(tmp_path / "photos", splits=())
    data = datasets.ImageFolder(folder, transform=lambda image: image.resize((8, 8)))
    with pytest.raises(UsageError, match="come as pixels"):
        packstore.convert(data, tmp_path / "a.lmdb")
    packstore.convert(data, tmp_path / "a.lmdb", encoding="uint8")
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert np.array_equal(store.item("image", 0), np.asarray(data[0][0]))
        assert store.manifest.classes == CLASSES

    class Odd(datasets.ImageFolder):  # type: ignore[misc, name-defined]
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return image.rotate(90), label

    with pytest.raises(UsageError, match="come as pixels"):
        packstore.convert(Odd(folder), tmp_path / "b.lmdb")


@pytest.mark.slow
def test_values_of_tv_tensors(tmp_path: Path) -> None:
    tv_tensors = import_torchvision().tv_tensors
    box = tv_tensors.BoundingBoxes([[1.0, 2, 3, 4]], format="XYXY", canvas_size=(8, 8))
    target = {"corners": box, "area": tv_tensors.Mask(torch.ones(8, 8, dtype=torch.uint8)), "labels": torch.tensor([2])}
    picture = tv_tensors.Image(torch.zeros(3, 8, 8, dtype=torch.uint8))
    manifest = packstore.convert([(picture, target)] * 3, tmp_path / "a.lmdb", encoding="uint8").manifest
    assert columns_of(manifest) == {
        "image": ("image", "uint8"),
        "corners": ("boxes", "float32"),
        "area": ("mask", "uint8"),
        "area_shape": ("array", "int32"),
        "labels": ("labels", "int64"),
    }
    assert manifest.column("labels").parallel == "corners"
    other = tv_tensors.BoundingBoxes([[1.0, 2, 3, 4]], format="XYWH", canvas_size=(8, 8))
    with pytest.raises(SampleError, match="found boxes as XYWH; expected XYXY"):
        packstore.convert([(jpeg(1), {"boxes": other})], tmp_path / "b.lmdb")
