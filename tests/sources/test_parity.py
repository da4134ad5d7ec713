"""What other tools wrote is read as they read it: Datumaro's files in ``tests/corpus/parity``, and the readers of
pycocotools and supervision where these are installed."""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from packstore import coco_masks
from packstore.sources import ask_about_left, open_source
from tests.internals import Role
from tests.makers.parity import FORMATS, LABELS, read

THEIR_WARNINGS = pytest.mark.filterwarnings("ignore")
CORPUS = Path(__file__).parents[1] / "corpus/parity"
EXPECTED: dict[str, Any] = json.loads((CORPUS / "expected.json").read_text())
HEIGHT, WIDTH = 24, 32


def ours(path: Path) -> dict[str, Any]:
    """Class and box of each object, and pixels of each class, by the stem of the image; as :func:`read` has them."""
    found = {}
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert survey.ledger.count(Role.LEFT) == 0 or path.name.startswith("voc_detection")  # its map of colours
        classes = {column.name: column.classes for column in survey.columns if column.classes}
        for entry in source.entries():
            values = dict(source.read(entry).values)  # type: ignore[union-attr]
            names = [classes["labels"][n] for n in values.get("labels") or ()]
            boxes = [
                [name, *np.round(box, 3).tolist()] for name, box in zip(names, values.get("boxes") or (), strict=True)
            ]
            found[Path(entry.key).stem] = {"boxes": sorted(boxes), "pixels": pixels_of(values, names, classes)}
    return found


def pixels_of(values: dict[str, Any], names: list[str], classes: dict[str, Any]) -> dict[str, int]:
    if values.get("panoptic_mask") is not None:
        image = np.asarray(PIL.Image.open(io.BytesIO(values["panoptic_mask"]))).astype(int) @ [1, 256, 65536]
        labels = [classes["segment_labels"][n] for n in values["segment_labels"]]
        return {name: int((image == n).sum()) for name, n in zip(labels, values["segment_ids"], strict=True)}
    if values.get("mask_labels") is not None:
        shown = {classes["mask_labels"][n]: int((values["mask"] == n).sum()) for n in values["mask_labels"]}
        return {name: count for name, count in shown.items() if name != LABELS[0]}
    notes = (values.get("json") or {}).get("annotations", ()) if isinstance(values.get("json"), dict) else ()
    runs = [(name, each["segmentation"]) for name, each in zip(names, notes, strict=bool(notes)) if
            isinstance(each.get("segmentation"), dict)]  # fmt: skip
    counts: Counter[str] = Counter()
    for name, segmentation in runs:
        counts[name] += int(coco_masks([segmentation], HEIGHT, WIDTH).sum())
    return dict(counts)


@pytest.mark.parametrize("name", FORMATS)
def test_what_datumaro_wrote_is_read_as_it_reads_it(name: str) -> None:
    expected = EXPECTED[name]
    found = ours(CORPUS / name)
    if name.startswith("mot"):  # Datumaro takes corners as from 0, MOTChallenge's own tools as from 1
        expected = {f"{int(key):06}": value for key, value in expected.items()}
        for value in found.values():
            value["boxes"] = [[label, *(n + 1 for n in box)] for label, *box in value["boxes"]]
    if name.startswith("voc"):  # Pascal VOC counts from 1, which Datumaro passes over
        for value in found.values():
            value["boxes"] = [[label, left + 1, top + 1, *rest] for label, left, top, *rest in value["boxes"]]
    if name.startswith("voc_segmentation"):
        found = {key: {**value, "boxes": []} for key, value in found.items()}  # which Datumaro does not read there
    assert found == expected
    assert any(value["boxes"] or value["pixels"] for value in expected.values())


@THEIR_WARNINGS
@pytest.mark.parametrize("name", FORMATS)
def test_datumaro_still_reads_them_so(name: str) -> None:
    pytest.importorskip("datumaro")
    assert read(CORPUS / name, FORMATS[name]) == EXPECTED[name]


@THEIR_WARNINGS
@pytest.mark.parametrize("name", ["coco_instances-polygons", "coco_instances-masks"])
def test_masks_of_coco_are_those_of_pycocotools(name: str) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    for split in ("train", "val"):
        theirs = coco.COCO(str(CORPUS / name / f"annotations/instances_{split}.json"))
        with closing(open_source(CORPUS / name)) as source:
            for entry in source.entries(split):
                document = source.read(entry).values["json"]  # type: ignore[union-attr]
                shapes = [each["segmentation"] for each in document["annotations"]]
                masks = coco_masks(shapes, HEIGHT, WIDTH)
                expected = [theirs.annToMask(each) for each in theirs.imgToAnns[document["image"]["id"]]]
                assert np.array_equal(masks, np.stack(expected))


@THEIR_WARNINGS
@pytest.mark.parametrize("name", ["coco_instances-boxes", "voc_detection-boxes"])
def test_boxes_are_those_of_supervision(name: str) -> None:
    """It moves the corners of Pascal VOC to 0, too."""
    supervision = pytest.importorskip("supervision")
    place = CORPUS / name
    if name.startswith("coco"):
        found = supervision.DetectionDataset.from_coco(
            str(place / "images/train"), str(place / "annotations/instances_train.json")
        )
    else:
        found = supervision.DetectionDataset.from_pascal_voc(str(place / "JPEGImages"), str(place / "Annotations"))
    expected = {
        Path(path).stem: sorted(
            [found.classes[label], *np.round(box, 3).tolist()]
            for label, box in zip(found.annotations[path].class_id, found.annotations[path].xyxy, strict=True)
        )
        for path in found.image_paths
    }
    read_here = {key: value["boxes"] for key, value in ours(place).items() if key in expected}
    assert len(expected) >= 3
    assert read_here == expected
