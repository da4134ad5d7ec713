"""Contracts of an open store, :class:`Reader`, and of a file that is being written, :class:`FileWriter`.

A reader has four abstract methods; everything else has a correct default here, which a format may override for speed.
``packstore.testing.StoreSuite`` tests the same contract.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, LazyArray, Ragged, WholeColumn, from_stored
from packstore.core.errors import CorruptRecordError, ManifestError, StoreError, printable
from packstore.core.manifest import Column, Manifest, Split
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import notebook_html
from packstore.core.urls import ShardPlace, UrlPath
from packstore.stores.parts import Problem as Problem
from packstore.stores.parts import Spans as Spans


def as_image_array(data: Buffer, column: Column, shape: tuple[int, ...], where: Callable[[], str]) -> NDArray[Any]:
    """Views the bytes of an image as an array ``(H, W, C)`` or ``(C, H, W)`` of the column's dtype. Copies nothing.

    Raises :class:`StoreError` if ``shape`` has not three dimensions or does not fit the bytes; the result of
    ``where`` names the record in the message.
    """
    flat: NDArray[Any] = np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    if len(shape) != 3 or min(shape) < 0 or math.prod(shape) != flat.size or (not flat.size and max(shape) >= 1 << 31):
        raise StoreError(f"{where()} holds {flat.size} elements, not {shape}")
    return flat.reshape(shape)


def disk_bytes(path: Path) -> int:
    """Returns the bytes that a file or directory takes on disk, by the allocated blocks of its files: holes do not
    count.
    """
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_blocks * 512 for p in files)


def parse_manifest(text: str | bytes, path: Path) -> Manifest:
    """Parses the manifest in ``text``. Raises :class:`ManifestError` that names ``path``."""
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(path))}: {error}") from None


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the manifest as JSON with a line break, the content of a sharded store's manifest file."""
    return f"{manifest.to_json()}\n".encode("ascii")


def unreadable_error(path: Path, kind: str, reason: object) -> StoreError:
    """Returns the error for a file that is recognised as ``kind`` (``"an LMDB"``) but cannot be opened.

    The message has the first line of ``reason``, at most 200 characters.
    """
    first = str(reason).strip().partition("\n")[0]
    return StoreError(
        f"{printable(str(path))} is damaged or truncated: it cannot be opened as {kind} ({printable(first)[:200]}); "
        "restore it from a copy or pack it again"
    )


class Reader(ABC):
    """An open store: ``len(reader)`` records, numbered from 0.

    Readers are safe to use from several threads. They do not survive a fork and do not pickle: open one in each process
    (``PackedDataset`` does that by itself). Opening costs milliseconds, whatever the number of records. As a context
    manager, a reader is closed at the end.

    Attributes:
        path: Path or URL of the store.
        manifest: Its manifest.
        nbytes: Bytes of a store at a URL; None for a store on this machine.
        can_refetch: Whether files of the store are cached copies, which are fetched again after :meth:`mark_suspect`.
        checks_records: Whether each record is checked against its checksums when it is read.
        converts_images: Whether :meth:`read` converts images. Checksums cover images as stored.
        has_image_array: Whether :meth:`column` also returns ``image``, without a copy.
    """

    can_refetch = False
    checks_records = False
    has_image_array = False
    converts_images = False

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.nbytes: int | None = None

    @abstractmethod
    def read(self, index: int) -> Buffer:
        """Returns the image of record ``index`` (0 … N-1): bytes, or a read-only memoryview that keeps its map alive.

        Raises :class:`IndexError` outside the range.
        """

    @abstractmethod
    def column(self, name: str) -> ColumnData:
        """Returns a whole column: shape ``(N, *column.shape)`` if fixed (``bfloat16`` as ``uint16`` bit patterns), else
        :class:`Ragged`.

        Maps or loads the column once and keeps it. A sharded store opens all its shards: use :meth:`values` to read
        some records. If a format stores each value by itself, the column is a
        :class:`packstore.core.columns.LazyArray`, which reads a value on access.

        Raises:
            KeyError: There is no such column.
            StoreError: ``image`` was asked for without :attr:`has_image_array`.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases files and maps. Idempotent. Arrays and memoryviews already returned stay valid."""

    @abstractmethod
    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the container itself: sizes, counts, offsets, container checksums, shard digests.

        ``verify`` checks records and column digests, for all formats alike. ``quick`` skips checks that read all of the
        data.
        """

    def __len__(self) -> int:
        return self.manifest.records

    def check_files(self) -> None:
        """Raises :class:`StoreError` if a shard's file is missing or has another size. Does nothing for a store of one
        file.

        Opening a sharded store does not check all files: a damaged one can still be verified and salvaged.
        """
        return

    def view(self, index: int) -> Buffer:
        """Returns the same as :meth:`read`, without a copy if the format allows that. The view stays valid after
        :meth:`close`."""
        return self.read(index)

    def read_stored_image(self, index: int) -> Buffer:
        """Returns the image of a record as stored, even if :meth:`read` converts images. The record's checksum covers
        this form.
        """
        return self.view(index)

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Returns :meth:`view` of each of ``records``, in their order. Override it if many at once cost less."""
        return [self.view(record) for record in records.tolist()]

    def spans(self) -> Iterator[Spans]:
        """Yields the locations of the images in order from record 0 on. May stop after any record.

        The default yields nothing. Override it if locating many images at once costs less. An override stops before
        the first fault; :meth:`check_structure` reports that fault.
        """
        return iter(())

    def will_need(self, index: int, view: Buffer) -> None:
        """Asks the operating system to read all of ``view``, which is ``self.view(index)``, from the disk.

        Does nothing by default. Only costs time, 6 µs or more, if the view is already in memory.
        """
        return

    def array(self, index: int) -> NDArray[Any]:
        """Returns the image of a record as an array: ``(H, W, C)`` uint8 or ``(C, H, W)`` floating point (bfloat16 as
        uint16 bit patterns). Read-only; shares memory with :meth:`view`.

        Raises :class:`StoreError` if the store holds encoded images, such as JPEG, or if the record is damaged.
        """
        column = self.manifest.image
        if column.layout is None:
            raise StoreError(f"{self.path} holds encoded images ({self.manifest.encoding}), not arrays")
        shape = column.shape if column.kind == "fixed" else tuple(self.value("shape", index).tolist())
        view = self.view(index)
        return as_image_array(view, column, shape, lambda: f"record {index} of {printable(str(self.path))}")

    def fixed_column(self, name: str) -> NDArray[Any]:
        """Returns the fixed column ``name``, loaded whole if it is stored value by value. Raises :class:`StoreError` if
        it is ragged.
        """
        column = self._require_fixed(name)
        return column[:] if isinstance(column, LazyArray) else column

    def _require_fixed(self, name: str) -> NDArray[Any] | LazyArray:
        """Returns the fixed column ``name``, as a :class:`LazyArray` if it is stored value by value. Raises
        :class:`StoreError` if the column is ragged.
        """
        column = self.column(name)
        if isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is ragged")
        return column

    def ragged_column(self, name: str) -> Ragged:
        """Returns the ragged column ``name``. Raises :class:`StoreError` if it is fixed."""
        column = self.column(name)
        if not isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is not ragged")
        return column

    def mapped_ragged_column(self, name: str) -> Ragged | None:
        """Returns the ragged column ``name`` if all of it is mapped or in memory, else None.

        Returns None for a fixed column, and always for a sharded store.
        """
        return None

    def value(self, name: str, index: int) -> Any:
        """Returns a record's value of column ``name`` in stored form: in the column's dtype, or a memoryview if it is
        ragged.
        """
        return self.column(name)[index]

    def has_value(self, name: str, index: int) -> bool:
        """Returns whether a record has a value in column ``name``. Always True for a column that is not nullable.

        Raises :class:`KeyError` for an unknown column.
        """
        column = self.manifest.column(name)
        return not column.nullable or bool(self.value(column.valid_name, index))

    def item(self, name: str, index: int) -> Any:
        """Returns a record's value of column ``name`` as it was given to the writer, or None if it has no value.

        See :func:`packstore.core.columns.from_stored`. For ``image``, returns the file's bytes or :meth:`array`. Raises
        :class:`KeyError` for an unknown column.
        """
        column = self.manifest.column(name)
        if name == "image":
            return bytes(self.read(index)) if column.layout is None else self.array(index)
        if not self.has_value(name, index):
            return None
        has_shape = column.kind == "ragged" and column.layout is not None
        shape = tuple(self.value(column.shape_name, index).tolist()) if has_shape else None
        return from_stored(column, self.value(name, index), shape)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of the values of the fixed column ``name`` for some records: ``(len(records),
        *column.shape)``. Raises :class:`StoreError` if the column is ragged.
        """
        values: NDArray[Any] = self._require_fixed(name)[records]
        return values

    def parts(self) -> Iterator[Reader]:
        """Yields a reader for each file of the store, in order: its shards, or this reader."""
        return map(self.part, range(len(self.part_starts)))

    def part(self, number: int) -> Reader:
        """Returns the reader of one file of the store, which is one of :meth:`parts`. Opens a shard if it is closed. By
        default this reader.
        """
        return self

    @property
    def part_starts(self) -> NDArray[np.int64]:
        """The first record of each of :meth:`parts`."""
        return np.zeros(1, np.int64)

    def part_places(self) -> list[ShardPlace]:
        """Returns the path of each of :meth:`parts`, or for a store at a URL the URL of its object."""
        return [self.path if isinstance(self.path, UrlPath) else str(self.path)]

    def parts_are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Returns a mask, ``bool (n,)``: which of these :meth:`parts` can be read without fetching anything.

        By default all of them.
        """
        return np.ones(len([*numbers]), np.bool_)

    def mark_suspect(self, index: int) -> None:  # noqa: B027 - most stores have no cache
        """Notes that a record is damaged. Before the next read, a cached copy of its shard is verified, and fetched
        again if it is damaged.

        Does nothing for a store without a cache, whose :attr:`can_refetch` is False.
        """

    @property
    def unchecked_reader(self) -> Reader:
        """The reader of the same open files that compares no checksums. This reader itself if it compares none."""
        return self

    def key(self, index: int) -> str:
        """Returns the key of a record. Bytes that are not UTF-8 become surrogates, as in file names."""
        return bytes(self.value("key", index)).decode("utf-8", "surrogateescape")

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Checks the values of some records in the columns ``names``, but no images. Returns faults by record number.

        The default checks class numbers in fixed columns: a number without a class is a fault. It returns the first
        fault of each record. Readers that verify checksums also find damaged values.
        """
        errors: dict[int, StoreError] = {}
        for name in names:
            column = self.manifest.column(name)
            if column.classes is None or column.kind != "fixed" or not len(records):
                continue
            values = self.values(name, records).reshape(len(records), -1)
            if not values.size or 0 <= int(values.min()) <= int(values.max()) < len(column.classes):
                continue
            wrong = (values < 0) | (values >= len(column.classes))
            for row in np.flatnonzero(wrong.any(1)).tolist():
                record = int(records[row])
                errors.setdefault(record, self.class_error(column, record, int(values[row][wrong[row]][0])))
        return errors

    def class_error(self, column: Column, record: int, value: int) -> CorruptRecordError:
        """Returns the error for a record with a class number that has no class.

        The message has the record's key, or says that the key is damaged.
        """
        try:
            key = self.unchecked_reader.key(record)
        except (StoreError, IndexError):
            key = "its key is damaged, too"
        expected = f"one from 0 to {len(column.classes or ()) - 1}"
        return CorruptRecordError(record, key, expected, str(value), f"its {column.name} is")

    def check_fields(self, index: int) -> None:
        """Raises :class:`CorruptRecordError` if a record's label, key or other fields do not match its row checksum.

        Does nothing without :attr:`checks_records`. :meth:`read` checks the image.
        """
        return

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        """Raises :class:`CorruptRecordError` if one of ``images``, the stored arrays of ``records``, does not match its
        checksum. Does nothing without :attr:`checks_records`.

        For a caller that took the images from the array of all images.
        """
        return

    def verify_column(self, name: str) -> None:
        """Proves that a column is undamaged: raises :class:`StoreError` if it does not match its digest.

        Does nothing without :attr:`checks_records`.
        """
        return

    def split(self, name: str | None) -> Split:
        """Returns the range of split ``name``. For None returns the range of the whole store, named ``all``.

        Raises :class:`KeyError` for an unknown name.
        """
        return Split("all", 0, len(self)) if name is None else self.manifest.split(name)

    def disk_bytes(self) -> int:
        """Returns the bytes that the store takes on disk. For a store at a URL, returns the bytes of its objects."""
        return disk_bytes(self.path) if self.nbytes is None else self.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} does not pickle; pickle its path and open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Returns what a notebook shows for the store, as HTML."""
        return notebook_html(self)

    def __repr__(self) -> str:
        m = self.manifest
        return f"<{type(self).__name__} {str(self.path)!r}: {len(self)} records, {m.encoding}>"


class FileWriter(ABC):
    """Writes one file of one format: images in :meth:`append`, everything else in :meth:`seal`.

    Writes to no other path. :class:`packstore.stores.builder.StoreBuilder` handles the work directory, shards and
    splits. Memory does not grow with the number of records.
    """

    def __init__(self, path: Path, image: Column) -> None:
        """``image`` describes the image column. Its ``nbytes`` is not known yet."""
        self.path = path
        self.image = image

    @abstractmethod
    def append(self, images: Sequence[Buffer]) -> None:
        """Appends the images of records in order. In a fixed column each has exactly ``image.record_nbytes`` bytes."""

    def suspend(self) -> None:
        """Closes files after the last record is appended. :meth:`seal` or :meth:`abort` follows later. Does nothing by
        default.

        A store of many shards may seal all of them at the end, and cannot keep so many files open.
        """
        return

    @abstractmethod
    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Writes all other columns and the manifest, and closes the file. The caller syncs it."""

    def check_synced(self) -> None:
        """Raises the :class:`OSError` of an earlier sync in the background. Call it after syncing the sealed file.

        Linux reports a failed write only once: the later sync does not fail.
        """
        return

    @abstractmethod
    def abort(self) -> None:
        """Closes files without flushing them. Idempotent, also after :meth:`seal`. Deletes nothing.

        After a failed write, a flush would fail the same way and hide the cause.
        """
