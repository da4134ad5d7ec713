"""Parses untrusted JSON; converts dataclasses to plain JSON values, and back by the declared types of their fields."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from packstore.core.errors import ManifestError

Made = TypeVar("Made")

_SCALARS = (str, int, float, bool, NoneType)


def load_json(data: str | bytes, fault: str = "is not valid JSON", **hooks: Any) -> Any:
    """Parses JSON, as :func:`json.loads` with ``hooks``.

    Raises :class:`ValueError` for invalid JSON, too many levels, and numbers with more digits than Python converts. Its
    text follows the name of the data: ``is not valid JSON: …``. ``fault``: Words for what is no JSON.
    """
    try:
        return json.loads(data, **hooks)
    except RecursionError:
        raise ValueError(f"{fault}: nested too deeply") from None
    except OverflowError as error:  # of parse_float64
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(find_long_number(data) or f"{fault}: {error}") from None


def parse_float64(text: str) -> float:
    """Parses a number of JSON, as a hook of :func:`load_json`. Raises :class:`OverflowError` if it is too large for
    float64: :func:`float` would return infinity."""
    number = float(text)
    if math.isinf(number):
        raise OverflowError(f"has the number {text[:40]}, which is too large for float64; write it as a text")
    return number


def find_long_number(data: str | bytes) -> str:
    """Finds a number with more digits than Python converts; returns words about it for a message, or ``""``.

    Python refuses such numbers because of the time they take: they are no fault of the data.
    """
    most = sys.get_int_max_str_digits()
    text = data if isinstance(data, str) else data.decode("latin-1")
    found = re.search(rf"\d{{{most + 1},}}", text, re.ASCII) if most else None
    if found is None:
        return ""
    line = f" in line {text.count(chr(10), 0, found.start()) + 1}" if "\n" in text.strip() else ""
    return f"has a number of {len(found[0]):,} digits{line}, which is too long; at most {most:,} are read"


def build_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a dict from the pairs of a JSON object, as a hook of :func:`json.loads`.

    Raises :class:`ValueError` for repeated names.
    """
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return plain


def to_canonical_json(plain: Any) -> str:
    """Formats a JSON value as canonical text: sorted keys, no spaces, ASCII. Equal values give equal text.

    Raises :class:`ValueError` for infinite numbers and NaN.
    """
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_json(plain: Any) -> str:
    """Computes the SHA-256 of a plain value's canonical JSON."""
    return hashlib.sha256(to_canonical_json(plain).encode("ascii")).hexdigest()


def encode_with_digest(plain: Mapping[str, Any]) -> bytes:
    """Encodes an object as canonical JSON with one more entry, ``digest``: the SHA-256 of the other entries."""
    return to_canonical_json({**plain, "digest": sha256_json(plain)}).encode("ascii")


def parse_with_digest(data: bytes) -> dict[str, Any]:
    """Parses the output of :func:`encode_with_digest`; returns the object without its digest.

    Raises :class:`ManifestError` if ``data`` is no JSON object, or its digest differs.
    """
    try:
        plain: dict[str, Any] = load_json(data)
        differs = plain.pop("digest") != sha256_json(plain)
    # It may be no object, or have no digest.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(str(error)) from None
    if differs:
        raise ManifestError("its SHA-256 differs")
    return plain


def to_plain(value: Any) -> Any:
    """Converts a dataclass and its content to dicts and lists. Copies mappings, and does not convert their values.

    Leaves out fields with the metadata ``plain=False``. Leaves out ``optional`` fields that are None.
    """
    if isinstance(value, _SCALARS):
        return value  # first, since most of a manifest are class names
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f for f in dataclasses.fields(value) if f.metadata.get("plain", True))
        content = {f.name: to_plain(getattr(value, f.name)) for f in fields}
        return {
            name: each for name, each in content.items() if each is not None or name not in _optional_names(type(value))
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return value


@functools.cache
def _optional_names(cls: type) -> frozenset[str]:
    """Returns the fields that JSON may lack, because they were added to the format later."""
    return frozenset(f.name for f in dataclasses.fields(cls) if f.metadata.get("optional"))


def from_plain(kind: type[Made], plain: Any, where: str) -> Made:
    """Converts a parsed JSON object to a dataclass, and its fields to their declared types.

    Types may be scalars, dataclasses, ``tuple[kind, ...]``, lists, mappings of strings, counters, ``Any``, and unions
    of scalars or of one other type with None. A whole number becomes a float if only floats are allowed. Fields with
    the metadata ``optional`` may be missing.

    Args:
        kind: The dataclass.
        plain: The parsed JSON value.
        where: Name of the value, for messages.

    Raises:
        ManifestError: The value does not fit.
    """
    made: Made = _convert(kind, plain, where)
    return made


@functools.cache
def _compile_fields(cls: type) -> dict[str, Any]:
    """Returns the schema of each field of a dataclass that JSON holds."""
    kinds = get_type_hints(cls)
    return {f.name: _compile(kinds[f.name]) for f in dataclasses.fields(cls) if f.metadata.get("plain", True)}


def _compile(kind: Any) -> Any:
    """Returns the schema of a type, such as ``[int]`` for ``tuple[int, ...]``."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (tuple, list):
        return [_compile(parts[0])]
    if origin is Counter:
        return {"*": int}
    if origin in (dict, Mapping):
        return {"*": _compile(parts[1])}
    if origin is Literal:
        return str
    if origin in (Union, UnionType):
        # A union of scalars is a tuple of types; an optional dataclass, list or mapping is ``(schema, None)``.
        return parts if set(parts) <= set(_SCALARS) else (_compile(parts[0]), None)
    return kind


def _convert(schema: Any, plain: Any, where: str) -> Any:
    """Converts a value by a schema, as :func:`from_plain`."""
    if type(plain) is schema:
        return plain  # first, since most values are numbers and texts
    if dataclasses.is_dataclass(schema):
        fields = _compile_fields(cast("type", schema))
        if not isinstance(plain, dict) or plain.keys() | _optional_names(cast("type", schema)) != fields.keys():
            found = sorted(plain) if isinstance(plain, dict) else type(plain).__name__
            raise ManifestError(f"{where} should have the fields {sorted(fields)}, found {found!r:.300}")
        values = {name: _convert(fields[name], plain[name], f"{where}.{name}") for name in plain}
        return cast("type", schema)(**values)
    if isinstance(schema, list):
        if not isinstance(plain, list):
            raise ManifestError(f"{where} should be a list, found {plain!r:.100}")
        if schema == [str] and set(map(type, plain)) <= {str}:
            return tuple(plain)  # a thousand class names in microseconds
        return tuple(_convert(schema[0], item, f"{where}[{i}]") for i, item in enumerate(plain))
    if isinstance(schema, dict):
        if not isinstance(plain, dict):
            raise ManifestError(f"{where} should be an object, found {plain!r:.100}")
        return {str(k): _convert(schema["*"], v, f"{where}.{k}") for k, v in plain.items()}
    if isinstance(schema, tuple) and schema[-1] is None:
        return None if plain is None else _convert(schema[0], plain, where)
    if schema is Any:
        return plain
    allowed: Sequence[type] = schema if isinstance(schema, tuple) else (schema,)
    if isinstance(plain, int) and not isinstance(plain, bool) and float in allowed and int not in allowed:
        try:
            plain = float(plain)
        except OverflowError:
            raise ManifestError(f"{where} is too large for a number: {len(str(plain))} digits") from None
    if type(plain) not in allowed:
        raise ManifestError(f"{where} should be {' or '.join(t.__name__ for t in allowed)}, found {plain!r:.100}")
    return plain
