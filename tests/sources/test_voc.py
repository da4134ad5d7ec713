"""Pascal VOC: what its development kit holds, as torchvision reads it; and what can be wrong with it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from packstore import AmbiguousSourceError, PackedDataset, convert, verify
from packstore.sources import Entry, ask_about_left, open_source
from tests.internals import VOC_CLASSES as CLASSES
from tests.internals import Role, Sample, SampleError, SourceError, load_xml
from tests.makers.annotated import fill, jpeg, mask, voc, voc_xml
from tests.makers.sources import FileSuite, look, not_packed, question, refused
from tests.makers.torchvision import import_torchvision

BASE = "VOCdevkit/VOC2012"


class TestVoc(FileSuite):
    kind = "voc"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return voc(folder, samples)

    def change(self, path: Path) -> None:
        (path / BASE / "Annotations/2007_000001.xml").write_text(voc_xml("2007_000001"))

    def spoil(self, path: Path, entry: Entry) -> bool:
        Path(path, entry.key.replace("JPEGImages", "Annotations").replace(".jpg", ".xml")).write_text("<annotation>")
        return True


def test_what_is_kept(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    convert(root, tmp_path / "x.h5")
    columns = ("key", "boxes", "labels", "difficult", "json", "mask", "object_mask")
    train = PackedDataset(tmp_path / "x.h5", "train", columns=columns, output="bytes")
    manifest = train.manifest
    assert [(split.name, split.stop - split.start) for split in manifest.splits] == [("train", 4), ("val", 2)]
    labels = next(column for column in manifest.columns if column.name == "labels")
    assert (labels.classes, labels.parallel) == (CLASSES, "boxes")
    key, boxes, numbers, difficult, document, classes, objects = train[2]
    assert key == f"{BASE}/JPEGImages/2007_000002.jpg"
    assert boxes.tolist() == [[0, 0, 16, 8], [1.5, 2, 4, 8]]  # as many pixels as from xmin to xmax, both included
    assert numbers.tolist() == [CLASSES.index("cat"), CLASSES.index("tvmonitor")]
    assert difficult.tolist() == [0, 0]
    assert document["annotation"]["object"][1]["pose"] == "Left"
    assert (bytes(classes), bytes(objects)) == (mask(2), mask(3))
    assert train[0][1].shape == (0, 4)
    assert train[0][5] is None
    assert verify(tmp_path / "x.h5", against=root).problems == ()


@pytest.mark.slow
def test_splits_annotations_and_masks_are_those_of_torchvision(tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    voc(tmp_path / "set", 12)
    base = f"{tmp_path / 'set'}/"
    with closing(open_source(tmp_path / "set")) as source:
        for split in ("train", "val"):
            entries = list(source.entries(split))
            theirs = datasets.VOCDetection(tmp_path / "set", "2012", split)
            assert [base + entry.key for entry in entries] == theirs.images
            for entry, (_, target) in zip(entries, theirs, strict=True):
                sample = source.read(entry)
                assert sample.values["json"] == target
                boxes = [[float(each["bndbox"][c]) for c in ("xmin", "ymin", "xmax", "ymax")]
                         for each in target["annotation"]["object"]]  # fmt: skip
                assert np.allclose(
                    np.add(np.reshape(sample.values["boxes"], (-1, 4)), (1, 1, 0, 0)), np.reshape(boxes, (-1, 4))
                )
            segmented = datasets.VOCSegmentation(tmp_path / "set", "2012", split)
            masked = [source.read(entry).values["mask"] for entry in entries]
            assert [Path(file).read_bytes() for file in segmented.masks] == [data for data in masked if data]


def test_an_archive_and_the_folder_itself(tmp_path: Path) -> None:
    root = voc(tmp_path / "set")
    archive = shutil.make_archive(str(tmp_path / "voc"), "tar", root)
    for path in (archive, root / "VOCdevkit", root / BASE):
        with closing(open_source(Path(path))) as source:
            assert source.kind == "voc"
            assert [entry.key.rpartition("/")[2] for entry in source.entries("val")] == [
                "2007_000004.jpg",
                "2007_000005.jpg",
            ]
            assert source.read(next(source.entries("val"))).values["labels"] == [CLASSES.index("cat")]
            assert source.survey().splits == {"train": 4, "val": 2}


@pytest.mark.slow
def test_years_together_are_a_question(tmp_path: Path) -> None:
    voc(tmp_path)
    shutil.copytree(tmp_path / BASE, tmp_path / "VOCdevkit/VOC2007")
    question(tmp_path, r"several sets of Pascal VOC: give one of them, .*VOC2007 or .*VOC2012")


def test_without_sets_all_images_are_taken_and_classes_are_those_found(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for n in range(4):
        files[f"JPEGImages/{n}.{'png' if n else 'jpg'}"] = jpeg(n)
        files[f"Annotations/{n}.xml"] = voc_xml(str(n), ("zebra" if n else "ant", (1, 2, 3, 4), 0))
    files |= {"JPEGImages/9.jpg": jpeg(9), "JPEGImages/notes.txt": "x", "Annotations/7.xml": "<x/>"}
    survey = look(fill(tmp_path, files))
    assert dict(survey.splits) == {"": 5}
    assert dict(survey.ledger.passed_over) == {"not images (.txt)": 1, "annotations without an image": 1}
    assert next(column.classes for column in survey.columns if column.name == "labels") == ("ant", "zebra")
    assert survey.each("boxes") == [*[[[0, 1, 3, 4]]] * 4, None]


@pytest.mark.parametrize("text", ["<annotation/>", "<annotation></annotation>", "<annotation><size/></annotation>"])
def test_an_annotation_without_objects_has_no_boxes(text: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"JPEGImages/{n}.jpg": jpeg(n) for n in range(2)}
    files |= {"Annotations/0.xml": voc_xml("0", ("ant", (1, 2, 3, 4), 0)), "Annotations/1.xml": text}
    values = look(fill(tmp_path, files)).values
    assert [(each["boxes"], each["labels"]) for each in values] == [([[0, 1, 3, 4]], [0]), ([], [])]


@pytest.mark.parametrize(
    ("place", "images"),
    [("ImageSets", "JPEGImages"), ("ImageSets/Main", "JPEGImages"), ("ImageSets", "Images")],
)
def test_where_sets_may_lie(place: str, images: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{images}/{n}.jpg": jpeg(n) for n in range(5)}
    files |= {f"Annotations/{n}.xml": voc_xml(str(n), ("ant", (1, 2, 3, 4), 0)) for n in range(5)}
    files |= {
        f"{place}/train.txt": "0\n1\n2\n",
        f"{place}/val.txt": "3\n4\n",
        f"{place}/trainval.txt": "0\n1\n2\n3\n4\n",
    }
    with closing(open_source(fill(tmp_path, files))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert dict(survey.splits) == {"train": 3, "val": 2}
        assert list(survey.ledger.names(Role.EVIDENCE)) == [f"{place}/trainval.txt"]


def test_images_in_no_set_are_counted_and_those_missing_are_bad(tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / BASE / "JPEGImages/extra.jpg").write_bytes(jpeg(1))
    (tmp_path / BASE / "JPEGImages/2007_000001.jpg").unlink()
    with closing(open_source(tmp_path)) as source:
        ledger = source.survey().ledger
        assert f"{BASE}/JPEGImages/extra.jpg" in ledger.names(Role.LEFT)
        assert ledger.left["images in none of the sets"] == 3  # with masks of the missing one
        with pytest.raises(SampleError, match="No such file") as caught:
            source.read(list(source.entries())[1])
        assert caught.value.key == f"{BASE}/JPEGImages/2007_000001.jpg"


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 300])
def test_what_labelme_writes_beside_the_masks_raises_no_question(count: int, tmp_path: Path) -> None:
    masks, arrays = "SegmentationClass", "SegmentationClassNpy"
    files: dict[str, str | bytes] = {"class_names.txt": "_background_\ncat\n"}
    for n in range(count):
        files |= {
            f"JPEGImages/{n:04}.jpg": jpeg(n),
            f"{masks}/{n:04}.png": mask(n),
            f"{arrays}/{n:04}.npy": b"\x93NUMPY",
        }
        files[f"SegmentationClassVisualization/{n:04}.jpg"] = jpeg(n)
    root = fill(tmp_path / "set", files)
    with closing(open_source(root)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        samples = [source.read(entry) for entry in source.entries()]
        assert all(isinstance(sample, Sample) and sample.values["mask"] for sample in samples)
        assert survey.ledger.count(Role.PACKED) == 2 * count


def test_masks_in_colour_are_images(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"JPEGImages/{n}.jpg": jpeg(n) for n in range(3)}
    files |= {f"SegmentationClass/{n}.png": mask(n, mode="RGB") for n in range(3)}
    seen = look(fill(tmp_path, files))
    assert seen.columns[0].type == "image"
    assert seen.values[0] == {"mask": files["SegmentationClass/0.png"]}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("../../../etc/passwd\n", r"train\.txt, line 1: names '\.\./.*not a path within the source"),
        ("a\n/etc/passwd\n", "line 2: names '/etc/passwd'"),
    ],
)
def test_sets_that_cannot_be(listed: str, said: str, tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / BASE / "ImageSets/Main/train.txt").write_text(listed)
    refused(SourceError, tmp_path, said)


@pytest.mark.slow
def test_an_image_in_two_sets_is_a_question_whose_lines_run(tmp_path: Path) -> None:
    voc(tmp_path)
    with (tmp_path / BASE / "ImageSets/Main/train.txt").open("a") as file:
        file.write("2007_000005\n")
    caught = question(tmp_path, r"2007_000005 is in two sets, .*train\.txt and .*val\.txt")
    found = []
    for answer in caught.answers:
        patterns = [value for name, value in zip(answer.options[::2], answer.options[1::2], strict=True)]
        found.append(dict(look(tmp_path, ignore=patterns).splits))
    assert len(found) == 3
    assert all(each in found for each in ({"": 6}, {"train": 5}, {"val": 2}))


BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation><object><name>x</name></object></annotation>", "no bndbox with xmin"),
        ("<annotation><object><bndbox/></object></annotation>", "."),
        (voc_xml("a", ("cat", (1, 2, 3, float("nan")), 0)), "'nan', expected a number"),
        (voc_xml("a", ("cat", (1, 2, 3, "x"), 0)), "'x', expected a number"),  # type: ignore[arg-type]
        (voc_xml("a", ("cat", (1, 2, 3, 4), 0)).replace("<pose>", "<name>b</name><pose>"), "as the name of a class"),
        ("<other/>", "root 'other'"),
        (BOMB, "has a document type, which is not read"),
        ("<a>" * 100_000, "more than 32 levels"),
        ("<annotation>", "is not XML"),
        ("", "is not XML"),
    ],
)
def test_a_bad_annotation_is_a_bad_sample(text: str, said: str, tmp_path: Path) -> None:
    voc(tmp_path)
    file = tmp_path / BASE / "Annotations/2007_000000.xml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with closing(open_source(tmp_path)) as source:
        assert source.survey().records == 6
        with pytest.raises(SampleError, match=said) as caught:
            source.read(next(source.entries()))
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("head", ["", '<?xml version="1.0" encoding="nonsense"?>'])
def test_an_annotation_in_no_known_encoding_is_asked_about(head: str, tmp_path: Path) -> None:
    voc(tmp_path)
    file = tmp_path / BASE / "Annotations/2007_000000.xml"
    file.write_bytes(f"{head}<annotation>\udcff</annotation>".encode("utf-8", "surrogateescape"))
    not_packed(AmbiguousSourceError, tmp_path, tmp_path.with_suffix(".lmdb"), "encoding")


def test_xml_as_plain_values() -> None:
    assert load_xml(b"<a x='1'> t <b>1</b><b/><c><d>2</d></c></a>") == (
        "a",
        {"@x": "1", "b": ["1", ""], "c": {"d": "2"}, "#text": "t"},
    )
    with pytest.raises(ValueError, match="at most"):
        load_xml(b" " * (17 << 20))


def test_the_classes_are_those_of_the_kit() -> None:
    assert (len(CLASSES), CLASSES[0], CLASSES[-1]) == (20, "aeroplane", "tvmonitor")
    assert list(CLASSES) == sorted(CLASSES)


def test_polygons_of_fair1m_are_no_boxes(tmp_path: Path) -> None:
    """Its files have the root of Pascal VOC, but other objects."""
    objects = "<object><possibleresult><name>Van</name></possibleresult><points><point>0,0</point></points></object>"
    text = f"<annotation><source><filename>0.jpg</filename></source><objects>{objects}</objects></annotation>"
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(3)}
    fill(tmp_path, files | {f"labelXml/{n}.xml": text for n in range(3)})
    question(tmp_path, "labelXml")
