"""Predicates on the types of Arrow's columns."""

from __future__ import annotations

import importlib
from typing import Any

from packstore.core.errors import SourceError


def load_pyarrow(module: str = "pyarrow") -> Any:
    """Imports a module of pyarrow. Raises :class:`SourceError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SourceError("Parquet and Arrow files are read by pyarrow: pip install 'packstore[parquet]'") from None


def is_list(type: Any) -> bool:
    """Tells if a type is a list, of fixed size or not. Views of lists do not count."""
    types = load_pyarrow("pyarrow.types")
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))


def is_text(type: Any) -> bool:
    """Tells if a type is a string: small, large or a view."""
    types = load_pyarrow("pyarrow.types")
    return bool(types.is_string(type) or types.is_large_string(type) or str(type) == "string_view")


def is_binary(type: Any) -> bool:
    """Tells if a type is bytes: small, large, of fixed size or a view."""
    types = load_pyarrow("pyarrow.types")
    return bool(
        types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_fixed_size_binary(type)
        or str(type) == "binary_view"
    )


def is_number(type: Any) -> bool:
    """Tells if a type is a boolean, an integer or a floating-point number; decimals do not count."""
    types = load_pyarrow("pyarrow.types")
    return bool(types.is_boolean(type) or types.is_integer(type) or types.is_floating(type))


def is_file_struct(type: Any) -> bool:
    """Tells if a type is that of ``datasets.Image``: a struct of ``bytes``, with or without ``path``."""
    if not load_pyarrow("pyarrow.types").is_struct(type):
        return False
    names = [type.field(number).name for number in range(type.num_fields)]
    return sorted(names) in (["bytes"], ["bytes", "path"]) and is_binary(type.field("bytes").type)


def value_type(type: Any) -> Any:
    """Returns the type of the values of a dictionary-encoded type; another type unchanged."""
    return type.value_type if load_pyarrow("pyarrow.types").is_dictionary(type) else type
