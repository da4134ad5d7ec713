"""YOLO: boxes, polygons and keypoints of its files of labels, wherever ``data.yaml`` says; and what can be wrong."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, ask_about_left, open_source
from tests.internals import SampleError, SourceError, layout
from tests.makers.annotated import coco, fill, jpeg, yolo
from tests.makers.images import encode, picture
from tests.makers.sources import FileSuite, look, prove, question, refused


class TestYolo(FileSuite):
    kind = "yolo"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return yolo(folder, samples)

    def change(self, path: Path) -> None:
        (path / "labels/train/00001.txt").write_text("0 .5 .5 .5 .5\n")

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / "labels/train/00002.txt").write_text("0 .5 .5 .5\n")
        return True


def test_what_is_kept(tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    prove(root, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("key", "boxes", "labels", "image"), output="bytes")
    assert [(split.name, len(split)) for split in ds.manifest.splits] == [("train", 4), ("val", 2)]
    assert next(column.classes for column in ds.manifest.columns if column.name == "labels") == ("cat", "dog")
    assert [column.name for column in ds.manifest.columns if column.name == "segments"] == []
    key, boxes, labels, image = ds[1]
    assert (key, bytes(image)) == ("images/train/00001.jpg", jpeg(1))
    assert boxes.tolist() == [[6, 2, 10, 6], [0, 0, 8, 8]]  # of 16 x 8 pixels
    assert labels.tolist() == [1, 0]
    assert [len(ds[n][1]) for n in range(4)] == [0, 2, 0, 0]


@pytest.mark.parametrize(
    ("yaml", "image"),
    [
        ("train: images/train", "images/train/{}"),
        ("train: ../train/images", "train/images/{}"),  # as Roboflow writes it
        ("path: /home/me/data/pets\ntrain: images/train", "images/train/{}"),
        ("train: ../pets-dataset/images/train", "images/train/{}"),
        ("train: /home/me/data/pets/images/train", "images/train/{}"),
        ("path: pets\ntrain: images/train", "pets/images/train/{}"),
        ("train: [images/train, more/images]", "more/images/{}"),
        ("train: .", "{}"),
        ("train: train", "train/{}"),  # labels beside the images
        ("train: train.txt", "images/train/{}"),
        ("train: lists/train.txt", "images/train/{}"),
    ],
)
def test_where_images_may_lie(yaml: str, image: str, tmp_path: Path) -> None:
    labels = image.replace("images/", "labels/").format("b.txt")
    files: dict[str, str | bytes] = {
        image.format("b.jpg"): jpeg(1),
        labels: "1 .5 .5 .5 .5",
        "images/train/a.jpg": jpeg(2),
    }
    if "more" not in yaml and image != "{}":
        del files["images/train/a.jpg"]
    files |= {"pets.yaml": f"{yaml}\nval:\nnames: [cat, dog]\n"}
    files |= {"train.txt": "./images/train/b.jpg\n", "lists/train.txt": "/home/x/images/train/b.jpg\n"}
    seen = look(fill(tmp_path, files))
    assert seen.kind == "yolo"
    assert seen.samples[image.format("b.jpg")]["labels"] == [1]


@pytest.mark.parametrize("train", ["/path/", "C:\\\\data\\\\a", "/content/x/training"])
def test_paths_of_another_machine(train: str, tmp_path: Path) -> None:
    """The folders that lie there count if no path of the description is there."""
    files: dict[str, str | bytes] = {"data.yaml": f"train : {train}\nval : {train}\nnc : 2\nnames : [cat, dog]\n"}
    for number, split in enumerate(("train", "valid")):
        image, labels = f"{split}/images/{number}.jpg", f"{split}/labels/{number}.txt"
        files |= {image: jpeg(number), labels: f"{number} .5 .5 .5 .5"}
    seen = look(fill(tmp_path, files))
    assert (seen.kind, dict(seen.splits)) == ("yolo", {"train": 1, "valid": 1})
    assert seen.each("labels") == [[0], [1]]


def test_polygons_are_kept_and_boxes_are_those_around_them(tmp_path: Path) -> None:
    """A mark of byte order before labels is passed over."""
    yolo(tmp_path)
    (tmp_path / "labels/train/00001.txt").write_text("\ufeff1 .5 .5 .25 .5\n0 0.25 0.5 0.5 0.125 1 0.75\r\n", "utf-8")
    first, second, *_ = look(tmp_path).values
    assert (second["boxes"], second["labels"]) == ([[6, 2, 10, 6], [4, 1, 16, 6]], [1, 0])
    assert second["segments"] == [None, [[0.25, 0.5, 0.5, 0.125, 1, 0.75]]]
    assert first["segments"] == []


def test_boxes_are_float32(tmp_path: Path) -> None:
    yolo(tmp_path / "set")
    (tmp_path / "set/labels/train/00001.txt").write_text("0 0.333333 0.1 0.2 0.3\n")
    convert(tmp_path / "set", tmp_path / "x.h5")
    (box,) = np.asarray(PackedDataset(tmp_path / "x.h5", "train", columns=("boxes", "key"))[1][0])
    assert np.array_equal(box, np.float32([(0.333333 - 0.1) * 16, -0.05 * 8, (0.333333 + 0.1) * 16, 0.25 * 8]))


def test_sides_are_those_of_the_upright_image(tmp_path: Path) -> None:
    yolo(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images/train/00001.jpg").write_bytes(encode(picture(width=16, height=8), "JPEG", exif=exif))
    assert look(tmp_path).values[1]["boxes"][0] == [3, 4, 5, 12]


def test_keypoints(tmp_path: Path) -> None:
    yolo(tmp_path)
    with (tmp_path / "data.yaml").open("a") as file:
        file.write("kpt_shape: [2, 3]\nflip_idx: [1, 0]\n")
    for name in ("train/00001", "val/00004"):
        (tmp_path / f"labels/{name}.txt").write_text("1 .5 .5 .25 .5 .5 .25 2 0 1 0\n")
    convert(tmp_path, tmp_path.with_name("x.h5"))
    ds = PackedDataset(tmp_path.with_name("x.h5"), "train", columns=("keypoints", "boxes"))
    assert ds[1][0].tolist() == [[[8, 2, 2], [0, 8, 0]]]
    assert ds[0][0].shape == (0, 2, 3)
    (tmp_path / "labels/train/00001.txt").write_text("1 .5 .5 .25 .5\n")
    with pytest.raises(SampleError, match="expected a box of 4, or 2 keypoints of 3"):
        look(tmp_path).read(1)


@pytest.mark.parametrize("layout", ["images/{split}/{name}", "{split}/images/{name}", "images/{name}"])
def test_without_a_description(layout: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"classes.txt": "cat\ndog\n"}
    for split in ("val", "train"):
        image = layout.format(split=split, name=f"{split}.jpg")
        files |= {image: jpeg(1), image.replace("images", "labels").replace("jpg", "txt"): "1 .5 .5 .5 .5\n"}
    survey = look(fill(tmp_path, files))
    assert list(survey.splits) == (["train", "val"] if "split" in layout else [""])
    assert next(column.classes for column in survey.columns if column.name == "labels") == ("cat", "dog")
    assert survey.evidence.startswith("classes.txt; images in ")


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    yolo(tmp_path)
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/train\ntest: images/none\nnames: [a, b]\n")
    fill(tmp_path, {"labels/train/none.txt": "", "labels/train/classes.txt": "", "images/train/notes.md": ""})
    survey = look(tmp_path)
    assert dict(survey.splits) == {"train": 4}
    assert dict(survey.ledger.passed_over) == {
        "images that no list names": 2,
        "not images (.txt)": 4,
        "not images (.md)": 1,
    }
    assert survey.notes == (
        "the split val of data.yaml is left out: it has the images of another",
        "the split test of data.yaml is left out: its images/none is missing",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "0 .5 .5 .5",
            r"its labels/train/00001\.txt: line 2: 3 numbers after the class; expected a box of 4, or a polygon",
        ),
        ("0 .5 .5 .5 .5 .5", "5 numbers after the class"),
        ("0 1 2 3 4 5 6 7", "7 numbers"),
        ("0 320 200 40 40", "found 320.0; expected fractions of the image's sides"),
        ("0 .5 .5 .5 -3", "expected fractions"),
        ("0 .5 .5 .5 nan", "not a coordinate"),
        ("-1 .5 .5 .5 .5", "the class is -1"),
        ("1.5 .5 .5 .5 .5", "the class is 1.5"),
        ("1e200 .5 .5 .5 .5", "the class is 1e"),
        ("cat .5 .5 .5 .5", "found 'cat', which is not a number"),
        ("0 .5 .5 .5 \udcff", "line 2"),
    ],
)
def test_a_bad_line_is_a_bad_sample(line: str, said: str, tmp_path: Path) -> None:
    yolo(tmp_path)
    (tmp_path / "labels/train/00001.txt").write_bytes(f"0 .5 .5 .5 .5\n{line}\n".encode("utf-8", "surrogateescape"))
    with closing(open_source(tmp_path)) as source:
        with pytest.raises(SampleError, match=said) as caught:
            source.read(list(source.entries())[1])
        assert caught.value.key == "images/train/00001.jpg"
        assert "labels/train/00001.txt" in caught.value.reason
        assert str(caught.value).isprintable()


def test_a_class_that_has_no_name_is_a_bad_sample(tmp_path: Path) -> None:
    yolo(tmp_path / "set")
    (tmp_path / "set/labels/train/00001.txt").write_text("2 .5 .5 .5 .5\n")
    with pytest.raises(SampleError, match=r"its labels/train/00001\.txt: .* 2 classes, numbered from 0; got 2"):
        convert(tmp_path / "set", tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("train: images/train\nnames: {0: a, 2: b}", "names by number from 0 without gaps"),
        ("train: images/train\nnames: {a: 0}", "names by number from 0 without gaps"),
        ("train: images/train\nnames: {0: a, '0': b}", "has the key '0' twice"),
        ("train: images/train\nnames: {0: a, 00: b}", "names by number from 0 without gaps"),
        ("train: images/train\nnames: [a, '']", "a list of names, or names by number"),
        ("train: images/train\nnames:\n- a\n-", "a list of names, or names by number"),
        ("train: images/train\nnames: a", "a list of names, or names by number"),
        ("train: images/train\nnames: [[a]]", "a list of names"),
        ("train: images/train\nnc: 3\nnames: [a, b]", "nc is 3; expected 2"),
        ("train: images/train\nnames: [a, b]\nkpt_shape: [17]", "kpt_shape is .'17'.; expected"),
        ("train: images/train\nnames: [a, b]\nkpt_shape: [2, 2.0]", "kpt_shape is .'2', '2.0'.; expected"),
        ("train: images/train\nnames: [a, b]\nkpt_shape: [999999999, 3]", "at most 256 points"),
        ("train: nowhere\nnames: [a, b]", "its images are missing: .*its nowhere is missing"),
        ("train: 5\nnames: [a, b]", "its images are missing"),
        ("train: images/train\nval: images\nnames: [a, b]", r"0000\d\.jpg is in train and again in val"),
        ("train: &a images/train\nval: *a\nnames: [a, b]", "has an alias"),
        ("train: [\nnames: [a, b]", "is not YAML"),
        ("train: ../../../../etc\nnames: [a, b]", "its images are missing"),
        ("train: list.txt\nnames: [a, b]", r"list\.txt, line 1 names '\.\./\.\./x\.jpg', which is not a path"),
    ],
)
def test_descriptions_that_cannot_be(yaml: str, said: str, tmp_path: Path) -> None:
    yolo(tmp_path)
    fill(tmp_path, {"data.yaml": yaml, "list.txt": "../../x.jpg\n"})
    refused(SourceError, tmp_path, said)


@pytest.mark.parametrize(
    "form",
    [
        "names: [no, 007, null, 12:30]",
        "names:\n- no # of Norway\n- 007\n- null\n- 12:30\nnc: 4",
        "nc: 4\nnames: {0: no, 1: 007, 2: null, 3: 12:30}",
        "names:\n  '0': no\n  '3': '12:30'\n  '2': \"null\"\n  1: 007",
        "names:\n  00: no\n  01: 007\n  02: null\n  03: 12:30",
        "names: [crane, crane, 3]",
    ],
)
@pytest.mark.parametrize("described", ["train: images/train\nval: ~\ntest:", "path: null"])
def test_names_of_classes_are_texts_as_written(form: str, described: str, tmp_path: Path) -> None:
    yolo(tmp_path)
    (tmp_path / "data.yaml").write_text(f"{described}\n{form}\n")
    several = ("crane (0)", "crane (1)", "3")  # have one name
    assert look(tmp_path).classes["labels"] == (several if "crane" in form else ("no", "007", "null", "12:30"))


@pytest.mark.slow
def test_two_descriptions_and_annotations_of_coco_beside_are_questions(tmp_path: Path) -> None:
    yolo(tmp_path)
    shutil.copy(tmp_path / "data.yaml", tmp_path / "more.yaml")
    question(tmp_path, r"data\.yaml and more\.yaml")
    (tmp_path / "more.yaml").unlink()
    coco(tmp_path)
    question(tmp_path, "could be COCO or YOLO")
    for kind in ("coco", "yolo"):
        assert look(tmp_path, kind=kind).kind == kind


def test_folders_of_text_beside_images_are_not_taken_for_labels(tmp_path: Path) -> None:
    """Captions under the stems of images are no labels."""
    fill(tmp_path, {f"images/{n}.jpg": jpeg(n) for n in range(3)} | {f"labels/{n}.txt": "a cat" for n in range(3)})
    seen = look(tmp_path)
    assert (seen.kind, seen.each("labels")) == ("companions", ["a cat"] * 3)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("archive", [False, True])
def test_labels_in_folders_called_as_those_of_images(described: bool, archive: bool, tmp_path: Path) -> None:
    places = [(split, n) for split, count in (("train", 4), ("val", 2)) for n in range(count)]
    files: dict[str, str | bytes] = {f"{split}/{split}{n}.jpg": jpeg(n) for split, n in places}
    files |= {f"labels/{split}/{split}{n}.txt": f"{n} 0.5 0.5 0.25 0.5\n" for split, n in places}
    names = "names: [a, b, c, d]\n"
    path = fill(tmp_path / "set", files | ({"data.yaml": f"train: train\nval: val\n{names}"} if described else {}))
    if archive:
        path = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", path))
    seen = look(path)
    assert (seen.kind, seen.splits, seen.ledger.left) == ("yolo", {"train": 4, "val": 2}, {})
    assert [seen.samples[entry.key]["labels"] for entry in seen.of("val")] == [[0], [1]]


@pytest.mark.parametrize(("folder", "classes"), [("", "classes.txt"), ("train/", "train/_darknet.labels")])
def test_labels_beside_images_with_a_file_of_classes(folder: str, classes: str, tmp_path: Path) -> None:
    """As LabelImg leaves them, and as Roboflow exports them for Darknet."""
    files: dict[str, str | bytes] = {classes: "cat\ndog\n", "README.txt": "by hand"}
    for n in range(4):
        files |= {f"{folder}{n}.jpg": jpeg(n), f"{folder}{n}.txt": f"{n % 2} 0.5 0.5 0.25 0.5\n" if n else ""}
    survey = look(fill(tmp_path, files))
    assert (survey.kind, dict(survey.splits)) == ("yolo", {folder.rstrip("/"): 4})
    assert next(column.classes for column in survey.columns if column.name == "labels") == ("cat", "dog")
    labels = survey.each("labels")
    assert labels == [[], [1], [0], [1]]


def test_more_names_of_classes_than_are_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MAX_CLASSES", 2)
    files: dict[str, str | bytes] = {"classes.txt": "cat\ndog\ncow\n", "0.jpg": jpeg(0), "0.txt": "1 0.5 0.5 0.2 0.5\n"}
    refused(SourceError, fill(tmp_path, files), r"classes\.txt has more than 2 names of classes")


@pytest.mark.parametrize("numbers", [2, 3])
def test_keypoints_without_a_shape_in_a_file(numbers: int, tmp_path: Path) -> None:
    """Each line is a box and three points in it, so they are no polygons of five corners."""
    points = [(0.40, 0.30), (0.60, 0.35), (0.50, 0.42)]
    line = " ".join(f"{x} {y}" + " 2" * (numbers == 3) for x, y in points)
    for split, count in (("train", 4), ("val", 2)):
        for n in range(count):
            fill(tmp_path / "set", {f"images/{split}/{split}{n}.jpg": jpeg(n)})
            fill(tmp_path / "set", {f"labels/{split}/{split}{n}.txt": f"0 0.48 0.36 0.30 0.20 {line}\n"})
    survey = look(tmp_path / "set")
    assert f"no file has kpt_shape; by the lines, each box has 3 keypoints of {numbers} numbers" in survey.notes
    values = survey.values[0]
    assert "segments" not in values
    expected = [[x * 16, y * 8, *[2] * (numbers - 2)] for x, y in points]
    np.testing.assert_allclose(np.asarray(values["keypoints"]).reshape(3, numbers), expected, rtol=1e-6)
    convert(tmp_path / "set", tmp_path / "x.lmdb")


@pytest.mark.parametrize("count", [1, 3])
def test_a_labelled_split_that_no_file_lists(count: int, tmp_path: Path) -> None:
    for split, images in (("train", 6), ("val", 3), ("test", count), ("extra", 2)):
        for n in range(images):
            fill(tmp_path, {f"images/{split}/{split}{n}.jpg": jpeg(n)})
            if split != "extra":
                fill(tmp_path, {f"labels/{split}/{split}{n}.txt": "0 0.5 0.5 0.3 0.3\n"})
    fill(tmp_path, {"data.yaml": "train: /content/x/images/train\nval: /content/x/images/val\nnames: ['cell']\n"})
    shutil.rmtree(tmp_path / "images/extra")
    with closing(open_source(tmp_path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert dict(survey.splits) == {"train": 6, "val": 3, "test": count}
        assert "data.yaml does not list images/test, which has labels: it is the split test" in survey.notes


@pytest.mark.parametrize("form", ["images/{}", "{}/images"])
def test_labelled_folders_beside_listed_ones_are_splits(form: str, tmp_path: Path) -> None:
    counts = {"train": 4, "val": 2, "extra": 2, "bonus": 3}
    for split, images in {**counts, "unlabelled": 1}.items():
        for n in range(images):
            place = form.format(split)
            fill(tmp_path, {f"{place}/{split}{n}.jpg": jpeg(n)})
            if split in counts:
                fill(tmp_path, {f"{place.replace('images', 'labels')}/{split}{n}.txt": "0 0.5 0.5 0.3 0.3\n"})
    yaml = f"train: {form.format('train')}\nval: {form.format('val')}\nnames: ['cell']\n"
    fill(tmp_path, {"data.yaml": yaml})
    survey = look(tmp_path)
    assert dict(survey.splits) == counts
    assert survey.notes[0].startswith(f"data.yaml does not list {form.format('bonus')}, which has labels")


def darknet(root: Path, top: str, said: str) -> Path:
    """Darknet's layout below ``top``; its files name paths below ``said``. A fourth image is in no list."""
    files: dict[str, str | bytes] = {f"{top}obj/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"{top}obj/{n}.txt": f"{n % 2} 0.5 0.5 0.25 0.5\n" for n in range(4)}
    files[f"{top}obj.names"] = "cat\ndog\n"
    files[f"{top}train.txt"] = f"{said}obj/0.jpg\n{said}obj/2.jpg\n"
    files[f"{top}valid.txt"] = f"{said}obj/1.jpg\n"
    lines = (f"train = {said}train.txt", f"valid={said}valid.txt", f"names = {said}obj.names", "backup = backup/")
    files[f"{top}obj.data"] = "\n".join(("# it", "classes= 2", *lines))
    return fill(root, files)


@pytest.mark.parametrize(
    ("top", "said"), [("data/", "data/"), ("", "data/"), ("", ""), ("data/", "/home/me/darknet/data/")]
)
def test_darknet(top: str, said: str, tmp_path: Path) -> None:
    survey = look(darknet(tmp_path, top, said))
    assert (survey.kind, dict(survey.splits)) == ("yolo", {"train": 2, "valid": 1})
    assert next(column.classes for column in survey.columns if column.name == "labels") == ("cat", "dog")
    assert dict(survey.ledger.passed_over) == {
        "images that no list names": 1,
        "not images (.txt)": 1,
    }
    assert survey.keys == [f"{top}obj/{n}.jpg" for n in (0, 2, 1)]
    values = survey.values
    assert [list(value["labels"]) for value in values] == [[0], [0], [1]]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "obj.data",
            "classes = 3\ntrain = train.txt\nnames = obj.names",
            r"obj\.data: nc is 3; expected 2, the number of names",
        ),
        ("obj.data", "train = train.txt\nnames = other.names", "its file of names is missing: other.names"),
        ("obj.data", "train = other.txt\nnames = obj.names", "its images are missing: .*other.txt is missing"),
        ("train.txt", "../x.jpg", r"'\.\./x\.jpg', which is not a path within the source"),
        ("train.txt", "/etc/../../x.jpg", "is not a path within the source"),
        ("valid.txt", "obj/0.jpg", "obj/0.jpg is in train and again in valid"),
    ],
)
def test_darknet_that_cannot_be(name: str, text: str, said: str, tmp_path: Path) -> None:
    (darknet(tmp_path, "", "") / name).write_text(text)
    refused(SourceError, tmp_path, said)


@pytest.mark.parametrize("folder", ["images/{}", "{}_images", "{}"])
@pytest.mark.parametrize("described", [True, False])
def test_one_folder_of_labels_for_the_folders_of_splits(folder: str, described: bool, tmp_path: Path) -> None:
    names = [f"{folder.format(split)}/{n}.jpg" for split, numbers in (("train", "ab"), ("val", "c")) for n in numbers]
    files: dict[str, str | bytes] = {name: jpeg(n) for n, name in enumerate(names)}
    files |= {f"labels/{name}.txt": f"{n} 0.5 0.5 0.5 0.5\n" for n, name in enumerate("abc")}
    if described:
        train, val = folder.format("train"), folder.format("val")
        files["data.yaml"] = f"train: {train}\nval: {val}\nnames: [cat, dog, fox]\n"
    root = fill(tmp_path / "set", files)
    manifest = convert(root, tmp_path / "x.lmdb").manifest
    assert {split.name: split.stop - split.start for split in manifest.splits} == {"train": 2, "val": 1}
    for split, labels in (("train", [[0], [1]]), ("val", [[2]])):
        ds = PackedDataset(tmp_path / "x.lmdb", split, columns=("key", "labels"))
        assert [each[1].tolist() for each in ds] == labels
    assert verify(tmp_path / "x.lmdb", against=root).problems == ()


def test_folders_whose_names_begin_as_images_and_labels(tmp_path: Path) -> None:
    files = {f"images_{part}/{part}{n}.jpg": jpeg(n) for part in ("1st_500", "2nd_500") for n in range(3)}
    labels = {
        f"labels_{part}/{part}{n}.txt": f"{n} 0.5 0.5 0.2 0.3\n" for part in ("1st_500", "2nd_500") for n in range(3)
    }
    seen = look(fill(tmp_path, files | labels))
    assert (seen.kind, seen.splits, seen.ledger.left) == ("yolo", {"": 6}, {})
    assert [*seen.classes] == ["boxes", "labels"]
