"""Columns of a store that the cells of tables become: boxes, classes, keypoints and the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from packstore.core.column import CROWD
from packstore.core.fields import Array, Boxes, Field, Json, Keypoints, Label, Labels
from packstore.sources.boxes import to_corners
from packstore.sources.names import make_column_names
from packstore.sources.schema import RELATIVE, UPRIGHT_VALUES
from packstore.sources.table.boxes import is_blank, parse_number_cell, read_row_boxes, read_stored_sides
from packstore.sources.table.classes import (
    BLANK,
    UNCERTAIN,
    ClassColumn,
    ClassTable,
    FlagColumns,
    find_descriptions,
    find_hierarchies,
    read_descriptions,
    read_hierarchy,
)
from packstore.sources.table.columns import ColumnRoles, convert_runs, parse_flag
from packstore.sources.table.images import RowsByImage
from packstore.sources.tree import Tree


class RecordColumns:
    """Columns of a store that the cells of tables become, without the images. Chooses their fields, and builds their
    values."""

    def __init__(
        self,
        tree: Tree,
        files: Sequence[str],
        rows: RowsByImage,
        roles: ColumnRoles,
        further: Mapping[str, int],
        convention: str,
        class_table: ClassTable | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            tree: The tree of the tables.
            files: Paths of the tables.
            rows: All rows, by image.
            roles: Columns of the tables by their meaning.
            further: Columns that name further images, each with the most that an image has.
            convention: Convention of the boxes; empty without boxes.
            class_table: Table that describes the classes; None for none.
        """
        self._tree, self._files, self._rows, self._roles = tree, files, rows, roles
        self._further, self._convention, self._class_table = further, convention, class_table

    def declare_fields(self) -> dict[str, Field]:
        """Returns the field of each column; reads rows as needed. The columns:

        - ``boxes``; with ``segmentations`` if the rows have masks, and ``iscrowd`` if a box is a crowd.
        - ``label`` or ``labels``, and ``tags``: classes of rows without a box.
        - ``parents``: the classes above.
        - Flags: ``label``, or ``labels`` with ``uncertain`` and ``unmentioned``.
        - ``keypoints`` with ``keypoint_labels``.
        - A column for each other column of the tables.

        Raises :class:`SourceError` for more than 65,536 classes, and for flags other than 0, 1, -1 and blank.
        """
        roles = self._roles
        fields: dict[str, Field] = {}
        if roles.boxes or roles.runs:
            fields["boxes"] = Boxes()
        if roles.runs:
            fields["segmentations"] = Json(shapes=True)
        if roles.label:
            classes = self._class_column.names
            if roles.boxes or roles.runs:
                fields["labels"] = Labels(classes, of="boxes")
                if self._has_tags:
                    fields["tags"] = Labels(classes, of=False, optional=True)
            elif roles.several or roles.label in self._varying_columns:
                fields["labels"] = Labels(classes, of=False, optional=True)
            else:
                fields["label"] = Label(classes, optional=self._lacks_values(roles.label))
        if roles.crowds:
            fields[CROWD] = Labels(of="boxes")
        if self._parents:
            fields["parents"] = Json()
        if roles.flags:
            fields |= self._flag_columns.fields
        if roles.points:
            fields["keypoints"] = Keypoints(3 if self._hides_points else 2, of=False)
            fields["keypoint_labels"] = Labels(tuple(dict.fromkeys(n for n, _, _ in roles.points)), of=False)
        for name in roles.rest:
            fields[self.names[name]] = self._typed_columns[name][0]
        return fields

    def build_values(self, rows: list[dict[str, Any]], image: bytes) -> dict[str, Any]:
        """Builds the values of an image from the cells of its rows. ``image``: its bytes, for the size.

        Keypoints, and columns that never differ within an image, come from the first row. Raises :class:`ValueError`
        for a cell that cannot be converted.
        """
        roles = self._roles
        result, boxed = self._read_boxes(rows, image)
        if roles.label:
            result |= self._read_classes(rows, boxed)
        if roles.crowds:
            result[CROWD] = [parse_flag(cells.get(roles.crowds)) or 0 for cells, count in boxed for _ in range(count)]
        if self._parents:
            labels = result["labels"] if "labels" in result else [result["label"]]
            result["parents"] = [self._parents.get(each, ()) for each in labels or ()]
        if roles.flags:
            result |= self._flag_columns.flag_values(rows)
        if roles.points:
            result |= self._read_points(rows[0])
        for name in roles.rest:
            convert = self._typed_columns[name][1]
            values = [convert(cells.get(name)) for cells in rows]
            result[self.names[name]] = values if name in self._varying_columns else values[0]
        return result

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
            relative = {RELATIVE: self._convention.endswith("n")}
            return {"boxes": boxes, **relative}, [
                (cells, len(each)) for cells, each in zip(rows, raw, strict=True) if each
            ]
        if roles.runs:
            masked = [cells for cells in rows if not is_blank(cells.get(roles.runs))]
            sides, swapped = read_stored_sides(image)
            values: dict[str, Any] = self._read_masks(masked, *sides)
            if masked and swapped:
                values[UPRIGHT_VALUES] = self._read_masks(masked, *sides[::-1])
            return values, [(cells, 1) for cells in masked]
        return {}, []

    def _read_masks(self, rows: list[dict[str, Any]], width: int, height: int) -> dict[str, list[Any]]:
        """Reads the run lengths of masks in an image of a size, with the boxes around them. Raises :class:`ValueError`
        for malformed ones."""
        masks = [convert_runs(cells[self._roles.runs], width, height) for cells in rows]
        return {"boxes": [box for box, _ in masks], "segmentations": [runs for _, runs in masks]}

    def _read_classes(self, rows: list[dict[str, Any]], boxed: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        """Reads the classes of an image. ``boxed``: its rows with boxes, each with the number of boxes.

        - With boxes: ``labels`` has one class for each box; ``tags`` has the classes of rows without a box.
        - Without boxes: ``label`` or ``labels`` of the image, None if it has no class. A repeated class counts once,
          unless other columns differ between the rows.

        Raises :class:`ValueError` if boxes and classes differ in number.
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
        points: list[list[float | None]] = []
        for _, x, y in self._roles.points:
            point = [parse_number_cell(cells.get(x)), parse_number_cell(cells.get(y))]
            if self._hides_points:
                point = [0.0, 0.0, 0.0] if None in point else [*point, 2.0]
            points.append(point)
        return {"keypoints": points, "keypoint_labels": [name for name, _, _ in self._roles.points]}

    @cached_property
    def class_files(self) -> list[str]:
        """Files that describe classes, beside the tables."""
        hierarchies = find_hierarchies(self._tree, self._files) if self._parents else []
        known = [] if self._class_table is None else [self._class_table.file]
        return [*known, *find_descriptions(self._tree, self._files), *hierarchies]

    @cached_property
    def names(self) -> dict[str, str]:
        """Names in the store of further images and of columns without a role, by their names in the table.

        A name that is only a number becomes ``columnNUMBER``. A name that is taken, or not allowed, is changed.
        """
        taken = [
            "image",
            "boxes",
            "segmentations",
            "label",
            "labels",
            *([CROWD] if self._roles.crowds else []),
            "tags",
            "keypoints",
            "keypoint_labels",
            *(["parents"] if self._parents else []),
            UNCERTAIN,
            BLANK,
        ]
        free = [name for name in taken if name not in ("label", "labels", "tags")]
        used = taken if self._roles.label or self._roles.flags else free
        further = [number_further(name, n) for name, most in self._further.items() for n in range(1, most + 1)]
        own = {name: f"column{name}" if name.isdigit() else name for name in (*further, *self._roles.rest)}
        names = make_column_names(own.values(), used)
        return {name: names[called] for name, called in own.items()}

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
        """Columns that have different values in the rows of some image. Only the column of labels and columns
        without a role can be among them."""
        columns: set[str] = set()
        names = [*self._roles.rest, *([self._roles.label] if self._roles.label else [])]
        for number in self._rows.images_with_several():
            rows = self._rows.cells_of(number)
            columns.update(n for n in names if n not in columns and any(c.get(n) != rows[0].get(n) for c in rows))
            if len(columns) == len(names):
                break
        return frozenset(columns)

    @cached_property
    def _typed_columns(self) -> dict[str, tuple[Field, Any]]:
        """Field of each column without a role, and the function that converts its cells.

        If values differ among the rows of an image, the field holds a list for each image. It is a list of numbers if
        no value is missing, else JSON.
        """
        columns: dict[str, tuple[Field, Any]] = {}
        for name in self._roles.rest:
            declared, convert = self._rows.facts[name].values.declare_field("", None)
            optional = self._lacks_values(name)
            if name in self._varying_columns:
                number = isinstance(declared, Array) and not declared.ragged and declared.shape == ()
                dtype = declared.dtype if isinstance(declared, Array) and number and not optional else ""
                declared = Array(dtype, ragged=True) if dtype else Json()
            elif not isinstance(declared, Json):
                declared = replace(declared, optional=optional)
            columns[name] = declared, convert
        return columns

    @cached_property
    def _class_column(self) -> ClassColumn:
        """Classes of the column of labels. Raises :class:`SourceError` for more than 65,536."""
        label, known = self._roles.label, self._class_table
        numbered = known.names if known is not None and known.column == label else None
        return ClassColumn(self._tree.name(), self._roles, self._rows.facts[label], self._class_titles, numbered)

    @cached_property
    def _class_titles(self) -> Mapping[str, str]:
        """Names of classes by their identifiers, from Open Images' descriptions."""
        return read_descriptions(self._tree, find_descriptions(self._tree, self._files))

    @cached_property
    def _parents(self) -> Mapping[str, Sequence[str]]:
        """Classes above each class, by their names; empty without names of classes or a hierarchy."""
        if not self._roles.label or self._class_column.names is None:
            return {}
        return read_hierarchy(self._tree, find_hierarchies(self._tree, self._files), self._class_titles)

    @cached_property
    def _flag_columns(self) -> FlagColumns:
        """The columns that are a class each. Raises :class:`SourceError` if one has other values than 0, 1, -1 and
        blank."""
        return FlagColumns(self._tree.name(), self._roles.flags, self._rows)

    @cached_property
    def _has_tags(self) -> bool:
        """True if some row has a class and no box. Reads rows up to the first such."""
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


def number_further(name: str, number: int) -> str:
    """Returns the name of a further image by its number in the column: ``NAME`` for 1, ``NAME 2`` for 2."""
    return name if number == 1 else f"{name} {number}"
