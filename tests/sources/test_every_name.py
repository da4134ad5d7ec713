"""Each line of the guide's tables of layouts: what is listed by its name is read as the line says, whole, at any size,
and written back without a loss where the line says so."""

from __future__ import annotations

import re
from contextlib import closing
from importlib import resources
from pathlib import Path

import pytest

from packstore import convert, export
from packstore.core.registry import EXPORTS, SOURCES
from packstore.sources import ask_about_left, open_source
from packstore.sources.ledger import Role
from packstore.stores import open_store
from tests.makers.by_name import BY_NAME

GUIDE = (resources.files("packstore") / "guide/sources.md").read_text("utf-8")
LEFT = {
    "Mapillary Vistas": ["config_v2.0.json"],
    "CamVid of SegNet": ["train.txt"],
    "LFW": ["pairs.txt"],
    "VGGFace2": ["identity_meta.csv", "train_list.txt"],
    "MVTec AD": ["bottle/license.txt"],
    "VisA": ["split_csv/2cls_fewshot.csv", "split_csv/2cls_highshot.csv"],
    "Caltech-101": ["Annotations/a/annotation_0001.mat"],
    "ImageNet-A": ["imagenet-a/README.txt"],
    "OSCD": ["images/test.txt", "images/train.txt"],
}
"""What a layout leaves of its files: lists that follow from names, other splits, notes; Cityscapes its drawings."""


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
        gone = [file for file in survey.ledger.names(Role.LEFT) if not file.endswith("_gtFine_color.png")]
        assert sorted(gone) == LEFT.get(name, [])
        for entry in list(source.entries())[:: max(1, survey.records // 30)]:
            source.read(entry)


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
