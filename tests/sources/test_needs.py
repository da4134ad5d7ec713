"""The names in the table of needs are necessary: a kind that recognises a path has its needs met there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from packstore.sources import Certainty, Kind, SourceOptions
from tests.internals import (
    MASKS,
    NEEDS,
    PAIRS,
    SOURCES,
    PackstoreError,
    PresentNames,
    cache_trees,
    open_tree,
    recognise,
)
from tests.internals import PUBLISHED_CLASSES as CLASSES
from tests.makers.all_layouts import LAYOUTS
from tests.makers.annotated import fill, jpeg
from tests.makers.annotation_formats import MAKERS, PATHS, make_folder_set
from tests.makers.annotation_formats import images as make_images
from tests.makers.by_name import BY_NAME
from tests.makers.published import SETS, make_set

CORPUS = Path(__file__).parents[1] / "corpus"


def unmet(path: Path) -> list[str]:
    """The kinds that recognise a path, or find it damaged, though their needs are not met."""
    found = []
    with cache_trees():
        try:
            open_tree(path)
        except PackstoreError:
            return [kind for kind in NEEDS if not PresentNames(path).may_be(kind)]
        present = PresentNames(path)
        for name in SOURCES.built_in:
            kind: Kind = SOURCES[name]
            if present.may_be(name):
                continue
            try:
                if kind.recognise(path, SourceOptions()) is not Certainty.NO:
                    found.append(name)
            except PackstoreError as error:
                found.append(f"{name}: {error}")
    return found


def each_form(path: Path, scratch: Path) -> Iterator[Path]:
    """The path itself; a folder also as zip and as tar."""
    yield path
    if path.is_dir():
        for format in ("zip", "tar"):
            yield Path(shutil.make_archive(str(scratch / "archived"), format, path))


def check(path: Path, scratch: Path) -> None:
    assert {form.suffix: unmet(form) for form in each_form(path, scratch) if unmet(form)} == {}


@pytest.mark.sampled(30, fast=5)
@pytest.mark.parametrize("name", LAYOUTS)
def test_needs_are_met_by_each_layout(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    check(LAYOUTS[name][1](tmp_path / "in"), tmp_path)


@pytest.mark.sampled(30, fast=5)
@pytest.mark.parametrize("name", BY_NAME)
def test_needs_are_met_by_each_layout_of_the_guide(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    check(BY_NAME[name](tmp_path / "in", 4), tmp_path)


@pytest.mark.sampled(15, fast=3)
@pytest.mark.parametrize("name", [*MAKERS, *PATHS])
def test_needs_are_met_by_each_annotation_format(name: str, tmp_path: Path) -> None:
    root = tmp_path / "in"
    check(fill(root, MAKERS[name](4)) if name in MAKERS else make_folder_set(name, root, 4), tmp_path)


@pytest.mark.sampled(15, fast=3)
@pytest.mark.parametrize("name", SETS)
def test_needs_are_met_by_each_published_set(name: str, tmp_path: Path) -> None:
    check(make_set(name, tmp_path / "in", 4), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.iterdir()))
def test_needs_are_met_by_each_corpus(name: str, tmp_path: Path) -> None:
    """And by each of its files and folders."""
    for path in (CORPUS / name, *sorted((CORPUS / name).iterdir())[:20]):
        check(path, tmp_path)


def test_each_kind_in_the_table_exists() -> None:
    assert NEEDS.keys() <= set(SOURCES.built_in)
    assert all(name == name.lower() for needs in NEEDS.values() for name in needs if isinstance(name, str))


@pytest.mark.parametrize("title", [*CLASSES, *MASKS, *PAIRS])
def test_a_marker_of_each_published_set_is_in_the_table(title: str, tmp_path: Path) -> None:
    """Whichever of its alternatives is there."""
    marked = (CLASSES | MASKS | PAIRS)[title]
    for number in range(max(marker.count("|") for marker in marked.markers) + 1):
        root = tmp_path / f"{number}"
        for marker in marked.markers:
            names = marker.split("|")
            name = names[min(number, len(names) - 1)].replace("[Ii]", "I").replace("*", "x")
            fill(root, {name if "." in name.rpartition("/")[2][-5:] else f"{name}/a.jpg": b""})
        assert PresentNames(root).may_be("published"), sorted(root.rglob("*"))


def test_kinds_whose_needs_are_missing_are_not_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(kind: str) -> Kind:
        return Kind(kind, kind, lambda _path, _options: asked.append(kind) or Certainty.NO, SOURCES["flat"].open)

    for name in ("coco", "kitti", "plugin"):
        SOURCES.register(name, ask(name))
    try:
        fill(tmp_path / "photos", {**make_images(2), "notes.txt": "by a camera"})
        with cache_trees():
            assert recognise(tmp_path / "photos", SourceOptions()).name == "flat"
        assert asked == ["kitti"]
        fill(tmp_path / "other", {"a.xyz": b""})
        with pytest.raises(PackstoreError):
            recognise(tmp_path / "other" / "a.xyz", SourceOptions())
        assert asked == ["kitti", "plugin"]  # always
    finally:
        for name in ("coco", "kitti", "plugin"):
            SOURCES.unregister(name)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("a.JSON", "coco"),
        ("deep/er/index.json", "mds"),
        ("x-00000-of-00002", "tfrecord"),
        ("x.0001", "dicom"),
        (".zgroup", "zarr"),
        ("bounding_box_train/1.jpg", "market1501"),
        ("val/ILSVRC2012_val_00000001.JPEG", "ilsvrc"),
    ],
)
def test_what_is_present_is_found(file: str, kind: str, tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": jpeg(1)})
    assert not PresentNames(tmp_path).may_be(kind)
    fill(tmp_path, {file: b""})
    assert PresentNames(tmp_path).may_be(kind)


def test_names_beyond_the_first_of_a_folder_may_be_there(tmp_path: Path) -> None:
    """A listing keeps 64 names of a suffix, and 64 suffixes."""
    fill(tmp_path / "names", {f"{n:03}.json": b"" for n in range(65)})
    assert PresentNames(tmp_path / "names").may_be("mds")
    fill(tmp_path / "images", {**{f"{n:03}.JPEG": b"" for n in range(65)}, "ILSVRC2012_val_00000001.JPEG": b""})
    assert PresentNames(tmp_path / "images").may_be("ilsvrc")
    fill(tmp_path / "suffixes", {f"a.x{n:03}": b"" for n in range(65)})
    assert PresentNames(tmp_path / "suffixes").may_be("parquet")
