"""Palettes of masks: map colours or pixel values to classes, and masks to class numbers.

Files that define a palette:

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, DecodeError, SourceError, printable
from packstore.core.fields import Field, Image, Labels, Mask
from packstore.core.plainjson import load_json
from packstore.sources.beside import join, number_repeated_names, read_whole
from packstore.sources.encodings import try_utf8
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.tree import Tree

_MAX_BYTES, _MOST = 1 << 20, 1 << 16
_NAMES = ("name", "class", "class name", "class_name", "label", "title")
_VALUES = (("pixel value",), ("r", "g", "b"), ("red", "green", "blue"))
_CAMVID = re.compile(r"(?P<r>\d+)[\s,]+(?P<g>\d+)[\s,]+(?P<b>\d+)[\s,]+(?P<name>\S.*)")
_CVAT = re.compile(r"(?P<name>[^:]+):(?P<r>\d+),(?P<g>\d+),(?P<b>\d+):[^:]*:.*")

# Names of classes, each with the three values of its colour, or its pixel value.
ClassColours = list[tuple[str, tuple[int, ...]]]
_FILES = re.compile(r"_?[\w-]*(class(es)?|labels?|colou?rs?|palette|map)[\w-]*\.(txt|csv|json)", re.I)


@dataclass(frozen=True, slots=True)
class Palette:
    """Classes of masks, numbered from 0 in the order of their file. Decodes masks to these numbers.

    Attributes:
        names: Names of the classes.
        colours: Colours of the classes, ``(n, 3)``; None if a pixel's value is the number of its class.
        files: Files that define the palette, all equally.
    """

    names: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...] | None
    files: tuple[str, ...]

    def read_class_numbers(self, data: bytes, max_pixels: int) -> NDArray[Any]:
        """Decodes the file of a mask to class numbers, ``(H, W)``. Raises :class:`ValueError` for an unknown colour or
        value, and :class:`DecodeError` for a file that cannot be decoded."""
        if self.colours is None:
            from packstore.images.masks import decode_mask, read_mask_header

            values = decode_mask(data, read_mask_header(data, max_pixels))
            if values.size and int(values.max()) >= len(self.names):
                raise self._unknown_error(f"the value {int(values.max())}")
            return values
        from packstore.images.decoders import get_decoder

        pixels = get_decoder(max_pixels=max_pixels).decode(data).astype(np.uint32)
        flat = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
        known = np.array([r << 16 | g << 8 | b for r, g, b in self.colours], np.uint32)
        order = np.argsort(known)
        place = np.searchsorted(known[order], flat).clip(max=len(known) - 1)
        odd = np.argwhere(known[order][place] != flat)
        if len(odd):
            y, x = odd[0].tolist()
            raise self._unknown_error(f"the colour {tuple(pixels[y, x].tolist())} at {x}, {y}")
        numbers: NDArray[Any] = order[place].astype(np.uint8 if len(known) <= 256 else np.uint16)
        return numbers

    def _unknown_error(self, what: str) -> ValueError:
        """Returns the error for a mask with a colour or value that the palette lacks."""
        file = printable(self.files[0])
        return ValueError(
            f"its mask has {what}, which {file} does not name: mend it, or keep masks as they are with "
            f"--ignore '{file}'"
        )


def read_mask_columns(palette: Palette, mask: bytes, max_pixels: int) -> dict[str, Any]:
    """Reads the columns of a mask: ``mask``, its class numbers, and ``mask_labels``, the classes that occur. If the
    file has class numbers and no colours, leaves out ``mask``. Raises :class:`ValueError` for an unknown colour or
    value, and for a file that cannot be decoded."""
    try:
        values = palette.read_class_numbers(mask, max_pixels)
    except DecodeError as error:
        raise ValueError(f"its mask: {error}") from error
    shown = {"mask_labels": np.unique(values).tolist()}
    return shown if palette.colours is None else {"mask": np.ascontiguousarray(values), **shown}


def declare_mask_columns(palette: Palette) -> dict[str, Field]:
    """Returns the fields of :func:`read_mask_columns`, with the classes of the palette."""
    return {"mask": Mask(optional=True), "mask_labels": Labels(palette.names, of=False, optional=True)}


def find_palette(tree: Tree, folders: Sequence[str], masks: Field) -> Palette | None:
    """Finds the palette in some folders that fits the column ``masks``. A palette of colours fits masks in colour, a
    palette of values masks of one channel. Returns None if there is none. Raises :class:`AmbiguousSourceError` for
    palettes that differ, and :class:`SourceError` for a palette with two classes of one colour."""
    palettes: list[Palette] = []
    for folder in dict.fromkeys(folders):
        for name in tree.names(folder).files:
            if _FILES.fullmatch(name) and not is_passed_over(name):
                palettes += _read_palettes(tree, join(folder, name))
    palettes = [each for each in palettes if isinstance(masks, Image) == (each.colours is not None)]
    if not palettes:
        return None
    first = palettes[0]
    for other in palettes:
        if (other.names, other.colours) != (first.names, first.colours):
            pair = first.files[0], other.files[0]
            why = f"{' and '.join(map(printable, pair))} define different classes of masks: leave one out with --ignore"
            raise AmbiguousSourceError(f"{tree.name()}: {why}", [Answer(ignore_paths([each])) for each in pair])
    return Palette(first.names, first.colours, tuple(file for each in palettes for file in each.files))


def _read_palettes(tree: Tree, file: str) -> Iterator[Palette]:
    """Yields the palette of a file, if it is one."""
    if tree.stat(file).size > _MAX_BYTES:
        return
    data, fault = try_utf8(read_whole(tree, file, _MAX_BYTES), tree.encoding, tree.name(file))
    parse = {".csv": _parse_colour_table, ".json": _parse_colour_json}.get(
        Path(file).suffix.lower(), _parse_colour_lines
    )
    try:
        rows = parse(data.decode("utf-8-sig"))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration, csv.Error):
        return
    colours = [colour for _, colour in rows]
    # It is another kind of table.
    if not rows or len(rows) > _MOST or any(not 0 <= value <= 255 for colour in colours for value in colour[-3:]):
        return
    if fault is not None:
        raise fault
    if len({*colours}) < len(colours):
        raise SourceError(f"{tree.name(file)} has two classes of one colour")
    names = number_repeated_names([name for name, _ in rows], range(len(rows)))
    triples = tuple((colour[0], colour[1], colour[2]) for colour in colours if len(colour) == 3)
    # Pixel values of a palette count from 0.
    if triples or colours == [(number,) for number in range(len(colours))]:
        yield Palette(names, triples or None, (file,))


def _parse_colour_lines(text: str) -> ClassColours:
    """Parses lines of CamVid or CVAT; skips blank lines and comments (``#``). Raises :class:`TypeError` for others."""
    colours: ClassColours = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line[0] != "#":
            found: Any = _CAMVID.fullmatch(line) or _CVAT.fullmatch(line)
            colours.append((found["name"], (int(found["r"]), int(found["g"]), int(found["b"]))))
    return colours


def _parse_colour_table(text: str) -> ClassColours:
    """Parses a table with a column of class names, and columns of colours or pixel values."""
    head, *lines = ([cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline="")) if line)
    titles = [cell.lower() for cell in head]
    label = next(titles.index(name) for name in _NAMES if name in titles)
    columns = next([titles.index(each) for each in some] for some in _VALUES if {*some} <= {*titles})
    rows = [(line[label], tuple(int(line[column]) for column in columns)) for line in lines]
    return rows if len(columns) > 1 else sorted(rows, key=lambda row: row[1])


def _parse_colour_json(text: str) -> ClassColours:
    """Parses a list of objects with a title or name, and a colour; also in an object, as ``classes``."""
    document = load_json(text.encode())
    colours: ClassColours = []
    for each in document["classes"] if isinstance(document, dict) else document:
        name, colour = each.get("title", each.get("name")), each["color"]
        if isinstance(colour, str):
            colour = bytes.fromhex(colour.removeprefix("#"))
        if not isinstance(name, str) or len(colour) != 3:
            raise ValueError("not a palette")
        colours.append((name, tuple(map(int, colour))))
    return colours
