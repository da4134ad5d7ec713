"""A plug-in: a kind of export that lives in this file alone, by its one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from packstore.testing import ExportSuite
from tests.internals import EXPORTS, Export, Record, ShardWriter, image_file


class NumberedExport(Export):
    name = "numbered"
    help = "image files with numbers as names"
    source = "exported"
    shard_bytes = None

    def exact_columns(self) -> Sequence[str]:
        return ()

    def losses(self) -> Sequence[str]:
        return ("keys",)

    def begin(self, number: int, split: str) -> ShardWriter:
        return _Files(self.path / (split or "all"))


class _Files(ShardWriter):
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def add(self, record: Record) -> Mapping[str, str]:
        file = self._folder / f"{record.number:06}.{record.extension}"
        file.write_bytes(image_file(record))
        return {"file": f"{self._folder.name}/{file.name}"}

    def close(self) -> None:
        return


class TestNumbered(ExportSuite):
    kind = "numbered"

    @pytest.fixture(autouse=True)
    def registered_here(self) -> Iterator[None]:
        EXPORTS.register("numbered", NumberedExport)
        yield
        EXPORTS.unregister("numbered")
