"""Images with masks by name, in the layouts in which they are published."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from packstore import PackedDataset, SourceError
from packstore.sources import Entry, ask_about_left, open_source
from tests.internals import FolderTree, PackstoreError, Role, SampleError, find_file
from tests.makers.annotated import fill, jpeg, mask
from tests.makers.images import encode, picture
from tests.makers.sources import FileSuite, look, prove, question, refused


def folders(root: Path, samples: int = 6) -> Path:
    """images/train, images/val and masks of the same names; one of three images has none."""
    files: dict[str, str | bytes] = {}
    for n in range(samples):
        split = "train" if n < samples - 2 else "val"
        files[f"images/{split}/{n:05}.jpg"] = jpeg(n)
        if n % 30 != 5:
            files[f"masks/{split}/{n:05}.png"] = mask(n)
    return fill(root, files)


class TestSegmentation(FileSuite):
    kind = "companions"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return folders(folder, samples)

    def change(self, path: Path) -> None:
        (path / "masks/train/00001.png").write_bytes(mask(7))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / "masks/train/00002.png").write_bytes(mask(2)[:40])
        return True


def test_what_is_kept(tmp_path: Path) -> None:
    root = folders(tmp_path / "set", 8)
    (root / "masks/train/extra.png").write_bytes(mask(9))
    report = prove(root, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", "train", columns=("key", "mask", "image"), output="bytes")
    assert [(split.name, len(split)) for split in ds.manifest.splits] == [("train", 6), ("val", 2)]
    assert [tuple(ds[n]) for n in (0, 4)] == [(f"images/train/{n:05}.jpg", mask(n), jpeg(n)) for n in (0, 4)]
    assert ds[5][1] is None
    assert report.manifest.columns[1].name == "mask"
    seen = look(root)
    assert dict(seen.ledger.passed_over) == {"images that belong to no image": 1}
    assert seen.evidence == "mask: images/{s}.*=masks/{s}.*"


@pytest.mark.parametrize("place", ["{}/{}/{}", "train/{}/{}/{}"])
def test_folders_in_those_of_images_are_classes(place: str, tmp_path: Path) -> None:
    numbered = [(name, n) for name in ("c0", "c1", "c2") for n in range(3)]
    files: dict[str, str | bytes] = {f"{place.format('images', *each)}.jpg": jpeg(each[1]) for each in numbered}
    files |= {f"{place.format('masks', *each)}.png": mask(each[1]) for each in numbered}
    seen = look(fill(tmp_path, files))
    assert seen.kind == "companions"
    assert seen.classes["label"] == ("c0", "c1", "c2")
    values = seen.values
    assert [(each["label"], each["mask"]) for each in values] == [(int(name[1]), mask(n)) for name, n in numbered]


def test_cityscapes(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for split in ("val", "train"):
        base = f"{split}/bonn/bonn_000001"
        files |= {f"leftImg8bit/{base}_leftImg8bit.png": mask(3, mode="RGB")}
        files |= {
            f"gtFine/{base}_gtFine_{name}.png": mask(n, mode="L") for n, name in enumerate(("labelIds", "instanceIds"))
        }
        files |= {f"gtFine/{base}_gtFine_color.png": mask(8, mode="RGBA")}
        files |= {f"gtFine/{base}_gtFine_polygons.json": json.dumps({"imgHeight": 8, "objects": [{"label": "sky"}]})}
    survey = look(fill(tmp_path, files))
    assert dict(survey.splits) == {"train": 1, "val": 1}
    names = [column.name for column in survey.columns if not column.name.endswith("_valid")]
    assert names == ["mask", "instance_mask", "polygons"]
    assert dict(survey.ledger.passed_over) == {"images whose names do not follow the set's pattern": 2}
    values = survey.values[0]
    assert values == {
        "mask": files["gtFine/train/bonn/bonn_000001_gtFine_labelIds.png"],
        "instance_mask": files["gtFine/train/bonn/bonn_000001_gtFine_instanceIds.png"],
        "polygons": {"imgHeight": 8, "objects": [{"label": "sky"}]},
    }


@pytest.mark.slow
@pytest.mark.parametrize("place", ["gtFine/train/bonn", "gtFine/train"])
def test_files_beside_polygons(place: str, tmp_path: Path) -> None:
    """Files for each image in the folders of polygons are these; a list that names the images is a question."""
    bases = [f"train/bonn/bonn_{n:06}_000019" for n in range(3)]
    files: dict[str, str | bytes] = {f"leftImg8bit/{base}_leftImg8bit.png": mask(3, mode="RGB") for base in bases}
    files |= {f"gtFine/{base}_gtFine_labelIds.png": mask(3, mode="L") for base in bases}
    files |= {f"gtFine/{base}_gtFine_polygons.json": "{}" for base in bases}
    files |= {f"{place}/{base.rpartition('/')[2]}_leftImg8bit.json": "{}" for base in bases}
    assert look(fill(tmp_path, files)).kind == "published"
    names = "".join(f"{base.rpartition('/')[2]}_leftImg8bit\n" for base in bases)
    (tmp_path / place / "list.txt").write_text(names)
    question(tmp_path, r"list\.txt")


def test_ade20k(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"objectInfo150.txt": "Idx\tRatio\tName\n1\t0.1\twall\n"}
    scenes = ""
    for n in range(4):
        split, short = ("training", "train") if n < 3 else ("validation", "val")
        name = f"ADE_{short}_{n:08}"
        files |= {f"images/{split}/{name}.jpg": jpeg(n), f"annotations/{split}/{name}.png": mask(n, mode="L")}
        scenes += f"{name} {'attic' if n else 'dining room'}\n"
    root = fill(tmp_path / "ADEChallengeData2016", {**files, "sceneCategories.txt": scenes})
    seen = look(root)
    assert dict(seen.splits) == {"training": 3, "validation": 1}
    assert seen.each("scene") == ["dining room", *["attic"] * 3]


def test_a_mask_that_is_none_is_a_bad_sample(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "masks/train/00002.png").write_bytes(mask(2, mode="RGB"))
    with pytest.raises(SampleError, match=r"mask: its masks.train.00002\.png: found a PNG in"):
        look(tmp_path).read(2)


CLASSES = [f"{label}/{n}" for label in ("benign", "normal") for n in range(3)]


@pytest.mark.parametrize(
    "names",
    [
        [f"{name}{tail}.png" for name in CLASSES for tail in ("", "_mask")],
        [f"{name}/{n}.png" for name in ("images", "masks", "labels") for n in range(3)],
        [*(f"images/{n}.png" for n in range(9)), *(f"masks/{n}.png" for n in range(4))],
        [f"{name}/{n}.png" for name in ("train_images", "val_images", "masks") for n in range(3)],
    ],
    ids=["classes", "two folders of masks", "few masks", "masks for two splits"],
)
def test_what_could_be_something_else_is_a_question(names: list[str], tmp_path: Path) -> None:
    question(fill(tmp_path, dict.fromkeys(names, b"")), r"holds|would be packed without|seem to belong")


@pytest.mark.slow
def test_lists_beside_masks_are_a_question(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "val.txt").write_text("".join(f"{n:05}\n" for n in range(4)))
    question(tmp_path, "it names the images")
    assert look(tmp_path, kind="companions").records == 6


def test_folders_beside_are_a_question_and_said(tmp_path: Path) -> None:
    folders(tmp_path)
    fill(tmp_path, {"depth/00001.png": mask(1)})
    question(tmp_path, "--masks")
    assert look(tmp_path, masks=["images/{s}.*=masks/{s}.*"]).ledger.left == {}


def test_a_split_without_masks(tmp_path: Path) -> None:
    folders(tmp_path)
    fill(tmp_path, {"images/test/9.jpg": jpeg(9)})
    with closing(open_source(tmp_path)) as source:
        assert list(source.survey().splits) == ["train", "val", "test"]
        assert source.read(next(source.entries("test"))).values == {"mask": None}


def test_polygons_nested_too_deeply(tmp_path: Path) -> None:
    base = "train/bonn/bonn_1"
    files = {f"leftImg8bit/{base}_leftImg8bit.png": mask(3), f"gtFine/{base}_gtFine_labelIds.png": mask(1)}
    fill(tmp_path, {**files, f"gtFine/{base}_gtFine_polygons.json": "[" * 100_000})
    with pytest.raises(PackstoreError, match="nested too deeply"):
        look(tmp_path).read(0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("classes.txt", "not images (.txt)"),
        ("masks/class_names.csv", "not images (.csv)"),
        ("label_colors.txt", "not images (.txt)"),
        ("notes.txt", "not images (.txt)"),
        ("masks/notes.txt", "not images (.txt)"),
    ],
)
def test_files_beside_masks_are_said(name: str, said: str, tmp_path: Path) -> None:
    """Values of masks have no names in a store, since one of them often stands for none."""
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(3)}
    files |= {f"masks/{n}.png": mask(n) for n in range(3)} | {name: "background\ncat\n"}
    seen = look(fill(tmp_path, files))
    assert (seen.kind, dict(seen.ledger.passed_over)) == ("companions", {said: 1})


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize(
    ("image", "masked", "test", "splits"),
    [
        ("images_prepped_train/{}.png", "annotations_prepped_train/{}.png", "images_prepped_test/{}.png", 2),
        ("train_images/{}.jpg", "train_masks/{}_mask.png", "test_images/{}.jpg", 2),
        ("Training_Images/{}.jpg", "Ground_Truth/{}.png", None, 1),
        ("cells/raw_images/{}.jpg", "cells/LabelPNG/{}.png", None, None),
    ],
)
def test_folders_whose_names_say_images_masks_and_splits(
    image: str, masked: str, test: str | None, splits: int | None, size: int, tmp_path: Path
) -> None:
    files = {image.format(n): jpeg(n) for n in range(size)} | {masked.format(n): mask(n) for n in range(size)}
    files |= {} if test is None else {test.format(f"t{n}"): jpeg(n) for n in range(size)}
    root = fill(tmp_path, files)
    survey = look(root if splits else root / "cells")
    assert (survey.kind, survey.records) == ("companions", size * (splits or 1))
    assert survey.ledger.count(Role.PACKED) == len(files)


@pytest.mark.slow
@pytest.mark.parametrize("size", [30, 300])
def test_a_question_names_folders_and_predictions_beside_the_pairs(size: int, tmp_path: Path) -> None:
    photos = [encode(picture("RGB", 16, 8, n % 30), "PNG") for n in range(size)]
    files = {f"train/{kind}/{n}.png": photos[n - (kind == "aug")] for kind in ("image", "aug") for n in range(size)}
    files |= {f"train/label/{n}.png": mask(n) for n in range(size)}
    files |= {f"test/{n}{end}.png": each for n in range(size) for end, each in (("", photos[n]), ("_predict", mask(n)))}
    caught = question(fill(tmp_path, files), r"test/.*_predict\.png goes with.*label/")
    assert all("--masks" in answer.options for answer in caught.answers[:1])


def test_other_images_beside_pairs_are_a_question(tmp_path: Path) -> None:
    files = {f"{n}.jpg": jpeg(n) for n in range(5)} | {f"{n}_mask.png": mask(n) for n in range(5)}
    files |= {f"{n}_depth.png": encode(picture("L", 16, 8, n), "PNG") for n in range(5)}
    question(fill(tmp_path, files), r"--masks \{s\}_mask.png")
    assert look(tmp_path, ignore=["*_depth.png"]).found == ("companions", 5)


COLOURS = [(64, 128, 64), (0, 0, 0), (192, 0, 128)]
PALETTES: dict[str, str] = {
    "label_colors.txt": "64 128 64\tAnimal\n0 0 0 Void\n192,0,128 Archway\n",
    "class_dict.csv": "name, r, g, b\nAnimal, 64, 128, 64\nVoid, 0, 0, 0\nArchway, 192, 0, 128\n",
    "masks/labelmap.txt": "# label:color_rgb:parts:actions\nAnimal:64,128,64::\nVoid:0,0,0::\nArchway:192,0,128::\n",
    "classes.json": json.dumps({"classes": [
        {"title": "Animal", "color": "#408040"}, {"title": "Void", "color": [0, 0, 0]},
        {"name": "Archway", "color": "#C00080"}]}),
}  # fmt: skip


def coloured(number: int, colours: Any = COLOURS) -> tuple[bytes, Any]:
    """A mask in colour, and the class numbers that it means."""
    values = (np.arange(number, number + 128) % len(colours)).astype(np.uint8).reshape(8, 16)
    return encode(PIL.Image.fromarray(np.array(colours, np.uint8)[values]), "PNG"), values


def in_colour(root: Path, palette: str, samples: int = 6) -> Path:
    files: dict[str, str | bytes] = {f"images/{split}/{n}.jpg": jpeg(n) for split in ("train", "val")
                                     for n in range(samples)}  # fmt: skip
    files |= {f"masks/{split}/{n}.png": coloured(n)[0] for split in ("train", "val") for n in range(samples)}
    return fill(root, files | {palette: PALETTES[palette]})


@pytest.mark.slow
@pytest.mark.parametrize("palette", PALETTES)
def test_colours_become_classes_by_a_palette(palette: str, tmp_path: Path) -> None:
    root = in_colour(tmp_path / "set", palette)
    with closing(open_source(root)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.ledger.count(Role.LEFT)) == ("companions", 0)
        labels = next(column for column in survey.columns if column.name == "mask_labels")
        assert labels.classes == ("Animal", "Void", "Archway")
        for n, entry in enumerate(source.entries("val")):
            values = source.read(entry).values
            assert np.array_equal(values["mask"], coloured(n)[1])
            assert values["mask_labels"] == [0, 1, 2]
    prove(root, tmp_path / "x.h5", decode=True)
    assert np.array_equal(PackedDataset(tmp_path / "x.h5", "train", columns=("mask",))[2], coloured(2)[1])


def test_a_colour_that_the_palette_does_not_name_is_a_bad_sample(tmp_path: Path) -> None:
    root = in_colour(tmp_path, "class_dict.csv")
    odd = [*COLOURS[:2], (192, 0, 129)]
    (root / "masks/val/3.png").write_bytes(coloured(0, odd)[0])
    with closing(open_source(root)) as source:
        entry = list(source.entries("val"))[3]
        said = r"colour \(192, 0, 129\) at 2, 0, which class_dict.csv does not name.*--ignore 'class_dict.csv'"
        with pytest.raises(SampleError, match=said):
            source.read(entry)
    with closing(open_source(root, ignore=["class_dict.csv"])) as source:
        assert source.read(next(source.entries("val"))).values["mask"] == coloured(0)[0]


def test_masks_of_roboflow_have_names_by_value(tmp_path: Path) -> None:
    """Masks of one channel stay files; each split has the list."""
    gray = {n: encode(PIL.Image.fromarray((coloured(n)[1] // 2 * (n > 0)).astype(np.uint8)), "PNG") for n in range(4)}
    files: dict[str, str | bytes] = {}
    for split in ("train", "valid"):
        files |= {f"{split}/{n}.jpg": jpeg(n) for n in gray} | {f"{split}/{n}_mask.png": gray[n] for n in gray}
        files[f"{split}/_classes.csv"] = "Pixel Value, Class\n0, background\n1, cat\n"
    root = fill(tmp_path, files)
    with closing(open_source(root)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert survey.ledger.count(Role.LEFT) == 0
        labels = next(column for column in survey.columns if column.name == "mask_labels")
        assert labels.classes == ("background", "cat")
        found = [source.read(entry).values for entry in source.entries("valid")]
    assert [values["mask"] for values in found] == [*gray.values()]
    assert [values["mask_labels"] for values in found] == [[0], [0, 1], [0, 1], [0, 1]]
    (root / "valid/_classes.csv").write_text("Pixel Value, Class\n0, background\n1, dog\n")
    question(root, "define different classes of masks")


@pytest.mark.parametrize(
    "text",
    ["", "name,r,g,b\n", "name,r,g,b\ncat,1\n", "name,r,g,b\ncat,1,2,x\n", "r,g,b\n1,2,3\n", "a,b\n1,2\n",
     "name,r,g,b\ncat,1,2,256\n", "name,r,g,b\ncat,1,2,-1\n", "Pixel Value,Class\n0,a\n2,b\n", "\"", "\0"],
)  # fmt: skip
def test_what_is_no_palette_leaves_masks_as_they_are(text: str, tmp_path: Path) -> None:
    root = in_colour(tmp_path, "class_dict.csv")
    (root / "class_dict.csv").write_text(text)
    assert look(root, kind="companions").values[0]["mask"] == coloured(0)[0]


def test_two_classes_of_one_colour_are_an_error(tmp_path: Path) -> None:
    root = in_colour(tmp_path, "class_dict.csv")
    (root / "class_dict.csv").write_text("name,r,g,b\ncat,1,2,3\ndog,1,2,3\n")
    refused(SourceError, root, "two classes of one colour")


def test_masks_of_cvat_in_the_folders_of_pascal_voc(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"JPEGImages/{n}.jpg": jpeg(n) for n in range(4)}
    files |= {f"SegmentationClass/{n}.png": coloured(n)[0] for n in range(3)}
    files |= {f"SegmentationObject/{n}.png": coloured(n)[0] for n in range(3)}
    files |= {"ImageSets/Segmentation/default.txt": "0\n1\n2\n3\n", "labelmap.txt": PALETTES["masks/labelmap.txt"]}
    with closing(open_source(fill(tmp_path, files))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.ledger.count(Role.LEFT)) == ("voc", 0)
        found = [source.read(entry).values for entry in source.entries()]
    assert np.array_equal(found[1]["mask"], coloured(1)[1])
    assert found[1]["object_mask"] == coloured(1)[0]
    assert found[3]["mask"] is found[3]["mask_labels"] is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 300])
def test_masks_of_several_suffixes(size: int, tmp_path: Path) -> None:
    suffixes = ("png", "bmp", "jpg")
    halves = PIL.Image.fromarray(np.repeat([[0] * 9 + [255] * 7], 8, axis=0).astype(np.uint8))
    files = {f"images/{n}.jpg": jpeg(n) for n in range(size)}
    files |= {f"masks/{n}.{suffixes[n % 3]}": encode(halves, ("PNG", "BMP", "JPEG")[n % 3]) for n in range(size)}
    survey = look(fill(tmp_path, files))
    assert (survey.kind, survey.records) == ("companions", size)
    assert survey.ledger.count(Role.PACKED) == 2 * size
    assert [column.type for column in survey.columns if column.name == "mask"] == ["image"]


def test_drawings_of_masks_are_one_question(tmp_path: Path) -> None:
    files = {f"train/{n}.jpg": jpeg(n) for n in range(9)} | {f"train/{n}_mask.png": mask(n) for n in range(9)}
    files |= {f"visualizations/{n}.png": jpeg(n) for n in range(9)}
    caught = question(fill(tmp_path, files), r"0_mask\.png goes with")
    assert caught.answers[0].options == ("--masks", "{s}_mask.png")


def test_a_file_is_found_with_its_suffix_alone_in_upper_case(tmp_path: Path) -> None:
    tree = FolderTree(fill(tmp_path, {"a.PNG": b"", "LIST": b""}))
    assert find_file(tree, "a.png") == "a.PNG"
    assert find_file(tree, "list") == "list"
