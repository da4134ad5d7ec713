"""Tables of Open Images, whose classes are identifiers with names in files of their own.

Source: https://storage.googleapis.com/openimages/web/download_v7.html
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from packstore.core.errors import SourceError
from packstore.sources.beside import join, read_whole
from packstore.sources.table.reading import MAX_BYTES
from packstore.sources.tree import Tree

_BOXES = re.compile(r"(.*/)?[\w-]*annotations-bbox\.csv", re.I)
_NAMES = re.compile(r"[\w-]*class-descriptions[\w-]*\.csv", re.I)


def has_boxes(file: str) -> bool:
    """Whether a table is called as those of Open Images' boxes."""
    return _BOXES.fullmatch(file) is not None


def find_descriptions(tree: Tree, tables: Iterable[str]) -> list[str]:
    """The files of names of classes beside Open Images' boxes among ``tables``."""
    folders = sorted({file.rpartition("/")[0] for file in tables if has_boxes(file)})
    return [join(folder, name) for folder in folders for name in tree.names(folder).files if _NAMES.fullmatch(name)]


def read_descriptions(tree: Tree, files: Iterable[str]) -> dict[str, str]:
    """Names of classes by their identifiers, of lines such as ``/m/011k07,Tortoise``. Raises :class:`SourceError`."""
    found: dict[str, str] = {}
    for file in files:
        text = read_whole(tree, file, MAX_BYTES).decode("utf-8-sig", "replace")
        try:
            found.update(row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 2)  # type: ignore[misc]
        except csv.Error as error:
            raise SourceError(f"{tree.name(file)}: {error}") from None
    return found
