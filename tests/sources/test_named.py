"""Data sets in their published layouts: splits, order and labels are those of torchvision's classes, by its own code;
what looks like one and lacks something is a question.

Their files are made by :mod:`tests.makers.layouts`; torchvision checks the MD5 of some, so that is taken out.
"""

from __future__ import annotations

import io
import re
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import PackedDataset, convert
from packstore.sources import Source, open_source
from tests.internals import (
    SOURCES,
    Role,
    SampleError,
    SourceError,
    load_mat,
)
from tests.makers.annotated import fill
from tests.makers.images import tiny
from tests.makers.layouts import make_layout, mat, structs
from tests.makers.sources import FileSuite, look, not_packed, question, refused
from tests.makers.torchvision import import_torchvision

FILE_KINDS = ("tinyimagenet", "cub200", "flowers102", "food101", "oxfordpet", "stanfordcars", "sun397", "dtd",
              "eurosat", "places365", "celeba", "ade20k", "gtsrb", "stanforddogs", "fgvcaircraft", "visa")  # fmt: skip

NOT_TORCHVISION = ("tinyimagenet", "cub200", "celeba", "ade20k", "stanforddogs", "visa")


class _Suite(FileSuite):
    """The suite for data sets of image files."""

    bytes_per_sample = 400
    many = 400

    def make(self, folder: Path, samples: int) -> Path:
        return make_layout(self.kind, folder, samples)

    def change(self, path: Path) -> None:
        with closing(self.open(path)) as source:
            first = next(source.entries())
        (path / first.key).write_bytes(tiny(99_999))

    @pytest.mark.slow
    def test_entries_are_listed_lazily_in_bounded_memory(self, tmp_path: Path) -> None:
        super().test_entries_are_listed_lazily_in_bounded_memory(tmp_path)


for _kind in FILE_KINDS:
    globals()[f"Test_{_kind}"] = type(f"Test_{_kind}", (_Suite,), {"kind": _kind, "__module__": __name__})


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torchvision.datasets``, which takes files of any MD5."""
    found = import_torchvision().datasets
    for name in ("flowers102", "places365", "celeba", "stl10", "svhn"):
        monkeypatch.setattr(getattr(found, name), "check_integrity", lambda path, md5=None: Path(path).is_file())
    return found


def rows(source: Source, split: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Key and values of all samples."""
    return [(entry.key, dict(source.read(entry).values)) for entry in source.entries(split)]  # type: ignore[union-attr]


def read_all(folder: Path) -> None:
    with closing(open_source(folder)) as source:
        source.survey()
        rows(source)


NAMES = {"food101": "Food101", "oxfordpet": "OxfordIIITPet", "stanfordcars": "StanfordCars", "sun397": "SUN397",
         "dtd": "DTD", "eurosat": "EuroSAT", "places365": "Places365", "flowers102": "Flowers102", "gtsrb": "GTSRB",
         "fgvcaircraft": "FGVCAircraft"}  # fmt: skip
"""torchvision's classes."""


def expected(kind: str, split: str, root: Path, torchvision: Any) -> list[tuple[str, int | None]]:
    """Path and label of all samples of a split, in order, as torchvision has them."""
    match kind:
        case "flowers102" | "food101" | "dtd" | "sun397" | "fgvcaircraft":
            data = getattr(torchvision, NAMES[kind])(root, **({"split": split} if split else {}))
            pairs = zip(data._image_files, data._labels, strict=True)
        case "oxfordpet":
            data = torchvision.OxfordIIITPet(root, split)
            pairs = zip(data._images, data._labels, strict=True)
        case "stanfordcars" | "gtsrb":
            pairs = iter(getattr(torchvision, NAMES[kind])(root, split)._samples)
        case "eurosat":
            pairs = iter(torchvision.EuroSAT(root).samples)
        case "places365":
            data = torchvision.Places365(root, split, small=True)
            pairs = ((path, label) for (path, _), label in zip(data.imgs, data.targets, strict=True))
        case _:
            raise AssertionError(kind)
    found = [(Path(path).relative_to(root).as_posix(), label) for path, label in pairs]
    return sorted(found) if kind == "sun397" else found  # torchvision takes files as they come


@pytest.mark.parametrize("kind", [kind for kind in FILE_KINDS if kind not in NOT_TORCHVISION])
def test_splits_order_and_labels_are_those_of_torchvision(kind: str, tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout(kind, tmp_path)
    with closing(open_source(folder)) as source, closing(open_source(tmp_path)) as above:
        assert (source.kind, above.kind) == (kind, kind)
        prefix = f"{folder.relative_to(tmp_path).as_posix()}/" if folder != tmp_path else ""
        for split in source.survey().splits:
            found = [(key, values["label"]) for key, values in rows(above, split or None)]
            assert (sorted(found) if kind == "sun397" else found) == expected(kind, split, tmp_path, torchvision)
            assert [key for key, _ in found] == [prefix + key for key, _ in rows(source, split or None)]


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind != "gtsrb"])
def test_names_of_classes_are_those_of_torchvision(kind: str, tmp_path: Path, torchvision: Any) -> None:
    make_layout(kind, tmp_path)
    theirs = getattr(torchvision, NAMES[kind])(tmp_path, **({"small": True} if kind == "places365" else {})).classes
    label = next(column for column in look(tmp_path).columns if column.name == "label")
    assert label.classes == tuple(theirs)


def test_celeba_is_that_of_torchvision(tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("celeba", tmp_path)
    with closing(open_source(folder)) as source:
        for split in ("train", "valid", "test"):
            data = torchvision.CelebA(tmp_path, split, target_type=["attr", "identity", "bbox", "landmarks"])
            found = rows(source, split)
            assert [key for key, _ in found] == [f"img_align_celeba/{name}" for name in data.filename]
            for n, (_, values) in enumerate(found):
                assert values["labels"] == np.flatnonzero(data.attr[n].numpy()).tolist()
                assert values["identity"] == int(data.identity[n, 0])
                assert values["bbox"] == data.bbox[n].tolist()
                assert np.asarray(values["keypoints"]).ravel().tolist() == data.landmarks_align[n].tolist()
        labels = next(column for column in source.survey().columns if column.name == "labels")
        assert labels.classes == tuple(filter(None, data.attr_names))


def test_what_the_tables_of_cub_say(tmp_path: Path) -> None:
    folder = make_layout("cub200", tmp_path)
    convert(folder, tmp_path / "x.h5")
    train = PackedDataset(tmp_path / "x.h5", "train", columns=("key", "label", "boxes", "keypoints"), output="dict")
    test = PackedDataset(tmp_path / "x.h5", "test", columns=("key",))
    assert [key[-8:-4] for key in test] == ["0003", "0005", "0007", "0009", "0011"]
    assert train.classes[1] == "002.Laysan_Albatross"
    for item in train:
        number = int(item["key"][-8:-4])
        image = number + 1
        assert item["label"] == number % 3
        assert np.asarray(item["boxes"]).tolist() == [[image, 2, image + 10, 22.5]]
        assert np.asarray(item["keypoints"]).tolist() == [[[image + 0.5, 1, 1], [image + 0.5, 2, 0]]]


def test_labels_and_boxes_of_tiny_imagenet(tmp_path: Path, torchvision: Any) -> None:
    folder = make_layout("tinyimagenet", tmp_path)
    theirs = torchvision.ImageFolder(folder / "train")
    with closing(open_source(folder)) as source:
        found = rows(source, "train")
        assert [(key, values["label"]) for key, values in found] == [
            (Path(path).relative_to(folder).as_posix(), label) for path, label in theirs.samples
        ]
        assert found[0][1]["boxes"] == [[0, 1, 62, 63]]
        assert source.survey().columns[0].classes == tuple(theirs.classes)
        (one, other, *_), (unlabelled, _) = rows(source, "val"), rows(source, "test")
    assert (one[1]["label"], other[1]["label"]) == (2, 0)  # n03, n01: not by wnids.txt whose order is another
    assert one[1]["boxes"] == [[1, 2, 3, 4]]
    assert (unlabelled[1]["label"], unlabelled[1]["boxes"]) == (None, None)


def test_masks_and_boxes_of_pets(tmp_path: Path) -> None:
    folder = make_layout("oxfordpet", tmp_path)
    with closing(open_source(folder)) as source:
        first, second = rows(source, "trainval")[:2]
        assert first[1]["boxes"] == [[3, 4, 5, 6]]
        assert (second[1]["boxes"], second[1]["species"]) == (None, 1)
        assert first[1]["mask"] == (folder / "annotations/trimaps/Abyssinian_1.png").read_bytes()
        xml = folder / "annotations/xmls/Abyssinian_1.xml"
        xml.write_text(xml.read_text().replace("3", "2.5").replace("6", "n"))
        entry = next(iter(source.entries("trainval")))
        with pytest.raises(SampleError, match="'n'"):
            source.read(entry)


def test_dogs_have_their_boxes_and_lists(tmp_path: Path) -> None:
    folder = make_layout("stanforddogs", tmp_path)
    with closing(open_source(folder)) as source:
        train, test = rows(source, "train"), rows(source, "test")
        classes = source.survey().columns[0].classes
    assert [int(key.rpartition("_")[2][:-4]) for key, _ in train] == [*range(11, 2, -1)]
    assert [values["label"] for _, values in test] == [2, 1, 0]
    assert classes == ("n02085620-Chihuahua", "n02085782-Japanese_spaniel", "n02091244-Ibizan_hound")
    assert test[1][1]["boxes"] == [[1, 2, 4, 9]] * 2
    assert test[1][1]["json"]["object"][1]["name"] == "Chihuahua"
    for name in ("train_list.mat", "test_list.mat", "file_list.mat"):
        (folder / name).unlink()
    with closing(open_source(folder)) as source:
        assert source.survey().splits == {"": 12}
        assert [key for key, _ in rows(source)] == sorted(key for key, _ in [*train, *test])
    fill(folder, {"Images/other/x.jpg": tiny(1)})
    refused(SourceError, folder, "other does not match")


def test_three_levels_and_boxes_of_aircraft(tmp_path: Path) -> None:
    folder = make_layout("fgvcaircraft", tmp_path)
    with closing(open_source(folder)) as source, closing(open_source(folder.parent)) as above:
        (key, first), *_ = rows(source, "test")
        names = {column.name: column.classes for column in source.survey().columns if column.classes}
        assert [key for key, _ in rows(above)] == [f"data/{key}" for key, _ in rows(source)]
    assert key == f"images/{10 * 7919:07}.jpg"
    assert {name: classes[first[name]] for name, classes in names.items()} == {
        "label": "707-320", "family": "Boeing 707", "manufacturer": "Boeing"}  # fmt: skip
    assert first["boxes"] == [[1, 2, 13, 9]]


def test_defects_and_masks_of_visa(tmp_path: Path) -> None:
    folder = make_layout("visa", tmp_path)
    with closing(open_source(folder)) as source:
        found = {key[-8:-4]: values for key, values in rows(source)}
        names = {column.name: column.classes for column in source.survey().columns if column.classes}
        assert source.survey().splits == {"train": 6, "test": 6}
    assert names == {"label": ("anomaly", "normal"), "object": ("candle", "pcb1"), "defects": ("bent", "scratch")}
    assert (found["0001"]["label"], found["0001"]["defects"], found["0001"]["mask"]) == (1, [], None)
    assert (found["0002"]["label"], found["0002"]["defects"], found["0002"]["object"]) == (0, [0, 1], 0)
    assert found["0002"]["mask"] == (folder / "candle/Data/Masks/Anomaly/0002.png").read_bytes()


def test_textures_of_dtd(tmp_path: Path) -> None:
    with closing(open_source(make_layout("dtd", tmp_path))) as source:
        found = {key[-8:-4]: values for key, values in rows(source)}
    assert (found["0001"]["label"], found["0001"]["labels"]) == (0, [0, 1])
    assert (found["0000"]["label"], found["0000"]["labels"]) == (2, [2])


@pytest.mark.parametrize("kind", [kind for kind in FILE_KINDS if kind != "eurosat"])
def test_an_archive_holds_what_the_folder_does(kind: str, tmp_path: Path) -> None:
    folder = make_layout(kind, tmp_path / "set")
    way = ("zip", "tar", "gztar")[FILE_KINDS.index(kind) % 3]
    path = Path(shutil.make_archive(str(tmp_path / "packed"), way, folder.parent, folder.name))
    with closing(open_source(folder)) as one, closing(open_source(path)) as other:
        assert other.kind == kind
        assert rows(one) == rows(other)
        assert one.survey().splits == other.survey().splits


INCOMPLETE = [
    *((kind, name.partition("|")[0]) for kind in FILE_KINDS for name in SOURCES[kind].open.required),
]


@pytest.mark.parametrize(("kind", "name"), INCOMPLETE)
def test_what_lacks_something_is_a_question(kind: str, name: str, tmp_path: Path) -> None:
    folder = make_layout(kind, tmp_path)
    for each in (name, name.replace(".json", ".txt")):
        path = folder / each
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    caught = question(tmp_path, re.escape(name))
    title = re.escape(SOURCES[kind].help.removesuffix(" as published"))
    assert re.search(f"looks like {title} .*, without ", str(caught))
    refused(SourceError, folder, re.escape(name), kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_folder_named_so_that_is_another(kind: str, demo_folder: Path) -> None:
    refused(SourceError, demo_folder, r"is not .*, which has", kind=kind)
    refused(SourceError, Path(__file__), r"neither a store|one image", kind=kind)


BROKEN: dict[str, tuple[str, str | bytes, str]] = {
    "a class that is not there": ("cub200", "1 4\n", "image_class_labels.txt"),
    "no number": ("cub200", "1 one\n", "image_class_labels.txt"),
    "an image without a line": ("cub200", "99 1\n", "train_test_split.txt"),
    "neither 0 nor 1": ("cub200", "1 2\n", "train_test_split.txt"),
    "a box of words": ("cub200", "1 a b c d\n", "bounding_boxes.txt"),
    "a part beyond those": ("cub200", "1 9 1 1 1\n", "parts/part_locs.txt"),
    "an unknown wnid": ("tinyimagenet", "val_6.JPEG\tn09\t0\t0\t1\t1\n", "val/val_annotations.txt"),
    "no box": ("tinyimagenet", "", "train/n01/n01_boxes.txt"),
    "JSON that ends": ("food101", '{"a": ["a/1"', "meta/train.json"),
    "JSON nested too deeply": ("food101", "[" * 100_000, "meta/train.json"),
    "JSON of names that no file has": ("food101", '{"a": ["a/\\ud800"]}', "meta/train.json"),
    "JSON of something else": ("food101", '{"a": [1]}', "meta/train.json"),
    "a third species": ("oxfordpet", "Abyssinian_1 1 3 1\n", "annotations/trainval.txt"),
    "a class of pets that is far out": ("oxfordpet", "a_1 999999999999 1 1\n", "annotations/trainval.txt"),
    "a class without an initial": ("sun397", "abbey\n", "ClassName.txt"),
    "no path": ("dtd", "banded_0001.jpg\n", "labels/train1.txt"),
    "a texture that is none": ("dtd", "woven/0000.jpg velvet\n", "labels/labels_joint_anno.txt"),
    "not all of the classes": ("dtd", "woven/0006.jpg\n", "labels/train1.txt"),
    "no category": ("places365", "", "categories_places365.txt"),
    "categories that begin at 1": ("places365", "/a/a 1\n", "categories_places365.txt"),
    "a label that is too large": ("places365", "/a/a.jpg 3\n", "places365_train_standard.txt"),
    "three fields": ("places365", "/a/a.jpg 1 1\n", "places365_val.txt"),
    "a fourth part": ("celeba", "000001.jpg 3\n", "list_eval_partition.txt"),
    "an image without attributes": ("celeba", "1\nBald\n000009.jpg 1\n", "list_attr_celeba.txt"),
    "a table of another kind": ("gtsrb", "a;b\n", "GTSRB/Training/00000/GT-00000.csv"),
    "a sign that is none": ("gtsrb", "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\na;1;1;1;1;1;1;43\n",
                            "GT-final_test.csv"),
    "an aircraft of no variant": ("fgvcaircraft", "0000000 Zeppelin\n", "images_variant_train.txt"),
    "an aircraft without a box": ("fgvcaircraft", "x 1 2 3 4\n", "images_box.txt"),
    "a box of half an aircraft": ("fgvcaircraft", "0000000 1.5 2 3 4\n", "images_box.txt"),
    "a dog without a folder": ("stanforddogs", mat(file_list=np.array([["a.jpg"]], object)), "train_list.mat"),
    "dogs without names": ("stanforddogs", mat(file_list=np.arange(3)), "train_list.mat"),
    "dogs without a list": ("stanforddogs", mat(labels=np.arange(3)), "test_list.mat"),
    "a table of VisA with other columns": ("visa", "image,label\n", "split_csv/1cls.csv"),
    "a row that is short": ("visa", "object,split,label,image,mask\na,b\n", "split_csv/1cls.csv"),
    "a mask out of the source": ("visa", "object,split,label,image,mask\na,test,b,a.JPG,../m.png\n",
                                 "split_csv/1cls.csv"),
    "defects of another table": ("visa", "a\n", "candle/image_anno.csv"),
    "MAT of level 4": ("flowers102", b"MATLAB" + bytes(200), "setid.mat"),
    "a flower that is none": ("flowers102", mat(labels=np.arange(150)), "imagelabels.mat"),
    "no labels": ("flowers102", mat(label=np.arange(150)), "imagelabels.mat"),
    "images beyond the labels": ("flowers102", mat(trnid=[99], valid=[1], tstid=[2]), "setid.mat"),
    "half a label": ("flowers102", mat(labels=np.array([1.5])), "imagelabels.mat"),
    "no structs": ("stanfordcars", mat(annotations=np.arange(3)), "devkit/cars_train_annos.mat"),
    "a name that is a number": ("stanfordcars", mat(class_names=np.arange(3)), "devkit/cars_meta.mat"),
    "other structs": ("stanfordcars", mat(annotations=structs({"a": [1, 2]})), "devkit/cars_train_annos.mat"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_list_is_one_line(name: str, tmp_path: Path) -> None:
    kind, content, file = BROKEN[name]
    folder = make_layout(kind, tmp_path)
    fill(folder, {file: content})
    with pytest.raises(SourceError) as caught:
        read_all(folder)
    assert str(caught.value).isprintable()
    assert not isinstance(caught.value, SampleError)


def test_a_missing_image_is_a_bad_sample_and_others_are_counted(tmp_path: Path) -> None:
    folder = make_layout("food101", tmp_path / "set")
    (folder / "images/ceviche/1002.jpg").rename(folder / "images/ceviche/7.jpg")
    not_packed(SampleError, folder, tmp_path / "x.h5", r"images/ceviche/1002\.jpg")
    report = convert(folder, tmp_path / "x.h5", on_error="skip")
    assert [skipped.key for skipped in report.manifest.skipped] == ["images/ceviche/1002.jpg"]
    assert look(folder).ledger.passed_over["images that no list names"] == 1
    (folder / "images/ceviche/8.jpg").write_bytes(tiny(8))
    assert look(folder).ledger.passed_over["images that no list names"] == 2


@pytest.mark.parametrize(("kind", "left"), [("gtsrb", []), ("tinyimagenet", ["tiny-imagenet-200/words.txt"])])
def test_a_table_of_each_class_is_an_annotation(kind: str, left: list[str], tmp_path: Path) -> None:
    make_layout(kind, tmp_path)
    assert [*look(tmp_path).ledger.names(Role.LEFT)] == left


@pytest.mark.parametrize(("kind", "file", "line"), [
    ("cub200", "images.txt", "1 ../../../secret.jpg"), ("cub200", "images.txt", "1 a\0b.jpg"),
    ("sun397", "ClassName.txt", "/a/../.."), ("tinyimagenet", "wnids.txt", "../../.."),
])  # fmt: skip
def test_a_list_that_leads_out_of_the_source(kind: str, file: str, line: str, tmp_path: Path) -> None:
    folder = make_layout(kind, tmp_path)
    (folder / file).write_text(line)
    with pytest.raises(SourceError, match=r"expected paths within the source|expected a class such as"):
        read_all(folder)


def test_a_name_in_a_mat_file_that_leads_out_of_the_source(tmp_path: Path) -> None:
    folder = make_layout("stanfordcars", tmp_path)
    (tmp_path / "secret.jpg").write_bytes(tiny(1))
    one = {"bbox_x1": [1], "bbox_y1": [1], "bbox_x2": [2], "bbox_y2": [2], "class": [1], "fname": ["../../secret.jpg"]}
    (folder / "devkit/cars_train_annos.mat").write_bytes(mat(annotations=structs(one)))
    with closing(open_source(folder)) as source, pytest.raises(SampleError, match="not a path within the source"):
        source.read(next(source.entries("train")))


def test_mat_files_that_claim_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.sources.named.mat._MAX_BYTES", 1 << 20)
    good = mat(labels=np.arange(100))

    def uncompressed(**variables: Any) -> bytearray:
        from scipy.io import savemat

        out = io.BytesIO()
        savemat(out, variables)
        return bytearray(out.getvalue())

    large = uncompressed(a=np.arange(100))
    place = large.index(struct.pack("<ii", 1, 100))
    large[place : place + 8] = struct.pack("<ii", 1 << 30, 1 << 30)
    nested: Any = np.zeros(1)
    for _ in range(20):
        inner, nested = nested, np.empty((1, 1), object)
        nested[0, 0] = inner
    bomb = mat(a=np.zeros((1 << 10, 1 << 10), np.uint8))
    for data, said in (
        (good[:-3], "too early"), (bytes(large), "of the shape"), (bytes(uncompressed(a=nested)), "nested"),
        (bomb, "when inflated"), (b"", "header"), (b"MATLAB" * 50, "header"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=said):
            load_mat("x.mat", data)
    assert load_mat("x.mat", good)["labels"].ravel().tolist() == list(range(100))
