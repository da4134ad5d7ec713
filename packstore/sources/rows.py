"""Base of sources whose samples are rows: an image and other values by name, read by a reference.

Most foreign formats are such sources: a kind yields the rows of each split and reads the values of one; this module
counts rows, declares columns and checks values. :mod:`packstore.sources.file_rows` has the base for rows whose images
are files of a folder or an archive.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from packstore.core.column import CROWD
from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Field, Labels
from packstore.core.files import Location
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size, stamp_files
from packstore.sources.ledger import Claims
from packstore.sources.listing import key_size
from packstore.sources.schema import Schema
from packstore.sources.schema_inference import make_schema
from packstore.sources.splits import SPLIT_ORDER, UNASSIGNED

PROBED = 16
"""Number of rows of each split that are read to tell files from pixels."""
_REPORT_EVERY = 5000
_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Row(NamedTuple):
    """Sample that has not been read yet.

    Attributes:
        key: Unique in the source.
        ref: Reference for :meth:`RowSource.read_values`: plain values, valid for any opening of the same source.
        size_bytes: Size of the main image in the source.
        value_bytes: Estimated bytes of the other values.
        modified_ns: Latest time of modification of its files.
        changed_ns: Latest time of change of its files.
        sizes: Bytes of the other values that are files, by name.
    """

    key: str
    ref: Any
    size_bytes: int
    value_bytes: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    sizes: Mapping[str, int] = _NO_SIZES


class RecordForm(NamedTuple):
    """Form of the records that rows become. The fields have the meanings of :class:`packstore.sources.base.Survey`."""

    columns: tuple[Column, ...]
    encoding: str
    mode: str | None
    shape: tuple[int, ...] | None
    store: Manifest | None


class RowSource(Source):
    """Source whose samples are rows. Its columns come from the declared fields and the first 16 rows of each split.

    Attributes:
        shape: ``(H, W, 3)`` if all main images are arrays of one shape, else None.
    """

    shape: tuple[int, ...] | None = None

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the names of the splits in packing order, see :func:`in_packing_order`; ``("",)`` in a source
        without splits. Beside other names, rows of ``""`` get the split :data:`UNASSIGNED`."""

    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """Returns the field of each value by name, in order, the main image included. The schema calls it once."""

    def notes(self) -> tuple[str, ...]:
        """Returns facts for :attr:`Survey.notes`; none in this base."""
        return ()

    @abstractmethod
    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, lazily, the same at each call."""

    @abstractmethod
    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the values of a row by the names of :meth:`fields`. Values need not have the stored form of their
        columns. Missing values are left out or None. May contain
        :data:`~packstore.sources.schema.RELATIVE`. Thread-safe. Raises :class:`SampleError`, :class:`ValueError` or
        :class:`OSError` for a row that cannot be read."""

    def files(self) -> Iterable[Path]:
        """Returns the files of the source: in this base, its path alone. :meth:`stamp` changes when one of these files
        changes."""
        return (self.path,)

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the row's own files; none in this base."""

    def claim_files(self, claims: Claims) -> None:
        """Claims :meth:`files` as packed."""
        self.claim_paths(claims, self.files())

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts the rows of one split, or of all, and their bytes. Claims their files, and takes the columns from the
        schema. Raises :class:`SourceError` if there are no rows, and :class:`NotInSourceError` for an unknown
        split."""
        splits = dict.fromkeys(self._choose_splits(split), 0)
        total = size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        sizes: Counter[str] = Counter()
        claims = Claims()
        claims_rows, last_size, rounded_size = type(self).claim_row is not RowSource.claim_row, -1, 0
        for name in splits:
            before = total
            for row in self._keyed_rows(_own_name(name)):
                if claims_rows:
                    self.claim_row(claims, row)
                key, _, size, further, _, _, files = row
                total += 1
                size_bytes += size
                value_bytes += further
                if files:
                    sizes.update(files)
                if size != last_size:  # arrays of one size have millions of equal rows
                    last_size, rounded_size = size, round_up_size(size)
                size_counts[rounded_size] += 1
                key_bytes += len(key) if key.isascii() else key_size(key)
                if total % _REPORT_EVERY == 0:
                    progress(Progress("scan", total, None, size_bytes))
            splits[name] = total - before
        if not total:
            raise SourceError(f"{printable(str(self.path))} holds no samples, so there is nothing to pack")
        progress(Progress("scan", total, total, size_bytes))
        columns, encoding, mode, shape, store = self._record_form()
        notes = self.notes()
        if rest := splits.get(UNASSIGNED):
            notes = (*notes, f"{rest:,} of the samples have no split, unlike the others: it is {UNASSIGNED}")
        return Survey(
            splits=splits,
            columns=columns,
            encoding=encoding,
            mode=mode,
            shape=shape,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            store=store,
            sampled=frozenset(column.name for column in columns),
            value_bytes=value_bytes,
            further_bytes=sum(sizes[column.name] for column in columns if column.holds_images),
            ledger=self.ledger(claims, split),
            notes=notes,
        )

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each row of one split, or of all."""
        return chain.from_iterable(map(self._make_entries, self._choose_splits(split)))

    def read(self, entry: Entry) -> Sample:
        """Reads a sample by :meth:`read_sample`. Converts its :class:`OSError` and :class:`ValueError` to
        :class:`SampleError` with the entry's key."""
        try:
            return self.read_sample(entry)
        except (OSError, ValueError) as error:
            raise SampleError(entry.key, printable(str(error))) from error

    def locate(self, entry: Entry) -> Location | None:
        """Locates the main image by :meth:`locate_row`; None if its place is unknown."""
        return self.locate_row(entry.ref)

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image of a row, see :meth:`Source.locate`. This base returns None: no place is known."""
        return None

    def stamp(self) -> str:
        """Returns size and times of all :meth:`files`. Raises :class:`SourceError` if one is missing."""
        return stamp_files(self.files())

    @cached_property
    def schema(self) -> Schema:
        """Schema that converts rows to records. Made once, from the fields and the first 16 rows of each split, without
        rows that cannot be read. Raises :class:`SourceError` if fields and rows do not fit each other."""
        declared = self._with_crowds(self.fields())
        probes = chain.from_iterable(islice(self.rows(split), PROBED) for split in self.splits())
        samples = []
        for row in probes:
            with suppress(OSError, ValueError, SampleError):  # reported when it is read
                samples.append(self._read_declared_values(row.ref))
        try:
            return make_schema(samples or [{}], declared, picks=False, max_pixels=self.options.max_pixels)
        except UsageError as error:  # the user declared nothing: the source is not of this kind
            raise SourceError(f"{printable(str(self.path))}: {error}") from error

    def _with_crowds(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """Adds or removes the column of crowd regions as the option ``crowds`` says. Its place is behind the labels."""
        kept = {name: field for name, field in fields.items() if name != CROWD or self.options.crowds is not False}
        if self.options.crowds is not True or CROWD in kept or "boxes" not in kept:
            return kept
        place = [*kept].index("labels" if "labels" in kept else "boxes") + 1
        pairs = [*kept.items()]
        return dict([*pairs[:place], (CROWD, Labels(of="boxes", optional=True)), *pairs[place:]])

    def _read_declared_values(self, ref: Any) -> dict[str, Any]:
        """Reads the values of a row by :meth:`read_values`. Adds or removes flags of crowd regions as the option
        ``crowds`` says."""
        values = dict(self.read_values(ref))
        if self.options.crowds is False:
            values.pop(CROWD, None)
        elif self.options.crowds and values.get("boxes") is not None:
            values.setdefault(CROWD, [0] * len(values["boxes"]))
        return values

    def _choose_splits(self, split: str | None) -> Sequence[str]:
        """Returns the name of one split, or the names of all for None. Accepts a name in upper case for a split in
        lower case. Raises :class:`NotInSourceError` for an unknown split."""
        splits = self.splits()
        if len(splits) > 1 and "" in splits:
            splits = [*filter(None, splits), UNASSIGNED]
        if split is None:
            return splits
        name = split if split in splits else split.lower()
        if name not in splits or not name:
            raise self.unknown_split_error(split, splits)
        return (name,)

    def _make_entries(self, split: str) -> Iterator[Entry]:
        """Makes an entry for each row of a split."""
        for key, ref, size, _, modified, changed, _ in self._keyed_rows(_own_name(split)):
            yield Entry(key, split, (), size, ref, modified, changed)

    def _keyed_rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split with the keys of their records: the rows' own keys in this base."""
        return self.rows(split)

    def read_sample(self, entry: Entry) -> Sample:
        """Reads a row, and converts it to a sample by the schema. Raises the errors of :meth:`read_values`. Raises
        :class:`SampleError` for a row without an image, and :class:`ValueError` for a value that does not fit the
        schema."""
        values = self._read_declared_values(entry.ref)
        if values.get(self.schema.main) is None:
            raise SampleError(entry.key, "has no image")
        return self.schema.make_sample(entry.key, self.schema.assign_names(values))

    def _record_form(self) -> RecordForm:
        """Returns columns, encoding, mode and shape of the records, by the schema; no manifest."""
        return RecordForm(self.schema.columns, self.schema.encoding, self.schema.mode, self.shape, None)


def _own_name(split: str) -> str:
    """Returns the name of a split in :meth:`RowSource.splits`."""
    return "" if split == UNASSIGNED else split


def in_packing_order(splits: Iterable[str]) -> tuple[str, ...]:
    """Returns the different names of splits in packing order. First come names of :data:`SPLIT_ORDER`, whatever their
    case. Other names follow alphabetically."""
    return tuple(sorted(set(splits), key=lambda name: (_packing_place(name), name)))


def _packing_place(name: str) -> int:
    """Returns the place of a split's name in :data:`SPLIT_ORDER`; the last place for other names."""
    return SPLIT_ORDER.index(name.lower()) if name.lower() in SPLIT_ORDER else len(SPLIT_ORDER)
