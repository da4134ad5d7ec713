"""Boxes in tables of others: found by name and type, their convention by all of them, else asked."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packstore import PackedDataset, PackedLoader, convert, export
from packstore.augment import RandomHorizontalFlip
from packstore.sources import open_source
from tests.internals import (
    CONVENTIONS,
    BoxConventionCounter,
    PackstoreError,
    SampleError,
    UsageError,
    to_corners,
)
from tests.makers.annotated import fill
from tests.makers.images import encode, picture
from tests.makers.sources import look, not_packed, prove, question, refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
WIDTH, HEIGHT = 64, 32
PNG = encode(picture("RGB", WIDTH, HEIGHT), "PNG")
CORNERS = [[4.0, 2.0, 24.0, 12.0], [0.0, 8.0, 10.0, 14.0], [40.0, 20.0, 64.0, 32.0]]
NAMES = ["cat", "dog"]


def as_convention(convention: str, boxes: list[list[float]] = CORNERS) -> list[list[float]]:
    found = np.array(boxes, np.float64).reshape(-1, 4)
    if convention.endswith("n"):
        found = found / [WIDTH, HEIGHT, WIDTH, HEIGHT]
    if "wh" in convention:
        found[:, 2:] -= found[:, :2]
    if convention.startswith("c"):
        found[:, :2] += found[:, 2:] / 2
    return found.tolist()


def write(
    path: Path, rows: list[dict[str, Any]], objects: Any, features: dict[str, Any] | None = None, **types: Any
) -> Path:
    image = {"bytes": PNG, "path": None}
    schema = pa.schema({"image": IMAGE, **({"objects": objects} if objects else {}), **types})
    if features is not None:
        info = {"info": {"features": {"image": {"_type": "Image"}, **features}}}
        schema = schema.with_metadata({"huggingface": json.dumps(info)})
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{"image": image, **row} for row in rows], schema), path / "train.parquet")
    return path


BOX = pa.list_(pa.float32())
LISTS = pa.struct([("id", pa.list_(pa.int64())), ("bbox", pa.list_(BOX)), ("category", pa.list_(pa.int64()))])
STRUCTS = pa.list_(pa.struct([("id", pa.int64()), ("bbox", pa.list_(pa.float32(), 4)), ("category", pa.int64())]))
CATEGORY = {"names": NAMES, "_type": "ClassLabel"}
FEATURES = {
    "lists": {"objects": {"feature": {"bbox": {}, "category": CATEGORY}, "_type": "Sequence"}},
    "structs": {"objects": [{"bbox": {}, "category": CATEGORY}]},
}


def row(form: str, boxes: list[list[float]], first: int = 0) -> dict[str, Any]:
    ids, labels = [*range(first, first + len(boxes))], [n % 2 for n in range(len(boxes))]
    if form == "lists":
        return {"objects": {"id": ids, "bbox": boxes, "category": labels}}
    return {"objects": [{"id": i, "bbox": b, "category": c} for i, b, c in zip(ids, boxes, labels, strict=True)]}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lists", "structs"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_objects_of_hugging_face(form: str, convention: str, tmp_path: Path) -> None:
    rows = [row(form, as_convention(convention)), row(form, []), row(form, as_convention(convention, CORNERS[:1]), 7)]
    root = write(tmp_path / "set", rows, LISTS if form == "lists" else STRUCTS, FEATURES[form])
    prove(root, tmp_path / "x.lmdb", layout=convention)
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("boxes", "labels", "objects"))
    np.testing.assert_allclose(ds[0][0], CORNERS, atol=1e-4)
    assert (ds[0][1].tolist(), ds[1][0].shape, ds[2][1].tolist()) == ([0, 1, 0], (0, 4), [0])
    ids = ds[0][2]["id"] if form == "lists" else [each["id"] for each in ds[0][2]]
    assert ids == [0, 1, 2]
    labels = next(column for column in ds.manifest.columns if column.name == "labels")
    assert (labels.classes, labels.parallel) == (tuple(NAMES), "boxes")
    convert(root, tmp_path / "json.lmdb", layout="json")
    assert PackedDataset(tmp_path / "json.lmdb", columns=("objects",))[1] == rows[1]["objects"]


def test_columns_of_boxes_and_labels_beside_a_list_of_images(tmp_path: Path) -> None:
    types = {"images": pa.list_(IMAGE), "bbox": pa.list_(BOX), "category": pa.list_(pa.int64())}
    row = {"images": [{"bytes": PNG, "path": None}] * 2, "bbox": CORNERS, "category": [0, 1, 0]}
    pq.write_table(pa.Table.from_pylist([row], pa.schema(types)), tmp_path / "x.parquet")
    report = convert(tmp_path / "x.parquet", tmp_path / "x.lmdb", layout="xyxy")
    labels = next(column for column in report.manifest.columns if column.name == "category")
    assert labels.parallel == "bbox"
    np.testing.assert_allclose(PackedDataset(tmp_path / "x.lmdb", columns=("bbox",))[0], CORNERS)


def test_boxes_move_with_their_images(tmp_path: Path) -> None:
    root = write(tmp_path / "set", [row("lists", as_convention("xywh"))], LISTS)
    convert(root, tmp_path / "x.lmdb", layout="xywh")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("image", "boxes"))
    loader = PackedLoader(ds, 1, augment=[RandomHorizontalFlip(1.0)])
    ((_, boxes),) = list(loader)
    flipped = [[WIDTH - right, top, WIDTH - left, bottom] for left, top, right, bottom in CORNERS]
    np.testing.assert_allclose(boxes[0], flipped)


@pytest.mark.parametrize(
    ("boxes", "sides", "said"),
    [
        ([[40, 20, 10, 8], [50, 20, 14, 12], [0, 1, 30, 8]], True, "xywh"),  # sides smaller than corners
        ([[40, 20, 10, 8], [50, 20, 14, 12], [0, 1, 30, 8]], False, "xywh"),
        (CORNERS, True, "xyxy"),  # widths would lead out of the images
        (CORNERS, False, "xyxy or xywh"),
        ([[30, 20, 20, 10], [20, 16, 4, 20]], False, "xywh or cxcywh"),
        (as_convention("xyxyn", CORNERS[:1]), False, "xyxyn or xywhn"),
        ([[0.6, 0.5, 0.2, 0.1], [0.1, 0.9, 0.3, 0.05], [0.0, 0.1, 0.4, 0.1]], False, "xywhn"),
        ([[500, 20, 10, 8]], True, "fit no convention"),
        ([[0, 0, 1, 1], [0, 0, 1, 1]], False, "xyxy or xywh or cxcywh or xyxyn or xywhn"),
    ],
)
def test_the_convention_is_that_which_all_boxes_fit(
    boxes: list[list[float]], sides: bool, said: str, tmp_path: Path
) -> None:
    rows = [row("lists", [box]) | ({"width": WIDTH, "height": HEIGHT} if sides else {}) for box in boxes]
    types = {"width": pa.int64(), "height": pa.int64()} if sides else {}
    root = write(tmp_path / "set", rows, LISTS, **types)
    if said in CONVENTIONS:
        found = look(root).each("boxes")
        assert np.concatenate(found).tolist() == to_corners(boxes, said, PNG).tolist()
        return
    caught = question(root, said)
    assert ("--layout", "json") in [answer.options for answer in caught.answers]
    convert(root, tmp_path / "x.h5", layout="json")
    assert [
        column.type for column in PackedDataset(tmp_path / "x.h5").manifest.columns if column.name == "objects"
    ] == ["json"]


def test_columns_of_their_own_with_names_of_classes(tmp_path: Path) -> None:
    rows = [{"bbox": as_convention("xywh"), "categories": ["dog", "cat", "dog"]}, {"bbox": [], "categories": []}]
    types = {"bbox": pa.list_(BOX), "categories": pa.list_(pa.string())}
    root = write(tmp_path / "set", rows, None, **types)
    prove(root, tmp_path / "x.lmdb", layout="xywh")
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("bbox", "categories"))
    np.testing.assert_allclose(ds[0][0], CORNERS)
    labels = next(column for column in ds.manifest.columns if column.name == "categories")
    assert (ds[0][1].tolist(), labels.classes, labels.parallel) == ([1, 0, 1], ("cat", "dog"), "bbox")


@pytest.mark.parametrize("form", ["lists", "structs"])
@pytest.mark.parametrize("convention", ["xywh", "cxcywhn"])
def test_metadata_of_an_image_folder(form: str, convention: str, tmp_path: Path) -> None:
    """As the guide of Hugging Face has it for detection."""
    rows = [row(form, as_convention(convention)), row(form, []), row(form, as_convention(convention, CORNERS[:1]), 7)]
    lines = [json.dumps({"file_name": f"{n}.png", **each}) for n, each in enumerate(rows)]
    root = tmp_path / "set"
    fill(root, {"train/metadata.jsonl": "\n".join(lines)})
    for number in range(3):
        (root / f"train/{number}.png").write_bytes(encode(picture("RGB", WIDTH, HEIGHT, seed=number), "PNG"))
    prove(root, tmp_path / "x.lmdb", layout=convention)
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("boxes", "labels", "objects"))
    np.testing.assert_allclose(ds[0][0], CORNERS, atol=1e-4)
    assert (ds[0][1].tolist(), ds[1][0].shape, ds[2][1].tolist()) == ([0, 1, 0], (0, 4), [0])
    ids = ds[2][2]["id"] if form == "lists" else [each["id"] for each in ds[2][2]]
    assert ids == [7]


def test_metadata_with_boxes_of_their_own_and_rows_without(tmp_path: Path) -> None:
    lines = [{"file_name": "0.png", "bbox": as_convention("xywh"), "label": [0, 1, 1]}, {"file_name": "1.png"}]
    fill(tmp_path, {"set/metadata.jsonl": "\n".join(map(json.dumps, lines))})
    for number in range(2):
        (tmp_path / f"set/{number}.png").write_bytes(encode(picture("RGB", WIDTH, HEIGHT, seed=number), "PNG"))
    convert(tmp_path / "set", tmp_path / "x.lmdb")  # two of three are no corners
    ds = PackedDataset(tmp_path / "x.lmdb", columns=("boxes", "labels"))
    np.testing.assert_allclose(ds[0][0], CORNERS)
    assert (ds[0][1].tolist(), ds[1][0].shape) == ([0, 1, 1], (0, 4))


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "1e308"])
def test_numbers_that_no_box_has(number: str, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(PNG)
    boxes = f"[[{number}, 0, {number}, 4]]"
    (tmp_path / "metadata.jsonl").write_text(
        f'{{"file_name": "0.png", "objects": {{"bbox": {boxes}, "category": [0]}}}}\n'
    )
    with suppress(PackstoreError), closing(open_source(tmp_path)) as source:
        source.survey()
        assert [*map(source.read, source.entries())]


def test_a_convention_that_is_said_with_classes_by_name(tmp_path: Path) -> None:
    types = {"bbox": pa.field("bbox", pa.list_(BOX), metadata={b"packstore.boxes": b"xywh"})}
    schema = pa.schema([("image", IMAGE), types["bbox"], ("categories", pa.list_(pa.string()))])
    rows = [{"image": {"bytes": PNG, "path": None}, "bbox": as_convention("xywh"), "categories": ["b", "a", "b"]}]
    (tmp_path / "set").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "set/train.parquet")
    with closing(open_source(tmp_path / "set")) as source:
        source.survey()
        (entry,) = source.entries()
        values = source.read(entry).values
    assert (np.array(values["bbox"]).tolist(), list(values["categories"])) == (CORNERS, [1, 0, 1])


def test_our_own_parquet_without_its_description(tmp_path: Path) -> None:
    """The convention lies in the file; nothing is asked."""
    root = write(tmp_path / "set", [row("lists", as_convention("xywh")), row("lists", [])], LISTS, FEATURES["lists"])
    convert(root, tmp_path / "x.lmdb", layout="xywh")
    export(tmp_path / "x.lmdb", tmp_path / "out", to="parquet")
    (tmp_path / "out/packstore.json").unlink()
    convert(tmp_path / "out", tmp_path / "again.lmdb")
    ds = PackedDataset(tmp_path / "again.lmdb", columns=("boxes", "labels"))
    np.testing.assert_allclose(ds[0][0], CORNERS)
    labels = next(column for column in ds.manifest.columns if column.name == "labels")
    assert (ds[0][1].tolist(), labels.classes, labels.parallel) == ([0, 1, 0], tuple(NAMES), "boxes")


def test_what_is_no_column_of_boxes_stays_json(tmp_path: Path) -> None:
    """Boxes of five numbers, and boxes with fewer labels than there are boxes."""
    for number, objects in enumerate(
        ({"id": [], "bbox": [[1, 2, 3, 4, 5]], "category": [1]}, {"id": [], "bbox": CORNERS, "category": [1]})
    ):
        root = write(tmp_path / f"set {number}", [{"objects": objects}], LISTS)
        assert [(column.name, column.type) for column in look(root).columns] == [("objects", "json")]


def test_a_layout_of_boxes_is_for_tables(tmp_path: Path) -> None:
    root = write(tmp_path / "set", [row("lists", CORNERS)], LISTS)
    refused(UsageError, root, "be xyxy, xywh, cxcywh, xyxyn, xywhn, cxcywhn, voc or json; got 'xyhw'", layout="xyhw")
    with pytest.raises(UsageError, match="does not use layout: leave it out; kinds that do: arrow, parquet, voc, hf_"):
        open_source(root, kind="imagefolder", layout="xywh")


def test_a_box_that_is_none_is_a_bad_sample(tmp_path: Path) -> None:
    root = write(tmp_path / "set", [row("lists", CORNERS), row("lists", [[10, 10, 4, 4]])], LISTS)
    with closing(open_source(root, layout="xyxy")) as source:
        good, _ = source.entries()
        assert len(source.read(good).values["boxes"]) == 3
    not_packed(SampleError, root, tmp_path / "x.h5", "boxes", layout="xyxy")


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 40), st.floats(0, 20), st.floats(2, 24), st.floats(2, 12)), min_size=1, max_size=9),
    st.sampled_from(CONVENTIONS),
)
def test_the_right_convention_is_always_among_the_possible(boxes: list[tuple[float, ...]], convention: str) -> None:
    corners = [[x, y, x + w, y + h] for x, y, w, h in boxes]
    ranges = BoxConventionCounter()
    given_boxes = np.array(as_convention(convention, corners))
    for box in given_boxes:
        ranges.count_boxes(box[None], np.array([[WIDTH, HEIGHT]], np.float64))
    assert convention in ranges.possible_conventions()
    np.testing.assert_allclose(to_corners(given_boxes, convention, PNG), corners, atol=1e-3)
