"""The contracts of an open store, :class:`Reader`, and of a file that is being written, :class:`Writer`.

A reader has four abstract methods; everything else has a correct default here that a format overrides for speed.
``packstore.testing.StoreSuite`` is the same contract as tests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, LazyArray, Ragged, WholeColumn, from_rest
from packstore.core.errors import CorruptRecordError, ManifestError, StoreError, printable
from packstore.core.manifest import Column, Manifest, Split
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import notebook_html


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a store.

    Attributes:
        what: What is wrong, on one line, with what was found and what was expected.
        record: The record where it lies, or None when it is not in a record.
        key: That record's key.
        shard: Name of the shard file, or None in a store of one file.
        lost: That shard does not open at all.
    """

    what: str
    record: int | None = None
    key: str | None = None
    shard: str | None = None
    lost: bool = False


def shaped(data: Buffer, column: Column, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """``data`` of the image ``column`` as an array of ``shape``.

    Raises :class:`StoreError` where a damaged ``shape`` column does not fit it."""
    flat: NDArray[Any] = np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    if len(shape) != 3 or min(shape) < 0 or math.prod(shape) != flat.size or (not flat.size and max(shape) >= 1 << 31):
        raise StoreError(f"{where} holds {flat.size} elements, not {shape}")
    return flat.reshape(shape)


def disk_bytes(path: Path) -> int:
    """Bytes that a file or directory takes on disk, by its allocated blocks: holes do not count."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_blocks * 512 for p in files)


def parse_manifest(text: str | bytes, path: Path) -> Manifest:
    """The manifest in ``text``, which lies in ``path``. Raises :class:`ManifestError` that names the path."""
    try:
        return Manifest.from_json(text)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(path))}: {error}") from None


def manifest_text(manifest: Manifest) -> bytes:
    """The content of a sharded store's manifest file."""
    return f"{manifest.to_json()}\n".encode("ascii")


def unreadable(path: Path, kind: str, reason: object) -> StoreError:
    """The error for a file that begins like ``kind`` and cannot be opened as one; one line of ``reason`` is shown."""
    first = str(reason).strip().partition("\n")[0]
    return StoreError(
        f"{printable(str(path))} is damaged or truncated: it cannot be opened as {kind} ({printable(first)[:200]}); "
        "restore it from a copy or pack it again"
    )


class Spans(NamedTuple):
    """Locations of the images of consecutive records.

    Attributes:
        data: The bytes they are in.
        starts: ``int64``, where each begins, in bytes.
        sizes: ``int64``, bytes of each.
    """

    data: memoryview
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Reader(ABC):
    """An open store: ``len(reader)`` records, numbered from 0.

    Readers are safe to use from several threads. They do not survive a fork and do not pickle: open one in each
    process (``PackedDataset`` does that by itself). Opening costs milliseconds, whatever the number of records.

    Attributes:
        path: Where the store lies.
        manifest: What it is.
        nbytes: Bytes of the store where no file of it lies on this machine; else None.
        checks_records: Whether each record is checked against its checksums when it is read.
        has_image_array: :meth:`column` gives images too: a fixed column as one array, without a copy.
    """

    checks_records = False
    has_image_array = False

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.nbytes: int | None = None

    @abstractmethod
    def read(self, index: int) -> Buffer:
        """The image of record ``index`` (0 … N-1) as bytes, or as a read-only memoryview of a map that stays valid
        as long as somebody holds it. Raises :class:`IndexError` outside the range."""

    @abstractmethod
    def column(self, name: str) -> ColumnData:
        """A whole column, mapped or loaded once and then kept (a sharded store opens all shards for it: take
        :meth:`values` of what is needed): shape ``(N, *column.shape)`` for a fixed one
        (``bfloat16`` as ``uint16`` bit patterns), :class:`Ragged` for a ragged one. Values that lie apart are read when
        they are asked for, see :class:`packstore.core.columns.LazyArray`. Raises :class:`KeyError` for an unknown
        name, and :class:`StoreError` for ``image`` without :attr:`has_image_array`."""

    @abstractmethod
    def close(self) -> None:
        """Releases files and maps. Idempotent. Arrays and memoryviews that were handed out stay valid."""

    @abstractmethod
    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields what is wrong with the container itself: sizes, counts, offsets, container checksums, shard digests.

        ``verify`` checks records and column digests, for all formats alike. ``quick`` leaves out checks that read all
        of the data.
        """

    def __len__(self) -> int:
        return self.manifest.records

    def check_files(self) -> None:
        """Raises :class:`StoreError` when a file of the store is missing or has another size.

        Opening a sharded store does not look at all files, so that a damaged one can be verified and salvaged."""
        return

    def view(self, index: int) -> Buffer:
        """Like :meth:`read` without a copy. The view stays valid after :meth:`close`."""
        return self.read(index)

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """:meth:`view` of each of ``records``. A reader overrides it where many at once cost less."""
        return [self.view(record) for record in records.tolist()]

    def spans(self) -> Iterator[Spans]:
        """Locations of a leading run of images; may be empty.

        A reader overrides it where many locations at once cost less than one by one. It ends before the first fault,
        which :meth:`check_structure` explains."""
        return iter(())

    def will_need(self, index: int, view: Buffer) -> None:
        """Announces a read of ``view``, which is ``self.view(index)``, so that the system fetches all of it at once.

        Pure overhead (6 µs, more under contention) if it is already cached."""
        return

    def array(self, index: int) -> NDArray[Any]:
        """The image of a record of a tensor encoding as an array: ``(H, W, C)`` uint8 or ``(C, H, W)`` floating point
        (bfloat16 as uint16 bit patterns). Read-only; shares memory with :meth:`view`."""
        column = self.manifest.image
        if column.layout is None:
            raise StoreError(f"{self.path} holds encoded images ({self.manifest.encoding}), not arrays")
        shape = column.shape if column.kind == "fixed" else tuple(self.value("shape", index).tolist())
        return shaped(self.view(index), column, shape, f"record {index} of {printable(str(self.path))}")

    def fixed(self, name: str) -> NDArray[Any]:
        """The fixed column ``name``; one whose values lie apart is loaded whole. Raises :class:`StoreError` when it is
        ragged."""
        column = self._fixed(name)
        return column[:] if isinstance(column, LazyArray) else column

    def _fixed(self, name: str) -> NDArray[Any] | LazyArray:
        column = self.column(name)
        if isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is ragged")
        return column

    def ragged(self, name: str) -> Ragged:
        """The ragged column ``name``. Raises :class:`StoreError` when it is fixed."""
        column = self.column(name)
        if not isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is not ragged")
        return column

    def mapped_ragged(self, name: str) -> Ragged | None:
        """The ragged column ``name``, if all of it is mapped or in memory anyway; else None. Opens no shards."""
        return None

    def value(self, name: str, index: int) -> Any:
        """The value of column ``name`` of one record: of the column's dtype, or a memoryview where it is ragged."""
        return self.column(name)[index]

    def present(self, name: str, index: int) -> bool:
        """Whether a record has a value in column ``name``; always, where that is not nullable."""
        column = self.manifest.column(name)
        return not column.nullable or bool(self.value(column.valid_name, index))

    def item(self, name: str, index: int) -> Any:
        """The value of column ``name`` of one record as it was given, see :func:`packstore.core.columns.from_rest`;
        None where it has none. For the image its file's bytes or :meth:`array`."""
        column = self.manifest.column(name)
        if name == "image":
            return bytes(self.read(index)) if column.layout is None else self.array(index)
        if not self.present(name, index):
            return None
        has_shape = column.kind == "ragged" and column.layout is not None
        shape = tuple(self.value(column.shape_name, index).tolist()) if has_shape else None
        return from_rest(column, self.value(name, index), shape)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """The values of the fixed column ``name`` of some records: ``(len(records), *column.shape)``, a copy."""
        values: NDArray[Any] = self._fixed(name)[records]
        return values

    def parts(self) -> Iterator[Reader]:
        """Readers of the files of the store, in order: of its shards, or this one."""
        return map(self.part, range(len(self.part_starts)))

    def part(self, number: int) -> Reader:
        """One of :meth:`parts`."""
        return self

    @property
    def part_starts(self) -> NDArray[np.int64]:
        """The first record of each of :meth:`parts`."""
        return np.zeros(1, np.int64)

    def places(self) -> list[str]:
        """Where each of :meth:`parts` lies: a path, or at a URL the object with its data."""
        return [str(self.path)]

    def at_hand(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Which of these :meth:`parts` lie on this machine, so that nothing has to be fetched to read them:
        ``bool (n,)``."""
        return np.ones(len([*numbers]), np.bool_)

    def doubt(self, index: int) -> None:  # noqa: B027 - most stores have no cache
        """Says that a record does not match its checksum: a cache's copy of it is proven before it is used again."""

    @property
    def unchecked(self) -> Reader:
        """A reader of the same open files that compares nothing with checksums; this one where it does not either."""
        return self

    def key(self, index: int) -> str:
        """The key of a record; bytes that are not UTF-8 come back as surrogates, as in file names."""
        return bytes(self.value("key", index)).decode("utf-8", "surrogateescape")

    def faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """What is wrong with values in the columns ``names``, by record: as far as this reader checks them, and in any
        case numbers that are none of the column's classes. Images are no part of it."""
        found: dict[int, StoreError] = {}
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
                found.setdefault(record, self.no_class(column, record, int(values[row][wrong[row]][0])))
        return found

    def no_class(self, column: Column, record: int, value: int) -> CorruptRecordError:
        """The error for a number in a column of class numbers that is none."""
        try:
            key = self.unchecked.key(record)
        except (StoreError, IndexError):
            key = "its key is damaged, too"
        expected = f"one from 0 to {len(column.classes or ()) - 1}"
        return CorruptRecordError(record, key, expected, str(value), f"its {column.name} is")

    def check_fields(self, index: int) -> None:
        """With :attr:`checks_records`, raises :class:`CorruptRecordError` when the label, key or another field of a
        record does not match its row checksum. :meth:`read` checks its image."""
        return

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        """Raises :class:`CorruptRecordError` when one of ``images``, arrays as they are stored of ``records``, does not
        match its checksum; for a caller that took them out of the array of all images."""
        return

    def check_column(self, name: str) -> None:
        """With :attr:`checks_records`, raises :class:`StoreError` when a column does not match its digest."""
        return

    def split(self, name: str | None) -> Split:
        """The range of split ``name``, or of the whole store for None."""
        return Split("all", 0, len(self)) if name is None else self.manifest.split(name)

    def disk_bytes(self) -> int:
        """Bytes that the store takes on disk; at a URL, those of its objects."""
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
        return notebook_html(self)

    def __repr__(self) -> str:
        m = self.manifest
        return f"<{type(self).__name__} {str(self.path)!r}: {len(self)} records, {m.encoding}>"


class Writer(ABC):
    """Writes one file of one format: images as they come, then everything else in :meth:`seal`.

    It writes to exactly the path it is given. :class:`packstore.stores.builder.StoreBuilder` takes care of the work
    directory, shards and splits. Memory does not grow with the number of records.
    """

    def __init__(self, path: Path, image: Column) -> None:
        """``image`` describes the image column; its ``nbytes`` is not known yet."""
        self.path = path
        self.image = image

    @abstractmethod
    def append(self, images: Sequence[Buffer]) -> None:
        """Adds records in order. In a fixed column each has exactly ``image.record_nbytes`` bytes."""

    def suspend(self) -> None:
        """Closes files after the last record; :meth:`seal` or :meth:`abort` follows later.

        A store with many shards may seal them all at the end, and cannot keep a file open for each until then.
        """
        return

    @abstractmethod
    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Writes all other columns and the manifest, and closes the file. The caller makes it durable."""

    def synced(self) -> None:
        """Raises the :class:`OSError` of an earlier sync in the background; call it after syncing the sealed file.

        Linux reports a failed write once, so the later sync does not fail."""
        return

    @abstractmethod
    def abort(self) -> None:
        """Closes files without flushing them. Idempotent, also after :meth:`seal`. Deletes nothing.

        After a failed write a flush would fail in the same way, and hide the reason."""
