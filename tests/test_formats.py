"""Every kind of source and export that the guide's tables list has its contract as tests, or those that compare it with
torchvision."""

from __future__ import annotations

import re
from pathlib import Path

from packstore.core.registry import EXPORTS, SOURCES
from tests.makers.layouts import MAKERS

TESTS = Path(__file__).parent


def kinds_of_suites(folder: str) -> set[str]:
    """The ``kind`` of each class of tests in a folder."""
    texts = [path.read_text("utf-8") for path in (TESTS / folder).glob("test_*.py")]
    classes = [each for text in texts for each in re.split(r"^(?=class )", text, flags=re.MULTILINE)[1:]]
    return {kind for each in classes for kind in re.findall(r'^    kind = "(\w+)"$', each, re.MULTILINE)}


def test_every_kind_of_export_has_its_suite() -> None:
    assert kinds_of_suites("exports") >= {*EXPORTS.built_in}


def test_every_kind_of_source_has_its_suite() -> None:
    text = (TESTS / "sources" / "test_named.py").read_text("utf-8")
    compared = {kind for kind in MAKERS if text.count(f'"{kind}"') > 1}  # its layout, and what torchvision makes of it
    assert kinds_of_suites("sources") | compared >= {*SOURCES.built_in}


def test_every_export_names_a_source_that_is_tested() -> None:
    assert {kind.source for kind in EXPORTS.values()} <= kinds_of_suites("sources")
