"""Boxes and points in a JSON column: found in whichever record they are, however the store came to be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.augment import CenterCrop, ColorJitter, RandomHorizontalFlip
from tests.internals import UsageError
from tests.internals import journal as receipts

BOX = [2, 5, 12, 15]
HELD: list[Any] = [
    *({key: BOX} for key in ("bbox", "bboxes", "box", "gtBoxes", "bounding_box", "boundingBox", "bndbox", "bbox_2d")),
    *({key: [[2, 5], [12, 15]]} for key in ("polygon", "points", "quad", "rbox", "keypoints", "landmarks", "vertices")),
    {"segmentation": {"size": [40, 60], "counts": "abc"}},
    {"xmin": 2, "ymin": 5, "xmax": 12, "ymax": 15},
    {"x": 2, "y": 5, "width": 10, "height": 10},
    {"left": 2.5, "top": 5, "w": 10, "h": 10},
    {"bbox_x": 2, "bbox_y": 5},
    {"x_center": 0.1, "y_center": 0.2},
    {"all_points_x": [2, 12], "all_points_y": [5, 15]},
    {"box": "2 5 12 15"},
    {"geometry": {"polygon": "POLYGON ((2 5, 12 5, 12 15))"}},
    {"keypoints": {"nose": {"x": 2, "y": 5}}},
]
FREE: list[Any] = [
    {"num_boxes": 3, "num_points": 7}, {"box_ids": [1, 2, 3]}, {"width": 60, "height": 40}, {"inbox": "mail"},
    {"caption": "a box at 2 5 12 15"}, {"tags": [1, 2, 3, 4], "score": 0.5}, {"x": 2}, ["boxes", "points"], None,
]  # fmt: skip


def write_folder(folder: Path, values: list[Any], first: int = 0) -> Path:
    """Writes a folder of images with ``metadata.jsonl``, whose column ``extra`` has the values."""
    folder.mkdir(parents=True)
    for number in range(len(values)):
        Image.new("RGB", (60, 40)).save(folder / f"{first + number}.png")
    rows = ({"file_name": f"{first + number}.png", "extra": value} for number, value in enumerate(values))
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def convert(folder: Path, values: list[Any], name: str = "out.lmdb", first: int = 0, **options: Any) -> Path:
    """Packs a folder as one store."""
    source = write_folder(folder / f"source-{name}", values, first)
    packstore.convert(source, folder / name, **options)
    return folder / name


def write_samples(folder: Path, values: list[Any]) -> Path:
    fields = {"image": "image", "extra": "json"}
    folder.mkdir(exist_ok=True)
    with packstore.Writer(folder / "out.pth", fields, encoding="uint8") as writer:
        for value in values:
            writer.add(image=np.zeros((8, 8, 3), np.uint8), extra=value)
    return folder / "out.pth"


def resume(folder: Path, values: list[Any]) -> Path:
    """Packs in two runs: the first is interrupted after its first batch."""
    source = write_folder(folder / "source", values)

    class CutError(BaseException):
        pass

    def cut(report: packstore.Progress) -> None:
        if report.stage == "pack" and report.done:
            raise CutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receipts, "EVERY_SECONDS", 0.0)
        with pytest.raises(CutError):
            packstore.convert(source, folder / "out.lmdb", progress=cut)
        packstore.convert(source, folder / "out.lmdb")
    return folder / "out.lmdb"


def compose(function: Callable[..., Any], source: Any, out: Path, **options: Any) -> Path:
    """Makes a store of stores or of a source."""
    function(source, out, **options)
    return out


def extend(store: Path, more: Path) -> Path:
    packstore.append(store, more)
    return store


def halves(folder: Path, values: list[Any], suffix: str = "lmdb", **options: Any) -> list[Path]:
    """Packs all records but the last in one store, and the last in another."""
    last = len(values) - 1
    first = convert(folder, values[:last], f"a.{suffix}", **options)
    return [first, convert(folder, values[last:], f"b.{suffix}", last, **options)]


SHARDED: dict[str, Any] = {"encoding": "uint8", "shard_size": 7200}
MAKERS: dict[str, Callable[[Path, list[Any]], Any]] = {
    "convert": convert,
    "in shards": lambda folder, values: convert(folder, values, **SHARDED),
    "append": lambda folder, values: extend(
        convert(folder, values[:-1]), write_folder(folder / "more", values[-1:], len(values) - 1)
    ),
    "append a store": lambda folder, values: extend(*halves(folder, values)),
    "merge": lambda folder, values: compose(packstore.merge, halves(folder, values), folder / "out.lmdb"),
    "merge shards": lambda folder, values: compose(
        packstore.merge, halves(folder, values, "h5", **SHARDED), folder / "out.h5"
    ),
    "select": lambda folder, values: compose(
        packstore.select, convert(folder, values), folder / "chosen.lmdb", where="key != '0.png'"
    ),
    "write samples": write_samples,
    "at a URL": lambda folder, values: compose(
        packstore.convert, write_folder(folder / "source", values), (folder / "out.h5").as_uri(), **SHARDED
    ),
    "resume": resume,
}


def refuses(store: Path, **options: Any) -> bool:
    """Tells if a loader with a flip refuses the column ``extra``."""
    dataset = packstore.PackedDataset(store, columns=("image", "extra"))
    try:
        packstore.PackedLoader(dataset, 2, **(options or {"augment": [RandomHorizontalFlip(1)]}))
    except UsageError as error:
        return "the column 'extra' (json) holds boxes" in str(error)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_boxes_of_the_last_record_are_found(make: Any, tmp_path: Path) -> None:
    held = make(tmp_path / "held", [[], None, {"note": 1}, [{"box": BOX}]])
    free = make(tmp_path / "free", [[], None, {"note": 1}, [{"note": 2}]])
    assert refuses(held)
    assert not refuses(free)
    manifests = [packstore.PackedDataset(store, columns=("image", "extra")).manifest for store in (held, free)]
    assert [manifest.column("extra").hides_boxes for manifest in manifests] == [True, False]


@pytest.mark.parametrize(("value", "held"), [*((value, True) for value in HELD), *((value, False) for value in FREE)])
@pytest.mark.parametrize("depth", [0, 2])
def test_usual_keys_at_any_depth(value: Any, held: bool, depth: int, tmp_path: Path) -> None:
    for _ in range(depth):
        value = [{"annotations": value, "id": 3}]
    assert refuses(write_samples(tmp_path, [None, value])) == held


def test_the_name_of_the_column_counts(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "bbox": "json"}, encoding="uint8") as writer:
        for value in ([], BOX):
            writer.add(image=np.zeros((8, 8, 3), np.uint8), bbox=value)
    dataset = packstore.PackedDataset(tmp_path / "a.lmdb", columns=("image", "bbox"))
    with pytest.raises(UsageError, match="holds boxes"):
        packstore.PackedLoader(dataset, 2, augment=[CenterCrop(4)])


def test_what_moves_nothing_is_accepted(tmp_path: Path) -> None:
    store = write_samples(tmp_path, [None, {"bbox": BOX}])
    assert not refuses(store, augment=[ColorJitter(0.1)])
    assert refuses(store, views=[[CenterCrop(4)], [CenterCrop(2)]])


def test_a_store_whose_manifest_does_not_tell_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_samples(tmp_path, [None] * 20 + [{"bbox": BOX}])
    dataset = packstore.PackedDataset(store, columns=("image", "extra"))
    manifest = dataset.manifest
    columns = tuple(dataclasses.replace(column, hides_boxes=None) for column in manifest.columns)
    assert dataclasses.replace(manifest, columns=columns).dataset_digest == manifest.dataset_digest
    monkeypatch.setattr(dataset, "manifest", dataclasses.replace(manifest, columns=columns))
    with pytest.raises(UsageError, match="holds boxes"):
        packstore.PackedLoader(dataset, 2, augment=[RandomHorizontalFlip(1)])
