"""Formats of annotations: the contract of a source for each, what each keeps, and files of other tools."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import tarfile
import zlib
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from packstore import PackedDataset, PackedLoader, coco_masks, convert, export
from packstore.sources import SourceOptions, ask_about_left, open_source
from tests.internals import (
    SOURCES,
    AnnotatedSource,
    Parts,
    Picture,
    Role,
    SampleError,
    SourceError,
    beside,
    box,
    encode_run_lengths,
    recognise,
)
from tests.makers.annotated import fill, jpeg
from tests.makers.annotation_formats import (
    DOG_RUNS,
    MAKERS,
    Files,
    images,
    kitti_mots,
    make_folder_set,
    supervisely,
    via_csv,
)
from tests.makers.layouts import tar
from tests.makers.sources import FileSuite, ask, look, question, refused

CORPUS = Path(__file__).parents[1] / "corpus/annotated"


KINDS = list(MAKERS)


class AnnotatedSuite(FileSuite):
    """The suite for a kind of :data:`MAKERS`."""

    bytes_per_sample = 600
    damages = 12

    def make(self, folder: Path, samples: int) -> Path:
        return fill(folder, MAKERS[self.kind](samples))

    def change(self, path: Path) -> None:
        notes = (each for each in sorted(path.rglob("*")) if each.suffix in (".json", ".xml", ".txt", ".odgt"))
        file = next(each for each in notes if each.name != "meta.json")
        file.write_text(file.read_text() + "\n")


for _kind in KINDS:
    globals()[f"Test_{_kind}"] = type(f"Test_{_kind}", (AnnotatedSuite,), {"kind": _kind, "__module__": __name__})


def read_all(path: Path) -> dict[str, Any]:
    """The named values of each sample by key; the source asks nothing."""
    ask(path)
    return look(path).named


DOG, CAT, EYE = [1, 2, 5, 6], [0, 0, 4, 3.5], [3, 1]
SQUARE = [[1, 2, 5, 2, 5, 6, 1, 6]]
TRIANGLE = [[0, 0, 4, 0, 4, 3.5]]
# The bitmap of the maker, at (1, 2) of an image of 16 x 8: its pixels in columns, those beyond the image cut off.
_SHOWN = [x >= 1 and y >= 2 and (y == 2 or (1 + 16 * (y - 2) + x - 1) % 21 != 0) for x in range(16) for y in range(8)]
BITMAP = {"size": [8, 16], "counts": [len([*run]) for _, run in itertools.groupby(_SHOWN)]}
WHOLE: dict[str, tuple[str, list[Any], list[str], list[Any] | None]] = {
    "labelme": ("a00003.jpg", [DOG, CAT, [6, 2, 10, 6]], ["dog", "cat", "cat"], [None, TRIANGLE, None]),
    "via": ("a00004.jpg", [DOG, CAT, [6, 2, 10, 6]], ["dog", "cat", "cat"], [None, TRIANGLE, None]),
    "cvat": ("images/a00002.jpg", [CAT], ["cat"], [TRIANGLE]),
    "label_studio": (
        "images/a00004.jpg",
        [[4, 4, 12, 6], [0, 0, 4, 4], [6.4, 2, 9.6, 6]],
        ["dog", "cat", "cat"],
        [None, [[0, 0, 4, 0, 4, 4]], None],
    ),
    "kitti": ("training/image_2/a00001.png", [DOG, CAT], ["Car", "DontCare"], None),
    "createml": ("train/a00002.jpg", [DOG, DOG], ["dog", "dog"], None),
    "datumaro": (
        "images/train/a00004.jpg",
        [DOG, CAT, [0, 0, 1, 2]],
        ["cat", "dog", "dog"],
        [None, TRIANGLE, {"size": [8, 16], "counts": "023m3"}],
    ),
    "fiftyone": ("data/a00002.jpg", [[4, 4, 12, 6]] * 2, ["dog", "dog"], None),
    "supervisely": (
        "set/img/a00004.jpg",
        [DOG, CAT, [1, 2, 17, 10]],
        ["dog", "cat", "cat"],
        [None, TRIANGLE, BITMAP],
    ),
    "vott": ("a00002.jpg", [DOG, DOG], ["dog", "dog"], None),
    "dota": (
        "train/images/a00002.png",
        [[0, 0, 4, 6], [0, 0, 4, 4]],
        ["large-vehicle", "plane"],
        [[[2, 0, 4, 3, 2, 6, 0, 3]], [[0, 0, 4, 0, 4, 4, 0, 4]]],
    ),
    "visdrone": (
        "VisDrone2019-DET-train/images/a00002.jpg",
        [DOG, [0, 0, 4, 3]],
        ["car", "ignored regions"],
        None,
    ),
    "widerface": ("WIDER_train/images/0--Parade/a00002.jpg", [DOG, DOG], [], None),
    "bdd100k": ("images/100k/train/a00002.jpg", [DOG, CAT], ["car", "area"], [None, TRIANGLE]),
    "crowdhuman": ("Images/a00002.jpg", [DOG, DOG], ["person", "mask"], None),
    "mot": ("train/MOT17-02/img1/000003.jpg", [DOG, DOG], ["pedestrian", "person on vehicle"], None),
    "mots": (
        "train/MOTS20-02/img1/000003.jpg",
        [DOG, DOG],
        ["pedestrian"] * 2,
        [{"size": [8, 16], "counts": DOG_RUNS}] * 2,
    ),
    "icdar": ("img_1.jpg", [[0, 0, 4, 6], [0, 0, 4, 4]], [], [[[2, 0, 4, 3, 2, 6, 0, 3]], [[0, 0, 4, 0, 4, 4, 0, 4]]]),
    "funsd": ("training_data/images/a00002.png", [DOG, DOG], ["question", "question"], None),
    "mlt": (
        "ImagesPart1/tr_img_00001.jpg",
        [[0, 0, 4, 6], [0, 0, 4, 4]],
        ["Latin", "None"],
        [[[2, 0, 4, 3, 2, 6, 0, 3]], [[0, 0, 4, 0, 4, 4, 0, 4]]],
    ),
    "sroie": ("train/img/X001.jpg", [DOG, DOG], [], [SQUARE, SQUARE]),
    "cord": ("train/image/receipt_00002.png", [DOG, DOG], ["menu.nm", "menu.nm"], [SQUARE, SQUARE]),
    "textocr": ("train_images/a00002.jpg", [DOG, DOG], [], [SQUARE, SQUARE]),
    "art": ("train_images/a00001.jpg", [DOG, DOG], [], [SQUARE, SQUARE]),
    "line_boxes": ("train/a00002.jpg", [DOG, DOG], ["dog", "dog"], None),
    "openmmlab": ("imgs/a00002.jpg", [DOG, DOG], ["dog", "dog"], [SQUARE, SQUARE]),
    "imglab": ("pics/a00002.jpg", [DOG, CAT], ["dog", "cat"], None),
    "wildreceipt": ("image_files/a00001.jpg", [DOG, DOG], ["dog", "dog"], [SQUARE, SQUARE]),
    "sa1b": ("a00002.jpg", [DOG, DOG], [], [{"size": [8, 16], "counts": "023m3"}] * 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind: str, tmp_path: Path) -> None:
    found = read_all(fill(tmp_path, MAKERS[kind](8)))
    key, boxes, labels, segmentations = WHOLE[kind]
    values = found[key]
    assert [list(box) for box in values["boxes"]] == [pytest.approx(box) for box in boxes]
    assert values.get("labels", []) == labels
    assert values.get("segments") == segmentations
    assert values["json"]


@pytest.mark.slow
@pytest.mark.parametrize("samples", [6, 300, pytest.param(3000, marks=pytest.mark.soak)])
def test_exports_as_csv_are_read_as_projects_of_via_2(samples: int, tmp_path: Path) -> None:
    found = read_all(fill(tmp_path / "other", via_csv(samples)))
    expected = read_all(fill(tmp_path / "via", MAKERS["via"](samples)))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert {name: value for name, value in found[key].items() if name != "json"} == {
            name: value for name, value in values.items() if name != "json"}  # fmt: skip
    assert found["a00001.jpg"]["json"]["regions"][0]["shape_attributes"]["width"] == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [("rect", "blob"), (",4,0", ",4"), ('""x"": 1', '""x"": null'), ("{}", "{"), ("file_size", "size"), (',"', ',"x')],
)
def test_what_a_csv_of_via_may_hold_is_said(old: str, new: str, tmp_path: Path) -> None:
    files = via_csv(6)
    files["via_export_csv.csv"] = str(files["via_export_csv.csv"]).replace(old, new)
    assert problem(fill(tmp_path, files), "via")


def test_variants_that_are_not_read_are_said(tmp_path: Path) -> None:
    project = {"project": {"pid": "1", "creator": "VIA"}, "config": {}, "attribute": {}, "file": {}, "metadata": {}}
    root = fill(tmp_path / "via", {**images(3), "via_project.json": json.dumps(project)})
    refused(SourceError, root, "found a project of VIA 3, expected one of VIA 1 or 2")
    tasks = [{"image": f"a{n:05}.jpg", "id": n, "label": [], "annotation_id": n} for n in range(3)]
    root = fill(tmp_path / "min", {**images(3), "project-1.json": json.dumps(tasks)})
    refused(SourceError, root, "found an export as JSON-MIN: export the project as JSON")


@pytest.mark.slow
def test_points_tags_and_turned_boxes_are_kept(tmp_path: Path) -> None:
    for kind in ("labelme", "via", "cvat", "datumaro", "supervisely", "label_studio"):
        found = read_all(fill(tmp_path / kind, MAKERS[kind](8)))
        values = next(values for values in found.values() if values.get("keypoints"))
        expected = [8, 4] if kind == "label_studio" else EYE
        assert list(values["keypoints"][0]) == expected
        assert values["keypoint_labels"][0] in ("eye", "dog")
    night = read_all(tmp_path / "labelme")
    assert [values["label"] if values.get("json") else None for values in night.values()][:5] == [
        None, "night", None, "night", None]  # fmt: skip
    assert "imageData" not in night["a00000.jpg"]["json"]
    turned = read_all(tmp_path / "cvat")["images/a00001.jpg"]
    assert turned["boxes"][0] == pytest.approx([3, 2, 5, 6])
    assert turned["segments"][0][0] == pytest.approx([5, 2, 5, 6, 3, 6, 3, 2])
    runs = read_all(tmp_path / "cvat")["images/a00003.jpg"]["segments"][0]
    assert runs == {"size": [8, 16], "counts": [18, 1, 7, 1, 101]}


IDS: dict[str, dict[str, str]] = {
    "openmmlab": {'"bbox_label": 1': '"bbox_label": %s'},
    "wildreceipt": {'"label": 1': '"label": %s'},
}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("form", ["1", "1.0", '"1"', '"1.0"'])
def test_ids_and_class_numbers_match_by_value(kind: str, form: str, tmp_path: Path) -> None:
    found = []
    for name in ("plain", "changed"):
        files = MAKERS[kind](4)
        for file, text in files.items():
            for old, new in IDS[kind].items() if isinstance(text, str) and name == "changed" else ():
                text = text.replace(old, new.replace("%s", form))
            files[file] = text
        found.append(read_all(fill(tmp_path / name, files)))
        for values in found[-1].values():
            values.pop("json")
    assert found[0] == found[1]
    assert any(values["boxes"] for values in found[0].values())


@pytest.mark.parametrize(
    ("listed", "field", "value", "error"),
    [
        *(("anns", "image_id", image, "KeyError") for image in (5.0, True, None, 1.5)),
        ("anns", "image_id", [1], "KeyError"),
        ("imgs", "set", {"a": 1}, "AttributeError"),
    ],
)
def test_a_word_of_no_image_and_a_split_that_is_no_text(
    listed: str, field: str, value: Any, error: str, tmp_path: Path
) -> None:
    files = MAKERS["textocr"](3)
    (name,) = (name for name in files if name.endswith(".json"))
    document = json.loads(files[name])
    next(iter(document[listed].values()))[field] = value
    root = fill(tmp_path, files | {name: json.dumps(document)})
    refused(SourceError, root, rf"is not in the format of TextOCR and COCO-Text \({error}")


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a/a00000.jpg?id=3&d=80",
        "https://host/a/a00000.jpg?d=80&id=3",
        "https://host/a00000.jpg#d=1",
        "s3://bucket/a00000.jpg",
        "/data/upload/1/a00000.jpg?d=2",
        "/data/local-files/?d=images/a00000.jpg",
        "/data/local-files/?d=images%2Fa00000.jpg&v=1",
        "http://localhost:8080/data/local-files?v=1&d=images/a00000.jpg",
        "/data/local-files/?d=images/a00000%3Fd%3D.jpg",
    ],
)
def test_only_urls_of_local_files_in_label_studio_are_unpacked(url: str, tmp_path: Path) -> None:
    key = "images/a00000.jpg" if "%3F" not in url else "images/a00000?d=.jpg"
    files = MAKERS["label_studio"](3)
    (project,) = (name for name in files if name.endswith(".json"))
    files[project] = str(files[project]).replace("/data/upload/1/a00000.jpg", url)
    files[key] = files.pop("images/a00000.jpg")
    found = read_all(fill(tmp_path, files))
    assert {*found} == {key, "images/a00001.jpg", "images/a00002.jpg"}
    assert found[key]["json"]["data"]["image"] == url


@pytest.mark.parametrize("kind", KINDS)
def test_other_annotations_beside_it_are_asked_about(kind: str, tmp_path: Path) -> None:
    files = MAKERS[kind](8)
    pictures = [name for name in files if name.endswith((".jpg", ".png"))]
    further: Files = {f"further/{Path(name).stem}.txt": "1 2 3" for name in pictures}
    root = fill(tmp_path, files | further)
    question(root, "further")


HOSTILE = (
    "[]",
    "{}",
    "null",
    "[[]]",
    '[{"a": 1}]',
    '{"a": ',
    "[" * 100_000,
    '{"shapes": [{"label": 1}]}',
    "\0",
    "<a/>",
)


@pytest.mark.slow
def test_words_and_tracks_go_with_their_boxes(tmp_path: Path) -> None:
    kinds = ("icdar", "funsd", "mot", "mots", "mlt", "sroie", "art")
    found = {kind: read_all(fill(tmp_path / kind, MAKERS[kind](6))) for kind in kinds}
    assert found["mlt"]["ImagesPart1/tr_img_00001.jpg"]["texts"] == ["a, b", None]
    assert found["sroie"]["train/img/X001.jpg"]["texts"] == ["TOTAL, 1"] * 2
    assert found["sroie"]["train/img/X001.jpg"]["entities"] == {"company": "A", "total": "1"}
    assert found["art"]["train_images/a00001.jpg"]["texts"] == ["w", None]
    assert found["icdar"]["img_1.jpg"]["texts"] == ["a, b", None]
    assert found["icdar"]["img_1.jpg"]["json"] == ["2,0,4,3,2,6,0,3,a, b", "0,0,4,0,4,4,0,4,###"]
    assert found["funsd"]["training_data/images/a00002.png"]["texts"] == ["a b", "a b"]
    assert found["mot"]["train/MOT17-02/img1/000003.jpg"]["track"] == [3, 4]
    assert found["mot"]["train/MOT17-02/img1/000001.jpg"]["boxes"] == []
    masks = found["mots"]["train/MOTS20-02/img1/000003.jpg"]
    assert masks["track"] == [2000, 2001]
    assert coco_masks(masks["segments"], 8, 16)[0].sum() == 16


@pytest.mark.slow
def test_masks_of_kitti_are_files_and_run_lengths(tmp_path: Path) -> None:
    root = fill(tmp_path, kitti_mots(60))
    found = read_all(root)
    assert len(found) == 60
    values = found["training/image_02/0007/000027.png"]
    assert (values["boxes"], values["labels"], values["track"]) == ([DOG], ["car"], [1001])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3 2000 2 8 16 :4\n", "do not add up"),
        ("3 2000 2 8 16 ~~\n", "not COCO's string"),
        ("3 2000 2 8 16\n", "5 values"),
        ("3 x 2 8 16 :4\n", "invalid literal"),
        ("x 2000 2 8 16 :4\n", "not in the format of MOTS"),
        ("3 2000 2 99999999999999999999 16 :4\n", "do not add up|OverflowError"),
    ],
)
def test_a_line_of_masks_that_is_wrong_is_said(line: str, said: str, tmp_path: Path) -> None:
    files = MAKERS["mots"](6)
    files["train/MOTS20-02/gt/gt.txt"] = str(files["train/MOTS20-02/gt/gt.txt"]) + line
    assert re.search(said, problem(fill(tmp_path, files), "mots") or "")


@pytest.mark.parametrize("kind", ["mot", "mots"])
def test_frames_whose_images_have_other_names_are_said(kind: str, tmp_path: Path) -> None:
    files = {name.replace("img1/", "img1/frame_"): content for name, content in MAKERS[kind](6).items()}
    assert re.search("no image is named by the number of a frame", problem(fill(tmp_path, files), kind) or "")


def test_detections_and_sequences_without_truth_are_asked_about(tmp_path: Path) -> None:
    rest: Files = {"test/MOT17-01/det/det.txt": "1,-1,2,3,4,5,6\n", "test/MOT17-01/img1/000001.jpg": b""}
    root = fill(tmp_path, MAKERS["mot"](6) | rest)
    question(root, r"det\.txt")


@pytest.mark.parametrize("kind", ["cvat", "via", "mot", "crowdhuman"])
def test_a_link_to_a_folder_above_repeats_no_image(kind: str, tmp_path: Path) -> None:
    root = fill(tmp_path, MAKERS[kind](6))
    (root / "again").symlink_to(root)
    assert look(root).found == (kind, 6)


@pytest.mark.parametrize("kind", ["labelme", "sa1b"])
def test_an_archive_of_images_with_json_files_of_annotations_is_no_webdataset(kind: str, tmp_path: Path) -> None:
    files = {name.replace("a0000", "sa_22"): content for name, content in MAKERS[kind](6).items()}
    fill(tmp_path / "set", files)
    with tarfile.open(tmp_path / "sa_000020.tar", "w") as archive:
        archive.add(tmp_path / "set", arcname=".")
    assert look(tmp_path / "sa_000020.tar").found == (kind, 6)


def test_an_archive_of_a_format_of_a_plug_in_is_no_webdataset(tmp_path: Path) -> None:
    @beside("points: beside images", kind="points", folders=[("", "")], patterns=["{stem}.pts"], signature=rb"points")
    def kind(content: Any, _: Picture) -> Parts:
        yield box(None, content)

    contents = {"jpg": jpeg(0), "pts": b"points", "json": b"{}"}
    members = {f"{n}.{end}": content for n in range(6) for end, content in contents.items()}
    (tmp_path / "a.tar").write_bytes(tar(members))
    assert recognise(tmp_path / "a.tar", SourceOptions()) is SOURCES["webdataset"]
    SOURCES.register("points", kind)
    try:
        assert recognise(tmp_path / "a.tar", SourceOptions()) is SOURCES["points"]
    finally:
        SOURCES.unregister("points")


def test_xml_of_the_other_labelme_is_not_of_pascal_voc(tmp_path: Path) -> None:
    source = "<source><sourceAnnotation>LabelMe Webtool</sourceAnnotation></source>"
    polygon = "<object><name>cat</name><polygon><pt><x>4</x><y>3</y></pt></polygon></object>"
    files: Files = {f"a{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"a{n}.xml": f"<annotation>{source}{polygon}</annotation>" for n in range(4)}
    question(fill(tmp_path, files), r"a \.xml file for each image")


PUBLISHED_BESIDE: dict[str, tuple[Files, list[str]]] = {
    "mot": ({"train/MOT17-02/det/det.txt": "1,-1,2,3,4,5,6\n"}, ["train/MOT17-02/det/det.txt"]),
    "widerface": ({"wider_face_split/wider_face_train.mat": b"MATLAB"}, ["wider_face_split/wider_face_train.mat"]),
    "kitti": ({f"training/calib/a{n:05}.txt": f"P{n}: 7 0 6\n" for n in range(3)}, []),
    "mars": (
        {"info/train_name.txt": "0001C1T0001F001.jpg\n", "info/tracks_train_info.mat": b"MATLAB"},
        ["info/tracks_train_info.mat", "info/train_name.txt"],
    ),
    "market1501": ({"gt_bbox/0001_c1s1_000001_01.jpg": jpeg(7)}, ["gt_bbox/0001_c1s1_000001_01.jpg"]),
}


@pytest.mark.parametrize("kind", PUBLISHED_BESIDE)
def test_what_is_published_beside_raises_no_question(kind: str, tmp_path: Path) -> None:
    files, left = PUBLISHED_BESIDE[kind]
    root = tmp_path / "set"
    fill(root, MAKERS[kind](9)) if kind in MAKERS else make_folder_set(kind, root, 9)
    with closing(open_source(fill(root, files))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert sorted(set(survey.ledger.names(Role.LEFT)) & files.keys()) == left
        if kind == "kitti":
            found = {entry.key: source.read(entry).values["calib"] for entry in source.entries()}
            assert found["training/image_2/a00001.png"] == "P1: 7 0 6\n"
            assert found["training/image_2/a00005.png"] is None


@pytest.mark.parametrize("names", [("train", "val", "test-dev"), ("train", "val", "new")])
def test_splits_in_the_words_of_folders(names: tuple[str, ...], tmp_path: Path) -> None:
    """If each folder has one."""
    files: Files = {}
    for name in names:
        files[f"VisDrone2019-DET-{name}/images/{name}.jpg"] = jpeg(1)
        files[f"VisDrone2019-DET-{name}/annotations/{name}.txt"] = "1,2,3,4,1,4,0,1\n"
    with closing(open_source(fill(tmp_path, files))) as source:
        assert list(source.splits()) == ([""] if "new" in names else ["train", "val", "test"])


def problem(root: Path, kind: str) -> str | None:
    """What is said of a source or of its samples that cannot be read; None if nothing is."""
    try:
        with closing(open_source(root, kind=kind)) as source:
            source.survey()
            for entry in source.entries():
                source.read(entry)
    except (SourceError, SampleError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_an_annotation_holds_only_our_errors_come(kind: str, tmp_path: Path) -> None:
    """But for lists of nothing, and files that are left since they are none of the format. A list of classes may hold
    any names."""
    files = MAKERS[kind](6)
    notes = [name for name in files if not (name.endswith((".jpg", ".png", ".ini")) or "class" in name)]
    for number, text in enumerate(HOSTILE):
        root = fill(tmp_path / f"{number}", {**files, notes[-1]: text})
        assert problem(root, kind) or text in ("[]", "{}"), text


def corners(left: float, top: float, width: float, height: float) -> list[float]:
    return [left, top, left + width, top + height]


def read_independently(kind: str, root: Path) -> dict[str, list[tuple[str | None, list[float]]]]:
    """Class and box of the objects of each image, by the name of its file, as the format's own words say: by other
    code than packstore's."""
    found: dict[str, list[tuple[str | None, list[float]]]] = {}
    for file in sorted(root.rglob("*")):
        own: list[tuple[str | None, list[float]]] = []
        if kind == "kitti" and file.suffix == ".txt":
            words = [line.split() for line in file.read_text().splitlines()]
            found[f"{file.stem}.png"] = [(each[0], [*map(float, each[4:8])]) for each in words]
        elif kind == "dota" and file.suffix == ".txt":
            for each in (line.split() for line in file.read_text().splitlines()):
                xs, ys = [*map(float, each[0:8:2])], [*map(float, each[1:8:2])]
                own.append((each[8], [min(xs), min(ys), max(xs), max(ys)]))
            found[f"{file.stem}.jpg"] = own
        elif kind == "vott" and file.suffix == ".json":
            for asset in json.loads(file.read_text())["assets"].values():
                boxes = [(each["tags"], each["boundingBox"]) for each in asset["regions"]]
                found[asset["asset"]["name"]] = [
                    (tags[0] if tags else "(none)", corners(b["left"], b["top"], b["width"], b["height"]))
                    for tags, b in boxes
                ]
        elif kind == "createml" and file.suffix == ".json":
            for image in json.loads(file.read_text()):
                for each in image["annotations"]:
                    c = each["coordinates"]
                    box = corners(c["x"] - c["width"] / 2, c["y"] - c["height"] / 2, c["width"], c["height"])
                    found.setdefault(image["image"], []).append((each["label"], box))
        elif kind == "sa1b" and file.suffix == ".json":
            document = json.loads(file.read_text())
            boxes = [(None, corners(*each["bbox"])) for each in document["annotations"]]
            found[document["image"]["file_name"]] = boxes
        elif kind == "widerface" and file.suffix == ".txt":
            lines = file.read_text().split("\n")
            for number, line in enumerate(lines):
                if line.endswith(".jpg"):
                    faces = lines[number + 2 : number + 2 + int(lines[number + 1])]
                    own = [(None, corners(*map(float, face.split()[:4]))) for face in faces]
                    found[line.rpartition("/")[2]] = own
    return found


@pytest.mark.parametrize("kind", ["kitti", "dota", "vott", "createml", "sa1b", "widerface"])
def test_files_of_other_tools_are_read_as_others_read_them(kind: str) -> None:
    expected = read_independently(kind, CORPUS / kind)
    with closing(open_source(CORPUS / kind)) as source:
        assert source.kind == kind
        labels = next((c.classes for c in source.survey().columns if c.name == "labels"), None)
        seen = {}
        for entry in source.entries():
            values = source.read(entry).values
            names: list[str | None] = [labels[n] for n in values.get("labels") or ()] if labels else []
            boxes = values.get("boxes") or []
            pairs = zip(names or [None] * len(boxes), [pytest.approx([*box]) for box in boxes], strict=True)
            seen[entry.key.rpartition("/")[2]] = list(pairs)
    assert seen.keys() >= expected.keys()
    assert {name: seen[name] for name in expected} == expected
    assert sum(map(len, expected.values())) > 0


@pytest.mark.parametrize("name", ["cvat_project", "cvat_task", "cvat_video"])
def test_files_of_cvat_are_read_as_an_xml_library_reads_them(name: str) -> None:
    (file,) = (CORPUS / name).glob("*.xml")
    boxes = sorted(
        [float(each.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr")]
        for each in ElementTree.parse(file).iter("box")
        if each.get("outside") != "1"
    )
    polygons = sum(1 for _ in ElementTree.parse(file).iter("polygon"))
    seen = look(CORPUS / name)
    samples = seen.values
    found = [[*box] for values in samples for box in values["boxes"]]
    shapes = [each for values in samples for each in values.get("segments", ()) if each is not None]
    assert seen.ledger.count(Role.LEFT) == 0
    assert len(shapes) == polygons
    assert all(box in found for box in boxes)
    assert len(found) == len(boxes) + polygons


def test_files_of_datumaro_are_read_whole() -> None:
    seen = look(CORPUS / "datumaro")
    samples = seen.samples
    assert dict(seen.splits) == {"train": 2, "validation": 1, "test": 1}
    for split in ("train", "validation", "test"):
        document = json.loads((CORPUS / f"datumaro/annotations/{split}.json").read_text())
        for item in document["items"]:
            values = samples[f"images/{split}/{item['image']['path'].rpartition('/')[2]}"]
            assert values["json"] == item
            assert values["tags"] == [a["label_id"] for a in item["annotations"] if a["type"] == "label"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ['{"a": 1}', "[]", "7", "null"])
def test_a_class_without_a_name_is_none_or_said(kind: str, name: str, tmp_path: Path) -> None:
    """In each place that has one: a list of classes, an object, a tag."""
    files = MAKERS[kind](6)
    for file, content in files.items():
        if isinstance(content, str) and file.endswith((".json", ".odgt")):
            for label in ("dog", "person", "car", "question"):
                content = content.replace(f'"{label}"', name)
            files[file] = content
    said = problem(fill(tmp_path, files), kind)
    assert said is None or (said.isprintable() and len(said) < 1000)


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("../a00000.jpg", "../../etc/passwd", "x/../../a.jpg"):
        listed = json.dumps([{"image": name, "annotations": []}])
        root = fill(tmp_path, {**images(3), "_annotations.createml.json": listed})
        refused(SourceError, root, "not a path within the source")


def guide_rows() -> dict[str, list[str]]:
    """The table of the guide: the cells of each kind."""
    text = (resources.files("packstore") / "guide/sources.md").read_text("utf-8")
    table = text.partition("## Annotation formats")[2].partition("\n- ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows if row[0] != "`--source`"}


@pytest.mark.slow
def test_the_guide_lists_every_kind_with_its_columns_and_the_order_of_its_classes(tmp_path: Path) -> None:
    rows = guide_rows()
    assert list(rows) == KINDS
    for kind, (files, columns, order, _) in rows.items():
        root = fill(tmp_path / kind, MAKERS[kind](8))
        with closing(open_source(root)) as source:
            found = {column.name: column.classes for column in source.survey().columns}
            names = [name for name in found if not name.endswith("_valid")]
            assert isinstance(source, AnnotatedSource)
            assert names == re.findall(r"`(\w+)`", columns), kind
            assert files.startswith(source.format.title), kind
            classes = found.get("labels") or found.get("label")
            listed = bool(source.listed_classes)
            assert order == ("none" if classes is None else "listed" if listed else "sorted"), kind
            assert order != "sorted" or list(classes or ()) == sorted(classes or ())
            assert "`label`" not in columns or source.kind in ("labelme", "widerface")


def test_every_kind_is_registered_and_tested() -> None:
    own = {name for name in SOURCES.built_in if "annotation_formats" in getattr(SOURCES[name].open, "__module__", "")}
    assert own - {"conversations", "voc"} == set(KINDS)  # which are found like these, and have tests of their own


def test_lists_without_names_of_classes_call_them_by_their_numbers(tmp_path: Path) -> None:
    lines = "".join(f"/home/me/set/a{n:05}.jpg 1,2,5,6,{n % 12} \n" for n in range(24)) + "\nno boxes.jpg\n"
    root = fill(tmp_path, images(24, "pictures/") | {"pictures/no boxes.jpg": jpeg(1), "train.txt": lines})
    seen = look(root)
    labels = next(column for column in seen.columns if column.name == "labels")
    assert (seen.kind, labels.classes) == ("line_boxes", tuple(map(str, range(12))))
    found = read_all(root)
    assert found["pictures/a00023.jpg"]["labels"] == ["11"]
    assert list(found["pictures/no boxes.jpg"]["boxes"]) == []


@pytest.mark.parametrize("line", ["a00000.jpg 1,2,5,6,0 7,8", "nothing\n", "a00000.jpg 1,2,5,6,x"])
def test_a_line_of_another_shape_is_said(line: str, tmp_path: Path) -> None:
    files = images(3) | {"train.txt": f"a00001.jpg 1,2,5,6,0\na00002.jpg 1,2,5,6,0\n{line}"}
    assert "keras-yolo3" in (problem(fill(tmp_path, files), "line_boxes") or "")


def test_labels_of_whole_images_and_words_in_openmmlab(tmp_path: Path) -> None:
    head = {"classes": ["cat", "dog"]}
    listed = [{"img_path": f"a{n:05}.jpg", "gt_label": n % 2} for n in range(3)]
    root = fill(tmp_path / "classes", images(3) | {"train.json": json.dumps({"metainfo": head, "data_list": listed})})
    assert [values["label"] for values in read_all(root).values()] == ["cat", "dog", "cat"]
    words = [{"img_path": f"a{n:05}.jpg", "instances": [{"text": f"w{n}"}]} for n in range(3)]
    root = fill(tmp_path / "words", images(3) | {"labels.json": json.dumps({"metainfo": {}, "data_list": words})})
    assert [values["text"] for values in read_all(root).values()] == ["w0", "w1", "w2"]
    runs = {"bbox": [1, 2, 5, 6], "bbox_label": 1, "mask": {"size": [8, 16], "counts": "023m3"}}
    found = [{"img_path": "a00000.jpg", "instances": [runs, {**runs, "mask": SQUARE, "bbox_label": 0}]}]
    root = fill(tmp_path / "masks", images(1) | {"val.json": json.dumps({"metainfo": head, "data_list": found})})
    values = read_all(root)["a00000.jpg"]
    assert values["labels"] == ["dog", "cat"]
    assert values["segments"] == [{"size": [8, 16], "counts": "023m3"}, SQUARE]


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 300])
def test_an_image_that_is_gone_from_its_folder_is_not_that_of_another(size: int, tmp_path: Path) -> None:
    each = "".join(
        f'<image id="{n}" name="faces/a{n:05}.jpg" width="16" height="8"><tag label="x"/></image>' for n in range(size)
    )
    files = images(size - 1, "faces/") | images(size, "collages/")
    root = fill(tmp_path, files | {"annotations.xml": f"<annotations><version>1.1</version>{each}</annotations>"})
    with closing(open_source(root, kind="cvat")) as source:
        entries = list(source.entries())
        assert {entry.key.split("/")[0] for entry in entries} == {"faces"}
        with pytest.raises(SampleError, match="No such file"):
            source.read(entries[-1])
    (root / "faces").rename(root / "pictures")  # a folder of another machine
    assert look(root, kind="cvat", ignore=["collages/"]).keys[:1] == ["pictures/a00000.jpg"]


@pytest.mark.parametrize("size", [4, 60])
@pytest.mark.parametrize("kind", ["via", "label_studio", "vott"])
@pytest.mark.parametrize("other", ["overlays", "plots/drawn"])
def test_names_in_several_folders_are_a_question_whose_lines_run(
    other: str, kind: str, size: int, tmp_path: Path
) -> None:
    """One folder has all images, another all as well, a third only some."""
    notes = {name: text for name, text in MAKERS[kind](size).items() if isinstance(text, str)}
    names = [name.rpartition("/")[2] for name, content in MAKERS[kind](size).items() if isinstance(content, bytes)]
    files: Files = {f"{folder}/{name}": jpeg(n) for folder in ("pictures", other) for n, name in enumerate(names)}
    files |= {f"small/{name}": jpeg(n) for n, name in enumerate(names[:2])}
    root = fill(tmp_path, files | {f"notes/{name.rpartition('/')[2]}": text for name, text in notes.items()})
    caught = question(root, f"pictures.*{other}|{other}.*pictures", kind=kind)
    found = []
    for answer in caught.answers:
        patterns = [value for name, value in zip(answer.options[::2], answer.options[1::2], strict=True)]
        with closing(open_source(root, kind=kind, ignore=patterns)) as source:
            found += sorted({entry.key.rpartition("/")[0] for entry in source.entries() if source.read(entry)})
            assert source.survey().records == size
    assert sorted(found) == sorted(["pictures", other])


def test_names_in_a_folder_of_pictures_and_in_others_of_masks(tmp_path: Path) -> None:
    files = {f"{folder}/{name}": jpeg(n) for folder in ("plots", "plot_masks") for n, name in enumerate(images(4))}
    notes = {name: text for name, text in MAKERS["via"](4).items() if name.endswith(".json")}
    seen = look(fill(tmp_path, files | notes))
    assert seen.found == ("via", 4)
    assert {key.partition("/")[0] for key in seen.samples} == {"plots"}


def test_holes_of_supervisely_are_no_part_of_masks(tmp_path: Path) -> None:
    points = {"exterior": [[0, 0], [8, 0], [8, 6], [0, 6]], "interior": [[[2, 2], [4, 2], [4, 4], [2, 4]]]}
    thing = {"classTitle": "cat", "geometryType": "polygon", "points": points}
    document = json.dumps({"size": {"height": 8, "width": 16}, "tags": [], "objects": [thing]})
    root = fill(tmp_path / "set", supervisely(2) | {"set/ann/a00001.jpg.json": document})
    assert read_all(root)["set/img/a00001.jpg"]["boxes"] == [[0, 0, 8, 6]]
    convert(root, tmp_path / "a.lmdb")
    dataset = PackedDataset(tmp_path / "a.lmdb", columns=("image", "segments"))
    [(_, masks)] = PackedLoader(dataset, 2, segments="masks", collate={"segments": "optional"})
    export(tmp_path / "a.lmdb", tmp_path / "coco", to="coco", bare=True)
    [written] = json.loads((tmp_path / "coco/annotations/instances.json").read_text())["annotations"]
    assert np.array_equal(coco_masks([written["segmentation"]], 8, 16), masks[1])
    assert masks[1].sum() == 8 * 6 - 2 * 2


@pytest.mark.parametrize("bitmap", [b"", b"no image, but as long as the start of one"])
def test_a_bitmap_of_supervisely_that_is_no_png(bitmap: bytes, tmp_path: Path) -> None:
    thing = {"classTitle": "cat", "geometryType": "bitmap"}
    thing |= {"bitmap": {"data": base64.b64encode(zlib.compress(bitmap)).decode(), "origin": [1, 2]}}
    document = json.dumps({"size": {"height": 8, "width": 16}, "tags": [], "objects": [thing]})
    fill(tmp_path, supervisely(2) | {"set/ann/a00001.jpg.json": document})
    assert "a bitmap of its annotation is no PNG" in (problem(tmp_path, "supervisely") or "")


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=6)), st.integers(0, 3), st.integers(0, 3))
def test_run_lengths_of_a_part_are_those_of_the_whole_mask(part: Any, top: int, left: int) -> None:
    whole = np.pad(part, ((top, 1), (left, 2)))
    lengths = encode_run_lengths(part, (top, left), whole.shape)
    assert lengths == encode_run_lengths(whole)
    values = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(whole.shape, order="F")
    assert np.array_equal(values, whole)
    assert all(lengths[1:])


@pytest.mark.parametrize("folder", ["entities", "key", "truth"])
def test_entities_of_receipts_without_words(folder: str, tmp_path: Path) -> None:
    files: Files = {f"images/a{n}.jpg": jpeg(n) for n in range(4)}
    texts = [{"company": "A & B", "date": "1/2/2019", "total": f"{n}.00"} for n in range(3)]
    files |= {f"{folder}/a{n}.txt": json.dumps(each) for n, each in enumerate(texts)}
    seen = look(fill(tmp_path, files))
    assert (seen.kind, [*seen.classes]) == ("sroie", ["entities", "entities_valid"])
    assert seen.each("entities") == [*texts, None]


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    ("images", "files", "splits"),
    [
        ("images", "annotated", {""}),
        ("photos", "photos/notes", {""}),
        ("data/img", "made/with/labelme", {""}),
        ("train/pictures", "train/outlines", {"train"}),
        ("images/train", "annotated/train", {"train"}),
    ],
)
def test_files_of_labelme_are_found_by_the_stems_of_the_images(
    images: str, files: str, splits: set[str], count: int, tmp_path: Path
) -> None:
    """Folders may have any names; a split without annotations is kept."""
    shapes = json.dumps({"shapes": [{"label": "cat", "points": [[1, 2], [5, 6]], "shape_type": "rectangle"}]})
    made: dict[str, str | bytes] = {f"{images}/a{n}.jpg": jpeg(n) for n in range(count)}
    made |= {f"{files}/a{n}.json": shapes for n in range(count - 1)}
    if images == "images/train":
        made |= {f"images/test/b{n}.jpg": jpeg(n) for n in range(count)}
    path = fill(tmp_path / "set", made)
    archive = Path(shutil.make_archive(str(tmp_path / "set"), "zip", path))
    for place in (path, archive):
        seen = look(place)
        assert (seen.kind, seen.ledger.left) == ("labelme", {})
        assert {*seen.splits} - {"test"} == splits
        named = {entry.key: entry.key.rpartition("/")[2] for entry in seen.entries if entry.split != "test"}
        values = {name: seen.samples[key]["boxes"] for key, name in named.items()}
        assert values == {f"a{n}.jpg": [[1, 2, 5, 6]] for n in range(count - 1)} | {f"a{count - 1}.jpg": None}


def test_two_folders_of_pictures_of_equal_stems_are_no_labelme(tmp_path: Path) -> None:
    made: dict[str, str | bytes] = {f"{folder}/a{n}.jpg": jpeg(n) for n in range(4) for folder in ("one", "two")}
    made |= {f"annotated/a{n}.json": '{"shapes": []}' for n in range(4)}
    question(fill(tmp_path, made))
