"""Exports of arrays: plain HDF5 and numpy's npz in shards, and Zarr 2, which every Zarr library reads.

Each has an array ``images``, and an array for each column of one shape. Images of one shape are one array,
``N x H x W x 3`` (floats: ``N x 3 x H x W``). Image files, and pixels of different sizes, vary in length: HDF5 and Zarr
(``vlen-bytes``) hold each as a variable-length value; an npz holds all in one array, in which ``images_offsets`` gives
their starts. ``images_shape`` holds the shapes of pixels, ``labels`` the column ``label``, and ``class_names`` its
classes. Zarr has a group for each split.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import warnings
import zipfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import UsageError
from packstore.core.files import beyond_standard_streams, sync_file_system
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Export, Record, can_be_strings, name_folder, name_shard
from packstore.stores.export_manifest import MANIFEST_FILE, ROWS_FILE, ExportManifest, ExportShard
from packstore.stores.hdf5.store import FailureHidingFile

IMAGES, OFFSETS, SHAPES, CLASSES = "images", "images_offsets", "images_shape", "class_names"
_RESERVED = {IMAGES, OFFSETS, SHAPES, CLASSES, "labels"}
_BLOCK_BYTES = 1 << 22
_CONFIG = {"write_empty_chunks": True}
"""Write every chunk, so that a missing chunk means a loss."""
_UNFINISHED = ".partial"
"""Suffix of the library's incomplete files."""
_FILES_A_CHUNK, _VALUES_A_CHUNK = 32, 1 << 16


class ArraysExport(Export):
    """Base of exports that hold images and columns as arrays. Image files become arrays of bytes.

    Columns with missing values or of varying shape go into the record lines.
    """

    image_forms: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})

    def exact_columns(self) -> Sequence[str]:
        """Returns the columns of :attr:`array_columns`."""
        return [column.name for column in self.array_columns]

    def losses(self) -> Sequence[str]:
        """Returns a text on keys. If the store has them, adds texts on class names that no array holds, images of
        different shapes, bfloat16 and normalisation."""
        lost = ["keys: samples have numbers"]
        image = self.manifest.image
        if storable_class_names(self.manifest) is None and any(column.classes is not None for column in self.columns):
            lost.append("names of classes: labels are numbers")
        if image.kind == "ragged" and not self.manifest.holds_files:
            lost.append(f"shapes of images: pixels are flat arrays, and {SHAPES} holds their shapes")
        return [*lost, *self.array_losses()]

    @cached_property
    def array_columns(self) -> list[Column]:
        """Columns that become arrays. They have one shape, no missing values, and a name that no other array has."""
        return [
            column
            for column in self.columns
            if column.kind == "fixed" and not column.nullable and column.name not in _RESERVED
        ]


class _ShardFilesExport(ArraysExport):
    """Base of exports in shards ``train-000000.npz`` …. Each shard can be read alone.

    Attributes:
        extension: File extension of a shard.
    """

    extension: ClassVar[str]

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Collects the images in an unnamed temporary file and other values in memory, and writes the shard by
        :meth:`write_arrays`."""
        file = name_shard(split, number, self.extension)
        with tempfile.TemporaryFile(dir=self.path) as images:
            shard = _CollectedShard(self.manifest, self.array_columns, images)
            for record in records:
                shard.add(record)
            images.seek(0)
            self.write_arrays(self.path / file, shard)
        return file

    @abstractmethod
    def write_arrays(self, path: Path, shard: _CollectedShard) -> None:
        """Writes a shard's file. After an error the file stays incomplete."""


class _CollectedShard:
    """Records of a shard: the bytes of their images in a file, other values in memory."""

    def __init__(self, manifest: Manifest, columns: Sequence[Column], images: IO[bytes]) -> None:
        self.manifest = manifest
        self.columns = columns
        self.images = images
        self._values = {column.name: bytearray() for column in columns}
        self.ends = [0]
        self._shapes: list[tuple[int, ...]] = []

    def add(self, record: Record) -> None:
        """Appends the image to the file, and the values of the columns to those in memory."""
        self.ends.append(self.ends[-1] + self.images.write(record.image_bytes))
        if isinstance(record.image, np.ndarray):
            self._shapes.append(record.image.shape)
        for column in self.columns:
            self._values[column.name] += np.asarray(record.stored[column.name]).tobytes()

    @property
    def record_count(self) -> int:
        """Number of records so far."""
        return len(self.ends) - 1

    @property
    def is_one_array(self) -> bool:
        """True if images are pixels of one shape, which become one array. False for image files, and without
        records."""
        return self.manifest.image.kind == "fixed" and bool(self._shapes)

    @property
    def image_array_type(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array of all images of the shard. Only for a shard whose images are one array."""
        image = self.manifest.image
        return (self.record_count, *image.shape), np.dtype(NUMPY_DTYPE[image.dtype])

    def small_arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the name and the values of each array except the images. If the images' shapes differ, the first is
        the array of shapes."""
        if self._shapes and not self.is_one_array:
            yield SHAPES, np.array(self._shapes, np.int32)
        for column in self.columns:
            values = np.frombuffer(bytes(self._values[column.name]), NUMPY_DTYPE[column.dtype])
            yield array_name(column.name), values.reshape(self.record_count, *column.shape)


def array_name(column: str) -> str:
    """Returns the array name of a column: ``labels`` for ``label``, else the column's own name."""
    return "labels" if column == "label" else column


def storable_class_names(manifest: Manifest) -> tuple[str, ...] | None:
    """Returns the class names of the column ``label``. Returns None if there are none, or a name holds a NUL or a byte
    that is not UTF-8."""
    return manifest.classes if can_be_strings(manifest.classes or ()) else None


class NpzExport(_ShardFilesExport):
    """Shards ``train-000000.npz`` …, not compressed."""

    name = "npz"
    help = "numpy's npz files"
    suffixes = (".npz",)
    source = "npz"
    extension = "npz"

    def write_arrays(self, path: Path, shard: _CollectedShard) -> None:
        """Copies the images into the archive in blocks. Then writes the other arrays and the class names."""
        with self.open_files(path.name) as (out,), zipfile.ZipFile(out, "w", allowZip64=True) as archive:
            if shard.is_one_array:
                shape, dtype = shard.image_array_type
            else:
                shape, dtype = (shard.ends[-1],), np.dtype(np.uint8)
                _add_array(archive, OFFSETS, np.array(shard.ends, np.int64))
            with archive.open(_make_npy_entry(IMAGES), "w", force_zip64=True) as file:
                file.write(_build_npy_header(shape, dtype))
                shutil.copyfileobj(shard.images, file, _BLOCK_BYTES)
            for name, array in shard.small_arrays():
                _add_array(archive, name, array)
            if (names := storable_class_names(self.manifest)) is not None:
                _add_array(archive, CLASSES, np.array(names, np.str_))


def _add_array(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Adds an array to the archive as an ``.npy`` file."""
    with archive.open(_make_npy_entry(name), "w", force_zip64=True) as file:
        npy.write_array(file, np.ascontiguousarray(array), (1, 0), allow_pickle=False)


def _make_npy_entry(name: str) -> zipfile.ZipInfo:
    """Returns the zip entry of an array."""
    # Without a date it gets 1980, so that equal arrays give equal files.
    return zipfile.ZipInfo(f"{name}.npy")


def _build_npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Builds the header of an ``.npy`` file (version 1.0) for an array in C order."""
    out = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(out, described)
    return out.getvalue()


class Hdf5Export(_ShardFilesExport):
    """Shards ``train-000000.h5`` …. Images of one shape are a contiguous dataset; others are variable-length values."""

    name = "hdf5"
    help = "plain HDF5 files"
    suffixes = (".hdf5s",)
    source = "hdf5"
    extension = "h5"

    def overhead(self) -> int:
        """Adds 1,365 bytes, the unused space of HDF5's heap, if images have variable length and over 4 KiB on
        average."""
        image = self.manifest.image
        large = image.kind == "ragged" and image.nbytes > BLOCK_BYTES * self.manifest.records
        return super().overhead() + (BLOCK_BYTES // 3 if large else 0)  # unused space of a heap per large image

    def write_arrays(self, path: Path, shard: _CollectedShard) -> None:
        """Writes a shard's file. Raises the :class:`OSError` of the first failed write, which the HDF5 library does not
        see, soon after it."""
        import h5py

        with beyond_standard_streams():
            out = path.open("w+b", buffering=0)
        with out:
            held = FailureHidingFile(out)
            try:
                with h5py.File(held, "w") as file:
                    if shard.is_one_array:
                        shape, dtype = shard.image_array_type
                        images = file.create_dataset(IMAGES, shape, dtype)
                        rows = max(1, _BLOCK_BYTES // max(1, shard.ends[1]))
                    else:
                        shape, dtype, rows = (shard.record_count,), np.dtype(np.uint8), 1
                        images = file.create_dataset(IMAGES, shape, h5py.vlen_dtype(np.uint8))
                    for start in range(0, shard.record_count, rows):
                        held.raise_failure()
                        stop = min(start + rows, shard.record_count)
                        block = np.frombuffer(shard.images.read(shard.ends[stop] - shard.ends[start]), dtype)
                        if shard.is_one_array:
                            images[start:stop] = block.reshape(stop - start, *shape[1:])
                        else:
                            images[start] = block
                    for name, array in shard.small_arrays():
                        file.create_dataset(name, data=array)
                    if (names := storable_class_names(self.manifest)) is not None:
                        file.create_dataset(CLASSES, data=[*names], dtype=h5py.string_dtype())
            finally:
                held.raise_failure()


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
    return _FILES_A_CHUNK if isinstance(image, bytes) else max(1, _BLOCK_BYTES // max(1, image.nbytes))


def _import_zarr() -> Any:
    """Imports ``zarr``."""
    try:
        import zarr
    except ImportError:
        raise UsageError("writing Zarr needs its library: pip install 'packstore[zarr]'") from None
    return zarr
