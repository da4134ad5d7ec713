"""Plug-ins that cannot be used: named, passed over, and listed by the doctor."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packstore import UsageError, convert, verify
from tests.internals import ENCODINGS, FORMATS, SOURCES, Registry, _plug_in_facts, probe
from tests.makers.datasets import make_folder

Install = Callable[[str], None]

MODULE = """
from packstore.sources.base import Kind
from packstore.images.encode.base import Encoding
NUMBER = 42
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install("formats toy = plugged:NUMBER")``: a distribution ``toy`` has these entry points, one a line."""

    def add(points: str) -> None:
        site = tmp_path / "site"
        (site / "toy-1.0.dist-info").mkdir(parents=True)
        (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        lines = [line.partition(" ")[::2] for line in points.splitlines()]
        text = "".join(f"[packstore.{group}]\n{point}\n" for group, point in lines)
        (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(text)
        (site / "plugged.py").write_text(MODULE)
        monkeypatch.syspath_prepend(str(site))

    for registry in (FORMATS, SOURCES, ENCODINGS):
        monkeypatch.setattr(registry, "_found", None)
        monkeypatch.setattr(registry, "_broken", set())
    monkeypatch.delitem(sys.modules, "plugged", raising=False)
    return add


BROKEN = [
    ("formats", "tar = no_such_module:FORMAT", "does not load: No module named 'no_such_module'; repair"),
    ("formats", "tar = plugged:NUMBER", "is 42 and should be an object of packstore.stores.format.Format; repair"),
    ("formats", "tar = plugged:Kind", "and should be an object of packstore.stores.format.Format; repair"),
    ("sources", "tar = plugged:NUMBER", "is 42 and should be an object of packstore.sources.base.Kind; repair"),
    ("encodings", "tar = plugged:NUMBER", "is 42 and should be a subclass of packstore.images.encode.base.Encoding"),
    ("encodings", "tar = plugged:Kind", "and should be a subclass of packstore.images.encode.base.Encoding"),
]


@pytest.mark.parametrize(("group", "point", "why"), BROKEN)
def test_a_plug_in_that_cannot_be_used_is_named(
    group: str, point: str, why: str, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(f"{group} {point}")
    registry: Registry = {"formats": FORMATS, "sources": SOURCES, "encodings": ENCODINGS}[group]
    with pytest.raises(UsageError) as raised:
        registry["tar"]
    assert f"the plug-in 'tar' of toy ({registry.what})" in str(raised.value)
    assert why in str(raised.value)
    assert len(list(registry.values())) == len(registry.built_in)
    list(registry.values())
    assert [record.getMessage() for record in caplog.records] == [f"{raised.value}; continuing without it"]


@pytest.mark.parametrize("point", ["tar = no_such_module:FORMAT", "tar = plugged:NUMBER"])
def test_a_broken_format_stops_no_conversion(
    point: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(f"formats {point}\nsources {point}")
    convert(make_folder(tmp_path / "photos"), tmp_path / "a.lmdb")
    assert verify(tmp_path / "a.lmdb").ok
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # it was not loaded
    assert list(FORMATS.values())
    (said,) = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert "the plug-in 'tar' of toy (format)" in said


def test_a_plug_in_with_a_name_of_packstores_own_is_told(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("formats lmdb = plugged:NUMBER")
    assert [format.name for format in FORMATS.values()] == ["lmdb", "hdf5", "pth"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "the plug-in 'lmdb' of toy (format) is not used: packstore has one of that name itself; rename or uninstall it"
    )


def test_the_doctor_lists_plug_ins(install: Install) -> None:
    assert _plug_in_facts(probe("plug-ins")) == []
    install("formats tar = plugged:NUMBER\nencodings png = plugged:Encoding\nsources flat = plugged:NUMBER")
    broken, taken, sound = _plug_in_facts(probe("plug-ins"))
    assert (broken.name, broken.value) == ("format tar", "toy")
    assert "is 42 and should be" in str(broken.problem)
    assert (taken.name, sound.name, sound.problem) == ("kind of source flat", "encoding png", None)
    assert "packstore has one of that name itself" in str(taken.problem)


def test_the_doctor_survives_plug_ins_that_end_the_process() -> None:
    (fact,) = _plug_in_facts({"error": "a process that imported it was killed by signal 6"})
    assert fact.problem == "a process that imported it was killed by signal 6"
