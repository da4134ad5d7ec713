"""The columns of an item that no one has chosen: masks come, and what is left out is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip
from tests.internals import UsageError
from tests.makers.images import encode

SIDE = 20
FIELDS: dict[str, Any] = {
    "mask": "mask",
    "depth": "mask",
    "maybe": packstore.Mask(optional=True),
    "boxes": "boxes",
    "labels": packstore.Labels(["cat", "dog"], of="boxes"),
    "label": "label",
    "caption": "text",
}
VALUES: dict[str, Any] = {
    "mask": np.eye(SIDE, dtype=np.uint8),
    "depth": np.ones((SIDE, SIDE), np.uint8),
    "maybe": np.ones((SIDE, SIDE), np.uint8),
    "boxes": [[1, 2, 9, 8]],
    "labels": [1],
    "label": 0,
    "caption": "a cat",
}


def make(path: Path, names: list[str], encoding: str = "original") -> Path:
    fields = {"image": packstore.Image(encoding), **{name: FIELDS[name] for name in names}}
    options: dict[str, Any] = {"annotation_frame": "stored"} if {"mask", "boxes", "depth", "maybe"} & {*names} else {}
    with packstore.Writer(path, fields, **options) as writer:
        for n in range(4):
            pixels = np.full((SIDE, SIDE, 3), 40 * n, np.uint8)
            image = encode(Image.fromarray(pixels), "PNG") if encoding == "original" else pixels
            writer.add(key=str(n), image=image, **{name: VALUES[name] for name in names})
    return path


CASES: dict[str, tuple[list[str], tuple[str, ...], list[str]]] = {
    "masks": (["mask"], ("image", "mask"), []),
    "two masks": (["depth", "mask"], ("image", "depth", "mask"), []),
    "optional masks": (["maybe"], ("image", "maybe"), []),
    "classification": (["mask", "label"], ("image", "label"), ["mask"]),
    "label first": (["label", "mask", "boxes"], ("image", "label"), ["mask", "boxes"]),
    "boxes": (["boxes", "labels", "caption"], ("image", "boxes", "labels"), ["caption"]),
    "instances": (["mask", "boxes", "labels"], ("image", "mask", "boxes", "labels"), []),
    "masks last": (["boxes", "labels", "mask"], ("image", "boxes", "labels", "mask"), []),
    "detection": (["boxes", "labels", "maybe"], ("image", "boxes", "labels"), ["maybe"]),
    "captions": (["caption"], ("image",), ["caption"]),
}


@pytest.mark.parametrize("encoding", ["original", "uint8"])
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("case", CASES)
def test_default_columns(tmp_path: Path, case: str, suffix: str, encoding: str) -> None:
    names, expected, left_out = CASES[case]
    dataset = PackedDataset(make(tmp_path / f"x.{suffix}", names, encoding))
    assert dataset.columns == expected
    item = dataset[0]
    assert isinstance(item, torch.Tensor) if len(expected) == 1 else len(item) == len(expected)
    said = [line.strip() for line in repr(dataset).splitlines() if "left out" in line]
    assert said == ([f"left out: {', '.join(left_out)} (columns= adds them)"] if left_out else [])
    batch = next(iter(PackedLoader(dataset, 2, augment=RandomHorizontalFlip())))
    assert isinstance(batch, torch.Tensor) if len(expected) == 1 else len(batch) == len(expected)


def test_masks_of_a_folder_come_by_default(tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        (tmp_path / "seg" / kind).mkdir(parents=True)
    for n in range(4):
        Image.new("RGB", (32, 24), (n * 50, 0, 0)).save(tmp_path / f"seg/images/{n}.png")
        Image.fromarray(np.full((24, 32), n, np.uint8)).save(tmp_path / f"seg/masks/{n}.png")
    packstore.convert(tmp_path / "seg", tmp_path / "seg.lmdb")
    dataset = PackedDataset(tmp_path / "seg.lmdb")
    assert dataset.columns == ("image", "mask")
    for images, masks in (next(iter(DataLoader(dataset, 4))), next(iter(PackedLoader(dataset, 4)))):
        assert (images.shape, masks.shape) == ((4, 3, 24, 32), (4, 24, 32))
    images, masks = next(iter(PackedLoader(dataset, 4, augment=RandomCrop(16))))
    assert (images.shape, masks.shape) == ((4, 3, 16, 16), (4, 16, 16))


def test_what_masks_prevent_says_how_to_leave_them_out(tmp_path: Path) -> None:
    packstore.convert(make(tmp_path / "files.h5", ["mask"]), tmp_path / "x.h5", encoding="float32")
    dataset = PackedDataset(tmp_path / "x.h5")
    for options in ({"resident": True}, {"augment": torch.neg}):
        with pytest.raises(UsageError, match="columns="):
            PackedLoader(dataset, 2, **options)
    alone = PackedDataset(tmp_path / "x.h5", columns=("image",))
    assert "left out: mask (columns= adds them)" in repr(alone)
    assert next(iter(PackedLoader(alone, 2, resident=True, augment=torch.clone))).shape == (2, 3, SIDE, SIDE)


@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (packstore.Mask(optional=True), np.ones((SIDE, SIDE), np.uint8)),
        (packstore.Label(["a", "b"], optional=True), 1),
        (packstore.Text(optional=True), "some"),
    ],
    ids=["mask", "label", "text"],
)
def test_a_missing_value_is_said_when_a_loader_is_made(tmp_path: Path, field: Any, value: Any, suffix: str) -> None:
    """Unless the loader has no record without a value, or a sampler, which chooses records later."""
    path = tmp_path / f"x.{suffix}"
    frame = "stored" if isinstance(field, packstore.Mask) else None
    with packstore.Writer(path, {"image": "image", "maybe": field}, annotation_frame=frame) as writer:
        for n in range(6):
            image = encode(Image.new("RGB", (SIDE, SIDE)), "PNG")
            writer.add(key=str(n), image=image, maybe=value if n != 4 else None)
    dataset = PackedDataset(path, columns=("image", "maybe"))
    assert "None if missing: maybe" in repr(dataset)
    wanted = r"record 4 \(4\).* has no 'maybe'.*'optional'.*columns= of the dataset can leave 'maybe' out"
    for given in (dataset, Subset(dataset, [0, 4])):
        with pytest.raises(UsageError, match=wanted):
            PackedLoader(given, 2)
    loader = PackedLoader(dataset, 2, sampler=[0, 4])
    with pytest.raises(UsageError, match=wanted):
        next(iter(loader))
    for sound in (
        PackedLoader(dataset, 2, sampler=[0, 5]),
        PackedLoader(dataset, 2, indices=[0, 5]),
        PackedLoader(Subset(dataset, [0, 1, 4]), 2, indices=[0, 1]),
        PackedLoader(dataset, 2, collate={"maybe": "optional"}),
        PackedLoader(PackedDataset(path, columns=("image", "key")), 2),
    ):
        assert len([*sound]) == len(sound)
