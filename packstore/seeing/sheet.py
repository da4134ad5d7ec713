"""Contact sheets: a few records of each class in one picture, as stored or as the loader returns them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from packstore.core.errors import PackstoreError, StoreError, UsageError, printable
from packstore.core.manifest import Manifest, Split
from packstore.images.reading import PERCENTILES, Window
from packstore.seeing.drawing import (
    default_font,
    draw_record,
    draw_values,
    fit_text,
    list_drawable_columns,
    make_further_thumbnails,
    make_image_reader,
    make_thumbnail,
    stack_images_below,
)
from packstore.seeing.facts import find_parts_within
from packstore.seeing.loaded import LoadRequest, SampleLoader
from packstore.seeing.sheet_options import SheetOptions
from packstore.stores import Reader, open_store
from packstore.training.item_options import choose_split

KINDS = (".png", ".pdf")

_GAP, _BETWEEN, _TEXT, _LINE = 6, 12, 11, 15
_PAGE_ROWS = 20
_MOST_ROWS = 60
"""Most rows of a PNG file, which has one page; a PDF has any number of pages."""
_MOST_FETCHED = 8
"""Most shards that are fetched from a store at a URL."""
_ABREAST = 4
"""Most images of a list below an image, each a quarter of its size."""
_BACK, _INK, _FAULT = (255, 255, 255), (40, 40, 40), (176, 0, 32)


@dataclass(frozen=True, eq=False, slots=True)
class SheetCell:
    """One image of a contact sheet.

    Attributes:
        record: Number of the record in the store.
        key: Its key, safe to print; ``?`` if it cannot be read.
        image: uint8 ``(h, w, 3)``; None if it is missing or damaged.
        fault: Reason if there is no image, else empty.
        more: Number of images in the record's lists that are not shown.
    """

    record: int
    key: str
    image: NDArray[np.uint8] | None
    fault: str = ""
    more: int = 0


@dataclass(frozen=True, slots=True)
class SheetRow:
    """A row of a contact sheet.

    Attributes:
        title: Name of the class, with its number of records if all labels were read. Empty without a class for each
            record.
        records: Numbers of the records in the row.
    """

    title: str
    records: tuple[int, ...]


def write_sheet(store: str | os.PathLike[str], path: Path, options: SheetOptions) -> int:
    """Writes a contact sheet of a store as ``.png`` or ``.pdf``; replaces the file. Returns the number of rows that did
    not fit.

    A PDF has a page for each 20 rows, and JPEG images. A PNG has exact images and at most 60 rows.

    Raises:
        UsageError: The suffix is unknown, the directory does not exist, or the augmentations are wrong. Or the store
            lacks the split, a column or records.
        StoreError: The store does not open, or none of its records can be read.
    """
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"a sheet is written as {' or '.join(KINDS)}, got {printable(path.name)!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {printable(str(path.absolute().parent))}")
    with open_store(store, "always") as reader:
        rows = choose_rows(reader, options)
        cells = CellMaker(reader, options)
        if path.suffix.lower() == ".pdf":
            parts = [rows[start : start + _PAGE_ROWS] for start in range(0, len(rows), _PAGE_ROWS)]
            pages = (draw_page(cells, part) for part in parts)
            next(pages).save(path, "PDF", save_all=True, append_images=pages, quality=95)
            return 0
        draw_page(cells, rows[:_MOST_ROWS]).save(path, "PNG")
        return max(0, len(rows) - _MOST_ROWS)


def draw_sheet(store: str | os.PathLike[str], options: SheetOptions, rows: int = 8) -> tuple[Image.Image, int]:
    """Returns the first ``rows`` rows of a contact sheet as a picture, one below the other, and the number of rows
    left. Raises errors of the store and the options like :func:`write_sheet`."""
    with open_store(store, "always") as reader:
        chosen = choose_rows(reader, options)
        return draw_page(CellMaker(reader, options), chosen[:rows], narrow=True), max(0, len(chosen) - rows)


def describe_window(store: str | os.PathLike[str], window: Window | None) -> str | None:
    """Returns a sentence on the values that a sheet shows as black and white. Returns None for images of 8 bits."""
    with open_store(store, "always") as reader:
        if reader.manifest.image.pixels.dtype == "uint8":
            return None
    if window is None:
        low, high = PERCENTILES
        return (
            f"black and white are percentiles {low:g} and {high:g} of each image's values; --window LO HI sets others"
        )
    return f"black is {window[0]:g}, white {window[1]:g}"


def choose_rows(reader: Reader, options: SheetOptions) -> list[SheetRow]:
    """Chooses the records to show, at random by the seed: a row of ``per_class`` records for each class.

    Without a class for each record: ``per_class`` rows of ``per_class`` records. If the labels of a shard cannot be
    read, its first record goes into an additional first row. Of a store at a URL, fetches only a few random shards.

    Raises:
        UsageError: The split is unknown, or has no records.
        StoreError: No record can be read.
    """
    manifest = reader.manifest
    split = choose_split(manifest, options.split) if options.split is not None else None
    chosen = reader.split(split)
    if not len(chosen):
        raise UsageError(f"{printable(str(reader.path))} has no records to show")
    rng = np.random.default_rng(options.seed)
    count = options.per_class
    records, labels, unread = _find_candidates(reader, chosen, options, rng)
    lost = [SheetRow("cannot be read", tuple(unread[:count]))] if unread else []
    if not manifest.has_label:
        some = np.sort(records[rng.choice(len(records), min(len(records), count * count), replace=False)])
        return lost + [SheetRow("", tuple(some[at : at + count].tolist())) for at in range(0, len(some), count)]
    drawn = rng.permutation(len(records))
    labels = labels[drawn]
    order = np.argsort(labels, kind="stable")
    numbers, starts = np.unique(labels[order], return_index=True)
    stops = [*starts[1:].tolist(), len(order)]
    rows = []
    for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
        some = np.sort(records[drawn[order[start : min(start + count, stop)]]])
        counted = f"  ({stop - start:,})" if len(records) == len(chosen) else ""
        rows.append(SheetRow(f"{_class_name(manifest, number)}{counted}", tuple(some.tolist())))
    return lost + rows


def _find_candidates(
    reader: Reader, chosen: Split, options: SheetOptions, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Returns the records of a split, their labels, and the first record of each unreadable shard."""
    manifest, parts = reader.manifest, find_parts_within(reader, chosen.start, chosen.stop)
    ends = np.append(reader.table.starts, len(reader))
    labelled = manifest.has_label
    wanted = options.per_class if labelled else options.per_class**2
    counts = np.zeros(len(manifest.classes or ()) if labelled else 1, np.int64)
    apart = reader.nbytes is not None and len(parts) > 1  # several shards at a URL
    records: list[NDArray[np.int64]] = []
    labels: list[NDArray[np.int64]] = []
    lost: list[int] = []
    failure: StoreError | None = None
    for part in rng.permutation(parts)[:_MOST_FETCHED].tolist() if apart else parts:
        some = np.arange(max(chosen.start, ends[part]), min(chosen.stop, ends[part + 1]))
        try:
            # Zeros in a store without a class for each record.
            numbers = reader.values("label", some) if labelled else np.zeros(len(some), np.int64)
        except StoreError as error:
            lost.append(int(some[0]))
            failure = error
            continue
        records.append(some)
        labels.append(numbers)
        counts += np.bincount(numbers[(numbers >= 0) & (numbers < len(counts))], minlength=len(counts))
        # Each class has enough records: fetches no further shard.
        if apart and len(counts) and int(counts.min()) >= wanted:
            break
    if not records:
        assert failure is not None
        raise failure
    order = np.argsort([each[0] for each in records])
    return np.concatenate([records[n] for n in order]), np.concatenate([labels[n] for n in order]), lost


class CellMaker:
    """Makes the cells of a contact sheet by record number: ``maker[record]``. A damaged record's cell has the error.

    With augmentations, shows no lists of images. Creating it raises :class:`UsageError` for columns that cannot be
    drawn. Making a cell raises it for wrong augmentations.
    """

    def __init__(self, reader: Reader, options: SheetOptions) -> None:
        """Chooses the columns to show. Raises :class:`UsageError` if a column of the options cannot be shown."""
        manifest = reader.manifest
        drawn = list_drawable_columns(manifest)
        there = [column.name for column in drawn]
        by_default = [column.name for column in drawn if column.traits.drawn_by_default]
        lists = [column.name for column in manifest.columns if column.form == "files"]
        chosen = [*by_default, *lists] if options.columns is None else options.columns
        for name in chosen:
            if name not in (*there, *lists):
                known = ", ".join((*there, *lists)) or "none"
                raise UsageError(
                    f"no column {printable(name)!r} of masks, boxes, keypoints or lists of images; there are: {known}"
                )
        self._drawn = [name for name in chosen if name in there]
        self._lists = [make_image_reader(manifest, name) for name in chosen if name in lists]
        self.reader = reader
        self.options = options
        self._loaded = None if options.augment is None else SampleLoader(reader)
        self._pictures = make_image_reader(manifest)

    def __getitem__(self, record: int) -> SheetCell:
        """Creates the cell of a record; a damaged record's cell has the error. Raises :class:`UsageError` for wrong
        augmentations."""
        try:
            key = printable(self.reader.key(record))
        except (PackstoreError, IndexError):
            key = "?"
        try:
            image, more = (
                self._draw_stored(record) if self._loaded is None else (self._draw_loaded(self._loaded, record), 0)
            )
        except UsageError:
            raise
        except (PackstoreError, IndexError) as error:
            return SheetCell(record, key, None, printable(str(error)))
        return SheetCell(record, key, image, "" if image is not None else "no image", more)

    def _draw_stored(self, record: int) -> tuple[NDArray[np.uint8] | None, int]:
        """Returns the thumbnail of the stored image, or None, and the number of images not shown."""
        side, window = self.options.side, self.options.window
        image = make_thumbnail(self._pictures, self.reader, record, side, window)
        if image is None:
            return None, 0
        if self._drawn:
            image = draw_record(image, self.reader, record, self._pictures.exif_transpose, self._drawn)
        more = 0
        small = max(1, max(image.shape[:2]) // _ABREAST)
        # The first four images of each list, below the thumbnail.
        for pictures in self._lists:
            further, left = make_further_thumbnails(pictures, self.reader, record, small, _ABREAST, window)
            image, more = stack_images_below(image, further), more + left
        return image, more

    def _draw_loaded(self, loaded: SampleLoader, record: int) -> NDArray[np.uint8]:
        """Returns the image that :class:`packstore.PackedLoader` returns, with the chosen columns drawn over it."""
        options = self.options
        result = loaded.load(LoadRequest(record, options.augment or "", options.seed, options.epoch))
        return draw_values(result.image, result.values, self.reader.manifest.columns, self._drawn)


def draw_page(cells: CellMaker, rows: Sequence[SheetRow], narrow: bool = False) -> Image.Image:
    """Draws classes as one picture, several abreast if there are many and the picture need not be ``narrow``. A title
    is above each, and the last part of the key below each image.

    Enlarges small images by a whole factor. Cells without an image show a crossed box with the reason.
    """
    made = [(row.title, [cells[record] for record in row.records]) for row in rows]
    images = [cell.image for _, row in made for cell in row if cell.image is not None]
    wanted = cells.options.side
    height = max([image.shape[0] for image in images], default=wanted)
    width = max([image.shape[1] for image in images], default=wanted)
    factor = max(1, wanted // max(height, width))
    height, width = height * factor, width * factor
    step = width + _GAP, height + _LINE + _GAP  # of a cell
    count = max(len(row) for _, row in made)
    across, abreast = (count, 1) if narrow else _arrange_cells(len(made), count, step)
    lines = [made[start : start + abreast] for start in range(0, len(made), abreast)]
    titles = [_LINE + 2 if any(title for title, _ in line) else 0 for line in lines]
    talls = [-(-max(len(row) for _, row in line) // across) * step[1] for line in lines]
    wide = across * step[0]
    size = _GAP + abreast * wide + (abreast - 1) * _BETWEEN, sum(titles) + sum(talls) + _GAP
    sheet = Image.new("RGB", size, _BACK)
    draw = ImageDraw.Draw(sheet)
    top = _GAP
    for line, title_height, tall in zip(lines, titles, talls, strict=True):
        for place, (title, row) in enumerate(line):
            first = _GAP + place * (wide + _BETWEEN)
            draw.text((first, top), _fit_line(draw, title, wide - _GAP), _INK, default_font(_TEXT + 2))
            for number, cell in enumerate(row):
                left, upper = first + number % across * step[0], top + title_height + number // across * step[1]
                _draw_cell(sheet, draw, cell, (left, upper, width, height), factor)
                more = f"+{cell.more:,} " if cell.more else ""
                text = _fit_line(draw, more + cell.key.rsplit("/", 1)[-1], width)
                color = _INK if cell.image is not None else _FAULT
                draw.text((left, upper + height + 1), text, color, default_font(_TEXT))
        top += title_height + tall
    return sheet


def _arrange_cells(classes: int, count: int, step: tuple[int, int]) -> tuple[int, int]:
    """Returns how many cells of a class share a line, and how many classes, for a 4:3 picture."""
    # ``count`` is the most cells of a class, ``step`` the width and height that a cell takes.
    ideal = math.sqrt(4 / 3 * classes * count * step[1] / step[0])  # cells in a line of the picture
    if ideal < count / 2:
        return math.ceil(count / round(count / ideal)), 1
    lines = math.ceil(classes / max(1, round(ideal / count)))
    return count, math.ceil(classes / lines)


def _draw_cell(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, cell: SheetCell, place: tuple[int, int, int, int], factor: int
) -> None:
    """Draws a cell's image, enlarged by ``factor``, or a crossed box with its fault."""
    left, top, width, height = place
    if cell.image is not None:
        large = cell.image.repeat(factor, 0).repeat(factor, 1)
        sheet.paste(Image.fromarray(large), (left, top))
        return
    box = (left, top, left + width - 1, top + height - 1)
    draw.rectangle(box, outline=_FAULT)
    draw.line((*box[:2], *box[2:]), _FAULT)
    draw.line((box[0], box[3], box[2], box[1]), _FAULT)
    lines = max(1, (height - 4) // _LINE)
    rest = f"record {cell.record}: {cell.fault}"
    for line in range(lines):
        text = _fit_line(draw, rest, width - 6, "")
        draw.text((left + 3, top + 2 + line * _LINE), text, _FAULT, default_font(_TEXT))
        rest = rest[len(text) :].lstrip()
        if not rest:
            return


def _fit_line(draw: ImageDraw.ImageDraw, text: str, width: int, more: str = "…") -> str:
    """Cuts text to a width in the font of a sheet, see :func:`packstore.seeing.drawing.fit_text`."""
    return fit_text(draw, text[:300], width, default_font(_TEXT), more)


def _class_name(manifest: Manifest, number: int) -> str:
    """Returns the printable name of a class, or ``class N`` for a number without a name."""
    classes = manifest.classes
    return printable(classes[number]) if classes is not None and 0 <= number < len(classes) else f"class {number}"
