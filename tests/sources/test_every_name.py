"""Each layout that the guide lists by its name is read as the guide says, whole, at any size and with any names of
images, as a folder and in archives, and written back without a loss if the guide says so."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packstore import AmbiguousSourceError, convert, export
from packstore.sources import Survey, ask_about_left, open_source
from packstore.stores import open_store
from tests.internals import EXPORTS, IMAGE_SUFFIXES, SOURCES, Role
from tests.makers.annotated import Files, fill, jpeg, mask, voc_xml
from tests.makers.by_name import BY_NAME
from tests.makers.images import encode

GUIDE = (resources.files("packstore") / "guide/sources.md").read_text("utf-8")
LEFT = {
    "Mapillary Vistas": ["config_v2.0.json"],
    "Supervisely": ["meta.json"],
    "CamVid of SegNet": ["train.txt"],
    "LFW": ["pairs.txt"],
    "Open Images": ["bbox_labels_600_hierarchy.json"],
    "MVTec AD": ["bottle/license.txt"],
    "VisA": ["split_csv/2cls_fewshot.csv", "split_csv/2cls_highshot.csv"],
    "Stanford Dogs": ["file_list.mat"],
    "FGVC-Aircraft": [
        *(f"images_{level}_trainval.txt" for level in ("family", "manufacturer")),
        "images_test.txt", "images_train.txt", "images_trainval.txt", "images_val.txt",
        "images_variant_trainval.txt",
    ],
    "Caltech-101": ["Annotations/a/annotation_0001.mat"],
    "ImageNet-A": ["imagenet-a/README.txt"],
}  # fmt: skip
"""What a layout leaves of its files: lists that follow from names, other splits, notes; Cityscapes its drawings."""


TOLD_BY_THE_TOP = {
    "MVTec AD", "UC Merced", "RESISC45", "ImageNet-A", "ImageNet-Sketch", "ImageNetV2",
}  # fmt: skip


def table_after(heading: str) -> list[list[str]]:
    """The cells of each line of the first table below a heading, without its head."""
    text = GUIDE.partition(heading)[2]
    lines = [line for line in text[text.index("\n|") :].strip().split("\n\n")[0].splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = {row[0]: row[1:] for row in table_after("## Layouts by their names")}


def test_the_table_lists_each_layout_that_is_made_and_no_other() -> None:
    assert list(ROWS) == list(BY_NAME)


@pytest.mark.parametrize(
    "samples", [8, pytest.param(300, marks=pytest.mark.slow), pytest.param(3000, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", BY_NAME)
def test_each_is_read_as_its_line_says(name: str, samples: int, tmp_path: Path) -> None:
    kind, columns, _ = ROWS[name]
    with closing(open_source(BY_NAME[name](tmp_path, samples))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        names = [column.name for column in survey.columns if not column.name.endswith(("_valid", "_shape"))]
        assert (f"`{source.kind}`", names) == (kind, re.findall(r"`(\w+)`", columns))
        assert list_left(survey) == LEFT.get(name, [])
        for entry in list(source.entries())[:: max(1, survey.records // 30)]:
            source.read(entry)


def list_left(survey: Survey) -> list[str]:
    """Files that are left out, other than the same masks in colours (Cityscapes) or as pictures (KITTI MOTS)."""
    left = survey.ledger.names(Role.LEFT)
    return sorted(file for file in left if "_gtFine_color." not in file and not file.startswith("instances/"))


def look(path: Path) -> tuple[str, int, list[str], str]:
    """Kind, number of samples, columns and samples of a source, which asks about nothing."""
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        samples = repr([source.read(entry) for entry in source.entries()])
        names = [column.name for column in survey.columns if not column.name.endswith(("_valid", "_shape"))]
        return source.kind, survey.records, names, samples


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_what_machines_and_sites_add_changes_nothing(name: str, tmp_path: Path) -> None:
    root = BY_NAME[name](tmp_path, 8)
    before = look(root)
    for file in ("README.md", "README.dataset.txt", "LICENSE", ".DS_Store", "Thumbs.db", "desktop.ini"):
        if not (root / file).exists():
            (root / file).write_bytes(b"notes\n")
    for folder in [path for path in root.rglob("*") if path.is_dir()][:5]:
        fill(folder, {".DS_Store": b"\0\0\0\1Bud1", "Thumbs.db": b"\xd0\xcf\x11\xe0"})
    for path in [path for path in root.rglob("*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7" + bytes(80))
    assert look(root) == before


@pytest.mark.parametrize("name", ["Cityscapes", "KITTI MOTS", "Pascal VOC", "Market-1501", "xView2"])
def test_suffixes_in_upper_case_change_nothing(name: str, tmp_path: Path) -> None:
    """In every second file, so that no case is that of all."""
    root = BY_NAME[name](tmp_path, 8)
    before = look(root)
    for path in sorted(path for path in root.rglob("*") if path.suffix in IMAGE_SUFFIXES)[::2]:
        path.rename(path.with_suffix(path.suffix.upper()))
    assert look(root) == before
    with closing(open_source(root)) as source:
        assert list_left(source.survey()) == LEFT.get(name, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_zip_is_read_as_the_folder(name: str, tmp_path: Path) -> None:
    """A folder alone at the top of an archive is its root, so a set that is told by such a folder is an image folder
    with the same classes."""
    root = BY_NAME[name](tmp_path / "set", 8)
    before, found = look(root), look(pack(root, "zip"))
    if name in TOLD_BY_THE_TOP:
        assert (found[1], {*found[2]} <= {*before[2]}) == (before[1], True)
    else:
        assert found == before


def pack(root: Path, way: str) -> Path:
    """The folder, or an archive with the folder at its top."""
    if way == "folder":
        return root
    return Path(shutil.make_archive(str(root.with_name(f"{root.name} packed")), way, root.parent, root.name))


def photos(stems: list[str], place: str = "") -> Files:
    return {f"{place}{stem}.jpg": jpeg(1) for stem in stems}


def boxes_of(stems: list[str]) -> str:
    images = [{"id": n, "file_name": f"{stem}.jpg"} for n, stem in enumerate(stems)]
    objects = [{"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 2, 2]} for n in range(len(stems))]
    return json.dumps({"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]})


UNNAMED: dict[str, tuple[str, list[str], Callable[[list[str]], Files]]] = {
    "classes": ("imagefolder", ["label"], lambda stems: photos(stems, "cat/") | photos(stems[::2], "dog/")),
    "flat": ("flat", [], photos),
    "masks beside": ("companions", ["mask"], lambda stems: {
        **photos(stems), **{f"{s}_mask.png": mask(1) for s in stems[len(stems) // 20 :]}}),
    "image and label": ("companions", ["mask"], lambda stems: {
        **photos(stems, "train/image/"), **{f"train/label/{s}.png": mask(1) for s in stems}, **photos(["t"], "test/")}),
    "YOLO beside": ("yolo", ["boxes", "labels"], lambda stems: {
        **photos(stems), **{f"{s}.txt": "0 0.5 0.5 0.1 0.1\n" for s in stems},
        "classes.txt": "cat\ndog\n"}),
    "XML in annots": ("voc", ["boxes", "labels", "difficult", "json"], lambda stems: {
        **photos(stems, "images/"), **{f"annots/{s}.xml": voc_xml(s, ("cat", (1, 1, 2, 2), 0)) for s in stems}}),
    "COCO beside its images": ("coco", ["boxes", "labels", "json"], lambda stems: {
        **photos(stems), "middle.json": boxes_of(stems)}),
    "Roboflow's COCO, hidden": ("coco", ["boxes", "labels", "json"], lambda stems: {
        **photos(stems, "train/"), "train/.annotations.coco.json": boxes_of(stems)}),
    "metadata": ("hf_imagefolder", ["text"], lambda stems: {
        **photos(stems, "train/"),
        "train/metadata.csv": "\n".join(["file_name,text", *(f"{s}.jpg,cat" for s in stems)])}),
    "a table without a header": ("table", ["label"], lambda stems: {
        **photos(stems), "labels.csv": "".join(f"{s},cat\n" for s in stems)}),
}  # fmt: skip
ASKED: dict[str, tuple[str, Callable[[list[str]], Files]]] = {
    "texts of numbers": (".txt file", lambda stems: photos(stems) | {f"{s}.txt": "cat 1 2 3 4" for s in stems}),
    "VIA": ("via_project.json", lambda stems: {
        **photos(stems), "via_project.json": json.dumps({f"{s}.jpg1": {} for s in stems})}),
    "VoTT": ("vott-json-export.json", lambda stems: {
        **photos(stems), "vott-json-export.json": json.dumps({"assets": {s: {} for s in stems}})}),
    "depth": ("depth", lambda stems: photos(stems, "rgb/") | {f"depth/{s}.png": DEPTH for s in stems}),
}  # fmt: skip
DEPTH = encode(Image.fromarray(np.arange(128, dtype=np.uint16).reshape(8, 16) * 500), "PNG")
SIZES = [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (300, 3000)),
         pytest.param(30_000, marks=pytest.mark.soak)]  # fmt: skip


@pytest.mark.parametrize("way", ["folder", "zip", "tar"])
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", [*UNNAMED, *ASKED])
def test_the_number_and_the_names_of_images_change_nothing(
    name: str, count: int, hashed: bool, way: str, tmp_path: Path
) -> None:
    """Names are in the order of their numbers, or in one that has nothing to do with it."""
    stems = [hashlib.sha1(b"%d" % n).hexdigest() if hashed else f"img{n:06}" for n in range(count)]
    kind, columns, make = UNNAMED.get(name) or ("", [], ASKED[name][1])
    path = pack(fill(tmp_path / "set", make(stems)), way)
    if name in UNNAMED:
        assert look(path)[:3] == (kind, sum(file.endswith(".jpg") for file in make(stems)), columns)
    elif (way, name) == ("tar", "texts of numbers"):  # a sample of WebDataset, with all of its text
        assert look(path)[:3] == ("webdataset", count, ["text"])
    else:
        with pytest.raises(AmbiguousSourceError, match=re.escape(ASKED[name][0])):
            look(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_missing_image_makes_it_no_other_set(name: str, tmp_path: Path) -> None:
    root = BY_NAME[name](tmp_path, 8)
    before = look(root)
    images = [path for path in sorted(root.rglob("*")) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    images[len(images) // 2].unlink()
    with suppress(AmbiguousSourceError), closing(open_source(root)) as source:
        ask_about_left(source, source.survey())
        assert source.kind in (before[0], "companions")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2] != "–"])
def test_each_is_written_as_its_line_says_without_a_loss(name: str, tmp_path: Path) -> None:
    to = ROWS[name][2].strip("`").removeprefix("--to ")
    convert(BY_NAME[name](tmp_path / "set", 6), tmp_path / "x.h5")
    export(tmp_path / "x.h5", tmp_path / "out", to=to)
    convert(tmp_path / "out", tmp_path / "again.h5")
    with closing(open_store(tmp_path / "x.h5")) as one, closing(open_store(tmp_path / "again.h5")) as other:
        assert one.manifest.dataset_digest == other.manifest.dataset_digest


def test_the_first_table_names_every_source_and_every_export() -> None:
    rows = table_after("# Sources\n")
    kinds = [kind for row in rows for kind in re.findall(r"`(\w+)`", row[0])]
    assert sorted(kinds) == sorted(SOURCES.built_in)
    exports = [name for row in rows for name in re.findall(r"`--to (\w+)`", row[2])]
    assert sorted(exports) == sorted(EXPORTS.built_in)
