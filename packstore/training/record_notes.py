"""Adds notes to exceptions of the user's functions: which records they were called with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from packstore.core.errors import PackstoreError, join_first, printable
from packstore.stores import Reader
from packstore.training.random_draws import MASK, Array

_MARK = "_packstore_records"
"""Attribute of an exception: the ids it is about; None once it has its note."""
_WITH_KEYS, _MOST = 16, 1024
"""Most records that a note lists with their keys, and without."""


def mark_records(error: Exception, ids: Array) -> None:
    """Marks an exception with the ids of its records, where the store is unknown. Keeps an earlier mark."""
    if not hasattr(error, _MARK):
        setattr(error, _MARK, ids)


def note_records(error: Exception, reader: Reader, ids: Array) -> None:
    """Adds a note to an exception that names the store and its records: the marked ones, or ``ids`` without a mark.

    Adds only one note to an exception. Adds none to an error of packstore without a mark, whose text says enough.
    """
    marked = getattr(error, _MARK, ids)
    if marked is None or (isinstance(error, PackstoreError) and not hasattr(error, _MARK)):
        return
    setattr(error, _MARK, None)
    error.add_note(_describe_records(reader, (np.asarray(marked.tolist(), np.int64) & MASK).tolist()))


def note_need_of_pil(error: Exception, given: str) -> None:
    """Adds a note to an exception of a user's function: it may need PIL images instead of what it was ``given``."""
    if not isinstance(error, PackstoreError):
        error.add_note(
            f"The transform was given {given}, since packstore sees nothing in it that makes tensors of PIL images, "
            "such as ToTensor. With output='pil' it is given PIL images, as by ImageFolder."
        )


@contextmanager
def naming_records(reader: Reader, ids: Array, first: int = 0) -> Iterator[None]:
    """Does :func:`note_records` for an exception in the body. ``first``: record that ``ids`` count from."""
    try:
        yield
    except Exception as error:
        note_records(error, reader, ids + first)
        raise


def _describe_records(reader: Reader, records: list[int]) -> str:
    """Returns the text of a note that names records."""
    records, where = list(dict.fromkeys(records)), printable(str(reader.path))  # views of a record count once
    if len(records) == 1:
        return f"This happened with record {_name_record(reader, records[0])} of {where}."
    with_keys = len(records) <= _WITH_KEYS
    names = (_name_record(reader, record) if with_keys else str(record) for record in records)
    return f"This happened with a batch of records of {where}: {join_first(names, len(records), _MOST)}."


def _name_record(reader: Reader, record: int) -> str:
    """Returns number and key of a record."""
    try:
        return f"{record} ({printable(reader.unchecked_reader.key(record))})"
    except PackstoreError:
        return f"{record} (its key is damaged)"
