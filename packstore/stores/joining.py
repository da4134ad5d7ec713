"""Joins several stores into one: checks that they fit together, and merges their columns and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import LINK_COLUMNS, SEEK_INDEX
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.stores.base import Reader
from packstore.stores.builder.assembly import merge_classes

_DERIVED = (SEEK_INDEX.name, *(column.name for column in LINK_COLUMNS))


def join_columns(readers: Sequence[Reader]) -> tuple[Column, ...]:
    """Checks that stores fit together, and returns the columns of the joined store.

    The columns have the first store's order and the classes of all stores. Left out are links to image files, and the
    seek index unless all stores have one. Sizes and digests are still those of the first store.

    Raises:
        StoreError: The stores differ in encoding, normalisation, rotation or columns, or only some have splits or names
            of classes.
    """
    first = readers[0]
    for reader in readers[1:]:
        mine, other = first.manifest, reader.manifest
        both = f"{printable(str(first.path))} and {printable(str(reader.path))}"
        if mine.encoding != other.encoding:
            raise StoreError(f"{both} differ in encoding: {mine.encoding}, {other.encoding}; convert one of them first")
        exif = "exif_transpose"
        if (mine.normalization, bool(mine.options.get(exif))) != (other.normalization, bool(other.options.get(exif))):
            raise StoreError(f"the images of {both} differ in normalisation or EXIF rotation; convert one of them")
        if bool(mine.splits) != bool(other.splits):
            raise StoreError(f"one of {both} has splits and the other has none; give it some with packstore select")
        names, other_names = ([column.name for column in _list_underived(each)] for each in (mine, other))
        if set(names) != set(other_names):
            odd = ", ".join(name for name in (*names, *other_names) if (name in names) != (name in other_names))
            raise StoreError(f"{both} have different columns: only one of them has {odd}")
        for a in _list_underived(mine):
            b = other.column(a.name)
            if replace(a, classes=None).declaration != replace(b, classes=None).declaration:
                raise StoreError(
                    f"column {a.name!r} of {both} differs in its declaration: {a.declaration}; {b.declaration}"
                )
    columns = []
    indexed = all(reader.manifest.has_column(SEEK_INDEX.name) for reader in readers)
    kept = {column.name for column in _list_underived(first.manifest)} | ({SEEK_INDEX.name} if indexed else set())
    for column in first.manifest.columns:
        if column.name not in kept:
            continue
        given = [(str(reader.path), reader.manifest.column(column.name)) for reader in readers]
        frames = {other.frame for _, other in given}
        frame = column.frame if len(frames) == 1 else None  # a store of an earlier version does not tell
        columns.append(replace(column, classes=merge_classes(column.name, given), frame=frame))
    return tuple(columns)


def _list_underived(manifest: Manifest) -> list[Column]:
    """Returns all columns but the links to image files and the seek index."""
    return [column for column in manifest.columns if column.name not in _DERIVED]


def map_class_numbers(column: Column, merged: Column) -> NDArray[np.int64] | None:
    """Returns an array that maps each class number of ``column`` to its number in ``merged``.

    Returns None if no number changes, or if one of the columns has no classes. ``merged`` has all classes of
    ``column``.
    """
    if column.classes is None or merged.classes is None or merged.classes[: len(column.classes)] == column.classes:
        return None
    places = {name: i for i, name in enumerate(merged.classes)}
    return np.array([places[name] for name in column.classes], np.int64)
