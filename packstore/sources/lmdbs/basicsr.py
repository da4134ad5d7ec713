"""LMDBs of BasicSR (https://github.com/XPixelGroup/BasicSR, ``docs/DatasetPreparation.md``).

Keys are names of PNG files without the suffix. ``meta_info.txt`` lists them: ``baboon.png (480,500,3) 1``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image
from packstore.sources.base import Kind
from packstore.sources.lmdbs.base import Database, LmdbSource
from packstore.sources.rows import Row

_LIST = "meta_info.txt"
_LINE = re.compile(r"(.+) \((\d+), ?(\d+)(?:, ?(\d+))?\) \d+")


class BasicSrSource(LmdbSource):
    """Source of BasicSR's LMDBs, in the order of their lists. Listing raises :class:`SourceError` for an invalid or
    repeated line, and if the LMDB has more or fewer images than its list."""

    kind = "basicsr"

    @classmethod
    def is_of_kind(cls, database: Database) -> bool:
        """Tells if ``meta_info.txt`` beside the database has a first line of BasicSR's."""
        file = database.path / _LIST
        if not file.is_file():
            return False
        with file.open(encoding="utf-8", errors="replace") as lines:
            return _LINE.fullmatch(lines.readline(4096).rstrip("\n")) is not None

    def fields(self) -> Mapping[str, Field]:
        """Declares the image alone."""
        return {"image": Image()}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each line of the lists. The row's key is the file name, after the split if there are several
        LMDBs. The row's size is that of the pixels.

        Raises :class:`SourceError` for an invalid or repeated line, and if the LMDB has more or fewer entries.
        """
        for number, database in self.list_databases(split):
            file, count, seen = database.path / _LIST, 0, Counter[str]()
            with file.open(encoding="utf-8", errors="surrogateescape") as lines:
                for line in lines:
                    match = _LINE.fullmatch(line.rstrip("\n"))
                    if match is None:
                        raise SourceError(
                            f"{printable(str(file))}: line {count + 1} is not: name (height,width,channels) compression"
                        )
                    name = match[1]
                    seen[name] += 1
                    if seen[name] > 1:
                        raise SourceError(f"{printable(str(file))} lists {printable(name)} twice")
                    count += 1
                    height, width, channels = int(match[2][:9]), int(match[3][:9]), int((match[4] or "1")[:2])
                    yield Row(self.make_key(split, name), (number, name), height * width * channels)
            if count != database.entries:
                raise SourceError(f"{printable(str(file))} lists {count} images; the LMDB has {database.entries}")

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads the image of a line. The image's key in the LMDB is the file name up to the first dot. Raises
        :class:`ValueError` if it is missing, damaged or too large."""
        number, name = ref
        return {"image": self.read_image(number, name.split(".")[0].encode("utf-8", "surrogateescape"))}

    def files(self) -> list[Path]:
        """Lists the LMDB files and the lists."""
        return [*super().files(), *(database.path / _LIST for database in self.databases)]


KIND = Kind(BasicSrSource.kind, "an LMDB of BasicSR", BasicSrSource.recognise, BasicSrSource)
