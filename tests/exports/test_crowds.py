"""Crowd regions in exports: marked where the format has a mark, else left out and counted; never ordinary objects."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore.sources import open_source
from packstore.stores import open_store
from tests.internals import EXPORTS, AmbiguousSourceError, convert, export
from tests.makers.annotated import fill, jpeg

MARKING = ["coco", "kitti", "datumaro", "fiftyone", "open_images"]
LEAVING = ["yolo", "voc", "csv", "labelme", "cvat", "label_studio"]
CARRYING = ["mds", "webdataset", "parquet", "tfds"]
CROWD, CAT, DOG = [0, 0, 16, 8], [1, 2, 4, 4], [2, 1, 7, 5]
RUNS = {"size": [8, 16], "counts": [3, 5, 120]}
STRING = {"size": [8, 16], "counts": "35h3"}


def coco(root: Path, segmentation: Any) -> Path:
    """Two images: the first with a crowd between two objects, the second with a crowd alone."""
    annotations = [
        {"id": n, "image_id": image, "category_id": category, "bbox": box, "area": 9, "iscrowd": crowd,
         "segmentation": segmentation if crowd else [[*corners(box)[:2], box[0] + box[2], box[1], *corners(box)[2:]]]}
        for n, (image, category, box, crowd) in enumerate(
            [(1, 1, CAT, 0), (1, 1, CROWD, 1), (1, 2, DOG, 0), (2, 2, CROWD, 1)], 1)
    ]  # fmt: skip
    document = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 16, "height": 8} for n in (1, 2)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    files: dict[str, str | bytes] = {f"train/{n}.jpg": jpeg(n) for n in (1, 2)}
    return fill(root, {**files, "train/_annotations.coco.json": json.dumps(document)})


@pytest.fixture(scope="module", params=[RUNS, STRING], ids=["runs", "string"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("crowds")
    convert(coco(root / "set", request.param), root / "in.lmdb")
    return root / "in.lmdb"


def objects(path: Path) -> dict[str, list[tuple[list[float], str, bool]]]:
    """Box, class and flag of each object, by image: what a store of an export has."""
    store = path.with_name(f"{path.name}.lmdb")
    convert(path, store)
    found = {}
    with closing(open_store(store)) as reader:
        classes = reader.manifest.column("labels").classes or ()
        marked = next((c.name for c in reader.manifest.columns if c.name.endswith("iscrowd")), None)
        for n in range(len(reader)):
            boxes, labels = reader.item("boxes", n), reader.item("labels", n)
            if boxes is None:
                continue
            flags = [0] * len(boxes) if marked is None else reader.item(marked, n).tolist()
            rows = zip(boxes.round(3).tolist(), labels.tolist(), flags, strict=True)
            found[Path(reader.key(n)).stem[-1]] = [(box, classes[label], bool(flag)) for box, label, flag in rows]
    return found


def corners(box: list[int]) -> list[float]:
    left, top, width, height = map(float, box)
    return [left, top, left + width, top + height]


@pytest.mark.parametrize("to", MARKING)
def test_a_format_with_a_mark_keeps_it(to: str, store: Path, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", to=to, bare=True)
    assert "iscrowd'" not in str(report.losses)
    crowd = "DontCare" if to == "kitti" else "cat", True
    found = objects(tmp_path / "out")
    expected = [(corners(CAT), "cat", False), (corners(CROWD), *crowd), (corners(DOG), "dog", False)]
    if to == "fiftyone":  # which lists polygons after boxes
        expected = [expected[1], expected[0], expected[2]]
    assert found["1"] == expected
    assert found["2"] == [(corners(CROWD), "DontCare" if to == "kitti" else "dog", True)]


@pytest.mark.parametrize("to", LEAVING)
def test_a_format_without_leaves_them_out_and_says_how_many(to: str, store: Path, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", to=to, bare=True)
    assert "'iscrowd' (crowd regions are left out of the labels: 2)" in str(report.losses)
    found = objects(tmp_path / "out")
    assert [(box, label) for box, label, _ in found["1"]] == [(corners(CAT), "cat"), (corners(DOG), "dog")]
    assert not found.get("2")


@pytest.mark.parametrize("to", CARRYING)
def test_a_format_of_rows_carries_the_column(to: str, store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", to=to, bare=True)
    try:
        convert(tmp_path / "out", tmp_path / "x.lmdb")
    except AmbiguousSourceError as asked:  # such as the form of boxes
        pytest.skip(str(asked)[:100])
    with closing(open_store(tmp_path / "x.lmdb")) as reader:
        assert [list(reader.item("iscrowd", n)) for n in range(2)] == [[0, 1, 0], [1]]


def test_run_lengths_of_crowds_come_back_in_coco(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", to="coco", bare=True)
    (file,) = (tmp_path / "out/annotations").glob("*.json")
    annotations = json.loads(file.read_text())["annotations"]
    assert [each["iscrowd"] for each in annotations] == [0, 1, 0, 1]
    assert annotations[1]["segmentation"] == annotations[3]["segmentation"]
    assert annotations[1]["segmentation"] in (RUNS, STRING)


def test_every_export_of_objects_is_tried() -> None:
    """A new one has to say what it does with crowds."""
    from tests.internals import LabelsExport

    kinds = [name for name in EXPORTS if isinstance(EXPORTS[name], type) and issubclass(EXPORTS[name], LabelsExport)]
    assert sorted(kinds) == sorted([*MARKING, *LEAVING, "masks"])


def test_flags_of_pascal_voc_stay(tmp_path: Path) -> None:
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    things = "".join(f"<object><name>cat</name><difficult>{n}</difficult>{box}</object>" for n in (1, 0))
    files = {"JPEGImages/a.jpg": jpeg(0), "Annotations/a.xml": f"<annotation>{things}</annotation>"}
    convert(fill(tmp_path / "set", files), tmp_path / "in.lmdb")
    report = export(tmp_path / "in.lmdb", tmp_path / "out", to="voc", bare=True)
    assert "difficult" not in str(report.losses)
    with closing(open_source(tmp_path / "out")) as source:
        (sample,) = map(source.read, source.entries())
    assert sample.values["difficult"] == [1, 0]
