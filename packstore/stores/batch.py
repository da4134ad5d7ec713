"""Checks the values of a batch of records and computes their checksums, before any of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import StoreError
from packstore.core.manifest import Column, Split
from packstore.core.proof import ROW_CHECKSUM, hash_values, row_checksums
from packstore.stores.spools import ColumnSpool, check_classes

BATCH_RECORDS, BATCH_BYTES = 1024, 8 << 20
"""Most records, and about the most bytes, of a batch that is read from a store."""
KEY_HASHES = Column("keyhash", "fixed", "uint64")
"""Hashes of the keys: a column that finds equal keys, and is not stored."""


def prepare_batch(
    columns: Sequence[Column],
    spools: Mapping[str, ColumnSpool],
    buffers: Sequence[bytes | memoryview],
    sizes: Sequence[int],
    values: Mapping[str, Any],
    checksums: NDArray[np.uint64] | None,
    first: int,
) -> dict[str, Any]:
    """Checks a batch and converts it to the values for each spool, by column.

    Adds image checksums, row checksums and key hashes.

    Args:
        columns: Columns of the store, ``image`` first.
        spools: Spools of all columns but ``image``.
        buffers: Images of the records.
        sizes: Bytes of each image.
        values: Values of all columns but ``image`` and ``checksum``, as :meth:`StoreBuilder.append` takes them.
        checksums: Checksums of the images; None computes them.
        first: Number of the first record, for messages.

    Raises:
        StoreError: Columns are missing or unknown, or values do not fit their column or each other.
    """
    image, count = columns[0], len(buffers)
    if image.kind == "fixed":
        wrong = next((i for i, size in enumerate(sizes) if size != image.record_nbytes), None)
        if wrong is not None:
            raise StoreError(
                f"record {first + wrong} has {sizes[wrong]} bytes, not {image.record_nbytes} "
                f"({image.dtype} {image.shape})"
            )
    given = dict(values)
    needed = {c.name for c in columns[1:]} - {"checksum", ROW_CHECKSUM.name}
    if given.keys() != needed:
        raise StoreError(f"values of the columns {sorted(needed)} are needed, got {sorted(given)}")
    for column in columns[1:]:
        if column.kind == "ragged":
            try:
                given[column.name] = [
                    v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in given[column.name]
                ]
            except UnicodeEncodeError as error:
                raise StoreError(f"a value of column {column.name!r} cannot be stored: {error}") from None
    if checksums is None:
        checksums = hash_values(buffers, count)
    given["checksum"] = checksums
    checked = {name: spools[name].convert_values(given[name], count) for name in given}
    hashes = {c.name: hash_values(checked[c.name], count) for c in columns[1:] if c.kind == "ragged"}
    checked[KEY_HASHES.name] = hashes["key"]
    checked[ROW_CHECKSUM.name] = row_checksums(columns, checked | hashes, count)
    check_batch(columns, checked, sizes, first)
    return checked


def check_batch(columns: Sequence[Column], values: Mapping[str, Any], image_sizes: Sequence[int], first: int) -> None:
    """Checks that the values of each record fit together:

    - Ragged values fit their shape or width.
    - Class numbers of a ragged column have a class.
    - A missing value is empty or zero.
    - Parallel columns, such as boxes and their labels, have equally many rows.

    Raises :class:`StoreError` naming the first record that does not fit. For a class number without a class, it names
    only the column.

    Args:
        columns: Columns of the store, ``image`` first.
        values: Values by column, as :meth:`ColumnSpool.convert_values` returns them.
        image_sizes: Bytes of each image.
        first: Number of the first record, for messages.
    """
    by_name = {column.name: column for column in columns}
    parallel = {column.parallel for column in columns}
    sizes: dict[str, NDArray[np.int64]] = {}
    for column in columns:
        restricted = column.layout or column.record_nbytes > 1 or column.classes is not None or column.nullable
        if column.kind == "ragged" and (restricted or column.name in parallel):  # not keys and image files
            given = image_sizes if column.name == "image" else list(map(len, values[column.name]))
            sizes[column.name] = np.array(given, np.int64)
    for column in columns:
        if column.name in sizes:
            _check_ragged(column, values, sizes[column.name], first)
        if column.nullable:
            filled = sizes[column.name] > 0 if column.kind == "ragged" else _nonzero_mask(values[column.name])
            what = f"has a value of {column.name!r}, which {column.valid_name!r} says is missing"
            _raise_for_first(filled & ~values[column.valid_name], first, what)
        if column.parallel is not None:
            boxes = by_name[column.parallel]
            rows, wanted = (sizes[c.name] // c.record_nbytes for c in (column, boxes))
            what = f"has {{}} rows of {column.name!r}, and {{}} of {boxes.name!r}"
            _raise_for_first(rows != wanted, first, what, rows, wanted)


def _check_ragged(column: Column, values: Mapping[str, Any], sizes: NDArray[np.int64], first: int) -> None:
    """Raises :class:`StoreError` if values of a ragged column do not fit their shapes, widths or classes."""
    where = "" if column.name == "image" else f" of {column.name!r}"
    width = column.record_nbytes
    if column.layout is not None:
        shapes = values[column.shape_name]
        wrong = (shapes.astype(np.int64).prod(axis=1) * width != sizes) | (shapes < 0).any(axis=1)
        wrong |= shapes.astype(np.float64).prod(axis=1) > 2**62  # the int64 product may have overflowed
        _raise_for_first(wrong, first, f"has {{}} bytes{where}, not shape {{}}", sizes, shapes)
    elif width > 1:
        _raise_for_first(sizes % width != 0, first, f"has {{}} bytes{where}, not a multiple of {width}", sizes)
    if column.classes is not None:
        numbers: NDArray[np.int64] = np.frombuffer(b"".join(values[column.name]), NUMPY_DTYPE[column.dtype])
        check_classes(column, numbers)


def _nonzero_mask(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns a mask of the values of a fixed column that have a nonzero byte."""
    flat = values.reshape(len(values), -1)
    return np.any(flat.view(np.uint8), axis=1) if flat.size else np.zeros(len(values), np.bool_)


def _raise_for_first(wrong: NDArray[np.bool_], first: int, what: str, *values: NDArray[Any]) -> None:
    """Raises :class:`StoreError` with ``what``, a template for ``values``, for the first record that is ``wrong``."""
    places = np.flatnonzero(wrong)
    if len(places):
        i = int(places[0])
        raise StoreError(f"record {first + i} {what.format(*(each[i] for each in values))}")


class SplitRanges:
    """Consecutive ranges of records, one for each split. Either all records have a split or none.

    :meth:`refuse_split` checks this before records are added; :meth:`extend` checks nothing.

    Attributes:
        ranges: The splits so far, in order.
    """

    def __init__(self) -> None:
        self.ranges: list[Split] = []
        self._splitless = False

    @property
    def last_name(self) -> str | None:
        """Name of the split of the last record. None if no record has a split."""
        return self.ranges[-1].name if self.ranges else None

    def refuse_split(self, split: str) -> None:
        """Raises :class:`StoreError` if the next records cannot have this split, which may be ``""``.

        They cannot if the split has ended, or if only some records would have a split.
        """
        if split and not self._splitless:
            if any(each.name == split for each in self.ranges[:-1]):
                raise StoreError(f"records of split {split!r} must follow each other; {self.last_name!r} began")
        elif split or self.ranges:
            raise StoreError("either all records have a split or none")

    def extend(self, split: str, start: int, stop: int) -> None:
        """Adds the records ``start`` to ``stop - 1`` to a split, which may be ``""``. Call :meth:`refuse_split` before.

        A split without records is left out.
        """
        if not split:
            self._splitless = self._splitless or stop > start
        elif self.last_name == split:
            self.ranges[-1] = Split(split, self.ranges[-1].start, stop)
        elif stop > start:
            self.ranges.append(Split(split, start, stop))

    def ranges_within(self, start: int, stop: int) -> tuple[Split, ...]:
        """Returns the splits among the records ``start`` to ``stop - 1``, counted from ``start``."""
        return tuple(
            Split(each.name, max(each.start, start) - start, min(each.stop, stop) - start)
            for each in self.ranges
            if each.start < stop and each.stop > start
        )
