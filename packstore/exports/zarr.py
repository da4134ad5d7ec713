"""Zarr 2, which every Zarr library reads: a group for each split, with an array ``images`` and an array for each column
of one shape.

Arrays have the names of :mod:`packstore.exports.arrays`. Image files, and pixels of different sizes, are
variable-length values (``vlen-bytes``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import UsageError
from packstore.core.files import sync_file_system
from packstore.exports.arrays import CLASSES, IMAGES, SHAPES, ArraysExport, array_name, storable_class_names
from packstore.exports.base import Record, name_folder
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

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> None:
        """Writes the next range of rows in the group of the split, images in whole chunks. Keeps values of columns in
        memory until all are written. Ignores ``number``."""
        start, end = next((start, end) for name, start, end in self.manifest.ranges if name == split)
        total, folder = end - start, self.path / name_folder(split)
        ragged, stop = self.manifest.image.kind == "ragged", 0
        images: list[Any] = []
        shapes: list[tuple[int, ...]] = []
        values: dict[str, list[NDArray[Any]]] = {column.name: [] for column in self.array_columns}
        for record in records:
            stop, image = record.number - start + 1, record.image
            if isinstance(image, np.ndarray) and ragged:
                shapes.append(image.shape)
            images.append(image.tobytes() if isinstance(image, np.ndarray) and ragged else image)
            if stop % _count_chunk_rows(images[0]) == 0:
                self._write_images(folder, images, total, stop)
                images = []
            for column in self.array_columns:
                values[column.name].append(np.asarray(record.stored[column.name]))
        if images:
            self._write_images(folder, images, total, stop)
        arrays = {
            array_name(column.name): np.array(values[column.name], NUMPY_DTYPE[column.dtype])
            for column in self.array_columns
        }
        if shapes:
            arrays[SHAPES] = np.array(shapes, np.int32)
        for name, rows in arrays.items():
            chunk = max(1, _VALUES_A_CHUNK * 8 // max(8, rows[:1].nbytes))
            array = self._open_array(folder, name, (total, *rows.shape[1:]), rows.dtype, chunk)
            array[stop - len(rows) : stop] = rows

    def _write_images(self, folder: Path, images: Sequence[Any], total: int, stop: int) -> None:
        """Writes images of the split up to the one before ``stop``; ``total`` is the number of all its images."""
        first, dtype = images[0], None
        if isinstance(first, bytes):
            block, shape = np.empty(len(images), object), (total,)
            block[:] = images
        else:
            block, shape, dtype = np.stack(images), (total, *first.shape), first.dtype
        array = self._open_array(folder, IMAGES, shape, dtype, _count_chunk_rows(first))
        array[stop - len(images) : stop] = block

    def sync(self, file: str | None) -> None:
        """Flushes the whole file system, since each chunk is a file."""
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
            root.require_group(name_folder(split.name))
        shards = tuple(
            ExportShard(name_folder(name) or IMAGES, name, stop - start) for name, start, stop in self.manifest.ranges
        )
        files = {path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()}
        left = {name for name in files if name.endswith(_UNFINISHED)}  # leftovers of a killed run
        for name in left:
            (self.path / name).unlink()
        return super().finish(
            replace(export_manifest, shards=shards, files=tuple(sorted(files - left - {MANIFEST_FILE, ROWS_FILE}))),
            lines,
        )

    def _open_array(self, folder: Path, name: str, shape: tuple[int, ...], dtype: Any, rows: int) -> Any:
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


def _count_chunk_rows(image: Any) -> int:
    """Returns the number of images like ``image`` in a chunk."""
    return _FILES_A_CHUNK if isinstance(image, bytes) else max(1, _CHUNK_BYTES // max(1, image.nbytes))


def _import_zarr() -> Any:
    """Imports ``zarr``."""
    try:
        import zarr
    except ImportError:
        raise UsageError("writing Zarr needs its library: pip install 'packstore[zarr]'") from None
    return zarr
