"""Reads files that map colours or pixel values of masks to classes.

- CamVid's ``label_colors.txt``: ``64 128 64 Animal``;
- Kaggle's ``class_dict.csv``: ``name,r,g,b``;
- CVAT's ``labelmap.txt``: ``road:128,64,128::``;
- Roboflow's ``_classes.csv``: ``Pixel Value, Class``;
- JSON: ``{"classes": [{"title": "Water", "color": "#E2A929"}]}``, or a list of such objects.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from packstore.sources.annotation_formats.parsing import parse_json
from packstore.sources.beside import read_whole
from packstore.sources.encodings import try_utf8
from packstore.sources.tree import Tree

_MAX_BYTES, _MOST = 1 << 20, 1 << 16
_NAMES = ("name", "class", "class name", "class_name", "label", "title")
_COLOURS = (("r", "g", "b"), ("red", "green", "blue"))

ClassColours = list[tuple[str, tuple[int, int, int] | int]]
"""Names of classes, each with its colour or its pixel value."""


def read_class_colours(tree: Tree, file: str) -> ClassColours:
    """Reads the classes in a file, with their colours or pixel values. Returns an empty list if the file is no palette,
    is larger than 1 MiB, or has more than 65,536 classes. Raises :class:`SourceError` for a palette in an unknown
    encoding, and for a file that cannot be read."""
    if tree.stat(file).size > _MAX_BYTES:
        return []
    data, fault = try_utf8(read_whole(tree, file, _MAX_BYTES), tree.encoding, tree.name(file))
    reader = {".csv": _parse_csv, ".json": _parse_json}.get(Path(file).suffix.lower(), _parse_text)
    try:
        rows = reader(data.decode("utf-8-sig"))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration, csv.Error):
        return []
    if rows and fault is not None:
        raise fault
    return rows if len(rows) <= _MOST else []


def _parse_text(text: str) -> ClassColours:
    """Parses lines of CamVid or CVAT; skips blank lines and comments (``#``). Raises :class:`ValueError` for any other
    line."""
    colours: ClassColours = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line[0] == "#":
            continue
        if match := re.fullmatch(r"(\d+)[\s,]+(\d+)[\s,]+(\d+)[\s,]+(\S.*)", line):
            colours.append((match[4], (int(match[1]), int(match[2]), int(match[3]))))
        elif match := re.fullmatch(r"([^:]+):(\d+),(\d+),(\d+):[^:]*:.*", line):
            colours.append((match[1], (int(match[2]), int(match[3]), int(match[4]))))
        else:
            raise ValueError("not a palette")
    return colours


def _parse_csv(text: str) -> ClassColours:
    """Parses a table with a column of class names, and columns of colours or pixel values. Sorts rows by pixel value.
    Raises :class:`ValueError`, :class:`IndexError` or :class:`StopIteration` for another text."""
    head, *lines = ([cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline="")) if line)
    names = [cell.lower() for cell in head]
    label = next(names.index(name) for name in _NAMES if name in names)
    if "pixel value" in names:
        value = names.index("pixel value")
        numbered = sorted((int(line[value]), line[label]) for line in lines)
        return [(name, number) for number, name in numbered]
    red, green, blue = next([names.index(each) for each in three] for three in _COLOURS if set(three) <= {*names})
    return [(line[label], (int(line[red]), int(line[green]), int(line[blue]))) for line in lines]


def _parse_json(text: str) -> ClassColours:
    """Parses a list of objects with a title or name, and a colour; also in an object, as ``classes``. Raises
    :class:`ValueError`, :class:`KeyError`, :class:`TypeError` or :class:`AttributeError` for other JSON."""
    document = parse_json(text.encode())
    colours: ClassColours = []
    for each in document["classes"] if isinstance(document, dict) else document:
        name = each.get("title", each.get("name"))
        colour = each["color"]
        if isinstance(colour, str):
            colour = bytes.fromhex(colour.removeprefix("#"))
        if not isinstance(name, str) or len(colour) != 3:
            raise ValueError("not a palette")
        colours.append((name, (int(colour[0]), int(colour[1]), int(colour[2]))))
    return colours
