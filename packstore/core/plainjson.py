"""Dataclasses to plain JSON values and back, by a schema that says what each field may be."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from packstore.core.errors import ManifestError

Schemas = Mapping[type, Mapping[str, Any]]
"""How each field of each dataclass is read back; see :func:`from_plain`."""


_SCALARS = (str, int, float, bool, type(None))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose names JSON lets appear twice."""
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return plain


def canonical(plain: Any) -> str:
    """The JSON of a plain value, the same for equal ones."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_json(plain: Any) -> str:
    """SHA-256 of :func:`canonical`."""
    return hashlib.sha256(canonical(plain).encode("ascii")).hexdigest()


def to_plain(value: Any) -> Any:
    """A dataclass, and all in it, as dicts and lists; without fields whose metadata says ``plain=False``, and without
    those that are ``optional`` and None."""
    if isinstance(value, _SCALARS):
        return value  # first: a thousand class names are the most of a manifest
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f for f in dataclasses.fields(value) if f.metadata.get("plain", True))
        found = {f.name: to_plain(getattr(value, f.name)) for f in fields}
        return {name: each for name, each in found.items() if each is not None or name not in _optional(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return value


@functools.cache
def _optional(cls: type) -> frozenset[str]:
    """Fields that may be missing in JSON: those that were added to a format later."""
    return frozenset(f.name for f in dataclasses.fields(cls) if f.metadata.get("optional"))


def from_plain(schemas: Schemas, schema: Any, plain: Any, where: str) -> Any:
    """Reads ``plain`` (from JSON) by ``schema``.

    Args:
        schemas: The dataclasses that may appear, each with the schemas of its fields.
        schema: One of these dataclasses, a type, ``[schema]`` for a tuple, ``{"*": schema}`` for a mapping,
            ``(schema, None)`` for an optional value, or a tuple of types.
        plain: What JSON gave.
        where: What it is, for messages.

    Raises:
        ManifestError: It is something else.
    """
    if schema in schemas if isinstance(schema, type) else False:
        fields = schemas[schema]
        if not isinstance(plain, dict) or plain.keys() | _optional(schema) != fields.keys():
            found = sorted(plain) if isinstance(plain, dict) else type(plain).__name__
            raise ManifestError(f"{where} should have the fields {sorted(fields)}, found {found!r:.300}")
        return schema(**{name: from_plain(schemas, fields[name], plain[name], f"{where}.{name}") for name in plain})
    if isinstance(schema, list):
        if not isinstance(plain, list):
            raise ManifestError(f"{where} should be a list, found {plain!r:.100}")
        if schema == [str] and set(map(type, plain)) <= {str}:
            return tuple(plain)  # a thousand class names in microseconds
        return tuple(from_plain(schemas, schema[0], item, f"{where}[{i}]") for i, item in enumerate(plain))
    if isinstance(schema, dict):
        if not isinstance(plain, dict):
            raise ManifestError(f"{where} should be an object, found {plain!r:.100}")
        return {str(k): from_plain(schemas, schema["*"], v, f"{where}.{k}") for k, v in plain.items()}
    if isinstance(schema, tuple) and schema[-1] is None:
        return None if plain is None else from_plain(schemas, schema[0], plain, where)
    allowed: Sequence[type] = schema if isinstance(schema, tuple) else (schema,)
    if isinstance(plain, int) and not isinstance(plain, bool) and float in allowed and int not in allowed:
        try:
            plain = float(plain)
        except OverflowError:
            raise ManifestError(f"{where} is too large for a number: {len(str(plain))} digits") from None
    if type(plain) not in allowed:
        raise ManifestError(f"{where} should be {' or '.join(t.__name__ for t in allowed)}, found {plain!r:.100}")
    return plain
