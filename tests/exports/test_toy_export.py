"""A plug-in: a kind of export that lives in this file alone, by its one line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from packstore.testing import ExportSuite
from tests.internals import EXPORTS, Export, Record, convert, export, image_file
from tests.makers.datasets import make_folder


class NumberedExport(Export):
    name = "numbered"
    help = "image files with numbers as names"
    source = "exported"
    shard_bytes = None

    def losses(self) -> Sequence[str]:
        return ("keys",)

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> None:
        folder = self.path / (split or "all")
        folder.mkdir(exist_ok=True)
        for record in records:
            file = folder / f"{record.number:06}.{record.extension}"
            file.write_bytes(image_file(record))
            record.line["file"] = f"{folder.name}/{file.name}"


class TestNumbered(ExportSuite):
    kind = "numbered"

    @pytest.fixture(autouse=True)
    def registered_here(self) -> Iterator[None]:
        EXPORTS.register("numbered", NumberedExport)
        yield
        EXPORTS.unregister("numbered")


class LazyExport(NumberedExport):
    name = "lazy"

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> None:
        super().write_shard(number, split, itertools.islice(records, 1))


def test_an_export_that_leaves_records_out_is_refused(tmp_path: Path) -> None:
    convert(make_folder(tmp_path / "images"), tmp_path / "in.lmdb")
    EXPORTS.register("lazy", LazyExport)
    try:
        with pytest.raises(RuntimeError, match="'lazy' has to write all records"):
            export(tmp_path / "in.lmdb", tmp_path / "out", to="lazy")
    finally:
        EXPORTS.unregister("lazy")
    assert not (tmp_path / "out").exists()


def test_files_that_were_opened_are_closed_if_one_cannot_be(tmp_path: Path) -> None:
    kind = NumberedExport(tmp_path, None, None, recoded=False)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError), kind.open_files("a", "b/c"):
        pass
    with pytest.raises(ZeroDivisionError), kind.open_files("a", "b") as (first, second):
        1 / 0  # noqa: B018
    assert first.closed
    assert second.closed
