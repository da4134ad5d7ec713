"""The manifest of an export, ``packstore.json``, and the lines of its records, ``packstore.rows.jsonl``.

An export is a store in a foreign format. These files hold the data that the format cannot hold: the store's manifest
(class lists, types of columns, order of splits, normalisation, skipped samples), and a line for each record with its
full key and the values of columns that have no place in the format. With them a source returns the records of the store
bit for bit; other readers ignore them.
"""

from __future__ import annotations

import base64
import binascii
import json
import mmap
import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packstore.core.columns import INTERNAL, NUMPY_DTYPE, Column
from packstore.core.errors import ManifestError
from packstore.core.files import open_regular
from packstore.core.manifest import MAX_JSON_BYTES, Manifest
from packstore.core.plainjson import build_unique_dict, to_canonical_json, to_plain

MANIFEST_FILE, ROWS_FILE = "packstore.json", "packstore.rows.jsonl"
_MAGIC, _VERSION = "packstore_export", 1
_FORMS = ("kept", "png")
_MAX_BYTES = 2 * MAX_JSON_BYTES
_MAX_VALUES = 5_000_000
"""Most values in an export manifest: a million shards have four each; a value takes up to 100 bytes of memory."""


class ExportShard(NamedTuple):
    """A file of an export that holds consecutive records of one split, in their order.

    Attributes:
        file: Its path from the export's folder, with ``/``.
        split: Name of the split; ``""`` in a store without splits.
        records: Number of its records.
    """

    file: str
    split: str
    records: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportManifest:
    """The content of ``packstore.json``.

    Attributes:
        kind: The kind of export, a name of :data:`packstore.core.registry.EXPORTS`.
        source: The kind of source that reads it, a name of :data:`packstore.core.registry.SOURCES`.
        manifest: Manifest of the exported records.
        held: Names of the columns whose values the format holds; the values of others are in the record lines.
        image: ``kept``: images are stored as in the store, as files or arrays. ``png``: arrays are stored as PNG files.
        shards: The files with the records, in the records' order; empty if each record is a file of its own.
        files: All other files of the export except ``packstore.json`` and ``packstore.rows.jsonl``.
        rows: Whether the export has record lines, in ``packstore.rows.jsonl``.
    """

    kind: str
    source: str
    manifest: Manifest
    held: tuple[str, ...]
    image: str = "kept"
    shards: tuple[ExportShard, ...] = ()
    files: tuple[str, ...] = ()
    rows: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the store except those that packstore keeps for itself (:data:`INTERNAL`), such as
        checksums."""
        return tuple(column for column in self.manifest.columns if column.name not in INTERNAL)

    def to_json(self) -> str:
        """Formats the export manifest as canonical JSON."""
        plain = {name: to_plain(getattr(self, name)) for name in ("kind", "source", "held", "image", "files", "rows")}
        plain |= {"shards": [list(shard) for shard in self.shards], "manifest": json.loads(self.manifest.to_json())}
        return to_canonical_json({_MAGIC: _VERSION} | plain)


def parse_export_manifest(text: str | bytes) -> ExportManifest | None:
    """Parses an export manifest. Returns None if ``text`` is not JSON, or is JSON of something else.

    Raises :class:`ManifestError` for a damaged or too large manifest, and for one of another version of the format.
    Does not check that the kinds of export and source are known.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > _MAX_BYTES or raw.count(b",") + raw.count(b"[") + raw.count(b"{") > _MAX_VALUES:
        raise ManifestError(f"{MANIFEST_FILE} is larger than any that packstore writes")
    try:
        plain = json.loads(text, object_pairs_hook=build_unique_dict)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or _MAGIC not in plain:
        return None
    if plain[_MAGIC] != _VERSION:
        raise ManifestError(f"{MANIFEST_FILE} has version {plain[_MAGIC]!r:.20}, this packstore reads {_VERSION}")
    try:
        export_manifest = ExportManifest(
            kind=_check_text(plain["kind"]),
            source=_check_text(plain["source"]),
            manifest=Manifest.from_json(to_canonical_json(plain["manifest"])),
            held=tuple(map(_check_text, plain["held"])),
            image=_check_text(plain["image"]),
            shards=tuple(
                ExportShard(_check_path(file), _check_text(split), _check_count(n))
                for file, split, n in plain["shards"]
            ),
            files=tuple(map(_check_path, plain["files"])),
            rows=plain["rows"] is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{MANIFEST_FILE} is damaged: {type(error).__name__}: {error}") from None
    if export_manifest.image not in _FORMS:
        raise ManifestError(f"{MANIFEST_FILE} has an unknown form of images: {export_manifest.image!r:.20}")
    return export_manifest


def read_export_manifest(folder: Path) -> ExportManifest | None:
    """Reads the export manifest in a folder. Returns None if the file is missing or another program's.

    Raises :class:`ManifestError` if the file cannot be read or is damaged.
    """
    file = folder / MANIFEST_FILE
    try:
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            return parse_export_manifest(opened.read(_MAX_BYTES + 1))
    except OSError as error:
        raise ManifestError(f"{MANIFEST_FILE} cannot be read: {error.strerror or error}") from None


def format_record_line(columns: Iterable[Column], values: Mapping[str, Any], **more: str) -> bytes:
    """Formats a record's line of ``packstore.rows.jsonl``, with its newline.

    The line has the stored values of ``columns``, and the entries of ``more``, such as ``key`` and ``file``.
    """
    plain = {column.name: _format_value(column, values[column.name]) for column in columns}
    return json.dumps({**more, **({"values": plain} if plain else {})}, separators=(",", ":")).encode("ascii") + b"\n"


class RecordLines:
    """The lines of all records; parses each on access. Creating it reads all data once. Memory: 8 bytes a record.

    Leaves out bytes after the last newline.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._starts = array("q", [0])
        at = 0
        while (at := data.find(b"\n", at) + 1) > 0:
            self._starts.append(at)

    @classmethod
    def map_file(cls, file: Path) -> RecordLines:
        """Maps a file into memory; the lines stay valid if the file is removed. Raises :class:`OSError`, also for a
        pipe."""
        with os.fdopen(open_regular(file), "rb") as opened:
            empty = not opened.seek(0, 2)
            return cls(b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))

    @property
    def may_name_sidecars(self) -> bool:
        """Tells if a line may name a file beside an image, see :func:`names_sidecar`. False is certain, True is not."""
        return self._data.find(b'"beside') >= 0

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, record: int) -> dict[str, Any]:
        """Parses the line of a record. Raises :class:`ValueError` if it is damaged."""
        try:
            line = json.loads(self._data[self._starts[record] : self._starts[record + 1]])
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("values", {}), dict):
            raise ValueError(f"line {record + 1} of {ROWS_FILE} is damaged")
        return line


class StoredBytes(bytes):
    """Ragged value in stored form, as a source has read it from an export. It needs no conversion."""


def names_sidecar(name: str) -> bool:
    """Tells if an entry of a record line names a file beside the image: ``beside``, ``beside object_mask``."""
    return name.split(" ")[0] == "beside"


def parse_value(column: Column, line: Mapping[str, Any]) -> bytes | np.ndarray[Any, Any]:
    """Returns the stored value of a column from a record's line.

    Raises :class:`ValueError` if the value is missing or damaged.
    """
    plain = line.get("values", {}).get(column.name)
    scalar = column.kind == "fixed" and isinstance(plain, int)
    if plain is None or not (scalar or isinstance(plain, str)):
        raise ValueError(f"{ROWS_FILE} has no value of column {column.name!r}")
    try:
        if scalar:
            return np.array(plain, NUMPY_DTYPE[column.dtype]).reshape(column.shape)
        if column.form == "text":
            return str(plain).encode("utf-8", "surrogateescape")
        raw = base64.b64decode(plain, validate=True)
        if column.kind == "ragged":
            return raw
        return np.frombuffer(raw, NUMPY_DTYPE[column.dtype]).reshape(column.shape)
    except (binascii.Error, ValueError, OverflowError) as error:
        raise ValueError(f"{ROWS_FILE}: the value of column {column.name!r} is damaged: {error}") from None


def _format_value(column: Column, value: Any) -> int | str:
    """Returns a stored value as JSON: a number, a text, or base64 of its bytes."""
    if column.kind == "fixed" and column.shape == () and NUMPY_DTYPE[column.dtype].kind in "biu":
        return int(value)
    if column.kind == "fixed":
        # arrays and floats: their bytes are exact, decimal digits may not be
        value = np.ascontiguousarray(value, NUMPY_DTYPE[column.dtype]).tobytes()
    elif column.form == "text":
        return bytes(value).decode("utf-8", "surrogateescape")
    return base64.b64encode(value).decode("ascii")


def _check_text(value: object) -> str:
    """Returns the value if it is a string, else raises :class:`TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r:.40}")
    return value


def _check_count(value: object) -> int:
    """Returns the value if it is a whole number from 0 on, else raises :class:`TypeError`."""
    if type(value) is not int or value < 0:
        raise TypeError(f"expected a number of records, got {value!r:.40}")
    return value


def _check_path(value: object) -> str:
    """Returns the value if it is a relative path that stays within the export, else raises an error."""
    path = _check_text(value)
    if not stays_in_folder(path):
        raise ValueError(f"the path {path!r:.80} leads out of the export")
    return path


def stays_in_folder(path: str) -> bool:
    """Tells if a path with ``/`` is relative and stays within its folder.

    Each part must be a file name: not empty, ``.`` or ``..``, without a backslash or NUL. The path must be encodable as
    UTF-8.
    """
    parts = path.split("/")
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return bool(path) and "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(parts)
