"""Tables of Open Images, whose classes are identifiers with names in files of their own.

Source: https://storage.googleapis.com/openimages/web/download_v7.html
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_formats.objects import load_json
from packstore.sources.beside import join, read_text
from packstore.sources.table.reading import MAX_BYTES
from packstore.sources.tree import Tree

_BOXES = re.compile(r"(.*/)?[\w-]*annotations-bbox\.csv", re.I)
_TABLES = re.compile(r"(.*/)?[\w-]*annotations-(bbox|(human|machine)-imagelabels|object-segmentation)[\w-]*\.csv", re.I)
_HIERARCHY = re.compile(r"[\w-]*hierarchy[\w-]*\.json", re.I)
_DEEPEST = 64
_NAMES = re.compile(r"[\w-]*class-descriptions[\w-]*\.csv", re.I)


def has_boxes(file: str) -> bool:
    """Whether a table is called as those of Open Images' boxes."""
    return _BOXES.fullmatch(file) is not None


def find_descriptions(tree: Tree, tables: Iterable[str]) -> list[str]:
    """The files of names of classes beside Open Images' tables."""
    return _beside(tree, tables, _NAMES)


def find_hierarchies(tree: Tree, tables: Iterable[str]) -> list[str]:
    """The files of which class is above which, beside Open Images' tables."""
    return _beside(tree, tables, _HIERARCHY)


def _beside(tree: Tree, tables: Iterable[str], names: re.Pattern[str]) -> list[str]:
    folders = sorted({file.rpartition("/")[0] for file in tables if _TABLES.fullmatch(file)})
    return [join(folder, name) for folder in folders for name in tree.names(folder).files if names.fullmatch(name)]


def read_descriptions(tree: Tree, files: Iterable[str]) -> dict[str, str]:
    """Names of classes by their identifiers, of lines such as ``/m/011k07,Tortoise``. Raises :class:`SourceError`."""
    found: dict[str, str] = {}
    for file in files:
        text = read_text(tree, file, MAX_BYTES).decode("utf-8-sig")
        try:
            found.update(row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 2)  # type: ignore[misc]
        except csv.Error as error:
            raise SourceError(f"{tree.name(file)}: {error}") from None
    return found


def read_hierarchy(tree: Tree, files: Iterable[str], titles: Mapping[str, str]) -> dict[str, list[str]]:
    """The classes above each class, the nearest first, by the names in ``titles``; above a part is its whole. Raises
    :class:`SourceError`."""
    found: dict[str, list[str]] = {}
    for file in files:
        try:
            _descend(load_json(read_text(tree, file, MAX_BYTES)), [], titles, found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{tree.name(file)} is no hierarchy of classes ({printable(reason)[:80]})") from None
    return found


def _descend(node: Any, above: list[str], titles: Mapping[str, str], found: dict[str, list[str]]) -> None:
    if len(above) > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    name = titles.get(node["LabelName"], str(node["LabelName"]))
    known = found.setdefault(name, [])
    known += [each for each in above if each not in known]
    for kind in ("Subcategory", "Part"):
        for child in node.get(kind, ()):
            _descend(child, [name, *above], titles, found)
