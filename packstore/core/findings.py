"""Kinds of findings of an audit, and the records that an audit report says to drop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable
from packstore.core.plainjson import load_json
from packstore.core.registry import COLUMN_TYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT, VERSION = "packstore_audit", 1

_OF_RECORDS = {
    "leakage": "the same image in several splits",
    "conflict": "the same image under several labels",
    "duplicate": "the same image again in its split",
    "near_leakage": "nearly the same image in another split",
    "near_conflict": "nearly the same image under another label",
    "near_duplicate": "nearly the same image in its split",
    "double_key": "has the key of an earlier record",
    "damaged": "does not match its checksum, or cannot be read",
    "undecodable": "cannot be decoded",
    "truncated": "decodes, but data are missing or damaged",
    "flat": "of one colour",
    "tiny": "very small",
    "aspect": "very long or very wide",
    "grey": "grey, while most are in colour",
    "cmyk": "in print colours (CMYK)",
    "orientation": "has an EXIF orientation that is not applied",
    "mode": "has more than the mode as which it is read",
    "clipped": "many values at their lowest or highest value",
    "wrong_window": "many values cut off where they become 8 bits",
    "not_finite": "has values that are infinite or not a number",
    "suffix": "its suffix does not fit its content",
    "bad_label": "a label outside the classes",
}
_OF_CLASSES = {
    "class_empty": "a class without records",
    "class_split": "a class that a split lacks",
    "imbalance": "classes of very different sizes",
}

DEFAULT_DROP = ("leakage", "conflict", "duplicate", "damaged", "undecodable")
"""Kinds whose records are dropped by default: those that are certain mistakes."""

_MOST_BYTES = 4 << 30


def list_kinds() -> dict[str, str]:
    """Returns the description of each kind of finding, in order of reporting.

    Loads all column types, plug-ins included, whose kinds stand between those of records and of classes.
    """
    # This loads all column types, plug-ins included.
    faults = {kind: text for each in COLUMN_TYPES.values() for kind, text in each.faults.items()}
    return _OF_RECORDS | dict(sorted(faults.items())) | _OF_CLASSES


def read_report(path: Path, command: str, most_bytes: int) -> Any:
    """Reads the JSON of a report of ``packstore`` ``command``.

    Raises :class:`UsageError` if it cannot be read, has over ``most_bytes``, or is not JSON.
    """
    shown = printable(str(path))
    try:
        nbytes = path.stat().st_size
        data = path.read_bytes() if nbytes <= most_bytes else None
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror or error}") from None
    if data is None:
        raise UsageError(f"{shown} is larger than any report: {nbytes:,} bytes")
    try:
        return load_json(data, "is not JSON")
    except ValueError as error:
        raise UsageError(f"{shown} {error}; packstore {command} --json makes a report") from None


def records_to_drop(path: Path, kinds: Sequence[str], dataset_digest: str, records: int) -> NDArray[np.int64]:
    """Reads a report of ``packstore audit --json``. Returns the records to drop for some kinds, ``int64``, ascending.

    Args:
        path: The report.
        kinds: Kinds of findings whose records are dropped. A kind without findings in the report adds none.
        dataset_digest: Digest of the store that the report has to be about.
        records: Number of the store's records.

    Raises:
        UsageError: A kind is unknown, the file is not such a report, or the report is about another store or names
        records that the store lacks.
    """
    import numpy as np  # here: the kinds are in the help of commands, which loads no numpy

    shown = printable(str(path))
    known = list_kinds()
    for kind in kinds:
        if kind not in known:
            raise UsageError(f"unknown kind of finding {printable(str(kind))!r}; use some of {', '.join(known)}")
    report = read_report(path, "audit", _MOST_BYTES)
    if not isinstance(report, dict) or report.get(FORMAT) != VERSION or not isinstance(report.get("drop"), dict):
        raise UsageError(f"{shown} is not a report of packstore audit --json FILE")
    if report.get("dataset_digest") != dataset_digest:
        raise UsageError(f"{shown} is about another store, or this store has changed since: audit it again")
    lists = [report["drop"].get(kind, []) for kind in kinds]
    if not all(isinstance(numbers, list) for numbers in lists):
        raise UsageError(f"{shown} is not a report of packstore audit: its lists of records are damaged")
    record_numbers = [number for numbers in lists for number in numbers]
    if not all(type(number) is int and 0 <= number < records for number in record_numbers):
        raise UsageError(f"{shown} names records that the store lacks")
    return np.unique(np.array(record_numbers, np.int64))
