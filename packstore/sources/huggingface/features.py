"""Hugging Face's features: the meaning of columns, declared in the metadata of a schema or in a card.

In a schema they lie under ``huggingface`` (``datasets.Features.arrow_schema``). A feature is a dict with ``_type``, a
list of one feature, or a dict of features by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from packstore.core.errors import printable
from packstore.core.plainjson import load_json
from packstore.sources.columns import is_label_name, name_words
from packstore.sources.huggingface.arrow_types import (
    is_binary,
    is_file_struct,
    is_list,
    is_text,
    load_pyarrow,
    value_type,
)

_log = logging.getLogger(__name__)

_OTHER_FILES = ("Audio", "Video", "Pdf", "Nifti")
"""Features whose files are stored as those of images are."""
_MAX_BYTES, _MAX_DEPTH = 64 << 20, 32


def read_features(schema: Any) -> dict[str, Any]:
    """Reads the features by column from the metadata of a schema; empty if there are none. Raises :class:`ValueError`
    if they are no JSON, or over 64 MiB."""
    data = (schema.metadata or {}).get(b"huggingface")
    if data is None:
        return {}
    if len(data) > _MAX_BYTES:
        raise ValueError(f"its features have {len(data)} bytes; expected at most {_MAX_BYTES}")
    try:
        info = load_json(data, "are no JSON")
    except ValueError as error:
        raise ValueError(f"its features {error}") from None
    inner = info.get("info") if isinstance(info, dict) else None
    features = inner.get("features") if isinstance(inner, dict) else None
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
    """Returns the class names of a feature, or None if it is no ``ClassLabel``, or has no names."""
    names = feature.get("names") if feature_type(feature) == "ClassLabel" else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def is_other_file(feature: Any) -> bool:
    """Tells if a feature is of files that are no images, such as ``Audio``."""
    return feature_type(feature) in _OTHER_FILES


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
    if feature_type(feature) == "Image" or _is_image_list(type, feature):
        return True
    return not is_other_file(feature) and (is_file_struct(type) or (is_binary(type) and not only_files))


def _is_image_list(type: Any, feature: Any) -> bool:
    """Tells if a type is a list of ``datasets.Image``, or of plain bytes with this feature."""
    if not is_list(type):
        return False
    inner, item = item_feature(feature), type.value_type
    return (feature_type(inner) == "Image" and is_binary(item)) or (not is_other_file(inner) and is_file_struct(item))


def warn_of_lost_names(column: str, feature: Any) -> None:
    """Logs a warning for each nested list of class names that a JSON column does not keep."""
    for path, names in _find_class_names(feature):
        _log.warning(
            "%s: the numbers in %s are kept without the names of their classes: %s",
            *(printable(column), printable(path), ", ".join(map(printable, names[:5]))),
        )


def drop_repeated_names(column: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Returns the class names of a column unchanged. If two are equal, returns None and logs a warning."""
    if names is None or len(set(names)) == len(names):
        return names
    repeated = next(each for each in names if names.count(each) > 1)
    _log.warning(
        "%s: %r is the name of two classes: they are packed as numbers alone", printable(column), printable(repeated)
    )
    return None


def _find_class_names(feature: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the path and the names of each ``ClassLabel`` within a feature, at most 32 levels deep."""
    names = class_names(feature)
    if names is not None:
        yield path, names
    elif depth < _MAX_DEPTH:
        inner = item_feature(feature)
        if inner is not None:
            yield from _find_class_names(inner, path, depth + 1)
        elif isinstance(feature, dict) and not feature_type(feature):
            for name, each in feature.items():
                yield from _find_class_names(each, f"{path}.{name}" if path else str(name), depth + 1)
