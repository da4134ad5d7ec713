"""No layout is taken wrongly: each, made tiny, is of the kind that reads it, and no other specific kind is certain of
it; what only looks like one is a question.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from packstore.sources import Certainty, SourceOptions, ask_about_left, open_source
from tests.internals import SOURCES, AmbiguousSourceError, SourceError
from tests.makers.all_layouts import LAYOUTS, without
from tests.makers.layouts import MAKERS, make_layout

GENERAL = {"companions", "table", "imagefolder", "flat"}
"""Kinds that are asked last, and take what specific ones leave."""

MORE_GENERAL = {"tfds": {"tfrecord"}, "published": {"companions"}, "ade20k": {"companions"}, "svhn": {"mat"}}
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
        with pytest.raises(AmbiguousSourceError) as caught:
            open_source(path)
        assert str(caught.value).isprintable()
        return
    with closing(open_source(path)) as source:
        assert source.kind == expected
        assert source.survey().records
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
    with closing(open_source(folder)) as source:
        samples = [(entry.key, entry.split) for entry in source.entries()]
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
    text = "\n".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    assert set(re.findall(r'^    kind = "(\w+)"$', text, re.M)) >= set(SOURCES.built_in)
