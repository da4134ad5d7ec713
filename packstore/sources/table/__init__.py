"""Reads images and a table that names them: CSV, TSV, JSON Lines, JSON, Parquet, or text lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Field, Image, Images, Label, Mask
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field
from packstore.sources.boxes import NOT_CONVERTED
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.encodings import parse_columns
from packstore.sources.huggingface.features import ObjectColumn
from packstore.sources.ledger import Claims, Role
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.splits import find_meanings, find_splits_of_folders, lower_known_split
from packstore.sources.table.boxes import find_convention
from packstore.sources.table.columns import ColumnFacts, find_roles
from packstore.sources.table.finding import (
    Table,
    find_sample_submissions,
    find_tables,
    has_unread_lists,
    is_open_images_boxes,
    join_rows,
    join_tables,
    name_splits_alike,
    separate_repeated_tables,
)
from packstore.sources.table.images import ImageIndex, NamedRow, RowsByImage
from packstore.sources.table.record_columns import (
    DESCRIPTIONS,
    HIERARCHY,
    ClassTable,
    RecordColumns,
    find_class_files,
    number_further,
    separate_class_table,
)
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

_MOST_FURTHER, _MEASURED = 64, 512


class TableSource(FileRowSource):
    """Source of the images that tables name, in the order in which they are first named. Leaves out rows that name no
    image.

    All rows of an image are one sample. It has the boxes of all rows. Values that differ between rows become lists;
    keypoints are those of the first row.

    Opening reads all rows into a temporary file. It raises :class:`AmbiguousSourceError` for an image that two tables
    name, and if boxes fit several conventions. It raises :class:`SourceError` for an image in two splits, and for more
    than 64 further images of a column. It raises it also if no table names images.
    """

    kind = "table"
    left_images = "images that no row names"
    merges_rows = True
    """All rows of an image are one sample."""
    _tables: Sequence[Table]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = dict(parse_columns(options.columns))
        self._class_table: ClassTable | None = None
        self._find_tables(given)
        if self._class_table is not None and not given.keys() & {"label", "labels"}:
            given["label"] = [self._class_table.column]
        objects = next((table.objects for table in self._tables if table.objects is not None), None)
        if options.layout == NOT_CONVERTED:
            given["boxes"], objects = [], None
        for table in self._tables:
            table.objects = None if table.is_text else objects
        self._missing: Counter[str] = Counter()
        self._rows = RowsByImage(self.tree, self._tables, self._read_rows(), self.merges_rows)
        self._further = {name: 1 for table in self._tables for name in table.further}
        for number in self._rows.images_with_several() if self._further else ():
            for name, paths in self._rows.list_different(number, self._further).items():
                self._further[name] = max(self._further[name], len(paths))
        if max(self._further.values(), default=1) > _MOST_FURTHER:
            raise SourceError(f"{self.tree.name()}: an image has more than {_MOST_FURTHER} further images in its rows")
        plain = {name: each for name, each in self._rows.facts.items() if name not in self._further}
        declared = merge_declared_fields(self._tables)
        if self._class_table is not None and self._class_table.names is not None:
            declared[self._class_table.column] = Label(self._class_table.names)
        for name in declared.keys() & plain.keys():
            if isinstance(declared[name], Label):
                plain[name].flags = None
        if objects is not None:
            name_object_columns(objects, plain, given)
        header = all(table.has_names for table in self._tables)
        self._roles = find_roles(plain, given, header, any(True for _ in self._rows.images_with_several()))
        self._split_names, self._split_of = self._assign_splits()
        self._convention = ""
        if boxes := self._roles.boxes:
            where, sizes = self.tree.name(self._tables[0].file), _measure_images(self.tree, self._rows)
            implied = self._roles.convention
            self._convention = find_convention(where, boxes, implied, iter(self._rows), sizes, self.options.layout)
        self._columns = RecordColumns(
            *(self.tree, self._table_files, self._rows, self._roles, self._further, self._convention, declared)
        )
        self.evidence = self._describe_evidence()

    def _find_tables(self, given: dict[str, list[str]]) -> None:
        """Finds the tables and joins those of the same images. Sets ``_tables``; ``_copies``, tables that repeat
        others; and ``_class_table``.

        Raises :class:`SourceError` if there is no table. Raises :class:`UsageError` if none has the column of images
        that the user names.
        """
        tables, self._copies = separate_repeated_tables(self.tree, find_tables(self.tree, given, self.options.named))
        tables, self._class_table = separate_class_table(self.tree, join_tables(self.tree, tables))
        self._tables = name_splits_alike(tables)
        if not self._tables:
            if given.get("image"):
                image = printable(given["image"][0])
                raise UsageError(f"{self.tree.name()}: no table has a column {image} that names images")
            raise SourceError(
                f"{printable(str(self.path))} has no table whose rows name its images: name the column with "
                "--column image=COL"
            )

    def _read_rows(self) -> Iterator[NamedRow]:
        """Yields each row that names an image, with the cells of joined tables. Counts rows without an image in
        ``_missing``."""
        index = ImageIndex(self.tree)
        for number, table in enumerate(self._tables):
            for image, place, cells in join_rows(self.tree, table, index):
                if image is None:
                    self._missing[table.file] += 1
                else:
                    yield NamedRow(image, number, place, cells)

    def _describe_evidence(self) -> str:
        """Formats the tables, and their columns by role, as the evidence of the source."""
        roles = self._roles
        table = self._tables[0]
        parts = [f"image={table.image}", *(f"image={name}" for name in self._further)]
        parts += [f"boxes={','.join(roles.boxes)} ({self._convention})"] if roles.boxes else []
        if roles.label:
            parts.append(f"{'labels' if roles.several else 'label'}={roles.label}")
        parts += [f"masks={roles.runs}"] if roles.runs else []
        parts += [f"labels={len(roles.flags)} columns from {roles.flags[0]}"] if roles.flags else []
        parts += [f"keypoints={len(roles.points)} pairs of columns"] if roles.points else []
        parts += [f"split={roles.split}"] if roles.split else []
        files = ", ".join(self._table_files[:3]) + (" …" if len(self._table_files) > 3 else "")
        return f"{files} with the columns {', '.join(parts)}"

    def notes(self) -> tuple[str, ...]:
        """Adds a note about rows that repeat one."""
        self._repeated[""] = self._find_repeated_rows()
        return super().notes()

    def _find_repeated_rows(self) -> tuple[int, str]:
        """Counts the rows that repeat one of the same image, and returns the first such image."""
        count, first = 0, ""
        if self._roles.boxes or self._roles.runs or self._columns.varying_columns:
            return count, first  # all rows are packed: two objects, or two items of a list
        for image in self._rows.images_with_several():
            rows = [*map(repr, self._rows.cells_of(image))]
            if repeated := len(rows) - len({*rows}):
                count, first = count + repeated, first or self._rows.image_path(image)
        return count, first

    def _assign_splits(self) -> tuple[list[str], bytearray]:
        """Returns the names of the splits, and the number of each image's split.

        The column of splits decides. If its cell is blank, the path of the image's table decides. Without either, the
        images' own paths decide, if all of them name a split; else the names of several tables alike.

        Raises :class:`SourceError` for an image in two splits, and for more than 100 splits.
        """
        tables, rows, column = self._tables, self._rows, self._roles.split
        of_tables = [table.split for table in tables]
        by_path = not column and not any(of_tables)
        folders = (rows.image_path(number).rpartition("/")[0] for number in range(rows.image_count))
        own = list(folders) if by_path else []
        of_folders = find_splits_of_folders(own)
        if by_path and not of_folders:
            of_tables = [table.split for table in name_splits_alike(tables, some=False)]

        def find_split(number: int) -> str:
            split = of_folders[own[number]] if of_folders else of_tables[rows.table_of[number]]
            if not column:
                return split
            values = {str(cells.get(column) or "") for cells in rows.cells_of(number)}
            if len(values) > 1:
                raise SourceError(f"{rows.values_of(number)[-1][0]}: its image is in two splits")
            return lower_known_split(min(values)) or split

        return number_splits(self.tree.name(), map(find_split, range(rows.image_count)))

    def splits(self) -> Sequence[str]:
        """Returns the splits of all images, in packing order."""
        return in_packing_order(self._split_names)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. It has the image's number and the paths of its further images."""
        number = self._split_names.index(split)
        for image in np.flatnonzero(np.frombuffer(self._split_of, np.uint8) == number).tolist():
            yield FileRow(
                self._rows.image_path(image), {"entry": image, **self._further_files(image)}, self._rows.key_of(image)
            )

    def _further_files(self, image: int) -> dict[str, Any]:
        """Returns the further images of an image, by column."""
        further = self._rows.list_different(image, self._further) if self._further else {}
        return {
            self._columns.names[number_further(name, n)]: InTree(path)
            for name, paths in further.items()
            for n, path in enumerate(paths, 1)
        }

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, further images, and the columns of :class:`RecordColumns`."""
        columns: dict[str, Field] = {"image": Image()}
        for name, most in self._further.items():
            for n in range(1, most + 1):
                columns[self._columns.names[number_further(name, n)]] = self._declare_further_image(name)
        return columns | self._columns.declare_fields()

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its further images, and converts the cells of all its rows. Raises :class:`ValueError`
        for a missing file, and for a cell that cannot be converted."""
        values = dict(super().read_values(ref))
        rows = self._rows.cells_of(values.pop("entry"))
        return values | self._columns.build_values(rows, values[self.main])

    def describing_files(self) -> Iterable[str]:
        """Returns the tables, and the files that describe their classes."""
        known = [] if self._class_table is None else [self._class_table.file]
        return [*known, *self._table_files, *find_class_files(self.tree, self._table_files, DESCRIPTIONS)]

    @property
    def _table_files(self) -> list[str]:
        """Paths of all tables, joined ones included."""
        return [file for table in self._tables for file in table.files]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files as the base does. Claims as evidence Kaggle's sample submissions, tables that repeat others,
        and Open Images' hierarchies of classes."""
        super().claim_files(claims)
        hierarchies = find_class_files(self.tree, self._table_files, HIERARCHY)
        for file in (*find_sample_submissions(self.tree), *(table.file for table in self._copies), *hierarchies):
            claims.claim(file, Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the rows without an image, by table."""
        return {f"rows of {printable(file)} without an image": count for file, count in self._missing.items()}

    def close(self) -> None:
        """Closes the source and the temporary file of rows."""
        if hasattr(self, "_rows"):
            self._rows.close()
        super().close()

    def _declare_further_image(self, name: str) -> Image | Images | Mask:
        """Returns the field of a column of further images: optional images.

        If the column's name means masks, the first readable file in the first 512 rows decides between masks and
        images.
        """
        if not looks_like_mask(name.lower()):
            return Image(optional=True)
        rows = (cells.get(name) or () for _, cells in islice(self._rows, _MEASURED))
        return infer_mask_field(self.tree, chain.from_iterable(rows))


_MAX_SPLITS = 100
_SIZED, _HEADER = 512, 1 << 16


def _measure_images(tree: Tree, rows: RowsByImage) -> dict[int, tuple[int, int]]:
    """Reads (width, height), upright, of at most 1,023 images, at equal steps; of all images if there are fewer.

    Returns the sizes by row number; all rows of an image have one. Leaves out images without a readable header.
    """
    sizes: dict[int, tuple[int, int]] = {}
    for image in range(0, rows.image_count, max(1, rows.image_count // _SIZED)):
        start = tree.first_bytes(rows.image_path(image), _HEADER)
        with suppress(HeaderError, SampleError, ValueError):
            sizes |= dict.fromkeys(rows.numbers_of(image), upright_size(start))
    return sizes


def merge_declared_fields(tables: Sequence[Table]) -> dict[str, Field]:
    """Returns the fields of the columns for which all tables, with those that are joined to them, declare the same."""
    declared = [
        {name: field for each in (table, *table.joined) for name, field in each.declared.items()} for table in tables
    ]
    return {name: field for name, field in declared[0].items() if all(each.get(name) == field for each in declared)}


def name_object_columns(objects: ObjectColumn, facts: Mapping[str, ColumnFacts], given: dict[str, list[str]]) -> None:
    """Adds the columns of objects to the columns by role that the user gives, if all their boxes have four numbers."""
    boxes = objects.box_name
    if "boxes" not in given and boxes in facts and facts[boxes].boxes is not None:
        given["boxes"] = [boxes]
        if objects.labels and not given.keys() & {"label", "labels"}:
            given["label"] = [objects.label_name]
        if objects.crowds:
            given["crowds"] = [f"{objects.column}.{objects.crowds}"]


def number_splits(where: str, splits: Iterable[str]) -> tuple[list[str], bytearray]:
    """Returns the names of splits, and the number of each of ``splits``. Raises :class:`SourceError` for more than 100
    names. ``where``: Name of the source, for messages."""
    names: dict[str, int] = {}
    numbers = bytearray()
    for split in splits:
        numbers.append(names.setdefault(split, len(names)))
        if len(names) > _MAX_SPLITS:
            raise SourceError(f"{where}: more than {_MAX_SPLITS} splits")
    return [*names], numbers


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder or archive with tables that name its images.

    - ``CERTAIN`` if the user named the kind or the columns, or if all tables are Open Images' boxes.
    - ``CERTAIN`` if the only table has a header and names at least half of the images. Images in folders of splits
      without a table do not count.
    - ``CERTAIN`` if several tables, or lists without a header, name all images.
    - ``PARTIAL`` if tables name fewer images.
    - ``PARTIAL`` if some lists of images would be read, and others not.
    - ``NO`` without a table.
    """
    tree = open_tree(path)
    tables = [] if tree is None else find_tables(tree, parse_columns(options.columns), options.named)
    if tree is None or not tables:
        return Certainty.NO
    groups = join_tables(tree, separate_repeated_tables(tree, tables)[0])
    # Images of another split, such as a test set, may have no rows; others raise a question. Lists without a header,
    # and several tables, are often a part of a dataset of many files, so they must name all images.
    lists = any(suffix_of(table.file) in (".txt", ".lst") for table in groups)
    whole = lists or len(groups) > 1
    splits = {split for table in groups for split in find_meanings(table.file)}
    folders = list_contents(tree).folders.values()
    others = sum(folder.images.count for folder in folders if whole or not find_meanings(folder.path) - splits)
    named = sum(each.images for table in groups for each in (table.naming, *table.further.values()))
    enough = named * (1 if whole else 2) >= others
    if options.named or options.columns or all(is_open_images_boxes(table.file) for table in groups):
        return Certainty.CERTAIN
    return Certainty.CERTAIN if enough and not (lists and has_unread_lists(tree, groups)) else Certainty.PARTIAL


KIND = Kind(
    "table",
    "images with a table that names them: CSV, TSV, JSON, Parquet or text lines",
    _recognise,
    TableSource,
    takes_boxes=True,
    takes_columns=True,
    in_objects=True,
)
