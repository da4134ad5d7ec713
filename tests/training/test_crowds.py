"""Crowd regions: in no batch and no item, unless they are asked for, whatever set they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader, augment
from packstore.testing.exports import picture
from tests.internals import Writer, convert
from tests.makers.annotated import fill, jpeg
from tests.makers.torchvision import import_torchvision

BOXES = [[0.0, 0.0, 16.0, 8.0], [1.0, 2.0, 5.0, 6.0], [2.0, 1.0, 9.0, 7.0]]
CROWDS = [1, 0, 1]
"""The first and the last of the boxes are crowds."""


def coco(root: Path, flag: str = "iscrowd", crowds: list[Any] | None = None) -> Path:
    """A set of three images, the second with crowds."""
    annotations = [
        {"id": n, "image_id": image, "category_id": 1 + n % 2, "bbox": [x, y, right - x, bottom - y], "area": 1,
         flag: crowd if image == 2 else 0, "segmentation": {"size": [8, 16], "counts": [0, 128]} if crowd else []}
        for image in (1, 2) for n, ((x, y, right, bottom), crowd)
        in enumerate(zip(BOXES, crowds or CROWDS, strict=True), 10 * image)
    ]  # fmt: skip
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 16, "height": 8} for n in (1, 2, 3)]
    categories = [{"id": n, "name": name} for n, name in enumerate(("person", "cat"), 1)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    files: dict[str, str | bytes] = {f"train/{n}.jpg": jpeg(n) for n in (1, 2, 3)}
    return fill(root, {**files, "train/_annotations.coco.json": json.dumps(document)})


def packed(root: Path, store: Path) -> Path:
    convert(root, store)
    return store


def written(root: Path, field: Any, dtype: str = "int64") -> Path:
    """A store of a user's own, whose flags are of any field."""
    fields = {"image": packstore.Image(), "boxes": "boxes", "labels": packstore.Labels(("person", "cat"), of="boxes")}
    with Writer(root, fields={**fields, "iscrowd": field}) as writer:
        for image in range(3):
            number = 3 * (image < 2)
            crowds = np.array(CROWDS if image == 1 else [0] * number, dtype)
            values = {"boxes": BOXES[:number], "labels": [n % 2 for n in range(number)], "iscrowd": crowds}
            writer.add(image=picture(image), **values)
    return root


STORES = {
    "iscrowd": lambda path: packed(coco(path / "set"), path / "x.lmdb"),
    "ignore": lambda path: packed(coco(path / "set", "ignore"), path / "x.h5"),
    "true": lambda path: packed(coco(path / "set", crowds=[True, False, True]), path / "x.pth"),
    "labels": lambda path: written(path / "x.lmdb", packstore.Labels(of="boxes")),
    "array": lambda path: written(path / "x.lmdb", packstore.Array("uint8", ragged=True), "uint8"),
    "bool": lambda path: written(path / "x.h5", packstore.Array("bool", ragged=True), "bool"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(STORES[request.param](tmp_path))


def rows(value: Any) -> list[Any]:
    return np.asarray(value).tolist()


def test_items_and_batches_leave_crowds_out(store: Path) -> None:
    data = PackedDataset(store)
    assert data.columns == ("image", "boxes", "labels")
    for image, boxes, labels in (data[1], *zip(*data[[1]], strict=True)):
        assert image.shape == (3, *image.shape[1:])
        assert rows(boxes) == BOXES[1:2]
        assert rows(labels) == [1]
    assert rows(data[0][1]) == BOXES
    assert len(data[2][1]) == 0
    (_, boxes, labels), *_ = PackedLoader(data, 3)
    assert [rows(each) for each in boxes] == [BOXES, BOXES[1:2], []]
    assert [rows(each) for each in labels] == [[0, 1, 0], [1], []]


@pytest.mark.parametrize("output", ["dict", "tv_tensors"])
def test_each_output_leaves_crowds_out(output: Any, store: Path) -> None:
    if output == "tv_tensors":
        import_torchvision()
    data = PackedDataset(store, columns=("image", "boxes", "labels", "iscrowd"), output=output)
    item = data[1] if output == "dict" else data[1][1]
    assert rows(item["boxes"]) == BOXES[1:2]
    assert rows(item["labels"]) == [1]
    assert rows(item["iscrowd"]) == [0]


@pytest.mark.parametrize("form", ["list", "padded"])
def test_augmented_batches_leave_crowds_out(form: str, store: Path) -> None:
    data = PackedDataset(store)
    collate = {"boxes": form, "labels": form}
    loader = PackedLoader(data, 3, augment=[augment.RandomHorizontalFlip(1.0)], collate=collate)
    (_, boxes, labels), *_ = loader
    width = data[1][0].shape[2]
    flipped = [[width - BOXES[1][2], BOXES[1][1], width - BOXES[1][0], BOXES[1][3]]]
    found = boxes.values[1, : boxes.lengths[1]] if form == "padded" else boxes[1]
    classes = labels.values[1, : labels.lengths[1]] if form == "padded" else labels[1]
    assert rows(found) == flipped
    assert rows(classes) == [1]


@pytest.mark.parametrize("checksums", ["auto", "always", "never"])
def test_crowds_are_kept_if_they_are_asked_for(checksums: Any, store: Path) -> None:
    columns = ("image", "boxes", "labels", "iscrowd")
    data = PackedDataset(store, columns=columns, keep_crowds=True, checksums=checksums)
    (batch, *_), item = PackedLoader(data, 3), data[1]
    for boxes, labels, crowds in (item[1:], [each[1] for each in batch[1:]]):
        assert rows(boxes) == BOXES
        assert rows(labels) == [0, 1, 0]
        assert rows(crowds) == CROWDS
    without = PackedDataset(store, columns=columns, checksums=checksums)
    assert rows(without[1][1]) == BOXES[1:2]


def test_annotations_stay_beside_their_boxes(tmp_path: Path) -> None:
    convert(coco(tmp_path / "set"), tmp_path / "x.lmdb")
    columns = ("image", "boxes", "json")
    _, boxes, document = PackedDataset(tmp_path / "x.lmdb", columns=columns)[1]
    assert [each["bbox"] for each in document["annotations"]] == [[1, 2, 4, 4]]
    assert len(boxes) == 1
    (batch, *_) = PackedLoader(PackedDataset(tmp_path / "x.lmdb", columns=columns), 3)
    assert batch[2][1] == document
    _, _, document = PackedDataset(tmp_path / "x.lmdb", columns=columns, keep_crowds=True)[1]
    assert len(document["annotations"]) == 3


def test_stores_with_and_without_crowds_train_together(tmp_path: Path) -> None:
    convert(coco(tmp_path / "one"), tmp_path / "one.lmdb")
    convert(coco(tmp_path / "two", crowds=[0, 0, 0]), tmp_path / "two.lmdb")
    stores = [tmp_path / "one.lmdb", tmp_path / "two.lmdb"]
    for data in (packstore.concat(stores), packstore.Mix(stores)):
        assert [len(data[n][1]) for n in range(6)] == [3, 1, 0, 3, 3, 0]
        boxes = [len(each) for batch in PackedLoader(data, 2) for each in batch[1]]
        assert sorted(boxes) == [0, 0, 1, 3, 3, 3]
    with pytest.raises(packstore.PackstoreError, match="only one of them has iscrowd"):
        packstore.concat(stores, keep_crowds=True)


@pytest.mark.slow
def test_a_store_with_crowds_takes_a_set_without(tmp_path: Path) -> None:
    convert(coco(tmp_path / "one"), tmp_path / "x.lmdb")
    packstore.append(tmp_path / "x.lmdb", coco(tmp_path / "two", crowds=[0, 0, 0]), key_prefix="two")
    data = PackedDataset(tmp_path / "x.lmdb", columns=("boxes", "iscrowd"), keep_crowds=True)
    assert [rows(data[n][1]) for n in range(5)] == [[0, 0, 0], CROWDS, [], [0, 0, 0], [0, 0, 0]]


def test_a_store_of_a_former_version_is_what_it_was(tmp_path: Path) -> None:
    """Which has crowds among its boxes, and no column: that is no damage, and repairs leave it so."""
    root = coco(tmp_path / "set", crowds=[0, 0, 0])
    convert(root, tmp_path / "x.lmdb")
    coco(tmp_path / "set2")
    annotations = root / "train/_annotations.coco.json"
    document = json.loads(annotations.read_text())
    document["annotations"][0]["ignore"] = 1
    with pytest.raises(packstore.PackstoreError, match="the source has a column 'iscrowd'"):
        packstore.append(tmp_path / "x.lmdb", tmp_path / "set2", key_prefix="two")
    annotations.write_text(json.dumps(document))
    assert "iscrowd" not in str(packstore.verify(tmp_path / "x.lmdb", against=root).problems)


def test_the_option_is_a_choice(tmp_path: Path) -> None:
    convert(coco(tmp_path / "set"), tmp_path / "x.lmdb")
    with pytest.raises(packstore.UsageError, match="keep_crowds"):
        PackedDataset(tmp_path / "x.lmdb", keep_crowds="yes")
    assert isinstance(PackedDataset(tmp_path / "x.lmdb")[0][1], torch.Tensor)
