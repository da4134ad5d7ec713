"""Checks the values of a batch of records and computes their checksums, before any of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, hash_values, row_checksums
from packstore.core.errors import StoreError
from packstore.core.manifest import Column
from packstore.stores.builder.fitting import check_batch
from packstore.stores.builder.spools import ColumnSpool

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
