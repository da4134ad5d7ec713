"""Declares and reads the values of sidecars: files with a text, a class, numbers or JSON for one image."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ITEM_SIZE
from packstore.core.errors import SourceError
from packstore.core.fields import Array, Bytes, Field, Json, Label, Text
from packstore.core.plainjson import load_json
from packstore.images.sniff import LFS_POINTER
from packstore.sources.encodings import to_utf8

# Maximum number of bytes of a sidecar.
MAX_BYTES = 1 << 24
_PROBED = 256
_WHOLE = re.compile(r"-?\d{1,15}")
# Maximum number of bytes of a text for people.
MAX_WORDS = 1 << 16
_NUMBER, _MANY_NUMBERS = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.I), 4
_BETWEEN, _PARTS = re.compile(r"[,;]+"), re.compile(r"[\s,;:|]+")
# XML and JSON, whole or not; a prompt may begin with ``[trigger]``, ``{red|blue}`` or ``<lora:owl:1>``.
_NO_WORDS = re.compile(r"\s*(<.*>|\[.*\]|\{.*\})\s*\Z|.*\0", re.S)


def find_sidecar_type(suffix: str, contents: Sequence[bytes], encoding: str | None) -> str | None:
    """Returns the type of sidecars by their suffix and the beginnings of some; None if all are empty."""
    if not any(contents):
        return None
    types = (("npy",) if suffix == ".npy" else ("json",) if suffix == ".json" else ("numbers",)) + ("text",)
    for type in types:
        try:
            arrays = [parse_sidecar(type, raw, encoding) for raw in contents]
            if type == "text" and any("\0" in text for text in arrays):
                return "bytes"
            if type in ("npy", "numbers"):
                _declare_array(arrays)
        except (ValueError, SourceError):
            continue
        return type
    return "bytes"


def is_words(raw: bytes) -> bool:
    """Tells if a text is for people, or empty. Such a text is UTF-8 with letters, neither XML nor JSON nor a pointer
    of Git LFS, has no line of four or more numbers, and at most 64 KiB.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    if not text.strip():
        return True
    if len(raw) > MAX_WORDS or raw.startswith(LFS_POINTER) or _NO_WORDS.match(text) or not any(map(str.isalpha, text)):
        return False
    lines = (_PARTS.split(line) for line in text.splitlines())
    return all(sum(_NUMBER.fullmatch(word) is not None for word in words) < _MANY_NUMBERS for words in lines)


def declare_sidecar(type: str, contents: Iterable[bytes], encoding: str | None) -> Field:
    """Returns the optional field of a column of sidecars, by their contents. Labels read all contents, arrays the first
    256. Labels are numbers if all contents are whole numbers, else names of classes.

    Raises :class:`ValueError` for contents of another type, and for arrays of several dtypes or numbers of axes. Raises
    :class:`SourceError` for texts of an unknown encoding.
    """
    if type == "label":
        names = {_decode(raw, encoding) for raw in contents}
        return Label(None if all(map(_WHOLE.fullmatch, names)) else sorted(names), optional=True)
    if type in ("numbers", "npy"):
        return _declare_array([parse_sidecar(type, raw, encoding) for raw in islice(contents, _PROBED)])
    field: Field = {"text": Text, "json": Json, "bytes": Bytes}[type](optional=True)
    return field


def parse_sidecar(type: str, raw: bytes, encoding: str | None) -> Any:
    """Parses the bytes of a sidecar; ``encoding`` is that of texts that are not UTF-8.

    - ``text``: the text without white space around it.
    - ``label``: the same, or a whole number.
    - ``numbers``: float64 ``(lines, n)``; ``(0, 0)`` for an empty file.
    - ``npy``: the array.
    - ``json``: the value. ``bytes``: the bytes.

    Raises :class:`ValueError` for bytes that are not of the type, and :class:`SourceError` for an unknown encoding.
    """
    if type == "bytes":
        return raw
    if type == "npy":
        return _parse_npy(raw)
    text = _decode(raw, encoding)
    if type == "json":
        return load_json(text.encode("utf-8", "surrogateescape"), "is no JSON")
    if type == "numbers":
        return _parse_numbers(text)
    return int(text) if type == "label" and _WHOLE.fullmatch(text) else text


def _decode(raw: bytes, encoding: str | None) -> str:
    """Decodes a text, and removes white space around it."""
    return to_utf8(raw, encoding, "a sidecar").decode("utf-8-sig", "surrogateescape").strip()


def _parse_numbers(text: str) -> NDArray[np.float64]:
    """Parses lines of numbers between white space, commas or semicolons."""
    if not text:
        return np.zeros((0, 0))
    try:
        return np.loadtxt(io.StringIO(_BETWEEN.sub(" ", text)), np.float64, comments=None, ndmin=2)
    except ValueError:
        raise ValueError("holds other text than lines of equally many numbers") from None


def _parse_npy(raw: bytes) -> NDArray[Any]:
    """Reads numpy's file format, without pickled objects."""
    try:
        array = np.load(io.BytesIO(raw), allow_pickle=False)
    except (OSError, EOFError, ValueError, MemoryError):
        raise ValueError("is no array of numpy, or holds Python objects") from None
    if not isinstance(array, np.ndarray) or array.dtype.name not in ITEM_SIZE:
        raise ValueError(f"holds an array of {getattr(array, 'dtype', 'several arrays')}, which no column can have")
    return array


def _declare_array(arrays: list[NDArray[Any]]) -> Array:
    """Returns the field of arrays; ragged if their first axes differ, or an array is empty."""
    dtypes, shapes = {array.dtype.name for array in arrays}, {array.shape for array in arrays if array.size}
    rows = {shape[1:] for shape in shapes}
    if len(dtypes) > 1 or not shapes or (len(shapes) > 1 and (len(rows) > 1 or () in shapes)):
        found = ", ".join(map(str, sorted(shapes)[:4])) or "all empty"
        raise ValueError(f"arrays differ in dtype or shape ({', '.join(sorted(dtypes))}; {found}); read them as bytes")
    if len(shapes) > 1 or not all(array.size for array in arrays):
        return Array(dtypes.pop(), rows.pop(), ragged=True, optional=True)
    return Array(dtypes.pop(), shapes.pop(), optional=True)
