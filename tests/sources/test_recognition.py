"""How a source is recognized: each layout is of the kind that reads it and of no other specific kind; what only looks
like one is a question."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.sources import Certainty, Kind, SourceOptions, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.internals import SOURCES, AmbiguousSourceError, FlatSource, SourceError, tree
from tests.makers.all_layouts import LAYOUTS, without
from tests.makers.annotated import coco, fill, jpeg, yolo
from tests.makers.datasets import make_folder
from tests.makers.images import tiny
from tests.makers.layouts import MAKERS, make_layout
from tests.makers.sources import look, prove, question, refused
from tests.makers.tiers import import_suites


@pytest.fixture
def two() -> Iterator[dict[str, Certainty]]:
    """Two plug-ins whose certainty the test sets."""
    says: dict[str, Certainty] = {"one": Certainty.NO, "two": Certainty.NO}
    for name in says:
        SOURCES.register(
            name, Kind(name, f"what {name} writes, as it is", lambda _p, _o, name=name: says[name], FlatSource)
        )
    yield says
    for name in says:
        SOURCES.unregister(name)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


def test_the_first_certain_kind_is_it(two: dict[str, Certainty], photos: Path) -> None:
    two.update(one=Certainty.CERTAIN, two=Certainty.CERTAIN)
    assert open_source(photos).kind == "imagefolder"  # which is asked before plug-ins
    (photos / "metadata.csv").touch()  # and is a part of it only, now
    SOURCES["one"].open(photos, packstore.sources.SourceOptions())
    assert open_source(photos).path == photos


def test_a_certain_kind_comes_before_a_partial_one(two: dict[str, Certainty], photos: Path) -> None:
    two.update(one=Certainty.PARTIAL, two=Certainty.CERTAIN)
    (photos / "metadata.csv").touch()
    assert isinstance(open_source(photos), FlatSource)


@pytest.mark.slow
def test_two_that_could_be_are_a_question_with_its_answers(two: dict[str, Certainty], photos: Path) -> None:
    two.update(one=Certainty.PARTIAL, two=Certainty.PARTIAL)
    (photos / "metadata.csv").touch()
    caught = question(photos)
    message = str(caught)
    assert message.startswith(f"{photos} could be what one writes or what two writes. Answers: --source one")
    for kind in re.findall(r"--source (\w+)", message)[:2]:
        open_source(photos, kind=kind)


def test_possible_kinds_are_asked_last(two: dict[str, Certainty], tmp_path: Path) -> None:
    """The first of them opens the path, and says what is missing."""
    two.update(one=Certainty.POSSIBLE, two=Certainty.POSSIBLE)
    (tmp_path / "empty").mkdir()
    refused(SourceError, tmp_path / "empty", "holds no images")


def test_specific_kinds_come_first() -> None:
    assert list(SOURCES.built_in)[-2:] == ["imagefolder", "flat"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["imagefolder", "flat", "archive"])
def test_plain_images_are_recognised_without_reading_them_or_loading_libraries(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for number in range(100):
        file = root / ("" if layout == "flat" else f"class {number % 2}") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tiny(number))
    kind = "flat" if layout == "flat" else "imagefolder"
    path = Path(shutil.make_archive(str(root), "tar", root)) if layout == "archive" else root
    code = f"""
import sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, what: opened.append(what[0]) if event == "open" else None)
from packstore.sources import listing, open_source
assert open_source(Path({str(path)!r})).kind == {kind!r}
images = [name for name in opened if str(name).endswith(".png")]
assert len(images) <= 4, images
heavy = {{"torch", "h5py", "lmdb", "PIL", "pyarrow", "scipy", "zarr", "zstandard", "pandas", "yaml"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_kind_asks_for_the_state_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the two of plain images, which list them; of a few files others may."""
    for number in range(4000):
        (tmp_path / f"{number}.jpg").touch()
    asked = []
    real = os.stat

    def stat(*what: Any, **how: Any) -> os.stat_result:
        asked.append(what)
        return real(*what, **how)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(tree, "stat_files", lambda *_: None)
    assert open_source(tmp_path).kind == "flat"
    assert 8000 <= len(asked) < 12_000


def captioned(root: Path) -> Path:
    lines = "".join(f"{n}.jpg,a cat\n" for n in range(3))
    files: dict[str, str | bytes] = {f"{n}.jpg": jpeg(n) for n in range(3)}
    return fill(root, files | {"captions.csv": f"file,caption\n{lines}", "other.csv": "a,b\n"})


@pytest.mark.parametrize(
    ("make", "file", "kind"),
    [
        (yolo, "data.yaml", "yolo"),
        (coco, "annotations/instances_train2017.json", "coco"),
        (captioned, "captions.csv", "captions"),
    ],
)
def test_a_file_that_describes_a_folder_stands_for_it(
    make: Callable[[Path], Path], file: str, kind: str, tmp_path: Path
) -> None:
    """And it is the one that counts, whatever lies beside it."""
    root = make(tmp_path / "set")
    with closing(open_source(root / file)) as source:
        assert (source.kind, source.path) == (kind, root)
        survey = source.survey()
        assert survey.records
        assert "val" not in survey.splits or kind != "coco"
    report = prove(root / file, tmp_path / "x.h5")
    assert report.manifest.records == survey.records


@pytest.mark.slow
def test_another_text_is_no_source(tmp_path: Path) -> None:
    fill(tmp_path, {"0.jpg": jpeg(0), "1.jpg": jpeg(1), "numbers.csv": "a,b\n1,2\n"})
    with pytest.raises(SourceError, match=r"numbers\.csv is a file that begins with .*, and names no image of its"):
        open_source(tmp_path / "numbers.csv")
    fill(tmp_path / "apart", {"labels.csv": "file,label\nz.jpg,cat\n"})
    with pytest.raises(SourceError, match=r"labels\.csv is a file that begins with .*, and names no image of its"):
        open_source(tmp_path / "apart" / "labels.csv", columns=["image=file"])


@pytest.mark.slow
def test_a_conversion_of_an_image_folder_loads_few_modules(tmp_path: Path) -> None:
    """At most 150 of packstore, as ``tools/bench/imports.py`` measures."""
    photos = fill(tmp_path / "photos", {f"{'ab'[n % 2]}/p{n}.jpg": jpeg(n) for n in range(8)})
    code = f"""
import sys
from packstore.cli import main
try:
    main(["convert", {str(photos)!r}, {str(tmp_path / "out.lmdb")!r}, "--quiet"])
except SystemExit as end:
    assert not end.code
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "packstore")
assert len(loaded) <= 150, loaded
rooms = ("packstore.objects", "packstore.cache", "packstore.sources.records")
assert not [name for name in loaded if name.startswith(rooms)], loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


GENERAL = {"companions", "table", "imagefolder", "flat"}
"""Kinds that are asked last, and take what specific ones leave."""

MORE_GENERAL = {
    "oxfordpet": {"voc"},
    "tfds": {"tfrecord"},
    "published": {"companions"},
    "ade20k": {"companions"},
    "svhn": {"mat"},
}
"""Kinds that read the same files without what lies beside them, and are asked later."""


def certain(path: Path) -> set[str]:
    """The specific kinds that are certain of a path."""
    found = set()
    for kind in SOURCES.values():
        try:
            if kind.recognise(path, SourceOptions()) is Certainty.CERTAIN:
                found.add(kind.name)
        except SourceError:  # it asks something
            continue
    return found - GENERAL


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_of_its_kind_and_of_no_other(name: str, tmp_path: Path) -> None:
    expected, make = LAYOUTS[name]
    path = make(tmp_path)
    if expected is None:
        question(path)
        return
    seen = look(path)
    assert seen.kind == expected
    assert seen.records
    assert certain(path) - MORE_GENERAL.get(expected, set()) <= {expected}


def signs() -> list[tuple[str, str]]:
    """Each file and folder by which a data set is told, with its kind."""
    found = []
    for kind, make in MAKERS.items():
        there = make(12)[1]
        told_by = [
            name
            for sign in (() if kind in ("ilsvrc", "kaggle") else getattr(SOURCES[kind].open, "markers", ()))
            for name in sign.split("|")
        ]
        # A class of EuroSAT's that is missing is a question of its own. ILSVRC may lack a split.
        found += [
            (kind, name)
            for name in told_by
            if kind != "eurosat" and any(f"{file}/".startswith(f"{name}/") for file in there)
        ]
    assert found
    return found


@pytest.mark.parametrize(("kind", "name"), signs())
def test_without_a_sign_it_is_whole_or_nothing(kind: str, name: str, tmp_path: Path) -> None:
    """All of it still, where another file says the same; else an error, and nearly always a question."""
    folder = make_layout(kind, tmp_path, 24)
    samples = [(entry.key, entry.split) for entry in look(folder).entries]
    said = None
    try:
        with closing(open_source(without(lambda _: folder, name)(tmp_path))) as source:
            ask_about_left(source, source.survey())
            assert [(entry.key, entry.split) for entry in source.entries()] == samples
    except SourceError as error:
        said = error
    assert said is None or str(said).isprintable()
    lost_images = name in ("images", "Images", "a/abbey", "train_X.bin", "test_X.bin")
    assert said is None or isinstance(said, AmbiguousSourceError) or lost_images


def test_every_kind_has_a_layout() -> None:
    assert {kind for kind, _ in LAYOUTS.values() if kind} | {"exported", "nifti"} >= set(SOURCES.built_in)


def test_every_kind_has_the_suite() -> None:
    import_suites([str(Path(__file__).parent)])
    suites = [SourceSuite]
    for suite in suites:
        suites += suite.__subclasses__()
    assert {suite.kind for suite in suites if hasattr(suite, "kind")} >= set(SOURCES.built_in)
