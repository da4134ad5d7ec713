"""Zarr 2, which every Zarr library reads: a group for each split, with an array ``images`` and an array for each column
of one shape.

Arrays have the names of :mod:`packstore.exports.arrays`. Image files, and pixels of different sizes, are
variable-length values (``vlen-bytes``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import UsageError
from packstore.core.files import sync_file_system
from packstore.exports.arrays import CLASSES, IMAGES, SHAPES, ArraysExport, array_name, storable_class_names
from packstore.exports.base import Record, ShardWriter, safe_name, shorten_name
from packstore.stores.export_manifest import MANIFEST_FILE, ROWS_FILE, ExportManifest, ExportShard

_CHUNK_BYTES = 4 << 20
_CONFIG = {"write_empty_chunks": True}
"""Write every chunk, so that a missing chunk means a loss."""
_UNFINISHED = ".partial"
"""Suffix of the library's incomplete files."""
_FILES_A_CHUNK, _VALUES_A_CHUNK = 32, 1 << 16


class ZarrExport(ArraysExport):
    """A Zarr group of version 2, with a group for each split.

    A shard is a range of rows of its arrays. Raises :class:`UsageError` while writing if the library is not installed.
    """

    name = "zarr"
    help = "Zarr arrays"
    suffixes = (".zarr",)
    source = "zarr"

    def begin(self, number: int, split: str) -> ShardWriter:
        """Returns the writer of the next range of rows in the group of the split. Ignores ``number``."""
        records = next((len(s) for s in self.manifest.splits if s.name == split), self.manifest.records)
        start = next((s.start for s in self.manifest.splits if s.name == split), 0)
        return _ZarrWriter(self, self.path / _group_name(split), records, start)

    def sync(self, shard: ShardWriter) -> None:
        """Flushes the whole file system, whatever the shard, since each chunk is a file."""
        sync_file_system(self.path)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes the class names, and creates groups of empty splits. Deletes leftovers of a killed run.

        Sets files and shards of the export manifest, with one shard for each split. Writes the export manifest unless
        the export is bare.
        """
        root = _import_zarr().open_group(str(self.path), mode="a", zarr_format=2)
        if (names := storable_class_names(self.manifest)) is not None:
            classes = np.array(names)
            root.create_array(CLASSES, shape=classes.shape, dtype=str, overwrite=True)[:] = classes
        for split in self.manifest.splits:
            root.require_group(_group_name(split.name))
        splits = [(s.name, len(s)) for s in self.manifest.splits] or [("", self.manifest.records)]
        shards = tuple(ExportShard(_group_name(name) or IMAGES, name, count) for name, count in splits)
        files = {path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()}
        left = {name for name in files if name.endswith(_UNFINISHED)}  # leftovers of a killed run
        for name in left:
            (self.path / name).unlink()
        return super().finish(
            replace(export_manifest, shards=shards, files=tuple(sorted(files - left - {MANIFEST_FILE, ROWS_FILE}))),
            lines,
        )

    def open_array(self, folder: Path, name: str, shape: tuple[int, ...], dtype: Any, rows: int) -> Any:
        """Opens the array ``name`` in ``folder`` if it exists. Otherwise creates it with ``rows`` rows a chunk.

        ``shape`` and ``dtype`` are for a new array. If ``dtype`` is None, its values are bytes of variable length.
        Ignores the library's warnings about types.
        """
        zarr = _import_zarr()
        if (folder / name / ".zarray").is_file():
            return zarr.open_array(str(folder / name), mode="r+", config=_CONFIG)
        options: dict[str, Any] = {"compressors": None} if dtype is None else {}
        if dtype is None:
            from zarr.core.dtype import VariableLengthBytes

            dtype = VariableLengthBytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about types that version 3 does not have; this is version 2
            return zarr.create_array(
                str(folder / name),
                shape=shape,
                dtype=dtype,
                chunks=(min(rows, shape[0]), *(max(1, size) for size in shape[1:])),
                zarr_format=2,
                config=_CONFIG,
                **options,
            )


class _ZarrWriter(ShardWriter):
    """Writes the records of a shard into the arrays of its split, images in whole chunks. Keeps values of columns in
    memory until the shard is closed."""

    def __init__(self, export: ZarrExport, folder: Path, records: int, start: int) -> None:
        self._export = export
        self._folder = folder
        self._records = records
        self._start = start
        self._first: int | None = None
        self._images: list[Any] = []
        self._written = 0
        self._values: dict[str, list[NDArray[Any]]] = {column.name: [] for column in export.array_columns}
        self._shapes: list[tuple[int, ...]] = []

    def add(self, record: Record) -> Mapping[str, str]:
        """Collects the record in memory. Writes the collected images as soon as they end a chunk. Returns an empty
        mapping."""
        if self._first is None:
            self._first = self._written = record.number - self._start
        image, ragged = record.image, self._export.manifest.image.kind == "ragged"
        if isinstance(image, np.ndarray) and ragged:
            self._shapes.append(image.shape)
        self._images.append(image.tobytes() if isinstance(image, np.ndarray) and ragged else image)
        if (self._written + len(self._images)) % self._chunk_rows == 0:
            self._write_images()
        for column in self._export.array_columns:
            self._values[column.name].append(np.asarray(record.stored[column.name]))
        return {}

    def close(self) -> None:
        """Writes the remaining images and all columns. Writes nothing without records."""
        self._write_images()
        if self._first is None:
            return
        stop = self._written
        for column in self._export.array_columns:
            dtype = NUMPY_DTYPE[column.dtype]
            self._write_values(array_name(column.name), np.array(self._values[column.name], dtype), dtype, stop)
        if self._shapes:
            self._write_values(SHAPES, np.array(self._shapes, np.int32), np.int32, stop)

    def _write_values(self, name: str, values: NDArray[Any], dtype: Any, stop: int) -> None:
        """Writes the values of the last records before ``stop`` into the array ``name``."""
        rows = max(1, _VALUES_A_CHUNK * 8 // max(8, values[:1].nbytes))
        array = self._export.open_array(self._folder, name, (self._records, *values.shape[1:]), np.dtype(dtype), rows)
        array[stop - len(values) : stop] = values

    @property
    def _chunk_rows(self) -> int:
        """Returns the number of images in a chunk."""
        # There is at least one collected image when this is called.
        first = self._images[0]
        return _FILES_A_CHUNK if isinstance(first, bytes) else max(1, _CHUNK_BYTES // max(1, first.nbytes))

    def _write_images(self) -> None:
        """Writes the collected images, if any, and forgets them."""
        if not self._images:
            return
        stop = self._written + len(self._images)
        first = self._images[0]
        if isinstance(first, bytes):
            block = np.empty(len(self._images), object)
            block[:] = self._images
            array = self._export.open_array(self._folder, IMAGES, (self._records,), None, self._chunk_rows)
        else:
            block = np.stack(self._images)
            array = self._export.open_array(
                self._folder, IMAGES, (self._records, *first.shape), first.dtype, self._chunk_rows
            )
        array[self._written : stop] = block
        self._written = stop
        self._images.clear()


def _group_name(split: str) -> str:
    """Returns the name of a split's group, or ``""``, the root group, without splits."""
    return shorten_name(safe_name(split)) if split else ""


def _import_zarr() -> Any:
    """Imports ``zarr``."""
    try:
        import zarr
    except ImportError:
        raise UsageError("writing Zarr needs its library: pip install 'packstore[zarr]'") from None
    return zarr
