"""Makes a store's records again from the samples of its source, for comparison and repair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from packstore.checking import PackedSourceOptions
from packstore.core.columns import NUMPY_DTYPE, Link
from packstore.core.errors import AmbiguousSourceError, PackstoreError, SourceError, StoreError, UsageError, printable
from packstore.core.files import FileState
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import row_checksum, row_columns
from packstore.images.encode import EncodedImage, Encoder
from packstore.images.orientation import readers_transpose
from packstore.packing.batches import Linker
from packstore.packing.encoding import make_encoder, restore_encode_options, same_encoding_options
from packstore.packing.frames import restore_aligner
from packstore.packing.values import ValueConverter
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.store import StoreSource
from packstore.stores.keys import encode_key

_REPORT_EVERY = 4096


class LostRecordError(Exception):
    """A record cannot be replaced or saved; the message says why."""


@contextmanager
def reading_source(source: Source) -> Iterator[None]:
    """Turns a :class:`StoreError` of a source that is itself a store into a :class:`SourceError` that names it.

    Without that, it would look like a fault of the store that is checked.
    """
    try:
        yield
    except SourceError:
        raise
    except StoreError as error:
        raise SourceError(
            f"the source {printable(str(source.path))} cannot be read: {error}; repair that first, or give another one"
        ) from error


class SourceRecords:
    """The records that the samples of a source become in a store, with the options in its manifest.

    Attributes:
        source: The source.
        manifest: Manifest of the store.
        split: The split of the source from which the store was packed; None for the whole source.
        survey: The survey of that split.
        encoder: Makes records of the source's images.
        converter: Makes stored values of the source's values.
    """

    def __init__(self, source: Source, manifest: Manifest, options: PackedSourceOptions) -> None:
        """Surveys the source. Raises :class:`UsageError` if its images cannot become records of the store."""
        self.source = source
        self.manifest = manifest
        split = manifest.options.get("split")
        self.split = split if isinstance(split, str) else None
        with reading_source(source):
            self.survey = source.survey(self.split)
            self.encoder = _restore_encoder(manifest, source, self.survey, options.decoder)
        aligner = restore_aligner(manifest, source, self.survey, self.split, options.annotation_frame)
        self.converter = ValueConverter(source, self.survey, aligner=aligner)

    def convert_sample(self, key: str, content: object) -> Mapping[str, Any]:
        """Returns the stored values of what the source yields: of a sample, its own; of an image alone, none."""
        return self.converter(key, self.converter.align(key, content)) if isinstance(content, Sample) else {}

    def list_entries(self) -> Iterator[Entry]:
        """Yields the source's entries, without those that packing skipped. Raises :class:`SourceError` if they cannot
        be read."""
        skipped = {skipped.key for skipped in self.manifest.skipped}
        with reading_source(self.source):
            yield from (entry for entry in self.source.entries(self.split) if entry.key not in skipped)


def _restore_encoder(manifest: Manifest, source: Source, survey: Survey, decoder: str) -> Encoder:
    """Makes the encoder that turns a source's images into a store's records, with the options in the manifest."""
    image = manifest.image
    shape = (*image.shape[1:], image.shape[0]) if image.layout == "CHW" else image.shape
    encode = restore_encode_options(manifest, decoder, source.options.max_pixels)
    alike = survey.store is not None and same_encoding_options(manifest, survey.store)
    if survey.store is not None and alike:
        # The source's images have their final shape already, except that readers may have to rotate them.
        turn = encode.exif_transpose and readers_transpose(survey.store)
        encode = replace(encode, size=None, resize=None, max_side=None, exif_transpose=turn)
    try:
        return make_encoder(encode, survey, shape or None, reencode=not alike)
    except UsageError as error:
        raise UsageError(f"{source.path} cannot be compared with the store: {error}") from None


class Donor(SourceRecords):
    """Makes replacements of damaged records from the samples of a source.

    Call :meth:`locate_samples` first; the other methods use the samples that it located. Memory grows with the number
    of damaged records, not with the source.
    """

    def __init__(self, source: Source, manifest: Manifest, options: PackedSourceOptions) -> None:
        super().__init__(source, manifest, options)
        self._entries: dict[int, Entry] = {}
        self._question: AmbiguousSourceError | None = None  # about a sample of the source

    def locate_samples(self, wanted: Iterable[tuple[int, Any, Sequence[int]]], progress: ProgressCallback) -> None:
        """Finds and keeps a sample for each damaged record; a record without a sample raises no error here.

        Looks for the record's key first. If row checksums are known, the sample with this key must have one of them.
        Then computes the row checksums of all samples, for the records that have no sample yet. Stops after the last
        match.

        ``wanted`` has the number of each record; its present key, or None if that cannot be read; and the row checksums
        that it may have. There are none of these if only its image is damaged, or the store has no row checksums.
        """
        by_key: dict[int, list[tuple[int, Sequence[int]]]] = {}
        rows: dict[int, int] = {}
        for record, key, sums in wanted:
            if key is not None:
                by_key.setdefault(xxh3_64_intdigest(key), []).append((record, sums))
            rows.update(dict.fromkeys(sums, record))
        for entry in self.report_entries(progress) if by_key else ():
            for record, sums in by_key.get(xxh3_64_intdigest(encode_key(entry.key)), ()):
                # Without row checksums, the key is the only evidence.
                if not sums or self._compute_row_checksum(entry) in sums:
                    self._entries[record] = entry
                    for known in sums:
                        rows.pop(known, None)
        # Some keys are damaged or were renamed: all samples are compared by content.
        for entry in self.report_entries(progress) if rows else ():
            row = self._compute_row_checksum(entry)
            if row in rows:
                self._entries[rows.pop(row)] = entry
                if not rows:
                    break

    def report_entries(self, progress: ProgressCallback) -> Iterator[Entry]:
        """Yields the source's entries; reports progress every 4,096 entries."""
        for done, entry in enumerate(self.list_entries()):
            if done % _REPORT_EVERY == 0:
                progress(Progress("locate", done, self.survey.records, 0))
            yield entry

    def make_record(self, entry: Entry) -> tuple[Any, dict[str, Any]]:
        """Makes the record of a sample: its image, and its values of all other columns.

        Raises :class:`LostRecordError` if the sample cannot be read or encoded, or lacks a value.
        """
        image, fields = self.encode_image(entry).record, self.make_fields(entry)
        missing = [name for name, value in fields.items() if value is None]
        if missing:
            raise LostRecordError(f"{printable(entry.key)} of the source has no {' or '.join(missing)}")
        return image, fields

    def make_link(self, entry: Entry, folder: Path | None) -> Link:
        """Makes the link to a sample's image in the source, relative to ``folder`` if that is not None.

        Raises :class:`LostRecordError` if the image is missing, or is no plain range of a file's bytes.
        """
        linker, states = Linker(self.source, folder), dict[str, FileState]()
        try:
            place = linker.locate(entry, states)
            link = linker.make_link(entry.key, place, self.encode_image(entry).record, states)
            linker.check_files(states)
            return link
        except (PackstoreError, OSError) as error:
            raise LostRecordError(f"the source's image cannot be linked: {error}") from error

    def find_entry(self, record: int) -> Entry:
        """Returns the sample located for a record.

        Raises :class:`LostRecordError` if there is none, or the question that a sample raises which might be it.
        """
        entry = self._entries.get(record)
        if entry is None and self._question is not None:
            raise self._question
        if entry is None:
            raise LostRecordError("the source has no sample with its key, label and other fields")
        return entry

    def encode_image(self, entry: Entry) -> EncodedImage:
        """Reads and encodes a sample's image with the store's options. Raises :class:`LostRecordError` if either
        fails."""
        try:
            return self.encoder(entry.key, self.source.image(entry))
        except (PackstoreError, OSError) as error:
            raise LostRecordError(f"the source's image cannot be used: {error}") from error

    def make_fields(self, entry: Entry) -> dict[str, Any]:
        """Makes a record's values of all columns but the image from a sample; None for those that it does not have.

        Encodes the image to know the column ``shape``. If the source is a store, columns that its samples lack come
        directly from that store. Raises :class:`LostRecordError` if the sample cannot be read.
        """
        labels = dict(zip((c.name for c in self.survey.labels), entry.labels, strict=True))
        sampled = self._read_values(entry)
        fields: dict[str, Any] = {}
        for column in row_columns(self.manifest.columns):
            value: Any = None
            if column.name == "key":
                value = encode_key(entry.key)
            elif column.name in labels:
                value = np.int64(labels[column.name])
            elif column.name in sampled:
                value = sampled[column.name]
                value = np.asarray(value, NUMPY_DTYPE[column.dtype]) if column.kind == "fixed" else value
            elif isinstance(self.source, StoreSource) and self.source.manifest.has_column(column.name):
                try:
                    value = self.source.reader.value(column.name, entry.ref)
                except PackstoreError as error:
                    raise LostRecordError(f"the source's {column.name} cannot be read: {error}") from error
            elif column.name == "shape":
                shape = self.encode_image(entry).shape
                value = None if shape is None else np.array(shape, np.int32)
            fields[column.name] = value
        return fields

    def _read_values(self, entry: Entry) -> Mapping[str, Any]:
        """Reads a sample and returns its stored values; none if the source yields only images."""
        if not self.survey.sampled:
            return {}
        try:
            return self.convert_sample(entry.key, self.source.read(entry))
        # Kept for a record that finds no sample: this one may be it.
        except AmbiguousSourceError as question:
            self._question = question
            raise
        except (PackstoreError, OSError) as error:
            raise LostRecordError(f"the source's sample cannot be used: {error}") from error

    def _compute_row_checksum(self, entry: Entry) -> int | None:
        """Computes the row checksum of a sample's record; None if the sample is unreadable or incomplete."""
        try:
            fields = self.make_fields(entry)
        except (LostRecordError, AmbiguousSourceError):
            return None
        if any(value is None for value in fields.values()):
            return None
        return row_checksum(self.manifest.columns, fields)
