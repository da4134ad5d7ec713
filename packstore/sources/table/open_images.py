"""Reads tables of Open Images, whose classes are identifiers with names in other files.

Source: https://storage.googleapis.com/openimages/web/download_v7.html
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_formats.parsing import parse_json
from packstore.sources.beside import join, read_text
from packstore.sources.table.reading import MAX_BYTES
from packstore.sources.tree import Tree

_BOXES = re.compile(r"(.*/)?[\w-]*annotations-bbox\.csv", re.I)
_TABLES = re.compile(r"(.*/)?[\w-]*annotations-(bbox|(human|machine)-imagelabels|object-segmentation)[\w-]*\.csv", re.I)
_HIERARCHY = re.compile(r"[\w-]*hierarchy[\w-]*\.json", re.I)
_DEEPEST = 64
_NAMES = re.compile(r"[\w-]*class-descriptions[\w-]*\.csv", re.I)


def is_open_images_boxes(file: str) -> bool:
    """Tells if a table has the name of Open Images' tables of boxes."""
    return _BOXES.fullmatch(file) is not None


def find_descriptions(tree: Tree, tables: Iterable[str]) -> list[str]:
    """Finds the files with names of classes beside Open Images' tables. Beside other ``tables``, finds none."""
    return _find_beside_tables(tree, tables, _NAMES)


def find_hierarchies(tree: Tree, tables: Iterable[str]) -> list[str]:
    """Finds the files with the hierarchy of classes beside Open Images' tables. Beside other ``tables``, finds none."""
    return _find_beside_tables(tree, tables, _HIERARCHY)


def _find_beside_tables(tree: Tree, tables: Iterable[str], names: re.Pattern[str]) -> list[str]:
    """Finds files with a name that matches ``names`` in the folders of Open Images' tables."""
    folders = sorted({file.rpartition("/")[0] for file in tables if _TABLES.fullmatch(file)})
    return [join(folder, name) for folder in folders for name in tree.names(folder).files if names.fullmatch(name)]


def read_descriptions(tree: Tree, files: Iterable[str]) -> dict[str, str]:
    """Reads names of classes by their identifiers, from lines such as ``/m/011k07,Tortoise``. Skips other lines.

    Raises :class:`SourceError` for a file that is no CSV.
    """
    titles: dict[str, str] = {}
    for file in files:
        text = read_text(tree, file, MAX_BYTES).decode("utf-8-sig")
        try:
            titles.update(row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 2)  # type: ignore[misc]
        except csv.Error as error:
            raise SourceError(f"{tree.name(file)}: {error}") from None
    return titles


def read_hierarchy(tree: Tree, files: Iterable[str], titles: Mapping[str, str]) -> dict[str, list[str]]:
    """Reads the classes above each class, the nearest first. The class above a part (wheel) is its whole (car).

    Classes have the names in ``titles``, or else their identifiers. Raises :class:`SourceError` for a file that is no
    hierarchy.
    """
    parents: dict[str, list[str]] = {}
    for file in files:
        text = read_text(tree, file, MAX_BYTES)
        try:
            _collect_parents(parse_json(text), [], titles, parents)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{tree.name(file)} is not a hierarchy of classes ({printable(reason)[:80]})") from None
    return parents


def _collect_parents(node: Any, above: list[str], titles: Mapping[str, str], parents: dict[str, list[str]]) -> None:
    """Adds the classes ``above`` a node to ``parents``. Does the same for its children.

    Raises :class:`ValueError` for more than 64 levels, and :class:`KeyError` or :class:`TypeError` for a malformed
    node.
    """
    if len(above) > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    name = titles.get(node["LabelName"], str(node["LabelName"]))
    known = parents.setdefault(name, [])
    known += [each for each in above if each not in known]
    for kind in ("Subcategory", "Part"):
        for child in node.get(kind, ()):
            _collect_parents(child, [name, *above], titles, parents)
