"""Reads images and a table that names them: CSV, TSV, JSON Lines, JSON, Parquet, or text lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels, Mask
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import SourceOptions, Survey
from packstore.sources.beside import infer_mask_field
from packstore.sources.boxes import to_corners
from packstore.sources.column_options import parse_columns
from packstore.sources.contents import suffix_of
from packstore.sources.file_rows import FileRow, FileRowSource, InTree
from packstore.sources.ledger import Claims, Role
from packstore.sources.names import make_column_names
from packstore.sources.rows import in_packing_order
from packstore.sources.table.box_cells import is_blank, parse_number_cell
from packstore.sources.table.boxes import find_convention, measure_images, read_row_boxes, read_sides
from packstore.sources.table.classes import BLANK, UNCERTAIN, ClassColumn, FlagColumns
from packstore.sources.table.columns import convert_runs, find_roles
from packstore.sources.table.finding import (
    find_sample_submissions,
    find_tables,
    refuse_unknown_image_column,
    separate_repeated_tables,
)
from packstore.sources.table.image_rows import ImageRows, NamedRow
from packstore.sources.table.images import ImageIndex, batch_rows
from packstore.sources.table.joining import JoinedRows, join_tables
from packstore.sources.table.open_images import (
    find_descriptions,
    find_hierarchies,
    read_descriptions,
    read_hierarchy,
)
from packstore.sources.table.reading import TEXT
from packstore.sources.table.splits import assign_splits
from packstore.sources.values import looks_like_mask

_MOST_FURTHER, _MEASURED, _NAMED = 64, 512, 8


class TableSource(FileRowSource):
    """Source of the images that tables name, in the order in which they are first named. Rows that name no image are
    left out.

    All rows of an image are one sample. It has the boxes of all rows. Values that differ between rows become lists;
    keypoints are those of the first row.

    Opening reads all rows into a temporary file. It raises :class:`AmbiguousSourceError` for an image that two tables
    name, and if boxes fit several conventions. It raises :class:`SourceError` for an image in two splits, and for more
    than 64 further images of a column.
    """

    kind = "table"
    left_images = "images that no row names"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        self._find_tables(given)
        self._missing: Counter[str] = Counter()
        self._rows = ImageRows(self.tree, self._tables, self._read_rows())
        self._further = {name: 1 for table in self._tables for name in table.further}
        for number in self._rows.images_with_several() if self._further else ():
            for name, paths in self._rows.list_different(number, self._further).items():
                self._further[name] = max(self._further[name], len(paths))
        if max(self._further.values(), default=1) > _MOST_FURTHER:
            raise SourceError(f"{self.tree.name()}: an image has more than {_MOST_FURTHER} further images in its rows")
        plain = {name: each for name, each in self._rows.facts.items() if name not in self._further}
        self._roles = find_roles(plain, given, all(t.header or suffix_of(t.file) not in TEXT for t in self._tables))
        self._split_names, self._split_of = assign_splits(self.tree.name(), self._tables, self._rows, self._roles.split)
        self._convention = self._find_convention()
        self.evidence = self._describe_evidence()

    def _find_tables(self, given: Mapping[str, Sequence[str]]) -> None:
        """Finds the tables and joins those of the same images. Sets ``_tables``, and ``_copies``: tables that repeat
        others.

        Raises :class:`SourceError` if there is no table. Raises :class:`UsageError` if none has the column of images
        that the user names.
        """
        self._tables: Sequence[Any]
        tables, self._copies = separate_repeated_tables(self.tree, find_tables(self.tree, given, self.options.named))
        self._tables = join_tables(self.tree, tables)
        refuse_unknown_image_column(given, self._tables, self.tree)
        if not self._tables:
            raise SourceError(
                f"{printable(str(self.path))} has no table whose rows name its images: name the column with "
                "--column image=COL"
            )

    def _read_rows(self) -> Iterator[NamedRow]:
        """Yields each row that names an image, with the cells of joined tables. Counts rows without an image in
        ``_missing``.

        After the rows of a table, yields a row for each image that only the joined tables name.
        """
        index = ImageIndex(self.tree)
        for number, table in enumerate(self._tables):
            joined = JoinedRows(self.tree, table, index)
            for block in batch_rows(table.rows(self.tree)):
                images = list(table.naming.find_paths(index, [row.cells.get(table.image) for row in block]))
                others = {
                    name: list(naming.find_paths(index, [row.cells.get(name) for row in block]))
                    for name, naming in table.further.items()
                }
                for n, (row, image) in enumerate(zip(block, images, strict=True)):
                    if image is None:
                        self._missing[table.file] += 1
                        continue
                    cells = {name: value for name, value in row.cells.items() if name != table.image}
                    cells = joined.join_cells(image, cells) | {name: found[n] for name, found in others.items()}
                    yield NamedRow(image, number, row.place, cells)
            for image, cells in joined.remaining_images():
                yield NamedRow(image, number, self.tree.name(table.joined[0].file), cells)

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

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the rows. Adds a note about columns whose names were changed."""
        survey = super().survey(split, progress)
        where = f" in {printable(self._table_files[0])}" if len(self._table_files) == 1 else ""
        changed = [
            f"{called} ({printable(name)}{where})"
            for name, called in self._column_names.items()
            if called != name.lower()
        ]
        if not changed:
            return survey
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        note = f"columns whose names were changed: {', '.join(changed[:_NAMED])}{more}"
        return replace(survey, notes=(*survey.notes, note))

    def splits(self) -> Sequence[str]:
        """Returns the splits of all images, in packing order."""
        return in_packing_order(self._split_names)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. It has the image's number and the paths of its further images."""
        number = self._split_names.index(split)
        for image in np.flatnonzero(np.frombuffer(self._split_of, np.uint8) == number).tolist():
            values: dict[str, Any] = {"entry": image}
            for name, paths in self._rows.list_different(image, self._further).items() if self._further else ():
                for n, path in enumerate(paths, 1):
                    values[self._column_names[name if n == 1 else f"{name} {n}"]] = InTree(path)
            yield FileRow(self._rows.image_path(image), values)

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns:

        - ``image`` and further images.
        - ``boxes``; with ``segmentations`` if the rows have masks.
        - ``label`` or ``labels``, and ``tags``: classes of rows without a box.
        - ``parents``: the classes above.
        - Flags: ``label``, or ``labels`` with ``uncertain`` and ``unmentioned``.
        - ``keypoints`` with ``keypoint_labels``.
        - A column for each other column of the tables.
        """
        roles = self._roles
        found: dict[str, Field] = {"image": Image()}
        for name, most in self._further.items():
            for n in range(1, most + 1):
                found[self._column_names[name if n == 1 else f"{name} {n}"]] = self._declare_further_image(name)
        if roles.boxes or roles.runs:
            found["boxes"] = Boxes()
        if roles.runs:
            found["segmentations"] = Json()
        if roles.label:
            classes = self._class_column.names
            if roles.boxes or roles.runs:
                found["labels"] = Labels(classes, of="boxes")
                if self._has_tags:
                    found["tags"] = Labels(classes, of=False, optional=True)
            elif roles.several or roles.label in self._varying_columns:
                found["labels"] = Labels(classes, of=False, optional=True)
            else:
                found["label"] = Label(classes, optional=self._lacks_values(roles.label))
        if self._parents:
            found["parents"] = Json()
        if roles.flags:
            found |= self._flag_columns.fields
        if roles.points:
            found["keypoints"] = Keypoints(3 if self._hides_points else 2, of=False)
            found["keypoint_labels"] = Labels(tuple(dict.fromkeys(n for n, _, _ in roles.points)), of=False)
        for name in roles.rest:
            found[self._column_names[name]] = self._typed_columns[name][0]
        return found

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its further images, and converts the cells of all its rows. Raises :class:`ValueError`
        for a missing file, and for a cell that cannot be converted."""
        found = dict(super().read_values(ref))
        rows = self._rows.cells_of(found.pop("entry"))
        return found | self._build_values(rows, found[self.main])

    def _build_values(self, rows: list[dict[str, Any]], image: bytes) -> dict[str, Any]:
        """Builds all values of an image but the image, from the cells of its rows.

        Keypoints, and columns that never differ within an image, come from the first row. Raises :class:`ValueError`
        for a cell that cannot be converted.
        """
        roles = self._roles
        found, boxed = self._read_boxes(rows, image)
        if roles.label:
            found |= self._read_classes(rows, boxed)
        if self._parents:
            labels = found["labels"] if "labels" in found else [found["label"]]
            found["parents"] = [self._parents.get(each, ()) for each in labels or ()]
        if roles.flags:
            found |= self._flag_columns.flag_values(rows)
        if roles.points:
            found |= self._read_points(rows[0])
        for name in roles.rest:
            convert = self._typed_columns[name][1]
            values = [convert(cells.get(name)) for cells in rows]
            found[self._column_names[name]] = values if name in self._varying_columns else values[0]
        return found

    def _read_boxes(
        self, rows: list[dict[str, Any]], image: bytes
    ) -> tuple[dict[str, Any], list[tuple[dict[str, Any], int]]]:
        """Reads the boxes of an image, as corners in pixels; or run lengths of masks, with the boxes around them.

        Returns the values, and the rows that have boxes, each with the number of its boxes. Raises :class:`ValueError`
        for a malformed cell.
        """
        roles = self._roles
        if roles.boxes:
            raw = [read_row_boxes(cells, roles.boxes) for cells in rows]
            boxes = to_corners([box for each in raw for box in each], self._convention, image)
            return {"boxes": boxes}, [(cells, len(each)) for cells, each in zip(rows, raw, strict=True) if each]
        if roles.runs:
            masked = [cells for cells in rows if not is_blank(cells.get(roles.runs))]
            masks = [convert_runs(cells[roles.runs], *read_sides(image)) for cells in masked]
            values = {"boxes": [box for box, _ in masks], "segmentations": [runs for _, runs in masks]}
            return values, [(cells, 1) for cells in masked]
        return {}, []

    def _read_classes(self, rows: list[dict[str, Any]], boxed: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        """Reads the classes of an image.

        - With boxes: ``labels`` has one class for each box; ``tags`` has the classes of rows without a box.
        - Without boxes: ``label`` or ``labels`` of the image, None if it has no class.

        A repeated class of an image counts once, unless other columns differ between its rows. Raises
        :class:`ValueError` if boxes and classes differ in number.
        """
        label, column = self._roles.label, self._class_column
        if self._roles.boxes or self._roles.runs:
            labels = [each for cells, count in boxed for each in column.class_per_box(cells.get(label), count)]
            with_box = [cells for cells, _ in boxed]
            tags = [each for cells in rows if cells not in with_box for each in column.all_classes(cells.get(label))]
            return {"labels": labels} | ({"tags": tags} if self._has_tags and tags else {})
        classes = [each for cells in rows for each in column.all_classes(cells.get(label))]
        if not self._roles.several and label not in self._varying_columns:
            return {"label": classes[0] if classes else None}
        kept = classes if self._pairs_classes else list(dict.fromkeys(classes))
        return {"labels": kept if classes else None}

    def _read_points(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the keypoints of a row and their names, as the columns ``keypoints`` and ``keypoint_labels``.

        If any row of the tables lacks a coordinate, points have a third number: 2, or 0 for a missing point.
        """
        found: list[list[float | None]] = []
        for _, x, y in self._roles.points:
            point = [parse_number_cell(cells.get(x)), parse_number_cell(cells.get(y))]
            if self._hides_points:
                point = [0.0, 0.0, 0.0] if None in point else [*point, 2.0]
            found.append(point)
        return {"keypoints": found, "keypoint_labels": [name for name, _, _ in self._roles.points]}

    def describing_files(self) -> Iterable[str]:
        """Returns the tables, and the files that describe their classes."""
        return [*self._table_files, *self._class_files]

    @property
    def _table_files(self) -> list[str]:
        """Paths of all tables, joined ones included."""
        return [file for table in self._tables for file in table.files]

    @cached_property
    def _class_files(self) -> list[str]:
        """Files that describe classes, beside the tables."""
        hierarchies = find_hierarchies(self.tree, self._table_files) if self._parents else []
        return [*find_descriptions(self.tree, self._table_files), *hierarchies]

    def claim_files(self, claims: Claims) -> None:
        """Claims the files as the base does. Claims Kaggle's sample submissions, and tables that repeat others, as
        evidence."""
        super().claim_files(claims)
        for file in (*find_sample_submissions(self.tree), *(table.file for table in self._copies)):
            claims.claim(file, Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the rows without an image, by table."""
        return {f"rows of {printable(file)} without an image": count for file, count in self._missing.items()}

    def close(self) -> None:
        """Closes the source and the temporary file of rows."""
        if hasattr(self, "_rows"):
            self._rows.close()
        super().close()

    @cached_property
    def _column_names(self) -> dict[str, str]:
        """Names in the store of further images and of columns without a special meaning, by their names in the table.

        A name that is only a number becomes ``columnNUMBER``. A name that is taken, or not allowed, is changed.
        """
        taken = [
            "image",
            "boxes",
            "segmentations",
            "label",
            "labels",
            "tags",
            "keypoints",
            "keypoint_labels",
            *(["parents"] if self._parents else []),
            UNCERTAIN,
            BLANK,
        ]
        free = [name for name in taken if name not in ("label", "labels", "tags")]
        used = taken if self._roles.label or self._roles.flags else free
        further = [
            name if n == 1 else f"{name} {n}" for name, most in self._further.items() for n in range(1, most + 1)
        ]
        own = {name: f"column{name}" if name.isdigit() else name for name in (*further, *self._roles.rest)}
        names = make_column_names(own.values(), used)
        return {name: names[called] for name, called in own.items()}

    def _declare_further_image(self, name: str) -> Image | Mask:
        """Declares a column of further images, as optional images.

        If the column's name means masks, declares masks. Their form is that of the first readable file in the first 512
        rows.
        """
        if not looks_like_mask(name.lower()):
            return Image(optional=True)
        rows = (cells.get(name) for _, cells in islice(self._rows, _MEASURED))
        return infer_mask_field(self.tree, (path for path in rows if path is not None))

    @cached_property
    def _pairs_classes(self) -> bool:
        """True if other values of an image's rows differ, too. The classes then belong to them row by row."""
        return any(name in self._varying_columns for name in self._roles.rest)

    def _lacks_values(self, name: str) -> bool:
        """Tells if some row has no value of a column, or an empty text."""
        facts = self._rows.facts[name]
        return facts.values.count < len(self._rows) or facts.values.missing > 0 or facts.empty

    @cached_property
    def _varying_columns(self) -> frozenset[str]:
        """Columns that have different values in the rows of some image. Only the column of labels and those without
        a special meaning can be among them."""
        found: set[str] = set()
        names = [*self._roles.rest, *([self._roles.label] if self._roles.label else [])]
        for number in self._rows.images_with_several():
            rows = self._rows.cells_of(number)
            found.update(n for n in names if n not in found and any(c.get(n) != rows[0].get(n) for c in rows))
            if len(found) == len(names):
                break
        return frozenset(found)

    @cached_property
    def _typed_columns(self) -> dict[str, tuple[Field, Any]]:
        """Field of each column without a special meaning, and the function that converts its cells.

        If values differ among the rows of an image, the field holds a list for each image. It is a list of numbers if
        no value is missing, else JSON.
        """
        found: dict[str, tuple[Field, Any]] = {}
        for name in self._roles.rest:
            declared, convert = self._rows.facts[name].values.declare_field("", None)
            optional = self._lacks_values(name)
            if name in self._varying_columns:
                number = isinstance(declared, Array) and not declared.ragged and declared.shape == ()
                dtype = declared.dtype if isinstance(declared, Array) and number and not optional else ""
                declared = Array(dtype, ragged=True) if dtype else Json()
            elif not isinstance(declared, Json):
                declared = replace(declared, optional=optional)
            found[name] = declared, convert
        return found

    @cached_property
    def _class_column(self) -> ClassColumn:
        """Classes of the column of labels. Raises :class:`SourceError` for more than 65,536."""
        return ClassColumn(self.tree.name(), self._roles, self._rows.facts[self._roles.label], self._class_titles)

    @cached_property
    def _class_titles(self) -> Mapping[str, str]:
        """Names of classes by their identifiers, from Open Images' descriptions."""
        return read_descriptions(self.tree, find_descriptions(self.tree, self._table_files))

    @cached_property
    def _parents(self) -> Mapping[str, Sequence[str]]:
        """Classes above each class, by their names; empty without names of classes or a hierarchy."""
        if not self._roles.label or self._class_column.names is None:
            return {}
        return read_hierarchy(self.tree, find_hierarchies(self.tree, self._table_files), self._class_titles)

    @cached_property
    def _flag_columns(self) -> FlagColumns:
        """The columns that are a class each. Raises :class:`SourceError` if one has other values than 0, 1, -1 and
        blank."""
        return FlagColumns(self.tree.name(), self._roles.flags, self._rows)

    @cached_property
    def _has_tags(self) -> bool:
        """True if some row has a class and no box."""
        roles = self._roles
        return any(
            self._class_column.all_classes(cells.get(roles.label))
            and (is_blank(cells.get(roles.runs)) if roles.runs else not read_row_boxes(cells, roles.boxes))
            for _, cells in self._rows
        )

    @cached_property
    def _hides_points(self) -> bool:
        """True if some row lacks a coordinate of a point."""
        return any(self._lacks_values(name) for _, x, y in self._roles.points for name in (x, y))

    def _find_convention(self) -> str:
        """Finds the convention of boxes, or returns the convention that the user names. Returns ``""`` without boxes.

        Raises :class:`AmbiguousSourceError` if several fit. Raises :class:`SourceError` for a cell that holds no valid
        box.
        """
        if not self._roles.boxes:
            return ""
        where = self.tree.name(self._tables[0].file)
        return find_convention(
            where, self._roles, iter(self._rows), measure_images(self.tree, self._rows), self.options.layout
        )
