"""Column types that live in this file alone: declared, packed, loaded, augmented, drawn, audited. Nothing else knows
them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import ManifestError, UsageError, augment
from packstore.testing import ColumnTypeSuite
from tests.conftest import Need
from tests.internals import (
    COLUMN_TYPES,
    ArrayType,
    Canvas,
    CellMaker,
    Column,
    Field,
    RowClasses,
    RowFaults,
    RowMoves,
    SheetOptions,
    audit_report_rows,
    format_column,
    read_drawn_values,
)
from tests.makers.torchvision import import_torchvision, skip_before
from tests.makers.viewing import AVAILABLE, ask, client_of

HEIGHT, WIDTH = 40, 48


@dataclass(frozen=True)
class Quads(Field):
    """Oriented boxes, by their four corners: float32 ``(n, 4, 2)``."""

    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(name, "ragged", "float32", (4, 2), type="quads", nullable=self.optional, coordinates="xy")


class QuadsType(ArrayType):
    name, field = "quads", Quads
    stored = ("ragged", "float32", (4, 2))
    moves = True
    rows_are_objects = True
    coordinates = ("xy",)
    meaning = "four corners in pixels"
    drawn_as = "quads"


@dataclass(frozen=True)
class Circles(Field):
    """Circles: x, y and radius, which are no coordinates that packstore knows."""

    optional: bool = False

    def column(self, name: str) -> Column:
        return Column(name, "ragged", "float32", (3,), type="circles", nullable=self.optional)


class CirclesType(ArrayType):
    name, field = "circles", Circles
    moves = True
    meaning = "x, y, radius in pixels"
    drawn_as = "circles"
    drawn_by_default = True
    faults: ClassVar = {"circle_negative": "a circle of negative radius", "circle_outside": "its centre is outside"}

    def move_rows(
        self, column: Column, rows: NDArray[Any], images: NDArray[np.int64], moves: RowMoves
    ) -> tuple[NDArray[Any], None]:
        rim = rows[:, :2] + rows[:, 2:] * (1, 0)
        centres, rim = moves.move_points(np.stack([rows[:, :2], rim], 1).astype(np.float32), images).swapaxes(0, 1)
        return np.concatenate([centres, np.linalg.norm(rim - centres, axis=1, keepdims=True)], 1), None

    def draw(self, canvas: Canvas, column: Column, value: Any, classes: RowClasses | None) -> None:
        canvas.draw_boxes(np.concatenate([value[:, :2] - value[:, 2:], value[:, :2] + value[:, 2:]], 1), classes)
        canvas.draw_points(value[:, :2])

    def name_checks(self, sizes_known: bool) -> str:
        return "circles" if sizes_known else "radii of circles"

    def find_faults(self, column: Column, rows: NDArray[Any], sizes: NDArray[np.int32] | None) -> Iterator[RowFaults]:
        yield RowFaults("circle_negative", rows[:, 2] < 0)
        if sizes is not None:
            outside = ((rows[:, :2] < 0) | (rows[:, :2] > sizes[:, ::-1])).any(1)
            yield RowFaults("circle_outside", outside, depends_on_size=True)


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
    faulty: ClassVar = {"circle_negative": [[1, 2, -1]], "circle_outside": [[1, 2, 3], [5, 1, 3]]}


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

    def load(least: float) -> dict[int, float]:
        """Areas of the boxes that are kept, by the number of their object."""
        areas = {}
        for batch in packstore.PackedLoader(dataset, 3, augment=OPERATIONS[name], min_area=least):
            check_batch(batch)
            boxes, names = torch.cat(batch["boxes"]), torch.cat(batch["names"])
            areas |= dict(zip(names.tolist(), (boxes[:, 2:] - boxes[:, :2]).prod(1).tolist(), strict=True))
        return areas

    everything = load(1)
    least = sum(everything.values()) / len(everything)
    found = load(least)
    assert found == {number: area for number, area in everything.items() if area >= least}
    assert 0 < len(found) < len(everything)


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


def test_sheets_and_thumbnails_draw_it(tmp_path: Path) -> None:
    """Circles unless columns are named, quads if they are named."""
    fields = {"image": "image", "circles": "circles", "quads": "quads", "names": packstore.Labels(["ant"], of="quads")}
    with packstore.Writer(tmp_path / "a.lmdb", fields) as writer:
        quads = [[[1, 1], [9, 1], [9, 9], [1, 9]]]
        writer.add(image=png(0), circles=[[20, 20, 4]], quads=quads, names=[0])
    with packstore.open(tmp_path / "a.lmdb") as reader:
        maker = CellMaker(reader, SheetOptions())
        plain, drawn = (np.asarray(each) for each in (Image.open(io.BytesIO(png(0))), maker[0].image))
        changed = np.argwhere((drawn != plain).any(2))
        assert (changed.min(0).tolist(), changed.max(0).tolist()) == ([16, 16], [24, 24])
        named = CellMaker(reader, SheetOptions(columns=["quads"]))[0].image
        changed = np.argwhere((named != plain).any(2))
        assert changed.max() < 12
        values = read_drawn_values(reader, 0)
        assert {*values} == {"circles", "quads", "names"}


def test_the_page_shows_it(store: Path, need: Need) -> None:
    need("starlette", AVAILABLE)
    with client_of(store) as client:
        assert {c["drawn"] for c in ask(client, "/api/store")["columns"]} == {"", "quads", "points", "boxes"}
        for address in ("/api/record/3", "/api/loaded/3"):
            shown = {column["name"]: column for column in ask(client, address)["columns"]}
            assert shown["quads"]["value"] == shown["corners"]["value"]
            assert shown["quads"]["shapes"] == shown["corners"]["shapes"]
            assert shown["quads"]["layer"] > shown["corners"]["layer"]
        assert client.get("/thumbnail/96/3", drawn="1").status == 200


def test_the_page_draws_shapes_that_only_the_type_knows(tmp_path: Path, need: Need) -> None:
    need("starlette", AVAILABLE)
    write_circle(tmp_path / "a.h5")
    with client_of(tmp_path / "a.h5") as client:
        [shown] = ask(client, "/api/record/0")["columns"]
        assert shown["shapes"] == [{"boxes": [[6, 16, 14, 24]]}, {"points": [[[10, 20]]]}]


def test_its_faults_are_kinds_of_findings(tmp_path: Path) -> None:
    """They are reported, described, and select --drop leaves their records out."""
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "circles": "circles"}) as writer:
        writer.add(image=png(0), circles=[[10, 20, 4]])
        writer.add(image=png(1), circles=[[1, 1, 1], [60, 20, 4], [3, 3, -2]])
    report = packstore.audit(tmp_path / "a.lmdb", pixels=True)
    assert "circles" in report.checks
    assert [each.what for each in report.of("circle_outside")] == ["'circles' 1: [60.0, 20.0, 4.0] in 48 x 40"]
    assert [each.what for each in report.of("circle_negative")] == ["'circles' 2: [3.0, 3.0, -2.0]"]
    assert "circle_negative  1 finding: a circle of negative radius" in audit_report_rows(report).text
    (tmp_path / "report.json").write_text(report.to_json())
    packstore.select(
        tmp_path / "a.lmdb", tmp_path / "b.lmdb", drop=tmp_path / "report.json", drop_kinds=("circle_outside",)
    )
    with packstore.open(tmp_path / "b.lmdb") as reader:
        assert reader.item("circles", 0).tolist() == [[10, 20, 4]]
        assert format_column(reader.manifest.column("circles")) == "circles: x, y, radius in pixels"
    unread = packstore.audit(tmp_path / "a.lmdb")
    assert "radii of circles" in unread.checks
    assert not unread.of("circle_outside")
