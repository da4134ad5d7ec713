"""Plain HDF5 and numpy's npz: shards with an array ``images``, and an array for each column of one shape.

Images of one shape are one array, ``N x H x W x 3`` (floats: ``N x 3 x H x W``). Image files, and pixels of different
sizes, vary in length: HDF5 holds each as a variable-length value; an npz holds all in one array, in which
``images_offsets`` gives their starts. ``images_shape`` holds the shapes of pixels, ``labels`` the column ``label``, and
``class_names`` its classes.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.files import beyond_standard_streams, drop, open_file
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Export, Record, ShardWriter, can_be_strings, name_shard
from packstore.stores.hdf5.writer import FailureHidingFile

IMAGES, OFFSETS, SHAPES, CLASSES = "images", "images_offsets", "images_shape", "class_names"
_RESERVED = {IMAGES, OFFSETS, SHAPES, CLASSES, "labels"}
_BLOCK_BYTES = 1 << 22


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

    @property
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
        writer: Class of its writer.
    """

    extension: ClassVar[str]
    writer: ClassVar[type[_ArraysWriter]]

    def begin(self, number: int, split: str) -> ShardWriter:
        """Returns the writer of a shard, named by split and number."""
        return self.writer(self.path, name_shard(split, number, self.extension), self.manifest, self.array_columns)


class _ArraysWriter(ShardWriter):
    """Collects the images of a shard in an unnamed temporary file, and other values in memory. Writes the shard when it
    is closed. Creating it creates the temporary file."""

    def __init__(self, folder: Path, name: str, manifest: Manifest, columns: Sequence[Column]) -> None:
        self.file = name
        self.path = folder / name
        self.manifest = manifest
        self.columns = columns
        self.images: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - until the shard ends
        self._values = {column.name: bytearray() for column in columns}
        self.ends = [0]
        self._shapes: list[tuple[int, ...]] = []

    def add(self, record: Record) -> Mapping[str, str]:
        """Appends the image to the temporary file, and the values of the columns to those in memory. Returns an empty
        mapping."""
        self.ends.append(self.ends[-1] + self.images.write(record.image_bytes))
        if isinstance(record.image, np.ndarray):
            self._shapes.append(record.image.shape)
        for column in self.columns:
            self._values[column.name] += np.asarray(record.stored[column.name]).tobytes()
        return {}

    def close(self) -> None:
        """Writes the shard. Deletes the temporary file, also after an error."""
        self.images.seek(0)
        try:
            self.write_shard()
        finally:
            self.images.close()

    def abort(self) -> None:
        """Deletes the temporary file. Writes no shard."""
        self.images.close()

    @abstractmethod
    def write_shard(self) -> None:
        """Writes the shard's file from the collected records."""

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

    def read_next_image(self, number: int) -> bytes:
        """Reads the next image from the temporary file. ``number``, its number in the shard from 0, gives only its
        size."""
        return self.images.read(self.ends[number + 1] - self.ends[number])


def array_name(column: str) -> str:
    """Returns the array name of a column: ``labels`` for ``label``, else the column's own name."""
    return "labels" if column == "label" else column


def storable_class_names(manifest: Manifest) -> tuple[str, ...] | None:
    """Returns the class names of the column ``label``. Returns None if there are none, or a name holds a NUL or a byte
    that is not UTF-8."""
    return manifest.classes if can_be_strings(manifest.classes or ()) else None


class _NpzWriter(_ArraysWriter):
    """Writes a shard as an uncompressed ``.npz``."""

    def write_shard(self) -> None:
        """Copies the images into the archive in blocks. Then writes the other arrays and the class names. After an
        error the file stays incomplete."""
        out = open_file(self.path, "wb")
        try:
            with zipfile.ZipFile(out, "w", allowZip64=True) as archive:
                if self.is_one_array:
                    shape, dtype = self.image_array_type
                else:
                    shape, dtype = (self.ends[-1],), np.dtype(np.uint8)
                    self._add_array(archive, OFFSETS, np.array(self.ends, np.int64))
                with archive.open(_make_npy_entry(IMAGES), "w", force_zip64=True) as file:
                    file.write(_build_npy_header(shape, dtype))
                    shutil.copyfileobj(self.images, file, _BLOCK_BYTES)
                for name, array in self.small_arrays():
                    self._add_array(archive, name, array)
                if (names := storable_class_names(self.manifest)) is not None:
                    self._add_array(archive, CLASSES, np.array(names, np.str_))
            out.close()
        except BaseException:
            drop(out)
            raise

    def _add_array(self, archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
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


class NpzExport(_ShardFilesExport):
    """Shards ``train-000000.npz`` …, not compressed."""

    name = "npz"
    help = "numpy's npz files"
    suffixes = (".npz",)
    source = "npz"
    extension = "npz"
    writer = _NpzWriter


class _Hdf5ShardWriter(_ArraysWriter):
    """Writes a shard as an HDF5 file. The HDF5 library does not see failed writes."""

    def write_shard(self) -> None:
        """Writes the shard's HDF5 file. Raises the :class:`OSError` of the first failed write."""
        import h5py

        with beyond_standard_streams():
            out = self.path.open("w+b", buffering=0)
        with out:
            held = FailureHidingFile(out)
            try:
                with h5py.File(held, "w") as file:
                    self._write_arrays(file, held)
            finally:
                held.raise_failure()

    def _write_arrays(self, file: Any, held: FailureHidingFile) -> None:
        """Writes all arrays to the HDF5 ``file``, and stops with :class:`OSError` soon after a failed write."""
        import h5py

        if self.is_one_array:
            shape, dtype = self.image_array_type
            images = file.create_dataset(IMAGES, shape, dtype)
            rows = max(1, _BLOCK_BYTES // max(1, self.ends[1]))
            for start in range(0, self.record_count, rows):
                held.raise_failure()
                stop = min(start + rows, self.record_count)
                data = b"".join(self.read_next_image(number) for number in range(start, stop))
                images[start:stop] = np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])
        else:
            images = file.create_dataset(IMAGES, (self.record_count,), h5py.vlen_dtype(np.uint8))
            for number in range(self.record_count):
                held.raise_failure()
                images[number] = np.frombuffer(self.read_next_image(number), np.uint8)
        for name, array in self.small_arrays():
            file.create_dataset(name, data=array)
        if (names := storable_class_names(self.manifest)) is not None:
            file.create_dataset(CLASSES, data=[*names], dtype=h5py.string_dtype())


class Hdf5Export(_ShardFilesExport):
    """Shards ``train-000000.h5`` …. Images of one shape are a contiguous dataset; others are variable-length values."""

    name = "hdf5"
    help = "plain HDF5 files"
    suffixes = (".hdf5s",)
    source = "hdf5"
    extension = "h5"
    writer = _Hdf5ShardWriter

    def overhead(self) -> int:
        """Adds 1,365 bytes, the unused space of HDF5's heap, if images have variable length and over 4 KiB on
        average."""
        image = self.manifest.image
        large = image.kind == "ragged" and image.nbytes > BLOCK_BYTES * self.manifest.records
        return super().overhead() + (BLOCK_BYTES // 3 if large else 0)  # unused space of a heap per large image
