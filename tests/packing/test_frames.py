"""Annotations in the upright or in the stored frame: what tells it, what is asked, and the sizes that they state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader, Writer, append, convert, export, merge, repair, select, verify
from packstore.augment import CenterCrop, RandomHorizontalFlip
from tests.internals import EXPORTS, AmbiguousSourceError, Manifest, UsageError, read_manifest, read_orientation
from tests.makers import oriented
from tests.makers.command import run
from tests.makers.oriented import FORMATS, FRAMES, KINDS, ORIENTATIONS, describe_photo, find_red, make_photo, make_set
from tests.makers.stores import change

_LABELS = ("coco", "csv", "cvat", "datumaro", "fiftyone", "kitti", "label_studio", "labelme", "masks",
           "open_images", "voc", "yolo")  # fmt: skip
"""Exports that write labels beside images."""
_EXACT = ("webdataset", "mds", "recordio", "imagefolder")


def list_columns(manifest: Manifest) -> list[str]:
    """The columns that show where the object is."""
    return [c.name for c in manifest.columns if c.name in ("boxes", "keypoints", "mask")]


def assert_in_place(image: Any, values: dict[str, Any]) -> None:
    """Boxes, points and masks are where the image is red."""
    red = find_red(image)
    height, width = red.shape
    assert red.any()
    for name, value in values.items():
        value = np.asarray(value)
        if name == "mask":
            assert value.shape == red.shape
            assert ((value == 1) == red).mean() > 0.98
        elif name == "keypoints":
            inside_image = [
                (x, y) for x, y, v in value.reshape(-1, 3).tolist() if v and 0 <= x < width and 0 <= y < height
            ]
            for x, y in inside_image:
                near = red[max(0, round(y) - 1) : round(y) + 2, max(0, round(x) - 1) : round(x) + 2]
                assert near.any()
        else:
            left, top, right, bottom = (round(v) for v in value.reshape(-1).tolist())
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            inside = np.zeros_like(red)
            inside[top:bottom, left:right] = True
            assert (inside == red).mean() > 0.97


def assert_item_in_place(store: Path, **options: Any) -> None:
    manifest = read_manifest(store)
    split = manifest.splits[0].name if manifest.splits else None
    columns = list_columns(manifest)
    with closing(PackedDataset(store, split, columns=("image", *columns), output="dict", **options)) as data:
        item = data[0]
        assert_in_place(item["image"], {name: item[name] for name in columns})


def assert_batches_in_place(store: Path) -> None:
    """The same in batches, also cropped and mirrored."""
    manifest = read_manifest(store)
    split = manifest.splits[0].name if manifest.splits else None
    columns = list_columns(manifest)
    steps: Iterable[list[Any]] = ([], [CenterCrop(36)], [RandomHorizontalFlip(1)])
    for augment in steps:
        data = PackedDataset(store, split, columns=("image", *columns))
        loader = PackedLoader(data, 1, augment=augment)
        image, *values = next(iter(loader))
        firsts = [v[0] if name == "mask" else getattr(v, "values", v) for name, v in zip(columns, values, strict=True)]
        assert_in_place(image[0], dict(zip(columns, map(_first_row, firsts), strict=True)))
        data.close()


def _first_row(value: Any) -> Any:
    """The value of the only image of a batch; a list of one value for each image has one."""
    return value[0] if isinstance(value, (list, tuple)) else value


def pack(source: Path, store: Path, frame: str, **options: Any) -> bool:
    """Packs a source; if packstore asks for the frame, answers truly. Returns whether it asked."""
    asked = None
    try:
        convert(source, store, **options)
    except AmbiguousSourceError as error:
        asked = error
    if asked is None:
        return False
    offered = [("--annotation-frame", "upright"), ("--annotation-frame", "stored")]
    assert [each.options for each in asked.answers] == offered, str(asked)
    convert(source, store, annotation_frame=frame, **options)  # type: ignore[arg-type]
    return True


KNOWN = {"yolo": "upright", "yolo_polygons": "upright", "labelme": "upright"}
"""Formats whose own tools turn a JPEG: labels of another frame need the answer."""


LAYOUTS = {
    "metadata": {"layout": "xywh"},
    "csv_without_sizes": {"layout": "xyxy"},
    "csv_with_sizes": {"layout": "xyxy"},
}
"""Answers to another question: a single box does not tell its convention."""


@pytest.mark.sampled(24, fast=2)
@pytest.mark.parametrize("upright", [False, True], ids=["stored-pixels", "upright-pixels"])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_grid(name: str, kind: str, orientation: int, frame: str, upright: bool, tmp_path: Path) -> None:
    if kind == "heic" and (frame == "stored" or orientation != 1):
        pytest.skip("decoders of HEIC give the upright image alone")
    source = make_set(tmp_path / "set", name, kind, orientation, frame)
    options: dict[str, Any] = {"exif_transpose": upright} | LAYOUTS.get(name, {})
    if name in KNOWN and kind in ("jpg", "tif") and frame != KNOWN[name]:
        options["annotation_frame"] = frame
    store = tmp_path / "a.lmdb"
    asked = pack(source, store, frame, **options)
    if orientation == 1 or kind == "heic":
        assert not asked
    assert_item_in_place(store)
    assert_batches_in_place(store)
    assert not verify(store, against=source).problems
    manifest = read_manifest(store)
    wanted = "upright" if upright else "stored"
    assert {c.frame for c in manifest.columns if c.name in (*list_columns(manifest), "segments")} == {wanted}


SIZED = ("coco", "voc", "cvat", "datumaro", "label_studio", "csv_with_sizes", "supervisely", "metadata", "masks")


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("name", SIZED)
def test_sizes_tell_the_frame(name: str, orientation: int, frame: str, tmp_path: Path) -> None:
    """No question is asked where the annotations state the size."""
    source = make_set(tmp_path / "set", name, "jpg", orientation, frame)
    convert(source, tmp_path / "a.lmdb", **LAYOUTS.get(name, {}))
    assert_item_in_place(tmp_path / "a.lmdb")


@pytest.mark.slow
@pytest.mark.sampled(16, fast=1)
@pytest.mark.parametrize("encoding", ["original", "jpeg", "uint8"])
@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("name", ["coco", "masks"])
def test_encodings(name: str, orientation: int, upright: bool, encoding: str, tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", name, "jpg", orientation, "stored")
    for suffix in ("lmdb", "h5", "pth"):
        pack(source, tmp_path / f"a.{suffix}", "stored", exif_transpose=upright, encoding=encoding)
        assert_item_in_place(tmp_path / f"a.{suffix}")
        assert_batches_in_place(tmp_path / f"a.{suffix}")


@pytest.mark.slow
@pytest.mark.sampled(30, fast=1)
@pytest.mark.parametrize("upright", [False, True], ids=["stored-pixels", "upright-pixels"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif", "avif"])
@pytest.mark.parametrize("to", [*_LABELS, *_EXACT])
def test_exports_and_their_importers(to: str, kind: str, orientation: int, upright: bool, tmp_path: Path) -> None:
    """An export is in one frame: packstore.json tells it; without that file, the labels do, or packstore asks."""
    source = make_set(tmp_path / "set", "masks" if to == "masks" else "coco", kind, orientation, "stored")
    pack(source, tmp_path / "a.lmdb", "stored", exif_transpose=upright)
    destination = tmp_path / ("out.tar" if to == "tar" else "out")
    export(tmp_path / "a.lmdb", destination, to=to)
    convert(destination, tmp_path / "b.lmdb")
    assert_item_in_place(tmp_path / "b.lmdb")
    assert read_manifest(tmp_path / "b.lmdb").dataset_digest == read_manifest(tmp_path / "a.lmdb").dataset_digest
    if to not in _LABELS:
        return
    export(tmp_path / "a.lmdb", tmp_path / "bare", to=to, bare=True)
    frame = "upright" if upright or kind == "tif" or (to == "labelme" and kind == "jpg") else "stored"
    options = {"source_kind": to} if to == "voc" else LAYOUTS["csv_with_sizes"] if to == "csv" else {}
    pack(tmp_path / "bare", tmp_path / "c.lmdb", frame, **options)
    assert_item_in_place(tmp_path / "c.lmdb")


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("name", ["coco", "masks"])
def test_from_store_to_store(name: str, orientation: int, tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", name, "jpg", orientation, "upright")
    pack(source, tmp_path / "stored.lmdb", "upright")
    convert(tmp_path / "stored.lmdb", tmp_path / "upright.h5", exif_transpose=True)
    assert_item_in_place(tmp_path / "upright.h5")
    assert not verify(tmp_path / "upright.h5", against=tmp_path / "stored.lmdb").problems
    convert(tmp_path / "upright.h5", tmp_path / "again.lmdb")
    assert_item_in_place(tmp_path / "again.lmdb")


def test_images_are_not_turned_without_their_annotations(tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", "coco", "jpg", 6, "stored")
    convert(source, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="exif_transpose=True would turn the images and not 'boxes'"):
        PackedDataset(tmp_path / "a.lmdb", "train", exif_transpose=True)
    with closing(PackedDataset(tmp_path / "a.lmdb", "train", columns=("image",), exif_transpose=True)) as alone:
        assert alone[0].shape == (3, 40, 64)


def test_other_photos_tell_the_frame_of_one_that_does_not(tmp_path: Path) -> None:
    """Orientation 3 swaps no sides: its size tells nothing, that of a photo with orientation 6 does."""
    import json

    first, second = (make_set(tmp_path / str(n), "coco", "jpg", n, "upright") for n in (3, 6))
    root = tmp_path / "set/train"
    root.mkdir(parents=True)
    documents = [json.loads((each / "train/_annotations.coco.json").read_text()) for each in (first, second)]
    for number, each in enumerate((first, second), 1):
        (root / f"{number}.jpg").write_bytes((each / "train/a.jpg").read_bytes())
        documents[number - 1]["images"][0] |= {"id": number, "file_name": f"{number}.jpg"}
        documents[number - 1]["annotations"][0] |= {"id": number, "image_id": number}
    joined = documents[0] | {name: documents[0][name] + documents[1][name] for name in ("images", "annotations")}
    (root / "_annotations.coco.json").write_text(json.dumps(joined))
    convert(tmp_path / "set", tmp_path / "a.lmdb")
    assert_item_in_place(tmp_path / "a.lmdb")


def test_the_answer_resumes_the_run_and_is_recorded(tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", "masks", "jpg", 3, "stored")
    with pytest.raises(AmbiguousSourceError, match="orientation is 3"):
        convert(source, tmp_path / "a.lmdb")
    convert(source, tmp_path / "a.lmdb", annotation_frame="stored")
    assert read_manifest(tmp_path / "a.lmdb").options["annotation_frame"] == "stored"
    assert not verify(tmp_path / "a.lmdb", against=source).problems
    wrong = convert(source, tmp_path / "b.lmdb", annotation_frame="upright")
    assert wrong.manifest.options["annotation_frame"] == "upright"


@pytest.mark.parametrize("name", ["masks", "palette_masks"])
def test_a_turned_mask_keeps_values_and_palette(name: str, tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", name, "jpg", 6, "stored")
    convert(source, tmp_path / "a.lmdb", exif_transpose=True)
    export(tmp_path / "a.lmdb", tmp_path / "out", to="masks")
    file, _ = (tmp_path / "out").rglob("*.png")
    with Image.open(file) as mask:
        assert (np.asarray(mask) == describe_photo("jpg", 6, "upright").mask).all()
        if name == "palette_masks":
            assert (mask.getpalette() or [])[:6] == [0, 0, 0, 200, 100, 50]


def test_every_export_of_labels_is_tried() -> None:
    from tests.internals import LabelsExport

    assert {kind.name for kind in EXPORTS.values() if issubclass(kind, LabelsExport)} == set(_LABELS)


def make_turned_pair(root: Path) -> Path:
    """A folder of COCO with one photo of orientation 6, and nine upright ones, in the frame of the stored pixels."""
    source = make_set(root, "coco", "jpg", 6, "stored")
    document = json.loads(next(source.rglob("_annotations.coco.json")).read_text())
    folder = next(source.rglob("_annotations.coco.json")).parent
    first, box = document["images"][0], document["annotations"][0]
    for number in range(1, 10):
        name = f"plain{number}.jpg"
        (folder / name).write_bytes(make_photo("jpg", 1))
        with Image.open(folder / name) as image:
            size = image.size
        document["images"].append({**first, "id": 100 + number, "file_name": name, "width": size[0], "height": size[1]})
        document["annotations"].append({**box, "id": 100 + number, "image_id": 100 + number, "bbox": [8, 4, 24, 16]})
    (folder / "_annotations.coco.json").write_text(json.dumps(document))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_selections_and_merges_count_turned_photos_again(sharded: bool, tmp_path: Path) -> None:
    source = make_turned_pair(tmp_path / "set")
    convert(source, tmp_path / "a.lmdb", **({"shard_size": 1} if sharded else {}))
    manifest = read_manifest(tmp_path / "a.lmdb")
    assert manifest.options["exif_oriented"] == 1
    with packstore.open(tmp_path / "a.lmdb") as reader:
        turned = next(i for i in range(len(reader)) if read_orientation(bytes(reader.view(i))) == 6)
        plain = next(i for i in range(len(reader)) if i != turned)
        keys = {name: reader.key(i) for name, i in (("turned", turned), ("plain", plain))}
    counts = {}
    for name, key in keys.items():
        select(tmp_path / "a.lmdb", tmp_path / f"{name}.lmdb", where=f"key == {key!r}", shard_size="1GB")
        counts[name] = read_manifest(tmp_path / f"{name}.lmdb").options.get("exif_oriented")
    assert counts == {"turned": 1, "plain": 0}
    with pytest.raises(UsageError, match="exif_transpose"):
        PackedDataset(tmp_path / "turned.lmdb", "train", columns=("image", "boxes"), exif_transpose=True)
    PackedDataset(tmp_path / "plain.lmdb", "train", columns=("image", "boxes"), exif_transpose=True).close()
    merge([tmp_path / "plain.lmdb", tmp_path / "turned.lmdb"], tmp_path / "both.lmdb")
    assert read_manifest(tmp_path / "both.lmdb").options["exif_oriented"] == 1
    merge([tmp_path / "turned.lmdb", tmp_path / "turned.lmdb"], tmp_path / "once.lmdb", on_duplicate="skip")
    assert read_manifest(tmp_path / "once.lmdb").options["exif_oriented"] == 1


@pytest.mark.parametrize("wrong", ["up", "Stored", "UPRIGHT"])
def test_another_answer_is_refused(wrong: Any, tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", "coco", "jpg", 6, "stored")
    with pytest.raises(UsageError, match="annotation_frame should be 'stored', 'upright' or None"):
        convert(source, tmp_path / "a.lmdb", annotation_frame=wrong)
    with pytest.raises(UsageError, match="annotation_frame should be"):
        Writer(tmp_path / "b.lmdb", annotation_frame=wrong)


@pytest.mark.slow
def test_records_with_another_answer_are_repaired(tmp_path: Path) -> None:
    convert(make_set(tmp_path / "first", "coco", "jpg", 1, "stored"), tmp_path / "a.lmdb")
    added = make_set(tmp_path / "added", "coco_without_sizes", "jpg", 3, "upright")
    document = next(added.rglob("_annotations.coco.json"))
    name = json.loads(document.read_text())["images"][0]["file_name"]
    document.write_text(document.read_text().replace(name, f"new-{name}"))
    (document.parent / name).rename(document.parent / f"new-{name}")
    append(tmp_path / "a.lmdb", added, annotation_frame="upright")
    with packstore.open(tmp_path / "a.lmdb") as reader:
        boxes = bytes(reader.value("boxes", 1))
    change(tmp_path / "a.lmdb", boxes, 0)
    assert verify(tmp_path / "a.lmdb").problems
    with pytest.raises(AmbiguousSourceError):
        repair(tmp_path / "a.lmdb", added, tmp_path / "b.lmdb")
    assert not repair(tmp_path / "a.lmdb", added, tmp_path / "b.lmdb", annotation_frame="upright").lost
    assert not verify(tmp_path / "b.lmdb").problems


_STATING = ("coco", "voc", "labelme", "cvat", "datumaro", "csv_with_sizes", "supervisely", "metadata")
_BOXES: dict[str, dict[str, Any]] = {
    "csv_with_sizes": {"layout": "xyxy"},
    "csv_without_sizes": {"layout": "xyxy"},
    "metadata": {"layout": "xywh"},
}


def make(root: Path, name: str, orientation: int, scale: int) -> Path:
    """One photo, annotated in a copy of it that is ``scale`` times as large."""
    photo = oriented.describe_photo("jpg", orientation, "stored")
    photo = photo._replace(
        width=scale * photo.width, height=scale * photo.height, box=tuple(scale * n for n in photo.box)
    )
    for path, data in oriented.FORMATS[name](photo, oriented.make_photo("jpg", orientation)).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


@pytest.mark.slow
@pytest.mark.sampled(8, fast=1)
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("name", _STATING)
def test_a_size_that_fits_no_frame_is_told(name: str, orientation: int, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, orientation, 2)
    report = convert(source, tmp_path / "a.lmdb", annotation_frame="stored", **_BOXES.get(name, {}))
    (note,) = (each for each in report.notes if "another size" in each)
    assert note.startswith("annotations of 1 of 1 images state another size than the image has (")
    assert "a.jpg states 128 x 80, and its image is 64 x 40" in note or "80 x 128, and its image is 40 x 64" in note
    assert "annotations of 1 of 1 images state another size" in run("info", tmp_path / "a.lmdb").stdout
    assert not verify(tmp_path / "a.lmdb", against=source).problems


@pytest.mark.slow
@pytest.mark.sampled(8, fast=1)
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("name", [name for name in oriented.FORMATS if name != "csv_of_runs"])
def test_nothing_is_told_of_a_size_that_fits(name: str, orientation: int, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, orientation, 1)
    report = convert(source, tmp_path / "a.lmdb", annotation_frame="stored", **_BOXES.get(name, {}))
    assert not [each for each in report.notes if "another size" in each]
    assert "another size" not in run("info", tmp_path / "a.lmdb").stdout


@pytest.mark.parametrize("destination", ["a.lmdb", "file"])
def test_they_are_counted_wherever_the_store_is_written(destination: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", "coco", 1, 2)
    document = json.loads((source / "train/_annotations.coco.json").read_text())
    photo = (source / "train/a.jpg").read_bytes()
    for number in range(2, 6):  # one fits, the others do not
        (source / f"train/{number}.jpg").write_bytes(photo)
        size = {"width": 64, "height": 40} if number == 4 else {}
        document["images"].append(document["images"][0] | {"id": number, "file_name": f"{number}.jpg", **size})
        document["annotations"].append(document["annotations"][0] | {"id": number, "image_id": number})
    (source / "train/_annotations.coco.json").write_text(json.dumps(document))
    place = (tmp_path / "a.lmdb").as_uri() if destination == "file" else tmp_path / destination
    (note,) = (each for each in convert(source, place).notes if "another size" in each)
    assert note.startswith("annotations of 4 of 5 images")


@pytest.mark.parametrize("kind", ["classes", "flat", "table"])
def test_a_frame_of_no_annotations_is_refused(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "set"
    for name in ("a/1.jpg", "b/2.jpg") if kind == "classes" else ("1.jpg", "2.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(oriented.make_photo("jpg", 6))
    if kind == "table":
        (source / "data.csv").write_text("file_name,label\n1.jpg,ant\n2.jpg,bee\n")
    said = r"annotation_frame is for boxes, points, masks .* leave it out"
    with pytest.raises(UsageError, match=said):
        convert(source, tmp_path / "a.lmdb", annotation_frame="upright")
    convert(source, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match=said):
        verify(tmp_path / "a.lmdb", against=source, annotation_frame="upright")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coco_without_sizes", "createml", "kitti", "csv_without_sizes"])
def test_info_shows_the_question_that_convert_asks(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, 3, 1)
    layout = ("--layout", _BOXES[name]["layout"]) if name in _BOXES else ()
    asked = run("convert", source, tmp_path / "a.lmdb", *layout)
    assert asked.returncode == 2
    shown = run("info", source, *layout).stdout
    question = next(line for line in shown.splitlines() if line.startswith("question"))
    assert "nothing tells if its annotations" in question
    assert question.split(None, 1)[1] in asked.stderr.replace("\n", " ")
    for frame in ("upright", "stored"):
        assert f"set.lmdb{''.join(f' {each}' for each in layout)} --annotation-frame {frame}" in shown
    assert "nothing tells" in json.loads(run("info", source, *layout, "--json").stdout)["question"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yolo", "voc"])
def test_info_shows_no_question_that_convert_does_not_ask(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "set", name, 6, 1)
    assert "\nquestion" not in run("info", source).stdout
    assert json.loads(run("info", source, "--json").stdout)["question"] is None
