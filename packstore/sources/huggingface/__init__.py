"""Meaning of the columns of Arrow tables: their types, Hugging Face's features, and objects with boxes.

Features lie in the metadata of a schema, under ``huggingface`` (``datasets.Features.arrow_schema``), or in a card. A
feature is a dict with ``_type``, a list of one feature, or a dict of features by name.

Sets for detection have ``objects`` with ``bbox`` and ``category``, or a column ``bbox``. ``datasets`` stores
``Sequence({…})`` as a struct of lists, and ``[{…}]`` as a list of structs
(https://huggingface.co/docs/datasets/object_detection). Neither states the convention of the four numbers of a box.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from packstore.core.columns import CROWD, ITEM_SIZE, is_crowd_name
from packstore.core.errors import SourceError
from packstore.core.fields import Boxes, Field, Labels
from packstore.core.plainjson import load_json
from packstore.sources.boxes import BOX_NAMES, LABEL_NAMES
from packstore.sources.columns import is_label_name, make_column_names, name_words
from packstore.sources.values import number_equal_names

# Features whose files are stored as those of images are.
OTHER_FILES = ("Audio", "Video", "Pdf", "Nifti")
_MAX_BYTES = 64 << 20
DTYPES = {**{name: name for name in ITEM_SIZE}, "halffloat": "float16", "float": "float32", "double": "float64"}
"""Dtypes by the names of Arrow's types."""

# Kind of a column for :func:`find_object_column`: ``boxes`` for lists of boxes, ``numbers`` for lists of integers,
# ``names`` for lists of texts, ``""`` for anything else; for objects, the kind of each member by name.
ValueKind = str | dict[str, str]


def load_pyarrow(module: str = "pyarrow") -> Any:
    """Imports a module of pyarrow. Raises :class:`SourceError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SourceError("Parquet and Arrow files are read by pyarrow: pip install 'packstore[parquet]'") from None


def pyarrow_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that pyarrow raises for files that are damaged, or gone."""
    errors = (OSError, ValueError, KeyError, NotImplementedError, MemoryError, OverflowError)
    return (*errors, load_pyarrow().ArrowException)


def is_list(type: Any) -> bool:
    """Tells if a type is a list, of fixed size or not. Views of lists do not count."""
    return str(type).startswith(("list<", "large_list<", "fixed_size_list<"))


def is_text(type: Any) -> bool:
    """Tells if a type is a string: small, large or a view."""
    return str(type) in ("string", "large_string", "string_view")


def is_binary(type: Any) -> bool:
    """Tells if a type is bytes: small, large, of fixed size or a view."""
    return str(type).startswith(("binary", "large_binary", "fixed_size_binary["))


def is_number(type: Any) -> bool:
    """Tells if a type is a boolean, an integer or a floating-point number; decimals do not count."""
    return str(type) in DTYPES


def is_file_struct(type: Any) -> bool:
    """Tells if a type is that of ``datasets.Image``: a struct of ``bytes``, with or without ``path``."""
    if not load_pyarrow("pyarrow.types").is_struct(type):
        return False
    names = [type.field(number).name for number in range(type.num_fields)]
    return sorted(names) in (["bytes"], ["bytes", "path"]) and is_binary(type.field("bytes").type)


def value_type(type: Any) -> Any:
    """Returns the type of the values of a dictionary-encoded type; another type unchanged."""
    return type.value_type if load_pyarrow("pyarrow.types").is_dictionary(type) else type


def read_features(schema: Any) -> dict[str, Any]:
    """Reads the features by column from the metadata of a schema; empty if there are none. Raises :class:`ValueError`
    if they are no JSON, or over 64 MiB."""
    data = (schema.metadata or {}).get(b"huggingface")
    if data is None:
        return {}
    if len(data) > _MAX_BYTES:
        raise ValueError(f"its features have {len(data)} bytes; expected at most {_MAX_BYTES}")
    try:
        features = load_json(data, "are no JSON")["info"]["features"]
    except (KeyError, TypeError):
        return {}
    except ValueError as error:
        raise ValueError(f"its features {error}") from None
    return features if isinstance(features, dict) else {}


def feature_type(feature: Any) -> str:
    """Returns the name of a feature's type, such as ``ClassLabel``. Returns ``""`` if it has none."""
    name = feature.get("_type") if isinstance(feature, dict) else None
    return name if isinstance(name, str) else ""


def item_feature(feature: Any) -> Any:
    """Returns the feature of the items of a list. Returns None if the feature is no list of one feature."""
    if isinstance(feature, list):
        return feature[0] if len(feature) == 1 else None
    return feature.get("feature") if feature_type(feature) in ("Sequence", "List", "LargeList") else None


def class_names(feature: Any) -> tuple[str, ...] | None:
    """Returns the class names of a feature, with numbers for equal ones. Returns None if it is no ``ClassLabel``, or
    has no names."""
    names = feature.get("names") if feature_type(feature) == "ClassLabel" else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return number_equal_names(names)


def is_label(name: str, type: Any, feature: Any) -> bool:
    """Tells if a column of whole numbers holds class numbers, by its feature. Without a feature, its name must be
    ``label``."""
    named = feature is None and name.lower() == "label"
    return (named or feature_type(feature) == "ClassLabel") and bool(load_pyarrow("pyarrow.types").is_integer(type))


def is_text_label(name: str, type: Any, feature: Any) -> bool:
    """Tells if a column of texts without a feature may be the class of each row, by its name."""
    return feature is None and is_text(value_type(type)) and is_label_name(name_words(name))


def is_image_column(type: Any, feature: Any, *, only_files: bool) -> bool:
    """Tells if a column has the type of ``datasets.Image``, or of a list of these.

    Plain bytes count, too, unless ``only_files``; bytes with the feature ``Image`` always count. Files of another
    feature, such as ``Audio``, do not count.
    """
    item, inner = (type.value_type, item_feature(feature)) if is_list(type) else (type, feature)
    if feature_type(inner) == "Image" and (is_binary(item) or is_file_struct(item)):
        return True
    return feature_type(inner) not in OTHER_FILES and (is_file_struct(item) or (is_binary(type) and not only_files))


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """Column of a table that holds boxes: objects with boxes and other members, or the boxes alone.

    Attributes:
        column: Its name.
        boxes: Name of the boxes in each object; ``""`` if the column holds the boxes alone.
        labels: Name of the classes in each object, or of another column; ``""`` for none.
        crowds: Name of the flags of crowd regions in each object; ``""`` for none.
        classes: Names of the classes by number; None if they have none.
        named: The values of ``labels`` are names.
        has_rest: Objects have further members.
        convention: One of :data:`packstore.sources.boxes.CONVENTIONS`; ``""`` while it is unknown.
    """

    column: str
    boxes: str = ""
    labels: str = ""
    crowds: str = ""
    classes: tuple[str, ...] | None = None
    named: bool = False
    has_rest: bool = False
    convention: str = ""

    @property
    def box_name(self) -> str:
        """Name of the column of boxes in :meth:`expand`."""
        return self._name_member(self.boxes)

    @property
    def label_name(self) -> str:
        """Name of the column of classes in :meth:`expand`."""
        return self._name_member(self.labels) if self.boxes else self.labels

    def _name_member(self, member: str) -> str:
        """Returns the column name of a member of the objects; that of the whole column for ``""``."""
        return f"{self.column}.{member}" if member else self.column

    def expand(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the cells of a row, with boxes, classes and crowd flags of its objects as columns of their own."""
        if not self.boxes:
            return dict(cells)
        value, members = cells.get(self.column), filter(None, (self.boxes, self.labels, self.crowds))
        own = {self._name_member(member): _collect_member(value, member) for member in members}
        left = self.rest_of(value)
        rest = {self.column: left} if self.has_rest or any(left if isinstance(left, list) else left or ()) else {}
        return {name: each for name, each in cells.items() if name != self.column} | own | rest

    def rest_of(self, value: Any) -> Any:
        """Returns the objects of a row without boxes and labels; None stays None."""
        own = (self.boxes, self.labels)
        if isinstance(value, list):
            return [{name: each for name, each in item.items() if name not in own} for item in value]
        return value and {name: each for name, each in value.items() if name not in own}

    def declare_parts(
        self, name: str, taken: Iterable[str], optional: bool
    ) -> dict[str, tuple[Field, Callable[[Any], Any]]]:
        """Returns the fields that the column becomes, and functions of the value of a row; boxes come first.

        Boxes alone become ``name``. Objects become ``boxes``, ``labels`` and ``iscrowd``, with other names if these are
        ``taken``.
        """
        if not self.boxes:
            return {name: (Boxes(optional=optional), lambda value: value)}
        members = {"boxes": self.boxes, "labels": self.labels, CROWD: self.crowds}
        names = make_column_names([part for part, member in members.items() if member], taken)
        fields: dict[str, Field] = {
            "boxes": Boxes(optional=optional),
            "labels": Labels(self.classes, of=names["boxes"], optional=optional),
            CROWD: Labels(of=names["boxes"], optional=optional),
        }
        return {own: (fields[part], partial(self._read_part, part, members[part])) for part, own in names.items()}

    @staticmethod
    def _read_part(part: str, member: str, value: Any) -> Any:
        """Returns the values of a member in the objects of a row; 0 and 1 for flags of crowds."""
        values = _collect_member(value, member)
        return [int(flag in (1, True)) for flag in values] if part == CROWD and values is not None else values


def find_object_column(columns: Mapping[str, ValueKind]) -> ObjectColumn | None:
    """Finds the only column that holds boxes, and the labels beside them, by the names and kinds of columns. None
    for no such column, or several."""
    candidates = []
    for column, kind in columns.items():
        beside = {column: kind} if isinstance(kind, str) else kind
        candidates += [
            ObjectColumn(column, "" if isinstance(kind, str) else name)
            for name, its in beside.items()
            if its == "boxes" and name.lower() in BOX_NAMES
        ]
    if len(candidates) != 1:
        return None
    inside = columns[candidates[0].column]
    plain = {name: kind for name, kind in columns.items() if isinstance(kind, str)}
    beside = plain if isinstance(inside, str) else inside
    by_name = {name.lower(): name for name, kind in beside.items() if kind in ("numbers", "names")}
    label = next((by_name[name] for name in LABEL_NAMES if name in by_name), "")
    has_rest = not isinstance(inside, str) and len(inside) > 1 + bool(label)
    crowds = "" if isinstance(inside, str) else next(filter(is_crowd_name, inside), "")
    return replace(
        candidates[0], labels=label, crowds=crowds, named=bool(label) and beside[label] == "names", has_rest=has_rest
    )


def classify_type(type: Any) -> ValueKind:
    """Returns the kind of the values of an Arrow type."""
    kind = classify_value(_make_example(type))
    assert kind is not None  # an example has no empty lists
    return kind


def _make_example(type: Any) -> Any:
    """Makes a value of JSON of an Arrow type; False for types other than numbers, texts, lists and structs."""
    types = load_pyarrow("pyarrow.types")
    if types.is_struct(type):
        return {(each := type.field(number)).name: _make_example(each.type) for number in range(type.num_fields)}
    if is_list(type):
        return [_make_example(type.value_type)]
    return 0 if types.is_integer(type) else 0.0 if types.is_floating(type) else "" if is_text(type) else False


def classify_value(value: Any) -> ValueKind | None:
    """Returns the kind of a value of JSON. Objects have a dictionary with the kind of each member.

    Returns None if the kind is open, as for an empty list.
    """
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        members: dict[str, list[Any]] = {}
        for item in value:
            for name, each in item.items():
                members.setdefault(name, []).append(each)
        value = members
    if isinstance(value, dict):
        return {name: kind for name, each in value.items() if isinstance(kind := _classify_list(each), str)}
    return _classify_list(value)


def merge_kinds(one: ValueKind | None, other: ValueKind | None) -> ValueKind | None:
    """Returns the kind of a column by two values. The first decides, for objects member by member."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**other, **one}
    return other if one is None else one


def _classify_list(value: Any) -> str | None:
    """Returns the common kind of the items of a list, ``""`` if there is none, None without items."""
    if value is None or value == []:
        return None
    kinds = {_classify_item(each) for each in value} if isinstance(value, list) else {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _classify_item(value: Any) -> str:
    """Returns the kind of an item: ``boxes``, ``numbers`` for integers, ``names`` for texts, else ``""``."""
    if isinstance(value, list):
        return "boxes" if all(type(each) in (int, float) for each in value) else ""
    return "numbers" if type(value) is int else "names" if isinstance(value, str) else ""


def _collect_member(value: Any, name: str) -> Any:
    """Returns the values of a member in all objects of a row: a list of structs, or a struct of lists."""
    if isinstance(value, list):
        return [None if each is None else each.get(name) for each in value]
    return None if value is None else value.get(name)
