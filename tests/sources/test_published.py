"""Published sets that are told by their folders and names: each is read whole, at any size, and never taken for another
layout."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import convert
from packstore.sources import ask_about_left, open_source
from tests.internals import MASKS, PAIRS, AmbiguousSourceError, Role, SampleError
from tests.internals import PUBLISHED_CLASSES as CLASSES
from tests.makers.annotated import coco, fill, jpeg, voc, yolo
from tests.makers.annotation_formats import PATHS, createml, datumaro, kitti, labelme, visdrone
from tests.makers.annotation_formats import make_folder_set as make
from tests.makers.command import run
from tests.makers.published import SETS, make_set
from tests.makers.sources import FileSuite, look, not_packed, question


class TestPublished(FileSuite):
    """Office-31."""

    kind = "published"
    bytes_per_sample = 400
    many = 300
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        (folder / "webcam/images").mkdir(parents=True)
        names = [f"{('dslr', 'amazon')[n % 2]}/images/{'ab'[n % 3 > 0]}/frame_{n:04}.jpg" for n in range(samples)]
        return fill(folder, {name: jpeg(n) for n, name in enumerate(names)})

    def change(self, path: Path) -> None:
        next(file for file in path.rglob("*.jpg")).write_bytes(jpeg(9999))


def test_every_row_is_made() -> None:
    assert len(SETS) == len([*CLASSES, *MASKS, *PAIRS]) + 1  # one row for ImageNet-A and -Sketch


@pytest.mark.slow
@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SETS)
def test_each_is_read_whole(name: str, samples: int, tmp_path: Path) -> None:
    samples = min(samples, 90) if "{m:" in str(SETS[name]) else samples
    path = make_set(name, tmp_path / "set", samples)
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert source.kind == "published"
        assert [column.name for column in survey.columns if not column.name.endswith("_valid")] == [*SETS[name].columns]
        assert {*SETS[name].splits} <= {*survey.splits}
        assert survey.ledger.count(Role.PACKED) + survey.ledger.count(Role.ANNOTATION) == survey.ledger.total - len(
            SETS[name].once
        )
        assert survey.records >= samples
        for entry in list(source.entries())[:: max(1, survey.records // 30)]:
            source.read(entry)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_a_strange_image_is_asked_about(name: str, tmp_path: Path) -> None:
    """One image that is named otherwise, the last of all, in a set whose names are not free: another layout may be
    meant."""
    path = make_set(name, tmp_path / "set", 30)
    first = SETS[name].parts[0].pattern.format(n=0, m=0, c=0, s="a", p=SETS[name].splits[0])
    strange = (path / first).with_name("zz strange" + Path(first).suffix)
    strange.write_bytes((path / first).read_bytes())
    try:
        assert strange.relative_to(path).as_posix() in {entry.key for entry in look(path).entries}
    except AmbiguousSourceError as error:
        assert "strange" in str(error) or "holds" in str(error)  # noqa: PT017


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_other_annotations_are_asked_about(name: str, tmp_path: Path) -> None:
    path = make_set(name, tmp_path / "set", 30)
    names = look(path).keys
    lines = "".join(f"{key}: {n}\n" for n, key in enumerate(names))
    (path / "further.txt").write_text(lines)
    question(path)


@pytest.mark.slow
def test_a_pair_without_its_second_image_is_no_pair(tmp_path: Path) -> None:
    path = make_set("change detection", tmp_path / "set", 30)
    (path / "test/B/29.png").unlink()
    question(path)


def test_masks_and_json_have_the_bytes_of_their_files(tmp_path: Path) -> None:
    path = make_set("Mapillary Vistas", tmp_path / "set", 3)
    (path / "training/v2.0/polygons/training1.json").write_text(json.dumps({"objects": [{"label": "car"}]}))
    with closing(open_source(path)) as source:
        entry = next(entry for entry in source.entries() if entry.key.endswith("training1.jpg"))
        values: Any = source.read(entry).values  # type: ignore[union-attr]
        assert values["polygons"] == {"objects": [{"label": "car"}]}
        assert bytes(values["mask_v2"]) == (path / "training/v2.0/labels/training1.png").read_bytes()


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff\xfe"])
def test_a_hostile_annotation_is_a_bad_sample(text: bytes, tmp_path: Path) -> None:
    path = make_set("ADE20K, full", tmp_path / "set", 3)
    (path / "images/ADE/training/urban/ADE_training_00000001.json").write_bytes(text)
    bad = []
    with closing(open_source(path)) as source:
        for entry in source.entries():
            try:
                source.read(entry)
            except SampleError as error:
                bad.append(str(error))
    (said,) = bad
    assert "ADE_training_00000001.jpg: its annotation is" in said


def test_classes_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    seen = look(fill(tmp_path, {f"imagenetv2-top-images-format-val/{n}/{n:x}.jpeg": jpeg(n) for n in range(12)}))
    (label,) = seen.columns
    assert label.classes == tuple(map(str, range(12)))


def _of_files(make: Callable[[int], dict[str, str | bytes]]) -> Callable[[Path], Path]:
    return lambda root: fill(root, make(6))


# A faulty annotation, which cannot be parsed; and one that can, with a value that no column takes.
FAULTS = {
    "labelme": (_of_files(labelme), "a00001.json", '"points": [[1, 2], [5, 6]]', '"points": 7'),
    "labelme, values": (_of_files(labelme), "a00001.json", '"points": [[1, 2], [5', '"points": [[NaN, 2], [5'),
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


@pytest.mark.slow
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
    caught = not_packed(SampleError, source, tmp_path / "a.lmdb", rf"its (\S+ or )*{re.escape(path)}( or \S+)*: ")
    assert caught.reason.count(path) == 1
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


LAST: dict[str, dict[str, Any]] = {
    "market1501": {"identity": -1, "camera": 2, "sequence": 1, "frame": 7, "number": 1},
    "dukemtmc": {"identity": 7, "camera": 2, "frame": 7},
    "mars": {"identity": -1, "camera": 2, "track": 7, "frame": 201},
    "omniglot": {"label": "Oriya/character02", "drawer": 20},
}


class FolderSetSuite(FileSuite):
    """The suite for a kind of :data:`PATHS`."""

    bytes_per_sample = 400
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        return make(self.kind, folder, samples)

    def change(self, path: Path) -> None:
        file = next(file for file in path.rglob("*") if file.is_file())
        file.write_bytes(jpeg(99))


for _kind in PATHS:
    globals()[f"Test_{_kind}"] = type(f"Test_{_kind}", (FolderSetSuite,), {"kind": _kind, "__module__": __name__})


@pytest.mark.parametrize("kind", PATHS)
def test_what_names_say_is_kept(kind: str, tmp_path: Path) -> None:
    with closing(open_source(make(kind, tmp_path, 9))) as source:
        survey = source.survey()
        assert (source.kind, dict(survey.splits)) == (kind, {"train": 5, "test": 4})
        key = PATHS[kind][1].format(n=7, c=2)
        values = dict(next(source.read(entry) for entry in source.entries() if entry.key == key).values)
        if "label" in values:
            values["label"] = next(column.classes or () for column in survey.columns)[values["label"]]
        assert values == LAST[kind]


@pytest.mark.parametrize("kind", PATHS)
def test_a_name_of_another_form_is_asked_about_or_left(kind: str, tmp_path: Path) -> None:
    root = make(kind, tmp_path, 9)
    folder = next(file.parent for file in sorted(root.rglob("*")) if file.is_file())
    (folder / "zz strange.jpg").write_bytes(jpeg(50))
    question(root, r"1 of its images have other names, .*zz strange")
    survey = look(root, kind=kind)
    assert survey.records == 9
    assert survey.ledger.left == {"images whose names do not follow the set's pattern": 1}


@pytest.mark.parametrize(
    ("folder", "split"),
    [("images_background", "train"), ("images_evaluation", "test"), ("images_background_small1",) * 2],
)
@pytest.mark.parametrize("archive", [False, True])
def test_one_archive_of_omniglot(folder: str, split: str, archive: bool, tmp_path: Path) -> None:
    """As published, ``images_background.zip``; unpacked, its folder is the split."""
    names = [f"{folder}/{alphabet}/character{c:02}/{n:04}_01.png" for alphabet in "AB" for c in (1, 2) for n in (3, 4)]
    root = fill(tmp_path / "set", {name: jpeg(n) for n, name in enumerate(names)})
    survey = look(Path(shutil.make_archive(str(tmp_path / folder), "zip", root)) if archive else root)
    assert (survey.kind, dict(survey.splits)) == ("omniglot", {"" if archive else split: 8})
    label = next(column for column in survey.columns if column.name == "label")
    assert label.classes == ("A/character01", "A/character02", "B/character01", "B/character02")
