"""Errors about annotations name the file that must be corrected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from packstore import convert
from tests.internals import SampleError
from tests.makers.annotated import coco, voc, yolo
from tests.makers.annotation_formats import createml, datumaro, kitti, labelme, visdrone
from tests.makers.command import run


def _of_files(make: Callable[[int], dict[str, str | bytes]]) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        for name, data in make(6).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return root

    return write


# A faulty annotation, which cannot be parsed; and one that can, with a value that no column takes.
FAULTS = {
    "labelme": (_of_files(labelme), "a00001.json", '"points": [[1, 2], [5, 6]]', '"points": 7'),
    "labelme, values": (
        _of_files(labelme),
        "a00001.json",
        '"points": [[1, 2], [5, 6]]',
        '"points": [[NaN, 2], [5, 6]]',
    ),
    "yolo": (yolo, "labels/train/00001.txt", None, "0 .5 .5 .5\n"),
    "yolo, values": (yolo, "labels/train/00001.txt", None, "0 .5 .5 -.5 .5\n"),
    "yolo, classes": (yolo, "labels/train/00001.txt", None, "7 .5 .5 .5 .5\n"),
    "voc": (voc, "Annotations/2007_000001.xml", "<xmin>", "<xmin>a"),
    "voc, values": (voc, "Annotations/2007_000001.xml", "<xmin>", "<xmin>99999"),
    "kitti": (_of_files(kitti), None, None, "Car 1 2\n"),
    "visdrone": (_of_files(visdrone), None, None, "1,2\n"),
    "coco": (coco, "annotations/instances_val2017.json", '"bbox": [', '"bbox": ["a", '),
    "createml": (_of_files(createml), None, '"width": ', '"width": "a", "w": '),
    "datumaro": (_of_files(datumaro), None, '"bbox": [', '"bbox": ["a", '),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_file_is_named(fault: str, tmp_path: Path) -> None:
    make, name, old, new = FAULTS[fault]
    source = make(tmp_path / "set")
    files = sorted(
        file
        for file in source.rglob(name or "*")
        if file.suffix in (".txt", ".json", ".xml") and (old or "1") in file.read_text()
    )
    file = files[0]
    text = file.read_text()
    file.write_text(text + new if old is None else text.replace(old, new))
    path = file.relative_to(source).as_posix()
    with pytest.raises(SampleError, match=rf"its (\S+ or )*{re.escape(path)}( or \S+)*: ") as caught:
        convert(source, tmp_path / "a.lmdb")
    assert caught.value.reason.count(path) == 1
    report = convert(source, tmp_path / "a.lmdb", on_error="skip")
    assert path in report.skipped[0].reason
    assert path in run("convert", source, tmp_path / "b.lmdb").stderr.replace("\n", " ")


@pytest.mark.parametrize("fault", ["labelme", "yolo", "voc", "coco", "kitti", "createml"])
def test_a_bad_image_is_no_fault_of_its_annotation(fault: str, tmp_path: Path) -> None:
    make, *_ = FAULTS[fault]
    source = make(tmp_path / "set")
    image = sorted(each for each in source.rglob("*") if each.suffix in (".jpg", ".png") and "Segm" not in str(each))[1]
    image.write_bytes(image.read_bytes()[:60])
    skipped = convert(source, tmp_path / "a.lmdb", on_error="skip").skipped
    assert [each.key for each in skipped] == [image.relative_to(source).as_posix()]
    assert not any(each in skipped[0].reason for each in (".txt", ".json", ".xml"))
