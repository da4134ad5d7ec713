"""Reads a store back before it is published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packstore.core.columns import Buffer
from packstore.core.errors import StoreError, printable
from packstore.core.files import MANIFEST_FILE
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.proof import find_different_image
from packstore.core.registry import FORMATS
from packstore.stores.base import Reader, encode_manifest
from packstore.stores.builder.spools import describe_column
from packstore.stores.opening import open_container

_BATCH_BYTES = 4 << 20


def verify_read_back(path: Path, manifest: Manifest) -> None:
    """Opens a sealed file, and compares manifest, columns and images with the digests of the written data.

    Also checks the file's structure. Does not read the images of a linked store.

    The data usually comes from the system's page cache. This finds faults of library, memory and file system, not of a
    disk that loses data after confirming the write.

    Raises:
        StoreError: Something differs, or the file does not open.
    """
    shown = printable(str(path))
    with open_container(path) as reader:
        if reader.manifest.digest != manifest.digest:
            raise _differs_error(shown, "its manifest")
        for column in manifest.columns[1:]:
            if describe_column(column, reader.column(column.name)) != column:
                raise _differs_error(shown, f"column {column.name!r}")
        problem = next(iter(reader.check_structure(quick=FORMATS[manifest.format].quick_read_back)), None)
        if problem is not None:
            raise _differs_error(shown, f"the structure ({problem.what})")
        if manifest.is_linked:  # the images are in other files
            return
        checksums, done = reader.fixed_column("checksum"), 0

        def check(some: _ImageBatch) -> tuple[int, int | None]:
            expected = checksums[some.first : some.first + some.records].tolist()
            wrong = find_different_image(some.images, expected)
            return some.records, None if wrong is None else some.first + wrong

        for count, wrong in ordered_map(check, _batch_images(reader), default_workers()):
            done += count
            if wrong is not None:
                raise _differs_error(shown, f"record {wrong}")
        if done != len(reader):
            raise _differs_error(shown, f"the number of records ({done})")


class _ImageBatch(NamedTuple):
    """Consecutive records: the first one's number, how many, and an iterator that reads their images."""

    first: int
    records: int
    images: Iterator[Buffer]


def _batch_images(reader: Reader) -> Iterator[_ImageBatch]:
    """Yields all images in batches of about 4 MiB. Locates them by :meth:`Reader.spans` as far as that goes."""
    done, total = 0, len(reader)
    for data, starts, sizes in reader.spans():
        ends = sizes.cumsum()
        first = 0
        while first < len(sizes):
            before = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, "right")))
            places = zip(starts[first:stop].tolist(), sizes[first:stop].tolist(), strict=True)
            yield _ImageBatch(done + first, stop - first, (data[start : start + size] for start, size in places))
            first = stop
        done += len(sizes)
    step = max(1, _BATCH_BYTES * total // max(1, reader.manifest.image.nbytes))
    for first in range(done, total, step):
        numbers = range(first, min(first + step, total))
        yield _ImageBatch(first, len(numbers), map(reader.view, numbers))


def write_manifest_and_table(directory: Path, manifest: Manifest) -> None:
    """Writes the table and the manifest of a sharded store and reads both back. Raises :class:`StoreError` if they
    differ.
    """
    assert manifest.shards is not None
    for name, content in ((manifest.shards.file, manifest.shards.table.tobytes()),
                          (MANIFEST_FILE, encode_manifest(manifest))):  # fmt: skip
        (directory / name).write_bytes(content)
        if (directory / name).read_bytes() != content:
            raise _differs_error(printable(str(directory)), name)


def _differs_error(shown: str, what: str) -> StoreError:
    """Returns the error for ``what`` of the file ``shown``, which reads back differently than written."""
    return StoreError(
        f"{what} of {shown} reads back differently than written: the disk, the memory or the file system is faulty; "
        "nothing is published"
    )
