"""Columns of a store that the cells of tables become: boxes, classes, keypoints and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from packstore.core.columns import CROWD
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Field, Json, Keypoints, Label, Labels, Segments
from packstore.sources.beside import join
from packstore.sources.boxes import to_corners
from packstore.sources.columns import make_column_names
from packstore.sources.schema import RELATIVE, UPRIGHT_VALUES
from packstore.sources.table.boxes import convert_runs, is_blank, parse_number_cell, read_row_boxes, read_stored_sides
from packstore.sources.table.columns import ColumnRoles, keep_value, parse_class_list, parse_flag, to_class_number
from packstore.sources.table.images import RowsByImage
from packstore.sources.table.reading import read_cells
from packstore.sources.tree import Tree

# Columns for classes with the cell -1, and for classes with a blank cell, as in CheXpert.
_UNCERTAIN, _BLANK = "uncertain", "unmentioned"
_MAX_CLASSES = 1 << 16
_OPEN_IMAGES = re.compile(
    r"(.*/)?[\w-]*annotations-(bbox|(human|machine)-imagelabels|object-segmentation)[\w-]*\.csv", re.I
)
_DESCRIPTIONS = re.compile(r"[\w-]*class-descriptions[\w-]*\.csv", re.I)


@dataclass(eq=False)
class RecordColumns:
    """Columns of a store that the cells of tables become, without the images. Chooses their fields, and builds their
    values.

    Attributes:
        tree: The tree of the tables.
        files: Paths of the tables.
        rows: All rows, by image.
        roles: Columns of the tables by their meaning.
        further: Columns that name further images.
        convention: Convention of the boxes; empty without boxes.
        declared: Fields of the columns whose types the tables state.
    """

    tree: Tree
    files: Sequence[str]
    rows: RowsByImage
    roles: ColumnRoles
    further: Sequence[str]
    convention: str
    declared: Mapping[str, Field]

    def declare_fields(self) -> dict[str, Field]:
        """Returns the field of each column; reads rows as needed. The columns:

        - ``boxes``; with ``segments`` if the rows have masks, and ``iscrowd`` if a box is a crowd.
        - ``label`` or ``labels``, and ``tags``: classes of rows without a box.
        - Flags: ``label``, or ``labels`` with ``uncertain`` and ``unmentioned``.
        - ``keypoints`` with ``keypoint_labels``.
        - A column for each other column of the tables.

        Raises :class:`SourceError` for more than 65,536 classes, and for flags other than 0, 1, -1 and blank.
        """
        roles = self.roles
        fields: dict[str, Field] = {}
        if roles.boxes or roles.runs:
            fields["boxes"] = Boxes()
        if roles.runs:
            fields["segments"] = Segments(of="boxes")
        if roles.label:
            classes = self._class_names
            if roles.boxes or roles.runs:
                fields["labels"] = Labels(classes, of="boxes")
                if self._has_tags:
                    fields["tags"] = Labels(classes, of=False, optional=True)
            elif roles.several or roles.label in self.varying_columns:
                fields["labels"] = Labels(classes, of=False, optional=True)
            else:
                fields["label"] = Label(classes, optional=self._lacks_values(roles.label))
        if roles.crowds:
            fields[CROWD] = Labels(of="boxes")
        if roles.flags:
            fields |= self._flag_fields
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
        roles = self.roles
        result, boxed = self._read_boxes(rows, image)
        if roles.label:
            result |= self._read_classes(rows, boxed)
        if roles.crowds:
            cells_of_boxes = [(cells.get(roles.crowds), count) for cells, count in boxed]
            result[CROWD] = [flag for cell, count in cells_of_boxes for flag in _list_crowds(cell, count)]
        if roles.flags:
            flags = {"label": 1, "labels": 1, _UNCERTAIN: -1, _BLANK: None}
            result |= {name: self._list_flagged(flags[name], rows) for name in self._flag_fields}
            if "label" in self._flag_fields:
                result["label"] = result["label"][0]
        if roles.points:
            result |= self._read_points(rows[0])
        for name in roles.rest:
            convert = self._typed_columns[name][1]
            values = [convert(cells.get(name)) for cells in rows]
            result[self.names[name]] = values if name in self.varying_columns else values[0]
        return result

    def _read_boxes(
        self, rows: list[dict[str, Any]], image: bytes
    ) -> tuple[dict[str, Any], list[tuple[dict[str, Any], int]]]:
        """Reads the boxes or masks of an image; also returns its rows with boxes, and the number of boxes of each."""
        roles = self.roles
        if roles.boxes:
            raw = [read_row_boxes(cells, roles.boxes) for cells in rows]
            boxes = to_corners([box for each in raw for box in each], self.convention, image)
            relative = {RELATIVE: self.convention.endswith("n")}
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
        """Reads the run lengths of masks in an image of a size, with the boxes around them."""
        masks = [convert_runs(cells[self.roles.runs], width, height) for cells in rows]
        return {"boxes": [box for box, _ in masks], "segments": [runs for _, runs in masks]}

    def _read_classes(self, rows: list[dict[str, Any]], boxed: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        """Reads the classes of an image; ``boxed`` has its rows with boxes, each with the number of boxes."""
        label = self.roles.label
        if self.roles.boxes or self.roles.runs:
            labels = [each for cells, count in boxed for each in self._list_box_classes(cells, count)]
            with_box = [cells for cells, _ in boxed]
            # The image as a whole has the classes of rows without a box.
            tags = [each for cells in rows if cells not in with_box for each in self._list_classes(cells)]
            return {"labels": labels} | ({"tags": tags} if self._has_tags and tags else {})
        classes = [each for cells in rows for each in self._list_classes(cells)]
        if not self.roles.several and label not in self.varying_columns:
            return {"label": classes[0] if classes else None}
        # The classes belong row by row to other values that differ.
        pairs = not self.varying_columns.isdisjoint(self.roles.rest)
        kept = classes if pairs else list(dict.fromkeys(classes))
        return {"labels": kept if classes else None}

    def _read_points(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the keypoints of a row and their names, as the columns ``keypoints`` and ``keypoint_labels``."""
        points: list[list[float | None]] = []
        for _, x, y in self.roles.points:
            point = [parse_number_cell(cells.get(x)), parse_number_cell(cells.get(y))]
            if self._hides_points:
                # The third number is COCO's visibility.
                point = [0.0, 0.0, 0.0] if None in point else [*point, 2.0]
            points.append(point)
        return {"keypoints": points, "keypoint_labels": [name for name, _, _ in self.roles.points]}

    @cached_property
    def names(self) -> dict[str, str]:
        """Names in the store of further images and of columns without a role, by their names in the table.

        A name that is only a number becomes ``columnNUMBER``. A name that is taken, or not allowed, is changed.
        """
        roles = self.roles
        taken = ["image", "boxes", "segments", "keypoints", "keypoint_labels", _UNCERTAIN, _BLANK]
        taken += ["label", "labels", "tags"] if roles.label or roles.flags else []
        taken += [CROWD] if roles.crowds else []
        own = {name: f"column{name}" if name.isdigit() else name for name in (*self.further, *roles.rest)}
        names = make_column_names(own.values(), taken)
        return {name: names[called] for name, called in own.items()}

    def _lacks_values(self, name: str) -> bool:
        """Tells if some row has no value of a column, or an empty text."""
        facts = self.rows.facts[name]
        return facts.count < len(self.rows) or facts.missing > 0

    @cached_property
    def varying_columns(self) -> frozenset[str]:
        """Columns that have different values in the rows of some image. Only the column of labels and columns
        without a role can be among them."""
        columns: set[str] = set()
        names = [*self.roles.rest, *([self.roles.label] if self.roles.label else [])]
        for number in self.rows.images_with_several():
            rows = self.rows.cells_of(number)
            columns.update(n for n in names if n not in columns and any(c.get(n) != rows[0].get(n) for c in rows))
            if len(columns) == len(names):
                break
        return frozenset(columns)

    @cached_property
    def _typed_columns(self) -> dict[str, tuple[Field, Any]]:
        """Field of each column without a role, and the function that converts its cells."""
        columns: dict[str, tuple[Field, Any]] = {}
        for name in self.roles.rest:
            facts, stated = self.rows.facts[name], self.declared.get(name)
            declared, convert = facts.declare_field() if stated is None else (stated, keep_value)
            optional = self._lacks_values(name)
            if isinstance(stated, Label):
                convert = to_class_number if facts.kinds <= {"int"} else keep_value
                optional |= facts.negatives > 0
            if name in self.varying_columns:
                # An image whose rows differ gets a list of their values.
                declared = Json()
            elif not isinstance(declared, Json):
                declared = replace(declared, optional=optional)
            columns[name] = declared, convert
        return columns

    @cached_property
    def _has_class_numbers(self) -> bool:
        """True if the cells of the column of labels are class numbers."""
        facts = self.rows.facts[self.roles.label]
        return facts.holds("number lists") or (facts.kinds <= {"int"} and not facts.negatives)

    @cached_property
    def _class_names(self) -> tuple[str, ...] | None:
        """Names of the classes: sorted, or by the numbers in the column of labels; None if these have no names."""
        label = self.roles.label
        stated = self.declared.get(label)
        if isinstance(stated, Label) and stated.classes:
            return tuple(stated.classes)
        if self._has_class_numbers:
            return None
        texts = self.rows.facts[label].texts
        if texts is None:
            raise SourceError(f"{self.tree.name()}: more than {_MAX_CLASSES:,} classes in {printable(label)}")
        return tuple(sorted({part for text in texts for part in self._split_classes(text)}))

    def _split_classes(self, value: Any) -> list[Any]:
        """Returns the classes in a cell, numbers or names; names get their titles."""
        facts, separator = self.rows.facts[self.roles.label], self.roles.separator
        if facts.holds("lists"):
            classes = parse_class_list(value) or []
            return classes if self._has_class_numbers else [*map(str, classes)]
        if self._has_class_numbers:
            return [int(value)]
        parts = [part.strip() for part in str(value).split(separator)] if separator else [str(value)]
        return [self._class_titles.get(part, part) for part in parts if part]

    def _list_classes(self, cells: Mapping[str, Any]) -> list[Any]:
        """Returns all classes in a row; a blank cell has none."""
        value: Any = cells.get(self.roles.label)
        return [] if is_blank(value) else self._split_classes(value)

    def _list_box_classes(self, cells: Mapping[str, Any], boxes: int) -> list[Any]:
        """Returns a class for each box of a row; a single class is that of all boxes."""
        classes = self._list_classes(cells)
        if len(classes) not in (1, boxes):
            raise ValueError(f"{boxes} boxes have {len(classes)} classes" if classes else "a box has no class")
        return classes if len(classes) == boxes else classes * boxes

    @cached_property
    def _class_titles(self) -> Mapping[str, str]:
        """Names of classes by their identifiers, from Open Images' descriptions: lines ``/m/011k07,Tortoise``."""
        files = find_descriptions(self.tree, self.files)
        rows = (row for file in files for _, row in read_cells(self.tree, file))
        return {row[0]: row[1] for row in rows if len(row) == 2}

    @cached_property
    def _flag_fields(self) -> dict[str, Field]:
        """Fields of the columns that are a class each: ``label``, or ``labels``, ``uncertain`` and ``unmentioned``."""
        values: set[int | None] = set()
        for name in self.roles.flags:
            each = self.rows.facts[name]
            if each.filled_count and not each.flags:
                raise SourceError(f"{self.tree.name()}: column {printable(name)} has other values than 0, 1, -1")
            values |= each.flags | ({None} if each.count < len(self.rows) else set())
        single = values <= {0, 1} and not self.rows.images_with_several()
        # Each row has exactly one 1, and each image one row.
        if single and all(len(self._list_flagged(1, [cells])) == 1 for _, cells in self.rows):
            return {"label": Label(self.roles.flags)}
        # -1 is uncertain, a blank cell unmentioned.
        columns = ["labels", *([_UNCERTAIN] if -1 in values else []), *([_BLANK] if None in values else [])]
        return {name: Labels(self.roles.flags, of=False) for name in columns}

    def _list_flagged(self, wanted: int | None, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Lists the classes that have a flag (1, 0, -1, or None for blank) in one of the rows."""
        return [name for name in self.roles.flags if any(parse_flag(cells.get(name)) == wanted for cells in rows)]

    @cached_property
    def _has_tags(self) -> bool:
        """True if some row has a class and no box."""
        roles = self.roles
        return any(
            self._list_classes(cells)
            and (is_blank(cells.get(roles.runs)) if roles.runs else not read_row_boxes(cells, roles.boxes))
            for _, cells in self.rows
        )

    @cached_property
    def _hides_points(self) -> bool:
        """True if some row lacks a coordinate of a point."""
        return any(self._lacks_values(name) for _, x, y in self.roles.points for name in (x, y))


def _list_crowds(cell: Any, boxes: int) -> list[int]:
    """Returns 1 for each crowd region among the boxes of a row, else 0; ``cell`` may have one flag for all."""
    return [int(flag in (1, True)) for flag in cell] if isinstance(cell, list) else [parse_flag(cell) or 0] * boxes


def find_descriptions(tree: Tree, tables: Iterable[str]) -> list[str]:
    """Finds the files in the folders of Open Images' tables that have the names of their classes."""
    folders = sorted({file.rpartition("/")[0] for file in tables if _OPEN_IMAGES.fullmatch(file)})
    return [
        join(folder, name) for folder in folders for name in tree.names(folder).files if _DESCRIPTIONS.fullmatch(name)
    ]
