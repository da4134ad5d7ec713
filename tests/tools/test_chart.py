"""The README's chart: drawn by ``tools/chart.py`` from the tables of the guide's page ``measuring``."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "packstore" / "guide" / "measuring.md").read_text("utf-8")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def chart() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "chart.py"))


def test_the_chart_is_that_of_the_tables(chart: dict[str, Any]) -> None:
    drawn = chart["draw"](PAGE)
    assert (ROOT / ".github" / "rates.svg").read_text("utf-8") == drawn, "run python tools/chart.py"


def test_each_loader_has_a_bar_as_long_as_its_figure(chart: dict[str, Any]) -> None:
    picture = ElementTree.fromstring(chart["draw"](PAGE))
    bars = [float(each.attrib["width"]) for each in picture.iter(f"{SVG}rect") if each.get("class") != "page"]
    rows = [chart["rows_of"](PAGE, header) for header, _ in chart["PANELS"]]
    assert [len(each) for each in rows] == [8, 7]
    longest = max(bars)
    for panel, start in ((rows[0], 0), (rows[1], 8)):
        most = max(rate for _, rate in panel)
        for (name, rate), width in zip(panel, bars[start:], strict=False):
            assert width == pytest.approx(longest * rate / most, abs=0.06), name
            assert f"| {rate:,}" in PAGE
    shown = "".join(each.text or "" for each in picture.iter(f"{SVG}text"))
    assert "No GPU" in shown


def test_it_follows_the_tables(chart: dict[str, Any]) -> None:
    ((name, rate), *_) = chart["rows_of"](PAGE, "JPEG files as they are")
    assert name == "packstore, original"
    other = chart["draw"](PAGE.replace(f"| {rate:,} |", "| 9,876,543 |"))
    assert ">9,876,543</text>" in other
    assert f">{rate:,}</text>" not in other


@pytest.mark.parametrize("gone", ["| JPEG files as they are |", "2 cores (AMD EPYC)", "| 866,000 |"])
def test_a_table_that_cannot_be_read_is_an_error(chart: dict[str, Any], gone: str) -> None:
    assert gone in PAGE
    with pytest.raises(ValueError, match=r"tables begin with|on what it was measured|no figure in"):
        chart["draw"](PAGE.replace(gone, "| |"))


def test_the_readme_shows_it_and_types_no_figure_by_hand() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "(.github/rates.svg)" in readme
    gains = re.search(r"^## Speed\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert gains is not None
    assert not re.findall(r"\d,\d{3}|\d\.\d", gains[1]), "figures stand in the chart alone"
