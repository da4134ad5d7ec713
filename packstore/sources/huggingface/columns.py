"""Columns of Arrow tables as fields of a dataset, and functions that convert their values.

Cells are a function of a row number, which returns the converted value of this row. A cell reader makes the cells of an
array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import printable
from packstore.core.fields import BOXES_ARE, Array, Bytes, Field, Image, Images, Json, Label, Labels, Mask, Text
from packstore.images.sniff import begins_like_image
from packstore.sources import huggingface as hf
from packstore.sources.boxes import CONVENTIONS
from packstore.sources.columns import make_column_names
from packstore.sources.huggingface import ObjectColumn, is_file_struct, is_list, load_pyarrow
from packstore.sources.values import infer_field, names_an_image

Cells = Callable[[int], Any]
"""Function that returns the converted value of a row."""
# Function that makes the cells of an array.
CellReader = Callable[[Any], Cells]
_MAX_DEPTH = 32


class TableFile(NamedTuple):
    """Image or other file in a table.

    Attributes:
        data: Its bytes; None if the table holds only its path.
        path: Its path; None if it has none.
        address: Address of the bytes in memory, in the table's buffers; 0 if unknown.
    """

    data: bytes | None
    path: str | None
    address: int = 0


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Column of a table, and the field that it becomes.

    Attributes:
        name: Name of the field.
        column: Name of the column.
        field: Declaration of the field.
        cells: Makes the cells of an array of the column.
        path: Name of the field for the paths of files; None if there is none.
    """

    name: str
    column: str
    field: Field
    cells: CellReader
    path: str | None = None


@dataclass(slots=True)
class TableFacts:
    """Facts about columns that only the whole tables show.

    Attributes:
        optional: Columns that may have rows without a value.
        negative: Columns of integers that may be below 0. In a column of classes, such a number means unknown.
        with_paths: Columns of files that may have paths.
        classes: Column of texts that names the class of each row, and the names of all classes.
        objects: Column that holds boxes.
    """

    optional: set[str] = field(default_factory=set)
    negative: set[str] = field(default_factory=set)
    with_paths: set[str] = field(default_factory=set)
    classes: tuple[str, tuple[str, ...]] | None = None
    objects: ObjectColumn | None = None


def scalar_cells(convert: Callable[[Any], Any]) -> CellReader:
    """Returns a reader of cells that convert the Arrow scalar of their row."""

    def read(array: Any) -> Cells:
        return lambda row: convert(array[row])

    return read


def _to_class_number(scalar: Any) -> int | None:
    """Converts a scalar to a class number; None for an unknown class."""
    value = scalar.as_py()
    # Test sets often have -1 for all labels.
    return None if value is None or value < 0 else value


def flatten_numbers(scalar: Any) -> Any:
    """Converts lists of numbers, also nested ones, to a NumPy array of one axis; null becomes None. Raises
    :class:`ValueError` for a null in them, and for other values than numbers."""
    values = scalar.values
    while values is not None and not values.null_count and is_list(values.type):
        values = values.flatten()
    if values is None:
        return None
    if values.null_count or not hf.is_number(values.type):
        raise ValueError(f"its lists hold a null, or other values than numbers: {values.type}")
    return values.to_numpy(zero_copy_only=False)


def _to_file_list(scalar: Any) -> list[Any] | None:
    """Converts a list of files to a list of :class:`TableFile`, or of bytes if they are plain bytes."""
    if not scalar.is_valid:
        return None
    cells = (file_cells if is_file_struct(scalar.values.type) else python_cells)(scalar.values)
    return [cells(row) for row in range(len(scalar.values))]


def to_json(scalar: Any) -> Any:
    """Converts an Arrow scalar to a value of JSON. Dates and times have ISO format; decimals, UUIDs and the like are
    texts. Raises :class:`ValueError` for a struct with a field twice."""
    try:
        return _plain_to_json(scalar.as_py())
    except ValueError:  # nanoseconds, which Python's dates and times lack
        if not load_pyarrow("pyarrow.types").is_temporal(scalar.type):
            raise
        return str(scalar.cast("string")).replace(" ", "T")


def _plain_to_json(value: Any) -> Any:
    """Converts a plain Python value of Arrow to JSON."""
    if isinstance(value, dict):
        return {str(name): _plain_to_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_to_json(each) for each in value]
    if isinstance(value, (date, time)):  # datetime is a date
        return value.isoformat()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


python_cells = scalar_cells(lambda scalar: scalar.as_py())
file_list_cells = scalar_cells(_to_file_list)
_first_file_cells = scalar_cells(lambda scalar: next(iter(_to_file_list(scalar) or ()), None))
_later_files_cells = scalar_cells(lambda scalar: (files := _to_file_list(scalar)) and files[1:])


def file_cells(array: Any) -> Cells:
    """Returns cells that read a :class:`TableFile` of an ``array`` of the type of ``datasets.Image``."""
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    data, paths = parts["bytes"], parts.get("path")
    width = {"binary": np.int32, "large_binary": np.int64}.get(str(data.type))
    starts: Any = None
    content: Any = None
    if width is not None:
        _, starts, content = data.buffers()
    # The address tells linked stores the place of the bytes in the source.
    offsets = None if starts is None or content is None else np.frombuffer(starts, width)[data.offset :]

    def read(row: int) -> TableFile:
        path, file = None if paths is None else paths[row].as_py(), data[row].as_py()
        address = 0 if file is None or offsets is None else content.address + int(offsets[row])
        return TableFile(file, path, address)

    return read


def declare_columns(first: Any, features: Mapping[str, Any], facts: TableFacts) -> list[TableColumn]:
    """Chooses the columns and fields of tables whose first rows are the record batch ``first``.

    If there are only lists of images, the first image of a list becomes ``image``, and the later ones ``further_…``. A
    column of objects becomes ``boxes``, ``labels``, ``iscrowd`` and, as JSON, the other members of the objects. Paths
    of files become columns, too.

    Raises :class:`ValueError` for a column that no field holds, for two columns of one name, and for tables without
    images.
    """
    schema, objects = first.schema, facts.objects
    declared = _declare_each(first, features, facts)
    main = _choose_main_image(schema, declared)
    labels = [name for name in schema.names if hf.feature_type(features.get(name)) == "ClassLabel"]
    labels += [facts.classes[0]] if facts.classes is not None else []
    usual = {main: "image"} | ({labels[0]: "label"} if len(labels) == 1 and "label" not in declared else {})
    names = usual | make_column_names((name for name in declared if name not in usual), usual.values())
    used = set(names.values())

    def take_name(wanted: str) -> str:
        (name,) = make_column_names([wanted], used).values()
        used.add(name)
        return name

    columns: list[TableColumn] = []
    is_first_of_list = isinstance(declared[main][0], Images)
    if is_first_of_list:  # a record needs a main image
        declared[main] = (Image(), _first_file_cells)
        further = take_name(f"further_{main}")
        columns.append(TableColumn(further, main, Images(), _later_files_cells))
    if objects is not None:
        parts = objects.declare_parts(names[objects.column], used, objects.column in facts.optional)
        used |= parts.keys()
        for name, (field, convert) in parts.items():
            columns.append(TableColumn(name, objects.column, field, _converting_reader(convert)))
    for name, (field, cells) in declared.items():
        if objects is not None and name == objects.column:
            if not objects.has_rest:
                continue
            cells = _converting_reader(objects.rest_of)
        elif objects is not None and not objects.boxes and name == objects.labels:
            field = Labels(objects.classes, of=names[objects.column])
            cells = python_cells
        has_path = name in facts.with_paths and isinstance(field, (Image, Mask, Bytes))
        path = take_name("path" if name == main else f"{names[name]}_path") if has_path else None
        missing = name in facts.optional or (isinstance(field, Label) and name in facts.negative)
        # In JSON, null is a value.
        optional = missing and name != main and not isinstance(field, Json)
        columns.append(TableColumn(names[name], name, replace(field, optional=optional), cells, path))
    return columns


def _converting_reader(convert: Callable[[Any], Any]) -> CellReader:
    """Returns a reader of cells that apply ``convert`` to the row as a value of JSON."""
    return scalar_cells(lambda scalar: convert(to_json(scalar)))


def declare_plain_column(name: str, type: Any, feature: Any) -> Field:
    """Chooses the field of a column without files by its type and feature. Raises :class:`ValueError` for bytes, and
    for a type that no field holds."""
    refuse_bytes(type)
    return _declare_column(name, type, feature, None, TableFacts())[0]


def find_box_column(schema: Any, features: Mapping[str, Any]) -> ObjectColumn | None:
    """Finds the only column of a schema that holds boxes, with the classes in its features. Returns None for none or
    several.

    The convention of the boxes is known only if packstore has written the table.
    """
    objects = hf.find_object_column({name: hf.classify_type(schema.field(name).type) for name in schema.names})
    if objects is None:
        return None
    feature = features.get(objects.column)
    inner = hf.item_feature(feature) or feature
    beside = inner if objects.boxes and isinstance(inner, dict) else features
    label = beside.get(objects.labels)
    classes = hf.class_names(label) or hf.class_names(hf.item_feature(label))
    convention = (schema.field(objects.column).metadata or {}).get(BOXES_ARE, b"").decode("ascii", "replace")
    return replace(objects, classes=classes, convention=convention if convention in CONVENTIONS else "")


def _declare_each(first: Any, features: Mapping[str, Any], facts: TableFacts) -> dict[str, tuple[Field, CellReader]]:
    """Chooses a field and a function that reads cells for each column on its own."""
    schema = first.schema
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("its tables have two columns of one name")
    declared = {}
    for name, type, array in zip(schema.names, schema.types, first.columns, strict=True):
        try:
            declared[name] = _declare_column(name, type, features.get(name), array, facts)
        except ValueError as error:
            raise ValueError(f"column {printable(name)!r}: {error}") from error
    return declared


def _choose_main_image(schema: Any, declared: Mapping[str, tuple[Field, CellReader]]) -> str:
    """Returns the column of the main image: ``image``, or else the first column of images, or of lists of images."""
    for kind, usual in ((Image, "image"), (Images, "images")):
        names = [name for name, (field, _) in declared.items() if isinstance(field, kind)]
        if names:
            return usual if usual in names else names[0]
    columns = ", ".join(f"{printable(name)} ({type})" for name, type in zip(schema.names, schema.types, strict=True))
    raise ValueError(f"no column holds images; columns: {columns[:500]}")


def _declare_column(name: str, type: Any, feature: Any, array: Any, facts: TableFacts) -> tuple[Field, CellReader]:
    """Returns the field of a column, and a function that reads its cells from an array."""
    types, type = load_pyarrow("pyarrow.types"), hf.value_type(type)
    # ``array`` has the first rows, which show what the files are.
    if is_file_struct(type) or hf.is_binary(type):
        cells = file_cells if is_file_struct(type) else python_cells
        if hf.feature_type(feature) in hf.OTHER_FILES:
            return Bytes(), cells
        return _infer_file_field(name, map(cells(array), range(len(array))), feature), cells
    if _holds_image_lists(type, feature, array):
        return Images(), file_list_cells
    if hf.is_label(name, type, feature):
        return Label(hf.class_names(feature)), scalar_cells(
            _to_class_number
        ) if name in facts.negative else python_cells
    if hf.is_number(type):
        return Array(hf.DTYPES[str(type)]), python_cells
    if hf.is_text(type):
        if facts.classes is not None and name == facts.classes[0]:
            return Label(facts.classes[1]), python_cells
        return Text(), python_cells
    if types.is_temporal(type) or types.is_decimal(type):
        return Text(), scalar_cells(lambda scalar: str(to_json(scalar)) if scalar.is_valid else None)
    if is_list(type) and hf.is_number(type.value_type):
        item, inner = type.value_type, hf.item_feature(feature)
        fixed = bool(types.is_fixed_size_list(type))
        field: Field = Array(hf.DTYPES[str(item)], (type.list_size,) if fixed else (), ragged=not fixed)
        if types.is_integer(item) and hf.feature_type(inner) == "ClassLabel":
            field = Labels(hf.class_names(inner), of=False)
        return field, scalar_cells(flatten_numbers)
    refuse_bytes(type)
    return Json(), scalar_cells(to_json)


def _infer_file_field(name: str, values: Iterable[Any], feature: Any) -> Field:
    """Infers if a column of files has images, masks or bytes, by its feature, name and first file."""
    data = _find_first_file(values)
    if not data:
        return Bytes() if feature is None and not names_an_image(name) else Image()
    field = infer_field(name.lower(), [data])
    return Image() if isinstance(field, Bytes) and hf.feature_type(feature) == "Image" else field


def _find_first_file(values: Iterable[Any]) -> bytes:
    """Returns the bytes of the first file that has any."""
    return next((data for each in values if (data := each.data if isinstance(each, TableFile) else each)), b"")


def _holds_image_lists(type: Any, feature: Any, array: Any) -> bool:
    """Tells if an array holds lists of images, by its feature or by the beginning of the first file."""
    if not is_list(type) or not (is_file_struct(type.value_type) or hf.is_binary(type.value_type)):
        return False
    if (inner := hf.item_feature(feature)) is not None:
        return hf.feature_type(inner) == "Image"
    cells = file_list_cells(array)
    return begins_like_image(_find_first_file(each for row in range(len(array)) for each in cells(row) or ())[:16])


def refuse_bytes(type: Any, depth: int = 0) -> None:
    """Raises :class:`ValueError` for a type that JSON cannot hold: bytes, or more than 32 levels."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"is nested more than {_MAX_DEPTH} levels deep")
    if hf.is_binary(type):
        raise ValueError("holds files in structs, or in lists of other files than images: write them one a column")
    for number in range(type.num_fields):
        refuse_bytes(type.field(number).type, depth + 1)
