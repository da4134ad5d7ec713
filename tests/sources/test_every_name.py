"""Each line of the guide's tables of layouts: what is listed by its name is read as the line says, whole, at any size,
and written back without a loss where the line says so."""

from __future__ import annotations

import re
import zipfile
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path

import pytest

from packstore import AmbiguousSourceError, convert, export
from packstore.sources import Survey, ask_about_left, open_source
from packstore.stores import open_store
from tests.internals import EXPORTS, IMAGE_SUFFIXES, SOURCES, Role
from tests.makers.by_name import BY_NAME

GUIDE = (resources.files("packstore") / "guide/sources.md").read_text("utf-8")
LEFT = {
    "Mapillary Vistas": ["config_v2.0.json"],
    "CamVid of SegNet": ["train.txt"],
    "LFW": ["pairs.txt"],
    "Open Images": ["bbox_labels_600_hierarchy.json"],
    "MVTec AD": ["bottle/license.txt"],
    "VisA": ["split_csv/2cls_fewshot.csv", "split_csv/2cls_highshot.csv"],
    "Stanford Dogs": ["file_list.mat"],
    "FGVC-Aircraft": [
        *(f"images_{level}_trainval.txt" for level in ("family", "manufacturer")),
        *("images_test.txt", "images_train.txt", "images_trainval.txt", "images_val.txt"),
        "images_variant_trainval.txt",
    ],
    "Caltech-101": ["Annotations/a/annotation_0001.mat"],
    "ImageNet-A": ["imagenet-a/README.txt"],
}
"""What a layout leaves of its files: lists that follow from names, other splits, notes; Cityscapes its drawings."""


TOLD_BY_THE_TOP = {
    *("MVTec AD", "UC Merced", "RESISC45", "ImageNet-A", "ImageNet-Sketch", "ImageNetV2"),
}


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


def look(path: Path) -> tuple[str, int, list[str]]:
    """Kind, number of samples and columns of a source, which asks about nothing."""
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        for entry in source.entries():
            source.read(entry)
        names = [column.name for column in survey.columns if not column.name.endswith(("_valid", "_shape"))]
        return source.kind, survey.records, names


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_what_machines_and_sites_add_changes_nothing(name: str, tmp_path: Path) -> None:
    root = BY_NAME[name](tmp_path, 8)
    before = look(root)
    for file in ("README.md", "README.dataset.txt", "LICENSE", ".DS_Store", "Thumbs.db", "desktop.ini"):
        if not (root / file).exists():
            (root / file).write_bytes(b"notes\n")
    for folder in [path for path in root.rglob("*") if path.is_dir()][:5]:
        (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
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
    before = look(root)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, f"set/{path.relative_to(root).as_posix()}")
    found = look(tmp_path / "set.zip")
    if name in TOLD_BY_THE_TOP:
        assert (found[1], {*found[2]} <= {*before[2]}) == (before[1], True)
    else:
        assert found == before


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
