"""A column type that lives in this file alone: declared, packed, loaded, augmented; nothing else knows it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import ManifestError, UsageError, augment
from packstore.core.column import Column
from packstore.core.column_types.base import Field
from packstore.core.column_types.geometry import RowMoves
from packstore.core.column_types.numbers import ArrayType
from packstore.core.registry import COLUMN_TYPES
from packstore.testing import ColumnTypeSuite
from tests.makers.torchvision import import_torchvision, skip_before

HEIGHT, WIDTH = 40, 48


@dataclass(frozen=True)
class Quads(Field):
    """Oriented boxes, by their four corners: float32 ``(n, 4, 2)``."""

    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(name, "ragged", "float32", (4, 2), type="quads", nullable=self.optional, coordinates="xy")


class QuadsType(ArrayType):
    name, field = "quads", Quads
    moves = True
    rows_are_objects = True
    coordinates = ("xy",)

    def fits(self, column: Column) -> bool:
        return (column.kind, column.dtype, column.shape, column.layout) == ("ragged", "float32", (4, 2), None)


@dataclass(frozen=True)
class Circles(Field):
    """Circles: x, y and radius, which are no coordinates that packstore knows."""

    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(name, "ragged", "float32", (3,), type="circles", nullable=self.optional)


class CirclesType(ArrayType):
    name, field = "circles", Circles
    moves = True

    def move_rows(
        self, column: Column, rows: NDArray[Any], images: NDArray[np.int64], moves: RowMoves
    ) -> tuple[NDArray[Any], None]:
        rim = rows[:, :2] + rows[:, 2:] * (1, 0)
        centres, rim = moves.move_points(np.stack([rows[:, :2], rim], 1).astype(np.float32), images).swapaxes(0, 1)
        return np.concatenate([centres, np.linalg.norm(rim - centres, axis=1, keepdims=True)], 1), None


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    COLUMN_TYPES.register("quads", QuadsType())
    COLUMN_TYPES.register("circles", CirclesType())
    yield
    COLUMN_TYPES.unregister("quads")
    COLUMN_TYPES.unregister("circles")


class TestQuads(ColumnTypeSuite):
    type = "quads"
    field = Quads()
    optional = Quads(optional=True)
    values = (np.zeros((0, 4, 2)), [[[0, 1], [2, 0], [3, 2], [1, 3]]], np.arange(80).reshape(-1, 4, 2))
    wrong = ([[0, 1, 2, 3]], "quads")
    placed, mirrored = [[[0, 1], [2, 0], [3, 2], [1, 3]]], [[[3, 1], [1, 0], [0, 2], [2, 3]]]


class TestCircles(ColumnTypeSuite):
    type = "circles"
    field = Circles()
    optional = Circles(optional=True)
    values = (np.zeros((0, 3)), [[1, 2, 3]])
    wrong = ([1, 2, 3], "circle")
    placed, mirrored = [[1, 2, 3], [0, 4, 0.5]], [[2, 2, 3], [3, 4, 0.5]]


def png(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_circle(path: Path) -> None:
    with packstore.Writer(path, {"image": "image", "circles": "circles"}) as writer:
        writer.add(image=png(0), circles=[[10, 20, 4]])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Quads and their classes; beside them what packstore has itself: their corners as points, the boxes around them
    with the same classes."""
    fields = {
        "image": "image",
        "quads": "quads",  # the type's name stands for its declaration
        "names": packstore.Labels(of="quads"),
        "corners": packstore.Keypoints(points=4, of=False),
        "boxes": "boxes",
        "box_names": packstore.Labels(of="boxes"),
    }
    random = np.random.default_rng(7)
    with packstore.Writer(tmp_path / "toy.lmdb", fields) as writer:
        for number in range(6):
            count = (number * 3) % 5
            quads = (random.random((count, 1, 2)) * (WIDTH, HEIGHT) + random.normal(0, 6, (count, 4, 2))).astype("f4")
            boxes = np.concatenate([quads.min(1), quads.max(1)], 1)
            names = np.arange(count) + 10 * number
            writer.add(
                image=png(number),
                quads=quads,
                names=names,
                corners=quads,
                boxes=boxes,
                box_names=names,
                key=str(number),
            )
    return tmp_path / "toy.lmdb"


OPERATIONS: dict[str, tuple[Any, ...]] = {
    "crop": (augment.RandomCrop(24),),
    "resize and flip": (augment.RandomResizedCrop(32), augment.RandomHorizontalFlip()),
    "rotation": (augment.RandomRotation(40), augment.CenterCrop(30)),
    "crop around an object": (augment.RandomIoUCrop(), augment.Resize((32, 32))),
}


def check_batch(batch: dict[str, Any], kept: bool = False) -> int:
    """Compares quads with points and boxes; returns how many there are. ``kept``: no row was dropped."""
    for quads, names, corners, box_names in zip(
        *(batch[name] for name in ("quads", "names", "corners", "box_names")), strict=True
    ):
        assert torch.equal(names, box_names)
        assert quads.shape == (len(names), 4, 2)
        own = {tuple(row.flatten().tolist()) for row in corners}
        assert {tuple(row.flatten().tolist()) for row in quads} <= own
        assert not kept or torch.equal(quads, corners)
    return sum(map(len, batch["quads"]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_move_it_like_points_and_drop_it_like_boxes(store: Path, name: str) -> None:
    dataset = packstore.PackedDataset(
        store, output="dict", columns=("image", "quads", "names", "corners", "boxes", "box_names")
    )
    found = [
        sum(map(check_batch, packstore.PackedLoader(dataset, 3, augment=OPERATIONS[name], min_area=least)))
        for least in (1, 30)
    ]
    assert found[0] > found[1] > 0


def test_mosaics_join_it(store: Path) -> None:
    dataset = packstore.PackedDataset(
        store, output="dict", columns=("image", "quads", "names", "corners", "boxes", "box_names")
    )
    kept = [
        sum(
            check_batch(batch, kept=least == 0)
            for batch in packstore.PackedLoader(dataset, 3, mix=augment.Mosaic(64), min_area=least)
        )
        for least in (0, 1, 100)
    ]
    assert kept[0] > kept[1] > kept[2] > 0


def test_views_and_padding(store: Path) -> None:
    dataset = packstore.PackedDataset(store, output="dict", columns=("image", "quads", "names"))
    for batch in packstore.PackedLoader(dataset, 2, views=[[augment.RandomCrop(24)], [augment.Resize((20, 24))]]):
        for quads, names in zip(batch["quads"], batch["names"], strict=True):
            assert [len(each) for each in quads] == [len(each) for each in names]
    for batch in packstore.PackedLoader(dataset, 6, collate={"quads": "padded"}):
        assert batch["quads"].values.shape == (6, 4, 4, 2)
        assert batch["quads"].lengths.tolist() == [len(names) for names in batch["names"]]


def test_items(store: Path) -> None:
    image, quads, names = packstore.PackedDataset(store)[3]  # the default: images with their objects and classes
    assert image.shape == (3, HEIGHT, WIDTH)
    assert (quads.shape, names.tolist()) == ((4, 4, 2), [30, 31, 32, 33])
    assert [len(each) for each in packstore.PackedDataset(store)[:][1]] == [0, 3, 1, 4, 2, 0]


@pytest.mark.slow
def test_torchvision_transforms_it_as_points(store: Path, tmp_path: Path) -> None:
    skip_before(23)
    v2 = import_torchvision().transforms.v2
    dataset = packstore.PackedDataset(store, output="tv_tensors", columns=("image", "quads", "names"))
    _, target = v2.RandomHorizontalFlip(1.0)(dataset[3])
    [(_, (mirrored,), _)] = packstore.PackedLoader(
        packstore.PackedDataset(store), 1, indices=[3], augment=[augment.RandomHorizontalFlip(1.0)], min_area=0
    )
    assert torch.equal(target["quads"], mirrored)
    write_circle(tmp_path / "a.h5")
    with pytest.raises(UsageError, match=r"'circles' \(circles\) moves with the image, and torchvision has no type"):
        packstore.PackedDataset(tmp_path / "a.h5", columns=("image", "circles"), output="tv_tensors")


def test_coordinates_that_only_the_type_knows(tmp_path: Path) -> None:
    write_circle(tmp_path / "a.h5")
    dataset = packstore.PackedDataset(tmp_path / "a.h5", columns=("image", "circles"))
    [(_, (found,))] = packstore.PackedLoader(dataset, 1, augment=[augment.Resize((20, 24))])
    assert found.tolist() == [[5, 10, 2]]
    [(_, (found,))] = packstore.PackedLoader(dataset, 1, mix=augment.Mosaic((50, 60), p=0))
    assert found.tolist() == [[16, 25, 4]]


def test_mixing_images_is_refused(store: Path) -> None:
    with pytest.raises(UsageError, match=r"would leave the column 'quads' \(quads\) as it is"):
        packstore.PackedLoader(packstore.PackedDataset(store), 2, mix=augment.MixUp())


def test_without_its_plug_in_a_store_says_so(store: Path) -> None:
    COLUMN_TYPES.unregister("quads")
    try:
        with pytest.raises(ManifestError, match="one of a plug-in that is not installed: 'quads'"):
            packstore.open(store)
    finally:
        COLUMN_TYPES.register("quads", QuadsType())
