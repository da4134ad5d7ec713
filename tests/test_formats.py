"""The guide's tables of formats: every kind has its contract as tests, or those that compare it with torchvision, and
what their cells say is so."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore import export
from packstore.sources import open_source
from packstore.stores import open_store
from packstore.testing.exports import picture
from tests.internals import EXPORTS, SOURCES, convert
from tests.makers.annotated import coco, voc

TESTS = Path(__file__).parent


def test_every_export_names_a_source() -> None:
    """Every source has its suite (``tests/sources/test_recognition.py``)."""
    assert {kind.source for kind in EXPORTS.values()} <= {*SOURCES}


def rows(page: str) -> list[list[str]]:
    """The cells of the first table of a page of the guide."""
    text = (Path(packstore.__file__).parent / "guide" / f"{page}.md").read_text("utf-8")
    table = re.search(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[0].splitlines()[2:]]


def outs() -> list[tuple[str, str]]:
    """Each kind of source with an export that its row names."""
    return [(kind, to) for first, _, out in rows("sources")
            for kind in re.findall(r"`(\w+)`", first) for to in re.findall(r"`--to (\w+)`", out)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(20)
@pytest.mark.parametrize(("kind", "to"), outs())
def test_an_export_is_of_its_rows_kind_to_others(kind: str, to: str, tmp_path: Path) -> None:
    """Without what packstore writes beside it, as other programs leave it out."""
    arrays = "uint8" in EXPORTS[to].image_forms and to not in ("webdataset", "tfds", "mds")
    options: dict[str, Any] = {"encoding": "uint8", "size": 8} if arrays else {}
    if to in ("coco", "yolo", "voc", "kitti", "open_images"):
        path = coco(tmp_path / "set")
    elif to == "masks":
        path = voc(tmp_path / "set")
    else:
        path = tmp_path / "set"
        for i in range(6):
            file = path / ("train", "val")[i % 3 == 2] / ("cat", "dog")[i // 3] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(i))
    records = convert(path, tmp_path / "in.lmdb", **options).manifest.records
    if to == "open_images":  # whose tables name no others
        with closing(open_store(tmp_path / "in.lmdb")) as reader:
            records = sum(len(reader.item("boxes", number)) > 0 for number in range(records))
    out = tmp_path / "out"
    export(tmp_path / "in.lmdb", out, to=to)
    for name in ("packstore.json", "packstore.rows.jsonl"):
        with suppress(FileNotFoundError, NotADirectoryError):
            (out / name).unlink()
    with closing(open_source(out, kind=kind)) as source:
        assert (source.kind, source.survey().records) == (kind, records)
        assert all(source.image(entry) is not None for entry in source.entries())


@pytest.mark.parametrize("row", rows("exporting"), ids=lambda row: row[0])
def test_suffix_and_images_of_an_export_are_those_of_its_row(row: list[str]) -> None:
    kinds, suffixes, _, images, _ = row
    for number, name in enumerate(re.findall(r"`(\w+)`", kinds)):
        kind = EXPORTS[name]
        assert list(kind.suffixes) == re.findall(r"`([.]\w+)`", suffixes)[number:][:1]
        assert ("files" in kind.image_forms) == images.startswith("files")
        assert {"uint8", "floats"} <= kind.image_forms if "arrays" in images else kind.image_forms == {"files"}
