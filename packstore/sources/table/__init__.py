"""Reads images and a table that names them: CSV, TSV, JSON Lines, JSON, Parquet, or text lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.fields import Field, Image, Images, Label, Mask
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field
from packstore.sources.boxes import NOT_CONVERTED
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.encodings import parse_columns
from packstore.sources.huggingface import ObjectColumn
from packstore.sources.ledger import Claims, Role
from packstore.sources.rows import FileRow, InTree
from packstore.sources.splits import find_meanings, find_splits_of_folders, lower_known_split
from packstore.sources.table.boxes import find_convention
from packstore.sources.table.columns import ColumnFacts, find_roles
from packstore.sources.table.finding import (
    Table,
    find_tables,
    join_rows,
    join_tables,
    list_possible_tables,
    name_splits_alike,
    separate_class_table,
)
from packstore.sources.table.images import ImageIndex, ListedSource, NamedRow, RowsByImage, SplitNumbers
from packstore.sources.table.record_columns import RecordColumns, find_descriptions
from packstore.sources.tree import Tree
from packstore.sources.values import looks_like_mask

_MEASURED, _HEADER = 512, 1 << 16


class TableSource(ListedSource):
    """Source of the images that tables name, in the order in which they are first named. Leaves out rows that name no
    image.

    All rows of an image are one sample. It has the boxes of all rows. Values that differ between rows become lists;
    keypoints are those of the first row.

    Opening reads all rows into a temporary file. It raises :class:`AmbiguousSourceError` for an image that two tables
    name, and if boxes fit several conventions. It raises :class:`SourceError` for an image in two splits, and if no
    table names images.
    """

    kind = "table"
    left_images = "images that no row names"
    # All rows of an image are one sample.
    merges_rows = True
    listed: RowsByImage
    _tables: Sequence[Table]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = dict(parse_columns(options.columns))
        self._lists: set[str] = set()  # columns of further images that hold a list for each image
        self._class_files, self._class_labels = list[str](), dict[str, Field]()
        self._tables = self._find_tables(given)
        objects = next((table.objects for table in self._tables if table.objects is not None), None)
        if options.layout == NOT_CONVERTED:
            given["boxes"], objects = [], None
        for table in self._tables:
            table.objects = None if table.is_text else objects
        self._missing: Counter[str] = Counter()
        self.listed = RowsByImage(self.tree, self._tables, self._read_rows(), self.merges_rows)
        self._further = list(dict.fromkeys(name for table in self._tables for name in table.further))
        several = self.listed.images_with_several()
        for number in several if self._further else ():
            found = self.listed.list_different(number, self._further)
            self._lists |= {name for name, paths in found.items() if len(paths) > 1}
        plain = {name: each for name, each in self.listed.facts.items() if name not in self._further}
        declared = _merge_declared_fields(self._tables) | self._class_labels
        if objects is not None:
            _name_object_columns(objects, plain, given)
        header = all(table.has_names for table in self._tables)
        self._roles = find_roles(plain, given, header, bool(several), declared)
        self.assigned = self._assign_splits()
        self._convention = ""
        if boxes := self._roles.boxes:
            where, sizes = self.tree.name(self._tables[0].file), _measure_images(self.tree, self.listed)
            implied = self._roles.convention
            self._convention = find_convention(where, boxes, implied, iter(self.listed), sizes, self.options.layout)
        self._columns = RecordColumns(
            *(self.tree, self._table_files, self.listed, self._roles, self._further, self._convention, declared)
        )
        self.evidence = self._describe_evidence()

    def _find_tables(self, given: dict[str, list[str]]) -> Sequence[Table]:
        """Finds the tables, and joins those of the same images."""
        tables = join_tables(find_tables(self.tree, given, self.options.named))
        if not tables:
            column = f" in a column {printable(name)}" if (name := ",".join(given.get("image", ()))) else ""
            raise SourceError(
                f"{printable(str(self.path))} has no table whose rows name its images{column}: name the column with "
                "--column image=COL"
            )
        tables, self._class_files, column, names = separate_class_table(self.tree, tables)
        # The table of classes tells which column has the labels.
        if column and not given.keys() & {"label", "labels"}:
            given["label"] = [column]
        self._class_labels = {column: Label(names)} if names else {}
        return tables

    def _read_rows(self) -> Iterator[NamedRow]:
        """Yields each row that names an image, with the cells of joined tables, and counts other rows."""
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
        label = {"labels" if roles.several else "label": roles.label, "masks": roles.runs, "split": roles.split}
        parts = [f"image={name}" for name in (self._tables[0].image, *self._further)]
        parts += [f"boxes={','.join(roles.boxes)} ({self._convention})"] if roles.boxes else []
        parts += [f"{role}={column}" for role, column in label.items() if column]
        parts += [f"labels={len(roles.flags)} columns from {roles.flags[0]}"] if roles.flags else []
        parts += [f"keypoints={len(roles.points)} pairs of columns"] if roles.points else []
        files = ", ".join(self._table_files[:3]) + (" …" if len(self._table_files) > 3 else "")
        return f"{files} with the columns {', '.join(parts)}"

    def _assign_splits(self) -> SplitNumbers:
        """Returns the splits of all images, by the column of splits, the tables or their own paths."""
        tables, rows, column = self._tables, self.listed, self._roles.split
        by_path = not column and not any(table.split for table in tables)
        own = [self.file_of(number).rpartition("/")[0] for number in range(rows.image_count)] if by_path else []
        # Paths of images only count if all of them name a split.
        of_folders, of_tables = find_splits_of_folders(own), name_splits_alike(tables)

        def find_split(number: int) -> str:
            split = of_folders[own[number]] if of_folders else of_tables[rows.table_of[number]]
            if not column:
                return split
            values = {str(cells.get(column) or "") for cells in rows.cells_of(number)}
            if len(values) > 1:
                raise SourceError(f"{rows.values_of(number)[-1][0]}: its image is in two splits")
            # The cell may be blank.
            return lower_known_split(min(values)) or split

        return SplitNumbers(self.tree.name(), map(find_split, range(rows.image_count)))

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. It has the image's number and the paths of its further images."""
        for image in self.images_of(split):
            yield FileRow(
                self.file_of(image), {"entry": image, **self._further_files(image)}, self.listed.key_of(image)
            )

    def _further_files(self, image: int) -> dict[str, Any]:
        """Returns the further images of an image, by column; a list of images for a column of lists."""
        further = self.listed.list_different(image, self._further) if self._further else {}
        return {
            self._columns.names[name]: [*map(InTree, paths)] if name in self._lists else InTree(paths[0])
            for name, paths in further.items()
            if paths or name in self._lists
        }

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, further images, and the columns of :class:`RecordColumns`."""
        further = {self._columns.names[name]: self._declare_further_image(name) for name in self._further}
        return {"image": Image(), **further, **self._columns.declare_fields()}

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its further images, and converts the cells of all its rows. Raises :class:`ValueError`
        for a missing file, and for a cell that cannot be converted."""
        values = dict(super().read_values(ref))
        rows = self.listed.cells_of(values.pop("entry"))
        return values | self._columns.build_values(rows, values[self.main])

    def describing_files(self) -> Iterable[str]:
        """Returns the tables, and the files with the names of classes."""
        return [*self._class_files, *self._table_files, *find_descriptions(self.tree, self._table_files)]

    @property
    def _table_files(self) -> list[str]:
        """Paths of all tables, joined ones included."""
        return [file for table in self._tables for file in table.files]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files as the base does, and Kaggle's sample submissions as evidence."""
        super().claim_files(claims)
        for file in list_possible_tables(self.tree, submissions=True):
            claims.claim(file, Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the rows without an image, by table."""
        return {f"rows of {printable(file)} without an image": count for file, count in self._missing.items()}

    def _declare_further_image(self, name: str) -> Image | Images | Mask:
        """Returns the field of a column of further images: lists of images, masks, or optional images."""
        if name in self._lists:
            return Images()
        if not looks_like_mask(name.lower()):
            return Image(optional=True)
        # The name only suggests masks; the first readable file decides.
        rows = (cells.get(name) or () for _, cells in islice(self.listed, _MEASURED))
        return infer_mask_field(self.tree, chain.from_iterable(rows))


def _measure_images(tree: Tree, rows: RowsByImage) -> dict[int, tuple[int, int]]:
    """Reads the upright size of some 1,000 images at equal steps, by row number."""
    sizes: dict[int, tuple[int, int]] = {}
    for image in range(0, rows.image_count, max(1, rows.image_count // _MEASURED)):
        start = tree.first_bytes(rows.image_path(image), _HEADER)
        with suppress(HeaderError, SampleError, ValueError):
            sizes |= dict.fromkeys(rows.numbers_of(image), upright_size(start))
    return sizes


def _merge_declared_fields(tables: Sequence[Table]) -> dict[str, Field]:
    """Returns the fields of the columns for which all tables, with those that are joined to them, declare the same."""
    declared = [
        {name: field for each in (table, *table.joined) for name, field in each.declared.items()} for table in tables
    ]
    return {name: field for name, field in declared[0].items() if all(each.get(name) == field for each in declared)}


def _name_object_columns(objects: ObjectColumn, facts: Mapping[str, ColumnFacts], given: dict[str, list[str]]) -> None:
    """Adds the columns of objects to those that the user gives, if all their boxes have four numbers."""
    boxes = objects.box_name
    if "boxes" not in given and boxes in facts and "boxes" in facts[boxes].fits:
        given["boxes"] = [boxes]
        if objects.labels and not given.keys() & {"label", "labels"}:
            given["label"] = [objects.label_name]
        if objects.crowds:
            given["crowds"] = [f"{objects.column}.{objects.crowds}"]


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder or archive with tables that name its images."""
    tree = open_tree(path)
    tables = [] if tree is None else find_tables(tree, parse_columns(options.columns), options.named)
    if tree is None or not tables:
        return Certainty.NO
    open_images = all(table.file.endswith("annotations-bbox.csv") for table in tables)  # not of images without boxes
    if options.named or options.columns or open_images:
        return Certainty.CERTAIN
    # Images of another split, such as a test set, may have no rows; others raise a question. Lists without a header,
    # and several tables, are often a part of a dataset of many files, so they must name all images.
    tables = join_tables(tables)
    whole = len(tables) > 1 or suffix_of(tables[0].file) in (".txt", ".lst")
    splits = {split for table in tables for split in find_meanings(table.file)}
    folders = list_contents(tree).folders.values()
    # Images in folders of splits without a table do not count.
    others = sum(folder.images.count for folder in folders if whole or not find_meanings(folder.path) - splits)
    named = sum(len(each.images) for table in tables for each in (table.naming, *table.further.values()))
    # A single table with a header has to name half of the images.
    return Certainty.CERTAIN if named * (1 if whole else 2) >= others else Certainty.PARTIAL


KIND = Kind(
    "table",
    "images with a table that names them: CSV, TSV, JSON, Parquet or text lines",
    _recognise,
    TableSource,
    takes_boxes=True,
    takes_columns=True,
    in_objects=True,
)
