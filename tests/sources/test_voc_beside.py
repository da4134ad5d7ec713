"""XML files of Pascal VOC without its folders, as LabelImg, Roboflow and sets on Kaggle have them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from packstore import AmbiguousSourceError, PackedDataset, convert, verify
from packstore.sources import Entry, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.internals import VOC_CLASSES as CLASSES
from tests.internals import Role, SampleError
from tests.makers.annotated import fill, jpeg, voc, voc_xml


def beside(root: Path, images: str, xml: str, samples: int = 6, label: str = "apple") -> Path:
    """Images with an object each; of one of three, there is no annotation."""
    files: dict[str, str | bytes] = {}
    for n in range(samples):
        files[f"{images}/{n:04}.jpg"] = jpeg(n)
        if n % 3 != 2:
            files[f"{xml}/{n:04}.xml"] = voc_xml(f"{n:04}", (label, (1, 2, 3, 4), 0))
    return fill(root, files)


class TestVocBeside(SourceSuite):
    kind = "voc"
    undecodable_keys = False
    bytes_per_sample = 400
    many = 500

    def make(self, folder: Path, samples: int) -> Path:
        return beside(folder, "train", "train", samples)

    def change(self, path: Path) -> None:
        (path / "train/0001.xml").write_text(voc_xml("0001"))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).with_suffix(".xml").write_text("<annotation>")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


@pytest.mark.parametrize(
    ("images", "xml", "splits"),
    [
        (".", ".", {"": 6}),
        ("images", "annotations", {"": 6}),
        ("train", "train", {"train": 6}),
        ("train/images", "train/annotations", {"train": 6}),
        ("JPEGIMG", "Annotations", {"": 6}),
        ("val/fotos", "val/boxes of them", {"val": 6}),
        ("images", "annotations/xmls", {"": 6}),
        ("pictures", "notes/voc/all", {"": 6}),
        ("train/images", "train/annotations/xml", {"train": 6}),
        ("data/img", "notes/xml", {"": 6}),
        ("JPEGImages", "annotations/xmls", {"": 6}),
        ("JPEGImages", "Annotations/xmls", {"": 6}),
        ("JPEGImages", "labels", {"": 6}),
        ("val/data/img", "val/notes/xml", {"val": 6}),
    ],
)
def test_where_annotations_may_lie(images: str, xml: str, splits: dict[str, int], tmp_path: Path) -> None:
    with closing(open_source(beside(tmp_path, images, xml))) as source:
        assert source.kind == "voc"
        survey = source.survey()
        assert (dict(survey.splits), dict(survey.ledger.passed_over)) == (splits, {})
        assert next(column.classes for column in survey.columns if column.name == "labels") == ("apple",)
        values = [source.read(entry).values for entry in source.entries()]  # type: ignore[union-attr]
        assert values[0]["boxes"] == [[0, 1, 3, 4]]
        assert [each["labels"] for each in values] == [[0], [0], None] * 2


@pytest.mark.parametrize("samples", [8, 80])
@pytest.mark.parametrize(
    ("place", "numbers"),
    [("annotations", ""), ("annotations", " 1 2 1"), ("annotations/xmls", " -1"), ("ImageSets/Main", "")],
)
def test_lists_beside_the_annotations_are_sets(place: str, numbers: str, samples: int, tmp_path: Path) -> None:
    root = beside(tmp_path / "set", "images", "annotations/xmls", samples)
    own = {"trainval": range(samples - 2), "test": range(samples - 2, samples)}
    lists = {f"{place}/{name}.txt": "".join(f"{n:04}{numbers}\n" for n in some) for name, some in own.items()}
    with closing(open_source(fill(root, lists))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.splits) == ("voc", {"trainval": samples - 2, "test": 2})
        assert survey.ledger.count(Role.LEFT) == 0
        assert [entry.key for entry in source.entries("test")] == [f"images/{n:04}.jpg" for n in own["test"]]


def test_a_list_of_other_names_is_no_set(tmp_path: Path) -> None:
    root = beside(tmp_path, "images", "annotations/xmls")
    fill(root, {"annotations/train.txt": "0000\nanother\n"})
    with closing(open_source(root, kind="voc")) as source:
        assert source.survey().splits == {"": 6}


@pytest.mark.parametrize("other", ["masks", "overlays"])
def test_other_pictures_of_the_same_names_are_not_taken_for_the_images(other: str, tmp_path: Path) -> None:
    """They are left, or the user is asked."""
    root = beside(tmp_path, "pictures", "annotations/xmls")
    fill(root, {f"{other}/{n:04}.jpg": jpeg(20 + n) for n in range(6)})
    if other == "overlays":
        with pytest.raises(AmbiguousSourceError, match="are in overlays, and in pictures"):
            open_source(root)
        return
    with closing(open_source(root, kind="voc")) as source:
        assert [entry.key for entry in source.entries()] == [f"pictures/{n:04}.jpg" for n in range(6)]


def test_images_in_folders_of_no_split_are_packed_together(tmp_path: Path) -> None:
    beside(beside(tmp_path / "classes", "cat", "cat"), "dog", "dog")
    with closing(open_source(tmp_path / "classes")) as source:
        assert (source.kind, source.survey().splits) == ("voc", {"": 12})
    root = beside(beside(beside(tmp_path / "splits", ".", ".", 3), "train", "train"), "valid", "valid", 3)
    with closing(open_source(root)) as source:
        assert source.survey().splits == {"train": 6, "valid": 3, "unassigned": 3}


def test_what_is_kept(tmp_path: Path) -> None:
    root = beside(beside(tmp_path / "set", "train", "train", label="cat"), "valid", "valid", 2, "dog")
    fill(root, {"train/0009.xml": voc_xml("9"), "train/notes.txt": "x", "README.roboflow.txt": "by hand"})
    convert(root, tmp_path / "x.h5")
    data = PackedDataset(
        tmp_path / "x.h5", "valid", columns=("key", "boxes", "labels", "json", "image"), output="bytes"
    )
    key, boxes, labels, document, image = data[0]
    assert (key, bytes(image)) == ("valid/0000.jpg", jpeg(0))
    assert np.array_equal(boxes, [[0, 1, 3, 4]])
    assert labels.tolist() == [CLASSES.index("dog")]
    assert document["annotation"]["object"][0]["truncated"] == "1"
    assert dict(open_source(root).survey().ledger.passed_over) == {
        "annotations without an image": 1,
        "not images (.txt)": 2,
    }
    assert verify(tmp_path / "x.h5", against=root).ok


def test_other_annotations_beside_them_are_a_question(tmp_path: Path) -> None:
    fill(beside(tmp_path, ".", "."), {"labels.csv": "file,label\n0000.jpg,a\n0001.jpg,b\n"})
    with (
        closing(open_source(tmp_path)) as source,
        pytest.raises(AmbiguousSourceError, match=r"labels\.csv"),
    ):
        ask_about_left(source, source.survey())


def test_other_xml_files_are_not_taken(tmp_path: Path) -> None:
    fill(tmp_path, {**{f"{n}.jpg": jpeg(n) for n in range(3)}, **{f"{n}.xml": "<metadata/>" for n in range(3)}})
    with pytest.raises(AmbiguousSourceError, match=r"a \.xml file for each image"):
        open_source(tmp_path)


def test_names_with_blanks_in_lists_of_the_development_kit(tmp_path: Path) -> None:
    base = voc(tmp_path) / "VOCdevkit/VOC2012"
    fill(
        base,
        {"JPEGImages/my image 1.jpg": jpeg(7), "Annotations/my image 1.xml": voc_xml("7", ("cat", (1, 1, 2, 2), 0))},
    )
    (base / "ImageSets/Main/train.txt").write_text("my image 1\r\n2007_000001\n2007_000000\n")
    with closing(open_source(tmp_path)) as source:
        samples = [(entry.key.rpartition("/")[2], source.read(entry)) for entry in source.entries("train")]
        assert [name for name, _ in samples] == ["my image 1.jpg", "2007_000001.jpg", "2007_000000.jpg"]


def test_a_coordinate_that_is_no_number_is_named(tmp_path: Path) -> None:
    base = voc(tmp_path) / "VOCdevkit/VOC2012"
    file = base / "Annotations/2007_000001.xml"
    file.write_text(file.read_text().replace("<xmin>1<", "<xmin>left<"))
    with closing(open_source(tmp_path)) as source:
        entry = next(entry for entry in source.entries() if "2007_000001" in entry.key)
        with pytest.raises(SampleError, match="found 'left', expected a number"):
            source.read(entry)


@pytest.mark.parametrize("folder", ["images/{}", "{}_images", "{}"])
def test_one_folder_of_annotations_for_the_folders_of_splits(folder: str, tmp_path: Path) -> None:
    names = [f"{folder.format(split)}/{n}.jpg" for split, numbers in (("train", "abcd"), ("val", "e")) for n in numbers]
    files: dict[str, str | bytes] = {name: jpeg(n) for n, name in enumerate(names)}
    notes = {f"Annotations/{n}.xml": voc_xml(n, ("apple", (1, 2, 3, 4), 0)) for n in "abde"}  # c has none
    root = fill(tmp_path / "set", files | notes)
    manifest = convert(root, tmp_path / "x.lmdb").manifest
    assert {split.name: split.stop - split.start for split in manifest.splits} == {"train": 4, "val": 1}
    ds = PackedDataset(tmp_path / "x.lmdb", "train", columns=("key", "boxes"))
    assert [None if boxes is None else len(boxes) for _, boxes in ds] == [1, 1, None, 1]
    assert verify(tmp_path / "x.lmdb", against=root).problems == ()
