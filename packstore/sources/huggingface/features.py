"""The columns of an Arrow table as fields of a dataset, by their types and by Hugging Face's features.

Features lie in the metadata of a schema, under ``huggingface`` (``datasets.Features.arrow_schema``), or in a card.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from packstore.core.column import ITEM_SIZE
from packstore.core.errors import SourceError, printable
from packstore.core.fields import BOXES_ARE, Array, Boxes, Bytes, Field, Image, Images, Json, Label, Labels, Mask, Text
from packstore.images.sniff import begins_like_image
from packstore.sources.boxes import CONVENTIONS
from packstore.sources.huggingface.objects import ObjectColumn, find_objects
from packstore.sources.names import make_column_names
from packstore.sources.text_labels import is_label_name, name_words
from packstore.sources.values import infer_field, names_an_image

_log = logging.getLogger(__name__)

_NUMBERS = {**{name: name for name in ITEM_SIZE}, "halffloat": "float16", "float": "float32", "double": "float64"}
"""Dtypes by the names of Arrow's types."""
_OTHER_FILES = ("Audio", "Video", "Pdf", "Nifti")
"""Features that lie as images do, and are none."""
_GRAY_OR_PALETTE = (0, 3)  # of a PNG, byte 25
_MAX_FEATURES = 64 << 20

Cells = Callable[[int], Any]
"""The value of a row of an array."""


class File(NamedTuple):
    """An image or another file, as it lies in a table.

    Attributes:
        data: Its bytes; None where it is named alone.
        path: Its name; None where it has none.
        address: Of its bytes in memory, in the table's buffers; 0 where it is named alone.
    """

    data: bytes | None
    path: str | None
    address: int = 0


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table as a field.

    Attributes:
        name: Of the field.
        column: Of the column.
        field: What it is.
        cells: Makes of an array of the column what gives the value of each row; a :class:`File` of a struct of one.
        path: Name of the field that has the path of each :class:`File`; None where none is kept.
    """

    name: str
    column: str
    field: Field
    cells: Callable[[Any], Cells]
    path: str | None = None


class Facts(NamedTuple):
    """What the tables of a dataset say of their columns, by name.

    Attributes:
        optional: Columns that may have rows without a value.
        negative: Columns of integers some of which may be below 0: as a class, unknown.
        pathless: Columns of files none of which has a path.
        classes: The column of texts that names the class of each row, with the names of all.
        objects: The column that holds boxes.
    """

    optional: Collection[str] = ()
    negative: Collection[str] = ()
    pathless: Collection[str] = ()
    classes: tuple[str, tuple[str, ...]] | None = None
    objects: ObjectColumn | None = None


def load_pyarrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow. Raises :class:`SourceError` where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SourceError("Parquet and Arrow files are read by pyarrow: pip install 'packstore[parquet]'") from None


def features_of(schema: Any) -> dict[str, Any]:
    """Hugging Face's features in the metadata of a schema, by column; empty where there are none.

    Raises :class:`ValueError` for metadata that are damaged."""
    found = (schema.metadata or {}).get(b"huggingface")
    if found is None:
        return {}
    if len(found) > _MAX_FEATURES:
        raise ValueError(f"its features have {len(found)} bytes; expected at most {_MAX_FEATURES}")
    try:
        info = json.loads(found)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its features are no JSON: {error}") from None
    inner = info.get("info") if isinstance(info, dict) else None
    features = inner.get("features") if isinstance(inner, dict) else None
    return features if isinstance(features, dict) else {}


def class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of the classes of a feature; None where it is no ``ClassLabel``, or its classes have no names."""
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def is_label(name: str, type: Any, feature: Any) -> bool:
    """Whether a column holds class numbers: by its feature, or where it has none by its name."""
    named = feature is None and name.lower() == "label"
    return (named or _kind(feature) == "ClassLabel") and bool(load_pyarrow("pyarrow.types").is_integer(type))


def is_image_column(type: Any, feature: Any, *, only_files: bool) -> bool:
    """Whether a column of this Arrow type is one of ``datasets.Image``, or unless ``only_files`` one of bytes."""
    kind = _kind(feature)
    return (
        kind == "Image"
        or _is_file_list(type, feature)
        or (kind not in _OTHER_FILES and (_is_file_struct(type) or (_is_binary(type) and not only_files)))
    )


def columns_of(first: Any, features: Mapping[str, Any], facts: Facts) -> list[TableColumn]:
    """The fields of tables that begin with the record batch ``first``.

    Raises :class:`SourceError` for a column that no field holds, and where none is an image."""
    schema = first.schema
    if len(set(schema.names)) < len(schema.names):
        raise SourceError("its tables have two columns of one name")
    labels = [name for name in schema.names if _kind(features.get(name)) == "ClassLabel"]
    labels += [facts.classes[0]] if facts.classes is not None else []
    declared = {}
    objects = objects_in(schema, features)
    for number, name in enumerate(schema.names):
        column = (name, schema.types[number], features.get(name), first.column(number))
        try:
            field, cells = _declare(*column, facts, boxes=objects is not None and objects.column == name)
        except ValueError as error:
            raise SourceError(f"column {printable(name)!r}: {error}") from error
        declared[name] = field, cells
    images = [name for name, (field, _) in declared.items() if isinstance(field, Image)]
    lists = [name for name, (field, _) in declared.items() if isinstance(field, Images)]
    if not images and lists:
        images = lists = ["images" if "images" in lists else lists[0]]
        # A record needs a main image.
        declared[lists[0]] = (Image(), _part_of(lambda images: images[0] if images else None))
    else:
        lists = []
    if not images:
        found = ", ".join(f"{printable(name)} ({type})" for name, type in zip(schema.names, schema.types, strict=True))
        raise SourceError(f"no column holds images; columns: {found[:500]}")
    main = "image" if "image" in images else images[0]
    usual = {main: "image"} | ({labels[0]: "label"} if len(labels) == 1 and "label" not in declared else {})
    names = usual | make_column_names((name for name in declared if name not in usual), usual.values())
    columns: list[TableColumn] = []
    used = set(names.values())
    if lists:
        name = next(iter(make_column_names([f"further_{lists[0]}"], used).values()))
        used.add(name)
        columns.append(_rest_column(name, lists[0], facts, used))
    objects = facts.objects
    boxes = ""
    if objects is not None:
        columns += _object_columns(objects, objects.column in facts.optional, names[objects.column], used)
        boxes = columns[0].name
    for name, (field, cells) in declared.items():
        path = None
        if objects is not None and name == objects.column:
            if not objects.has_rest:
                continue
            cells = _mapped(objects.rest_of)
        elif objects is not None and not objects.boxes and name == objects.labels:
            field, cells = Labels(objects.classes, of=boxes), _mapped(objects.labels_of)
        if (
            _is_file_struct(schema.field(name).type) or isinstance(field, Images) or name in lists
        ) and name not in facts.pathless:
            path = _path_name("path" if name == main else f"{names[name]}_path", isinstance(field, Images), used)
        missing = name in facts.optional or (isinstance(field, Label) and name in facts.negative)
        # Of JSON, null is a value.
        optional = missing and name != main and not isinstance(field, Json)
        columns.append(TableColumn(names[name], name, replace(field, optional=optional), cells, path))
    return columns


def _path_name(wanted: str, several: bool, used: set[str]) -> str:
    """The name of the field for the path of each file, or for the paths of a list. Adds it to ``used``."""
    found = next(iter(make_column_names([f"{wanted}s" if several else wanted], used).values()))
    used.add(found)
    return found


def _rest_column(name: str, column: str, facts: Facts, used: set[str]) -> TableColumn:
    """The column of the images of a list after the first, which is the main image."""
    path = None if column in facts.pathless else _path_name(f"{name}_path", True, used)
    return TableColumn(name, column, Images(), _part_of(lambda images: images[1:]), path)


def _object_columns(objects: ObjectColumn, optional: bool, name: str, used: set[str]) -> list[TableColumn]:
    """The columns of boxes and, unless they are one of their own, of labels. Adds their names to ``used``."""
    if not objects.boxes:
        return [TableColumn(name, objects.column, Boxes(optional=optional), _mapped(objects.boxes_of))]
    wanted = ["boxes", "labels"] if objects.labels else ["boxes"]
    called = make_column_names(wanted, used)
    used |= set(called.values())
    found = [TableColumn(called["boxes"], objects.column, Boxes(optional=optional), _mapped(objects.boxes_of))]
    if objects.labels:
        labels = Labels(objects.classes, of=called["boxes"], optional=optional)
        found.append(TableColumn(called["labels"], objects.column, labels, _mapped(objects.labels_of)))
    return found


def objects_in(schema: Any, features: Mapping[str, Any]) -> ObjectColumn | None:
    """Finds the column of a schema that holds boxes; its convention is known if packstore has written it."""
    found = find_objects({name: _kind_of_objects(schema.field(name).type) for name in schema.names})
    if found is None:
        return None
    feature = features.get(found.column)
    inner = _inner_feature(feature) or feature
    beside = inner if found.boxes and isinstance(inner, dict) else features
    label = beside.get(found.labels)
    classes = class_names(label) or class_names(_inner_feature(label))
    said = (schema.field(found.column).metadata or {}).get(BOXES_ARE, b"").decode("ascii", "replace")
    return replace(found, classes=classes, convention=said if said in CONVENTIONS else "")


def _kind_of_objects(type: Any) -> str | dict[str, str]:
    """The kind of a column, or of the members of its objects, as :func:`find_objects` takes them."""
    types = load_pyarrow("pyarrow.types")
    if types.is_struct(type):
        return {(each := type.field(n)).name: _kind_of_list(each.type) for n in range(type.num_fields)}
    if is_list(type) and types.is_struct(type.value_type):
        item = type.value_type
        return {(each := item.field(n)).name: _kind_of_item(each.type) for n in range(item.num_fields)}
    return _kind_of_list(type)


def _kind_of_list(type: Any) -> str:
    return _kind_of_item(type.value_type) if is_list(type) else ""


def _kind_of_item(type: Any) -> str:
    types = load_pyarrow("pyarrow.types")
    if is_list(type):
        item = type.value_type
        return "boxes" if types.is_integer(item) or types.is_floating(item) else ""
    return "numbers" if types.is_integer(type) else "names" if _is_text(type) else ""


def is_list(type: Any) -> bool:
    """Whether a type is that of lists."""
    types = load_pyarrow("pyarrow.types")
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))


def plain_column(name: str, array: Any, feature: Any = None) -> tuple[Field, Cells]:
    """The field of an array and its values by row. Raises :class:`ValueError` for bytes, or where no field holds it."""
    if _is_binary(array.type) or _is_file_struct(array.type):
        raise ValueError(f"{printable(name)} holds bytes, and should hold what goes with files that are named")
    field, cells = _declare(name, array.type, feature, array, Facts(negative=(name,)))
    return field, cells(array)


def _declare(
    name: str, type: Any, feature: Any, array: Any, facts: Facts, boxes: bool = False
) -> tuple[Field, Callable[[Any], Cells]]:
    """The field of a column, which may hold boxes, and what reads its arrays. Raises :class:`ValueError` if no field
    holds it."""
    types = load_pyarrow("pyarrow.types")
    if types.is_dictionary(type):
        type = type.value_type
    if _is_file_struct(type) or _is_binary(type):
        cells = files if _is_file_struct(type) else _values
        return (Bytes() if _kind(feature) in _OTHER_FILES else _file_field(name, cells(array), feature)), cells
    if _lists_images(type, feature, array):
        return Images(), file_lists
    if is_label(name, type, feature):
        return Label(_distinct(name, class_names(feature))), _labels if name in facts.negative else _values
    if types.is_boolean(type) or types.is_integer(type) or types.is_floating(type):
        return Array(_NUMBERS[str(type)]), _values
    if _is_text(type):
        if facts.classes is not None and name == facts.classes[0]:
            return Label(facts.classes[1]), _named_labels(facts.classes[1])
        return Text(), _values
    if types.is_temporal(type) or types.is_decimal(type):
        return Text(), _texts
    inner = _inner_feature(feature)
    if _kind(feature) in ("Array2D", "Array3D", "Array4D", "Array5D"):
        shape, dtype = _declared_shape(feature)
        return Array(dtype, shape), _arrays(shape, dtype)
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        item = type.value_type
        if types.is_integer(item) and _kind(inner) == "ClassLabel":
            return Labels(_distinct(name, class_names(inner)), of=False), _lists
        if types.is_boolean(item) or types.is_integer(item) or types.is_floating(item):
            dtype = _NUMBERS[str(item)]
            if types.is_fixed_size_list(type):
                return Array(dtype, (type.list_size,)), _lists
            return Array(dtype, ragged=True), _lists
    _check_json(type)
    if not boxes:
        warn_of_names(name, feature)
    return Json(), _documents


def warn_of_names(column: str, feature: Any) -> None:
    """Logs a warning if numbers of classes in a JSON column lose their names."""
    for path, names in _nested_classes(feature):
        _log.warning(
            "%s: the numbers in %s are kept without the names of their classes: %s",
            *(printable(column), printable(path), ", ".join(map(printable, names[:5]))),
        )


def _file_field(name: str, cells: Cells, feature: Any) -> Field:
    """Of bytes: an image, a mask or something else, by its feature, its name and how the first ones begin."""
    data = b""
    for row in range(getattr(cells, "rows", 0)):
        value = cells(row)
        data = (value.data if isinstance(value, File) else value) or b""
        if data:
            break
    if not data:
        return Bytes() if feature is None and not names_an_image(name) else Image()
    found = infer_field(name.lower(), [data])
    if isinstance(found, Mask) and (len(data) < 26 or data[25] not in _GRAY_OR_PALETTE):
        return Image()
    is_image = _kind(feature) == "Image" or begins_like_image(data[:16])
    return Image() if is_image and isinstance(found, Bytes) else found


def _distinct(name: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Names of classes that can be those of a column: None where two are the same."""
    if names is None or len(set(names)) == len(names):
        return names
    twice = next(each for each in names if names.count(each) > 1)
    _log.warning(
        "%s: %r is the name of two classes: they are packed as numbers alone", printable(name), printable(twice)
    )
    return None


def _declared_shape(feature: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    shape, dtype = feature.get("shape"), _NUMBERS.get(str(feature.get("dtype")))
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape) or dtype is None:
        raise ValueError(f"its shape {shape!r:.80} and dtype {feature.get('dtype')!r:.80} are not those of an array")
    return tuple(shape), dtype


def _kind(feature: Any) -> str:
    kind = feature.get("_type") if isinstance(feature, dict) else None
    return kind if isinstance(kind, str) else ""


def _inner_feature(feature: Any) -> Any:
    """Of a list, the feature of its items."""
    if isinstance(feature, list):
        return feature[0] if len(feature) == 1 else None
    return feature.get("feature") if _kind(feature) in ("Sequence", "List", "LargeList") else None


def _nested_classes(feature: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = class_names(feature)
    if names is not None:
        yield path, names
    elif depth < 32:
        inner = _inner_feature(feature)
        if inner is not None:
            yield from _nested_classes(inner, path, depth + 1)
        elif isinstance(feature, dict) and not _kind(feature):
            for name, each in feature.items():
                yield from _nested_classes(each, f"{path}.{name}" if path else str(name), depth + 1)


def _is(type: Any, name: str) -> bool:
    return str(type) == name


def _is_text(type: Any) -> bool:
    types = load_pyarrow("pyarrow.types")
    return bool(types.is_string(type) or types.is_large_string(type) or _is(type, "string_view"))


def is_text_label(name: str, type: Any, feature: Any) -> bool:
    """Whether a column may name the class of each row in a text."""
    if load_pyarrow("pyarrow.types").is_dictionary(type):
        type = type.value_type
    return feature is None and _is_text(type) and is_label_name(name_words(name))


def _is_binary(type: Any) -> bool:
    types = load_pyarrow("pyarrow.types")
    return bool(
        types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_fixed_size_binary(type)
        or _is(type, "binary_view")
    )


def _is_file_struct(type: Any) -> bool:
    """Whether a type is that of ``datasets.Image``: a struct of ``bytes`` and mostly ``path``."""
    if not load_pyarrow("pyarrow.types").is_struct(type):
        return False
    names = {type.field(number).name for number in range(type.num_fields)}
    return names in ({"bytes"}, {"bytes", "path"}) and type.num_fields == len(names) and _is_binary(
        type.field("bytes").type
    )  # fmt: skip


def _is_file_list(type: Any, feature: Any) -> bool:
    """Whether a type is that of a list of ``datasets.Image``."""
    if not is_list(type):
        return False
    kind, item = _kind(_inner_feature(feature)), type.value_type
    return (kind == "Image" and _is_binary(item)) or (kind not in _OTHER_FILES and _is_file_struct(item))


def _lists_images(type: Any, feature: Any, array: Any) -> bool:
    """Whether an array holds lists of images: by its feature, else by the beginning of the first file."""
    if not is_list(type) or not (_is_file_struct(type.value_type) or _is_binary(type.value_type)):
        return False
    if (inner := _inner_feature(feature)) is not None:
        return _kind(inner) == "Image"
    cells = file_lists(array)
    listed = (each for row in range(len(array)) for each in cells(row) or ())
    data = next((data for each in listed if (data := each.data if isinstance(each, File) else each)), b"")
    return begins_like_image(data[:16])


def _check_json(type: Any, depth: int = 0) -> None:
    """Raises :class:`ValueError` for what JSON does not hold."""
    if depth > 32:
        raise ValueError("is nested more than 32 levels deep")
    if _is_binary(type):
        raise ValueError("holds files in structs, or in lists of other files than images: write them one a column")
    for number in range(type.num_fields):
        _check_json(type.field(number).type, depth + 1)


class ArrayCells:
    """The values of an array, by row."""

    def __init__(self, array: Any, value: Callable[[Any], Any]) -> None:
        self.rows = len(array)
        self._array, self._value = array, value

    def __call__(self, row: int) -> Any:
        return self._value(self._array[row])


def _as_py(scalar: Any) -> Any:
    return scalar.as_py()


def _values(array: Any) -> Cells:
    return ArrayCells(array, _as_py)


def _labels(array: Any) -> Cells:
    """Numbers of classes; those below 0 stand for an unknown class, as in test splits."""

    def number(scalar: Any) -> Any:
        value = scalar.as_py()
        return None if value is None or value < 0 else value

    return ArrayCells(array, number)


def _named_labels(names: Sequence[str]) -> Callable[[Any], Cells]:
    """Numbers of classes of their names."""
    numbers: dict[str | None, int | None] = {name: number for number, name in enumerate(names)}
    numbers[None] = None

    def number(scalar: Any) -> int | None:
        name = scalar.as_py()
        if name not in numbers:
            raise ValueError(f"{printable(str(name))!r} is none of the classes: its table has changed")
        return numbers[name]

    return lambda array: ArrayCells(array, number)


def _mapped(value: Callable[[Any], Any]) -> Callable[[Any], Cells]:
    """What a function makes of each value."""
    return lambda array: ArrayCells(array, lambda scalar: _plain(value(scalar.as_py())))


def _texts(array: Any) -> Cells:
    def text(scalar: Any) -> str | None:
        value = scalar.as_py()
        return None if value is None else str(_plain(value))

    return ArrayCells(array, text)


def _lists(array: Any) -> Cells:
    def numbers(scalar: Any) -> Any:
        values = scalar.values
        if values is None:
            return None
        if values.null_count:
            raise ValueError(f"{values.null_count} of the {len(values)} numbers in a list are null")
        return values.to_numpy(zero_copy_only=False)

    return ArrayCells(array, numbers)


def _arrays(shape: Sequence[int], dtype: str) -> Callable[[Any], Cells]:
    def numbers(scalar: Any) -> Any:
        value = scalar.as_py()
        return None if value is None else np.array(value, dtype).reshape(shape)

    return lambda array: ArrayCells(array, numbers)


def _documents(array: Any) -> Cells:
    return ArrayCells(array, lambda scalar: _plain(scalar.as_py()))


def _plain(value: Any) -> Any:
    """A value of Arrow as JSON holds it."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value) if isinstance(value, (timedelta, Decimal, UUID)) else value


def files(array: Any) -> Cells:
    """The values of an array of ``datasets.Image``: a :class:`File` each."""
    return _FileCells(array)


def file_lists(array: Any) -> Cells:
    """The values of an array of lists of files: for each a list of :class:`File` or of bytes."""

    def listed(scalar: Any) -> list[Any] | None:
        if not scalar.is_valid:
            return None
        cells = files(scalar.values) if _is_file_struct(scalar.values.type) else _values(scalar.values)
        return [cells(row) for row in range(len(scalar.values))]

    return ArrayCells(array, listed)


def _part_of(part: Callable[[list[Any]], Any]) -> Callable[[Any], Cells]:
    """What a function takes of each list of files."""

    def taken(array: Any) -> Cells:
        cells = file_lists(array)
        return lambda row: None if (found := cells(row)) is None else part(found)

    return taken


class _FileCells(ArrayCells):
    def __init__(self, array: Any) -> None:
        super().__init__(array, _as_py)
        parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        self._data, self._paths = parts["bytes"], parts.get("path")
        width = {"binary": np.int32, "large_binary": np.int64}.get(str(self._data.type))
        _, offsets, data = self._data.buffers() if width is not None else (None, None, None)
        self._offsets = None if offsets is None or data is None else np.frombuffer(offsets, width)
        self._start = 0 if data is None else data.address

    def __call__(self, row: int) -> File:
        path = None if self._paths is None else self._paths[row].as_py()
        data = self._data[row].as_py()
        if data is None or self._offsets is None:
            return File(data, path)
        return File(data, path, self._start + int(self._offsets[self._data.offset + row]))
