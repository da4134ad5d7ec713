"""Finds the samples that replace damaged records, in the source of the store or in another store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from packstore.checking.against import make_encoder_for, read_source_split, reading_source
from packstore.core.checksums import row_checksum, row_columns
from packstore.core.column import Link
from packstore.core.columns import NUMPY_DTYPE, Buffer
from packstore.core.errors import AmbiguousSourceError, PackstoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.encode import EncodedImage
from packstore.images.seek_index import index_values
from packstore.packing.frames import restore_aligner
from packstore.packing.linking import Linker
from packstore.packing.values import ValueConverter
from packstore.sources.base import Entry, Sample, Source
from packstore.sources.store import StoreSource
from packstore.stores.link_files import FileState

_REPORT_EVERY = 4096


class CannotReplaceError(Exception):
    """The source cannot replace a record; the message says why."""


class DamagedRecord(NamedTuple):
    """A damaged record.

    Attributes:
        record: Its number.
        key: Its present key; None if that cannot be read.
        rows: Row checksums; the replacement must have one of them. Empty if only the image is damaged, or if the store
            has no row checksums.
    """

    record: int
    key: Any
    rows: tuple[int, ...] = ()


class Donor:
    """Makes replacements of damaged records from the samples of a source.

    Call :meth:`locate_samples` first; the other methods use the samples that it located. Memory grows with the number
    of damaged records, not with the source.

    Attributes:
        path: Path of the source.
    """

    def __init__(self, source: Source, manifest: Manifest, decoder: str, annotation_frame: str | None) -> None:
        """Surveys the source. Raises :class:`UsageError` if the store's encoder does not accept the source's images.

        ``annotation_frame``: as for :func:`packstore.packing.frames.restore_aligner`."""
        self.path = source.path
        self._source = source
        self._manifest = manifest
        self._split = read_source_split(manifest)
        with reading_source(source):
            self._survey = source.survey(self._split)
            self._encoder = make_encoder_for(manifest, source, self._survey, decoder)
        aligner = restore_aligner(manifest, source, self._survey, self._split, annotation_frame)
        self._to_stored = ValueConverter(self._survey, aligner=aligner)
        self._entries: dict[int, Entry] = {}
        self._question: AmbiguousSourceError | None = None  # about a sample of the source

    def locate_samples(self, wanted: Iterable[DamagedRecord], progress: ProgressCallback) -> None:
        """Finds and keeps a sample for each damaged record. A record without a sample raises no error here.

        Looks for the record's key first. If row checksums are known, the sample with this key must have one of them.

        Then computes the row checksums of all samples, for the records that have no sample yet. Stops after the last
        match.
        """
        by_key: dict[int, list[DamagedRecord]] = {}
        rows: dict[int, int] = {}
        for each in wanted:
            if each.key is not None:
                by_key.setdefault(xxh3_64_intdigest(each.key), []).append(each)
            rows.update(dict.fromkeys(each.rows, each.record))
        for entry in self.list_entries(progress) if by_key else ():
            for each in by_key.get(xxh3_64_intdigest(encode_key(entry)), ()):
                if not each.rows or self._compute_row_checksum(entry) in each.rows:
                    self._entries[each.record] = entry
                    for known in each.rows:
                        rows.pop(known, None)
        for entry in self.list_entries(progress) if rows else ():
            row = self._compute_row_checksum(entry)
            if row in rows:
                self._entries[rows.pop(row)] = entry
                if not rows:
                    break

    def make_record(self, entry: Entry) -> tuple[Any, dict[str, Any]]:
        """Makes the record of a sample: its image, and its values of all other columns.

        Raises :class:`CannotReplaceError` if the sample cannot be read or encoded, or lacks a value.
        """
        image, fields = self._encode_image(entry).record, self._make_fields_from(entry)
        missing = [name for name, value in fields.items() if value is None]
        if missing:
            raise CannotReplaceError(f"{printable(entry.key)} of the source has no {' or '.join(missing)}")
        return image, fields

    def make_image(self, record: int) -> bytes | bytearray | memoryview:
        """Reads and encodes the image for a record. Raises :class:`CannotReplaceError` if no sample was located, or if
        its image cannot be read or encoded."""
        return self._encode_image(self._find_entry(record)).record

    def make_link(self, record: int, folder: Path | None) -> Link:
        """Makes the link to a record's image in the source, relative to ``folder`` if that is not None.

        Raises :class:`CannotReplaceError` if the image is missing, or is no plain range of a file's bytes.
        """
        linker, states = Linker(self._source, folder), dict[str, FileState]()
        try:
            entry = self._find_entry(record)
            place = linker.locate(entry, states)
            link = linker.make_link(entry.key, place, self.make_image(record), states)
            linker.check_files(states)
            return link
        except (PackstoreError, OSError) as error:
            raise CannotReplaceError(f"the source's image cannot be linked: {error}") from error

    def make_fields(self, record: int) -> Mapping[str, Any]:
        """Returns a record's values of all columns but the image. None stands for values that the source does not have.

        Raises :class:`CannotReplaceError` if no sample was located, or if the sample cannot be read.
        """
        return self._make_fields_from(self._find_entry(record))

    def list_entries(self, progress: ProgressCallback) -> Iterable[Entry]:
        """Yields the source's entries of the store's split. Reports progress every 4,096 entries.

        Raises :class:`SourceError` if they cannot be read.
        """
        with reading_source(self._source):
            for done, entry in enumerate(self._source.entries(self._split)):
                if done % _REPORT_EVERY == 0:
                    progress(Progress("locate", done, self._survey.records, 0))
                yield entry

    def _find_entry(self, record: int) -> Entry:
        """Returns the sample located for a record. Raises :class:`CannotReplaceError` if there is none, or the question
        that a sample raises which might be it."""
        entry = self._entries.get(record)
        if entry is None and self._question is not None:
            raise self._question
        if entry is None:
            raise CannotReplaceError("the source has no sample with its key, label and other fields")
        return entry

    def _encode_image(self, entry: Entry) -> EncodedImage:
        """Reads and encodes a sample's image with the store's options. Raises :class:`CannotReplaceError` if either
        fails."""
        try:
            return self._encoder(entry.key, self._source.image(entry))
        except (PackstoreError, OSError) as error:
            raise CannotReplaceError(f"the source's image cannot be used: {error}") from error

    def _make_fields_from(self, entry: Entry) -> dict[str, Any]:
        """Makes a record's values of all columns but the image from a sample. None stands for values that the source
        does not have.

        Encodes the image for the column ``shape``. If the source is a store, takes columns that its samples lack
        directly from that store. Raises :class:`CannotReplaceError` if the sample cannot be read.
        """
        labels = dict(zip((c.name for c in self._survey.labels), entry.labels, strict=True))
        sampled = self._sample_values(entry)
        fields: dict[str, Any] = {}
        for column in row_columns(self._manifest.columns):
            value: Any = None
            if column.name == "key":
                value = encode_key(entry)
            elif column.name in labels:
                value = np.int64(labels[column.name])
            elif column.name in sampled:
                value = sampled[column.name]
                value = np.asarray(value, NUMPY_DTYPE[column.dtype]) if column.kind == "fixed" else value
            elif isinstance(self._source, StoreSource) and self._source.manifest.has_column(column.name):
                try:
                    value = self._source.reader.value(column.name, entry.ref)
                except PackstoreError as error:
                    raise CannotReplaceError(f"the source's {column.name} cannot be read: {error}") from error
            elif column.name == "shape":
                shape = self._encode_image(entry).shape
                value = None if shape is None else np.array(shape, np.int32)
            fields[column.name] = value
        return fields

    def _sample_values(self, entry: Entry) -> Mapping[str, Any]:
        """Returns the values of a sample in stored form; empty if the source yields only images. Raises
        :class:`CannotReplaceError` if the sample cannot be read."""
        if not self._survey.sampled:
            return {}
        try:
            sample = self._source.read(entry)
            if not isinstance(sample, Sample):
                return {}
            return self._to_stored(entry.key, self._to_stored.align(entry.key, sample))
        except AmbiguousSourceError as question:
            self._question = question
            raise
        except (PackstoreError, OSError) as error:
            raise CannotReplaceError(f"the source's sample cannot be used: {error}") from error

    def _compute_row_checksum(self, entry: Entry) -> int | None:
        """Computes the row checksum of the record that a sample would make. Returns None if the sample cannot be read
        or lacks a field."""
        try:
            fields = self._make_fields_from(entry)
        except (CannotReplaceError, AmbiguousSourceError):
            return None
        if any(value is None for value in fields.values()):
            return None
        return row_checksum(self._manifest.columns, fields)


def gather_values(
    columns: Sequence[Column], images: Sequence[Buffer], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the values of some records as :meth:`StoreBuilder.append` takes them, with the images' seek indexes.

    ``rows``: for each record, its values by column.
    """
    values: dict[str, Any] = {}
    for column in row_columns(columns):
        taken = [row[column.name] for row in rows]
        values[column.name] = [bytes(v) for v in taken] if column.kind == "ragged" else np.stack(taken)
    return values | index_values(columns, images)


def encode_key(entry: Entry) -> bytes:
    """Encodes an entry's key as UTF-8, as stores do. A surrogate becomes the byte that it stands for."""
    return entry.key.encode("utf-8", "surrogateescape")
