"""Parts of formats that store each column as a whole array in one file, such as HDF5 and ``.pth``."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer, ColumnData, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.stores.parts import Fault, Part, Problem, Spans


class MappedPart(Part):
    """A part whose columns, images included, are arrays over one read-only map of the file.

    Arrays and memoryviews keep the map alive: they stay valid after :meth:`close` and after a fork.
    """

    has_image_array = True
    fewest_together = 32

    def __init__(self, path: Path, manifest: Manifest, data: Mapping[str, WholeColumn]) -> None:
        """``data`` holds every column of the manifest, of the right dtypes and shapes.

        Raises :class:`StoreError` if the first or last offset of a ragged column is wrong. :meth:`faults` checks all.
        """
        super().__init__(path, manifest)
        for column in manifest.container_columns:
            values = data[column.name]
            ends = (
                (int(values.offsets[0]), int(values.offsets[-1])) if isinstance(values, Ragged) else (0, column.nbytes)
            )
            if ends != (0, column.nbytes):
                raise StoreError(
                    f"{printable(str(path))}: column {column.name!r} has offsets from {ends[0]} to {ends[1]}, "
                    f"not from 0 to {column.nbytes}"
                )
        self._data: Mapping[str, WholeColumn] | None = data
        self._records = manifest.records
        image = data["image"]
        offsets: NDArray[np.int64] | None = None
        flat: NDArray[np.uint8] = np.empty(0, np.uint8)
        if isinstance(image, Ragged):
            offsets, flat = image.offsets, image.data
        elif image.size:
            flat = image.reshape(-1).view(np.uint8)
        raw = flat.data.toreadonly() if flat.size else memoryview(b"")
        # One attribute, so that a close in another thread removes all of it at once.
        self._images = offsets, raw, manifest.image.record_nbytes

    def view(self, index: int) -> memoryview:
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of {self._records}")
        offsets, raw, width = self._images
        if offsets is None:
            start = int(index) * width
            stop = start + width
        else:
            start, stop = int(offsets[index]), int(offsets[index + 1])
        if not 0 <= start <= stop <= len(raw):
            self._require_open()
            raise Fault(int(index), self.path, f"is at bytes {start} to {stop} of {len(raw)}: its offsets are damaged")
        return raw[start:stop]

    def locate(self, rows: NDArray[np.int64]) -> Spans:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._records:
            raise IndexError(f"records {rows.min()} to {rows.max()} of {self._records}")
        offsets, raw, width = self._images
        if offsets is None:
            starts = rows * width
            stops = starts + width
        else:
            starts, stops = offsets[rows], offsets[rows + 1]
        wrong = (starts < 0) | (starts > stops) | (stops > len(raw))
        if wrong.any():
            self.view(int(rows[wrong.argmax()]))  # raises
        return Spans(raw, starts, stops - starts)

    def column(self, name: str) -> ColumnData:
        """Returns a column as arrays over the map. Raises :class:`KeyError` for an unknown name, and
        :class:`StoreError` if the part is closed.
        """
        data = self._require_open()
        self.manifest.column(name)  # raises a KeyError that lists the columns
        return data[name]

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the offsets of ragged columns. Opening has checked the rest of the structure."""
        for column in self.manifest.columns:
            yield from check_offsets(column.name, self.column(column.name))

    def close(self) -> None:
        self._data = None
        self._images = None, memoryview(b""), 1  # reading finds the map too short

    def _require_open(self) -> Mapping[str, WholeColumn]:
        """Returns the arrays of all columns, or raises :class:`StoreError` if the part is closed."""
        data = self._data  # read once: another thread may close the part meanwhile
        if data is None:
            raise StoreError(f"{printable(str(self.path))} is closed")
        return data


MapArray = Callable[[str, str, tuple[int, ...]], NDArray[Any]]
"""Maps an array of a file by its name (see :attr:`Column.array_names`), the name of its dtype, and its shape."""


def map_column(column: Column, records: int, map_array: MapArray) -> WholeColumn:
    """Returns a column over the arrays that ``map_array`` returns."""
    if column.kind == "fixed":
        return map_array(column.name, column.dtype, (records, *column.shape))
    data = map_array(f"{column.name}/bytes", "uint8", (column.nbytes,))
    return Ragged(map_array(f"{column.name}/offsets", "int64", (records + 1,)), data)


def check_offsets(name: str, data: ColumnData, chunk: int = 1 << 20) -> Iterator[Problem]:
    """Yields a problem for each record of a ragged column whose offsets decrease or lie outside the data.

    Yields one also for wrong first or last offsets. Yields nothing for a fixed column.
    """
    if not isinstance(data, Ragged):
        return
    if int(data.offsets[0]) != 0 or int(data.offsets[-1]) != len(data.data):
        yield Problem(
            f"offsets of column {name!r} run from {int(data.offsets[0])} to {int(data.offsets[-1])}, "
            f"not from 0 to {len(data.data)}"
        )
    for start in range(0, len(data), chunk):
        part = data.offsets[start : start + chunk + 1]
        # Compared, not subtracted: a difference may not fit into 64 bits.
        bad = (part[1:] < part[:-1]) | (part[1:] > len(data.data)) | (part[:-1] < 0)
        for i in np.flatnonzero(bad).tolist():
            yield Problem(
                f"offsets of column {name!r} are {int(part[i])} and {int(part[i + 1])}, over {len(data.data)} bytes",
                record=start + i,
            )


def map_consecutive_images(path: Path, start: int, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """Maps an unfinished file in which images of these ``sizes`` lie one after another, from offset ``start`` on.

    Returns a function that views an image by its number. The function raises :class:`StoreError` if the file ends
    before the image does. Raises :class:`StoreError` for an empty file, and :class:`OSError` if it cannot be opened.
    """
    ends = start + np.cumsum(sizes.astype(np.int64))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise StoreError(f"{printable(str(path))} is empty")
        mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def image(number: int) -> memoryview:
        end = int(ends[number])
        if end > size:
            raise StoreError(f"{printable(str(path))} ends after {size} bytes, before image {number}")
        return mapped[end - int(sizes[number]) : end]

    return image


def find_file_offset(view: memoryview) -> int | None:
    """Returns the offset in the mapped file at which a memoryview begins.

    Returns None if the view is empty, or not a view of a map.
    """
    place = _find_map(view)
    return None if place is None else place[1]


def read_ahead(view: Buffer) -> None:
    """Asks the operating system to read all of ``view`` from the disk, if it is a view of a mapped file.

    Only costs time, 6 µs or more, if the view is already in memory.
    """
    place = _find_map(view) if hasattr(mmap, "MADV_WILLNEED") and isinstance(view, memoryview) else None
    if place is not None:
        start = place[1] - place[1] % mmap.PAGESIZE
        place[0].madvise(mmap.MADV_WILLNEED, start, place[1] - start + len(view))


def _find_map(view: memoryview) -> tuple[mmap.mmap, int] | None:
    """Returns the map that holds a view and the view's offset in it, or None without one."""
    owner: Any = view
    while isinstance(owner, memoryview | np.ndarray):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not len(view):
        return None
    first, start = (np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (owner, view))
    return owner, int(start - first)
