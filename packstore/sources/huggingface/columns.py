"""Columns of Arrow tables as fields of a dataset, declared by types, Hugging Face's features and the first files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from packstore.core.column import CROWD, ITEM_SIZE
from packstore.core.errors import SourceError, printable
from packstore.core.fields import BOXES_ARE, Array, Boxes, Bytes, Field, Image, Images, Json, Label, Labels, Mask, Text
from packstore.images.sniff import begins_like_image
from packstore.sources.boxes import CONVENTIONS
from packstore.sources.columns import make_column_names
from packstore.sources.huggingface.arrow_types import (
    is_binary,
    is_file_struct,
    is_list,
    is_number,
    is_text,
    load_pyarrow,
    value_type,
)
from packstore.sources.huggingface.cells import (
    CellReader,
    Cells,
    TableFile,
    array_reader,
    class_name_reader,
    converting_reader,
    file_cells,
    file_list_cells,
    first_file_cells,
    json_cells,
    label_cells,
    later_files_cells,
    python_cells,
    text_cells,
    vector_cells,
)
from packstore.sources.huggingface.features import (
    class_names,
    drop_repeated_names,
    feature_type,
    is_label,
    is_other_file,
    item_feature,
    warn_of_lost_names,
)
from packstore.sources.huggingface.objects import ObjectColumn, ValueKind, find_object_column
from packstore.sources.values import infer_field, names_an_image

_DTYPES = {**{name: name for name in ITEM_SIZE}, "halffloat": "float16", "float": "float32", "double": "float64"}
"""Dtypes by the names of Arrow's types."""
_COLOUR_TYPE, _GRAY_OR_PALETTE = 25, (0, 3)  # byte of a PNG, and its values for one channel
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Column of a table, and the field that it becomes.

    Attributes:
        name: Name of the field.
        column: Name of the column.
        field: Declaration of the field.
        cells: Function of an array of the column that returns a function of a row number.
        path: Name of the field for the paths of files; None if there is none.
    """

    name: str
    column: str
    field: Field
    cells: CellReader
    path: str | None = None


class TableFacts(NamedTuple):
    """Facts about columns that only the whole tables show.

    Attributes:
        optional: Columns that may have rows without a value.
        negative: Columns of integers that may be below 0. In a column of classes, such a number means unknown.
        pathless: Columns of files that have no paths.
        classes: Column of texts that names the class of each row, and the names of all classes.
        objects: Column that holds boxes.
    """

    optional: Collection[str] = ()
    negative: Collection[str] = ()
    pathless: Collection[str] = ()
    classes: tuple[str, tuple[str, ...]] | None = None
    objects: ObjectColumn | None = None


def declare_columns(first: Any, features: Mapping[str, Any], facts: TableFacts) -> list[TableColumn]:
    """Chooses the columns and fields of tables whose first rows are the record batch ``first``.

    If there are only lists of images, the first image of a list becomes ``image``, and the later ones ``further_…``. A
    column of objects becomes ``boxes``, ``labels``, ``iscrowd`` and, as JSON, the other members of the objects. Paths
    of files become columns, too.

    Raises :class:`SourceError` for a column that no field holds, for two columns of one name, and for tables without
    images.
    """
    schema, objects = first.schema, facts.objects
    declared = _declare_each(first, features, facts)
    main = _choose_main_image(schema, declared)
    is_first_of_list = isinstance(declared[main][0], Images)
    if is_first_of_list:  # a record needs a main image
        declared[main] = (Image(), first_file_cells)
    names = _choose_field_names(main, [*declared], _list_class_columns(schema, features, facts))
    used = set(names.values())
    columns = [_declare_later_images(main, facts, used)] if is_first_of_list else []
    boxes = [] if objects is None else _declare_box_columns(objects, facts, names[objects.column], used)
    columns += boxes
    for name, (field, cells) in declared.items():
        if objects is not None and name == objects.column:
            if not objects.has_rest:
                continue
            cells = converting_reader(objects.rest_of)
        elif objects is not None and not objects.boxes and name == objects.labels:
            field, cells = Labels(objects.classes, of=boxes[0].name), converting_reader(objects.labels_of)
        path, is_list_of_files = None, isinstance(field, Images)
        has_files = is_file_struct(schema.field(name).type) or is_list_of_files or (is_first_of_list and name == main)
        if has_files and name not in facts.pathless:
            path = _take_path_name("path" if name == main else f"{names[name]}_path", is_list_of_files, used)
        missing = name in facts.optional or (isinstance(field, Label) and name in facts.negative)
        # In JSON, null is a value.
        optional = missing and name != main and not isinstance(field, Json)
        columns.append(TableColumn(names[name], name, replace(field, optional=optional), cells, path))
    return columns


def declare_column(name: str, array: Any, feature: Any = None) -> tuple[Field, Cells]:
    """Chooses the field of a column of values beside image files. Returns the field, and a function that converts a row
    of ``array`` by its number.

    Raises :class:`ValueError` for bytes, and for a type that no field holds.
    """
    if is_binary(array.type) or is_file_struct(array.type):
        raise ValueError(f"{printable(name)} holds bytes, expected values of the files that other columns name")
    field, cells = _declare_column(name, array.type, feature, array, TableFacts(negative=(name,)))
    return field, cells(array)


def find_box_column(schema: Any, features: Mapping[str, Any]) -> ObjectColumn | None:
    """Finds the only column of a schema that holds boxes, with the classes in its features. Returns None for none or
    several.

    The convention of the boxes is known only if packstore has written the table.
    """
    objects = find_object_column({name: _classify_type(schema.field(name).type) for name in schema.names})
    if objects is None:
        return None
    feature = features.get(objects.column)
    inner = item_feature(feature) or feature
    beside = inner if objects.boxes and isinstance(inner, dict) else features
    label = beside.get(objects.labels)
    classes = class_names(label) or class_names(item_feature(label))
    convention = (schema.field(objects.column).metadata or {}).get(BOXES_ARE, b"").decode("ascii", "replace")
    return replace(objects, classes=classes, convention=convention if convention in CONVENTIONS else "")


def _declare_each(first: Any, features: Mapping[str, Any], facts: TableFacts) -> dict[str, tuple[Field, CellReader]]:
    """Chooses a field and a function that reads cells for each column on its own. Raises :class:`SourceError` for two
    columns of one name, and for a type that no field holds."""
    schema = first.schema
    if len(set(schema.names)) < len(schema.names):
        raise SourceError("its tables have two columns of one name")
    declared = {}
    objects = find_box_column(schema, features)
    for number, name in enumerate(schema.names):
        column = (name, schema.types[number], features.get(name), first.column(number))
        try:
            declared[name] = _declare_column(*column, facts, boxes=objects is not None and objects.column == name)
        except ValueError as error:
            raise SourceError(f"column {printable(name)!r}: {error}") from error
    return declared


def _choose_main_image(schema: Any, declared: Mapping[str, tuple[Field, CellReader]]) -> str:
    """Returns the column of the main image: ``image``, or else the first column of images.

    If there is none, returns ``images``, or else the first column of lists of images. Raises :class:`SourceError` for
    tables without images.
    """
    for kind, usual in ((Image, "image"), (Images, "images")):
        names = [name for name, (field, _) in declared.items() if isinstance(field, kind)]
        if names:
            return usual if usual in names else names[0]
    columns = ", ".join(f"{printable(name)} ({type})" for name, type in zip(schema.names, schema.types, strict=True))
    raise SourceError(f"no column holds images; columns: {columns[:500]}")


def _list_class_columns(schema: Any, features: Mapping[str, Any], facts: TableFacts) -> list[str]:
    """Lists the columns that are declared as classes, by their features or by all their texts."""
    labels = [name for name in schema.names if feature_type(features.get(name)) == "ClassLabel"]
    return labels + ([facts.classes[0]] if facts.classes is not None else [])


def _choose_field_names(main: str, columns: list[str], labels: list[str]) -> dict[str, str]:
    """Returns the field name of each column.

    - ``image`` for the main image.
    - ``label`` for the only column of classes, unless another column has this name.
    - For all others, the column's name, made valid and unique.
    """
    usual = {main: "image"} | ({labels[0]: "label"} if len(labels) == 1 and "label" not in columns else {})
    return usual | make_column_names((name for name in columns if name not in usual), usual.values())


def _take_path_name(wanted: str, is_list: bool, used: set[str]) -> str:
    """Makes the name of the field for the paths of files, and adds it to ``used``. ``wanted``: the name, unless it is
    used.

    A list of paths gets a plural.
    """
    name = next(iter(make_column_names([f"{wanted}s" if is_list else wanted], used).values()))
    used.add(name)
    return name


def _declare_later_images(column: str, facts: TableFacts, used: set[str]) -> TableColumn:
    """Returns a column of the images that follow the first in each cell's list. Its ``path`` names a column of their
    paths.

    Adds the names to ``used``. There is no column of paths if no image has a path.
    """
    name = next(iter(make_column_names([f"further_{column}"], used).values()))
    used.add(name)
    path = None if column in facts.pathless else _take_path_name(f"{name}_path", True, used)
    return TableColumn(name, column, Images(), later_files_cells, path)


def _declare_box_columns(objects: ObjectColumn, facts: TableFacts, name: str, used: set[str]) -> list[TableColumn]:
    """Returns the column of boxes, and those of labels and crowd regions if the same column holds them. Adds their
    names to ``used``.

    ``name``: name of the field, if the column holds the boxes alone.
    """
    optional = objects.column in facts.optional
    if not objects.boxes:
        return [TableColumn(name, objects.column, Boxes(optional=optional), converting_reader(objects.boxes_of))]
    parts = {"boxes": True, "labels": bool(objects.labels), CROWD: bool(objects.crowds)}
    names = make_column_names([part for part, there in parts.items() if there], used)
    used |= set(names.values())
    boxes = Boxes(optional=optional)
    columns = [TableColumn(names["boxes"], objects.column, boxes, converting_reader(objects.boxes_of))]
    if objects.labels:
        labels = Labels(objects.classes, of=names["boxes"], optional=optional)
        columns.append(TableColumn(names["labels"], objects.column, labels, converting_reader(objects.labels_of)))
    if objects.crowds:
        crowds = Labels(of=names["boxes"], optional=optional)
        columns.append(TableColumn(names[CROWD], objects.column, crowds, converting_reader(objects.crowds_of)))
    return columns


def _declare_column(
    name: str, type: Any, feature: Any, array: Any, facts: TableFacts, boxes: bool = False
) -> tuple[Field, CellReader]:
    """Chooses the field of a column by its type, its feature and ``array``, its first rows.

    Returns the field, and a function of an array, which returns a function from a row number to a value. Logs a warning
    for names of classes that JSON does not keep, unless ``boxes``: then the names become labels.

    Raises :class:`ValueError` for a type that no field holds.
    """
    types, type = load_pyarrow("pyarrow.types"), value_type(type)
    if is_file_struct(type) or is_binary(type):
        cells = file_cells if is_file_struct(type) else python_cells
        return (Bytes() if is_other_file(feature) else _infer_file_field(name, cells(array), feature)), cells
    if _holds_image_lists(type, feature, array):
        return Images(), file_list_cells
    if is_label(name, type, feature):
        names = drop_repeated_names(name, class_names(feature))
        return Label(names), label_cells if name in facts.negative else python_cells
    if is_number(type):
        return Array(_DTYPES[str(type)]), python_cells
    if is_text(type):
        if facts.classes is not None and name == facts.classes[0]:
            return Label(facts.classes[1]), class_name_reader(facts.classes[1])
        return Text(), python_cells
    if types.is_temporal(type) or types.is_decimal(type):
        return Text(), text_cells
    if feature_type(feature) in ("Array2D", "Array3D", "Array4D", "Array5D"):
        shape, dtype = _read_array_shape(feature)
        return Array(dtype, shape), array_reader(shape, dtype)
    if is_list(type) and is_number(type.value_type):
        item, inner = type.value_type, item_feature(feature)
        if types.is_integer(item) and feature_type(inner) == "ClassLabel":
            return Labels(drop_repeated_names(name, class_names(inner)), of=False), vector_cells
        if types.is_fixed_size_list(type):
            return Array(_DTYPES[str(item)], (type.list_size,)), vector_cells
        return Array(_DTYPES[str(item)], ragged=True), vector_cells
    _refuse_non_json(type)
    if not boxes:
        warn_of_lost_names(name, feature)
    return Json(), json_cells


def _infer_file_field(name: str, cells: Cells, feature: Any) -> Field:
    """Infers if a column of files has images, masks or bytes, by its feature, name and first file.

    Without a file, a column with a feature or the name of an image has images; any other has bytes.
    """
    values = (cells(row) for row in range(getattr(cells, "rows", 0)))
    data = next((data for value in values if (data := value.data if isinstance(value, TableFile) else value)), b"")
    if not data:
        return Bytes() if feature is None and not names_an_image(name) else Image()
    field = infer_field(name.lower(), [data])
    if isinstance(field, Mask) and (len(data) <= _COLOUR_TYPE or data[_COLOUR_TYPE] not in _GRAY_OR_PALETTE):
        return Image()
    is_image = feature_type(feature) == "Image" or begins_like_image(data[:16])
    return Image() if is_image and isinstance(field, Bytes) else field


def _read_array_shape(feature: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    """Reads shape and dtype from the feature of an array. Raises :class:`ValueError` if either is invalid."""
    shape, dtype = feature.get("shape"), _DTYPES.get(str(feature.get("dtype")))
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape) or dtype is None:
        raise ValueError(f"its shape {shape!r:.80} and dtype {feature.get('dtype')!r:.80} are not those of an array")
    return tuple(shape), dtype


def _holds_image_lists(type: Any, feature: Any, array: Any) -> bool:
    """Tells if an array holds lists of images, by its feature. Without a feature, decides by the beginning of the
    first file."""
    if not is_list(type) or not (is_file_struct(type.value_type) or is_binary(type.value_type)):
        return False
    if (inner := item_feature(feature)) is not None:
        return feature_type(inner) == "Image"
    cells = file_list_cells(array)
    files = (each for row in range(len(array)) for each in cells(row) or ())
    data = next((data for each in files if (data := each.data if isinstance(each, TableFile) else each)), b"")
    return begins_like_image(data[:16])


def _refuse_non_json(type: Any, depth: int = 0) -> None:
    """Raises :class:`ValueError` for a type that JSON cannot hold: bytes, or more than 32 levels."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
    if is_binary(type):
        raise ValueError("holds files in structs, or in lists of other files than images: write them one a column")
    for number in range(type.num_fields):
        _refuse_non_json(type.field(number).type, depth + 1)


def _classify_type(type: Any) -> ValueKind:
    """Returns the kind of a column's type: ``boxes``, ``numbers``, ``names`` or ``""``.

    - A struct: a dictionary with the kind of each member's list items.
    - A list of structs: a dictionary with the kind of each member.
    - Any other type: the kind of its list items.
    """
    types = load_pyarrow("pyarrow.types")
    if types.is_struct(type):
        return {(each := type.field(n)).name: _classify_list_items(each.type) for n in range(type.num_fields)}
    if is_list(type) and types.is_struct(type.value_type):
        item = type.value_type
        return {(each := item.field(n)).name: _classify_item(each.type) for n in range(item.num_fields)}
    return _classify_list_items(type)


def _classify_list_items(type: Any) -> str:
    """Returns the kind of the items of a list, or ``""`` for other types."""
    return _classify_item(type.value_type) if is_list(type) else ""


def _classify_item(type: Any) -> str:
    """Returns the kind of an item: ``boxes`` for lists of numbers, ``numbers`` for integers, ``names`` for texts.
    Other types have ``""``."""
    types = load_pyarrow("pyarrow.types")
    if is_list(type):
        item = type.value_type
        return "boxes" if types.is_integer(item) or types.is_floating(item) else ""
    return "numbers" if types.is_integer(type) else "names" if is_text(type) else ""
