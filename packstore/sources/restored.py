"""An export of packstore as the source of the records that it was made of, see :mod:`packstore.core.export_manifest`.

:class:`packstore.sources.rows.RowSource` uses it if an export manifest lies with the data, so a kind only knows how its
format holds a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE, ImageData, shape_to_stored, to_stored
from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.export_manifest import (
    MANIFEST_FILE,
    ROWS_FILE,
    ExportManifest,
    RecordLines,
    StoredBytes,
    parse_value,
)
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.decoders import get_decoder
from packstore.images.reading import Reading
from packstore.sources.base import Entry, Sample, SourceOptions, Survey, rounded_size
from packstore.sources.ledger import Claims, Ledger
from packstore.sources.listing import key_size

_REPORT_EVERY = 5000


class Row(Protocol):
    """A row of the export's data; :class:`packstore.sources.rows.Row` is one."""

    @property
    def key(self) -> str: ...
    @property
    def ref(self) -> Any: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def value_bytes(self) -> int: ...
    @property
    def modified_ns(self) -> int: ...
    @property
    def changed_ns(self) -> int: ...


class RowSource(Protocol):
    """What is needed of a :class:`packstore.sources.rows.RowSource`."""

    kind: str
    path: Path
    options: SourceOptions

    def rows(self, split: str) -> Iterator[Row]: ...
    def values(self, ref: Any) -> Mapping[str, Any]: ...
    def unlisted(self) -> int: ...
    def claim_row(self, claims: Claims, row: Any) -> None: ...
    def ledger(self, claims: Claims, split: str | None = None) -> Ledger: ...


class Restored:
    """The records that an export was made of, from the rows of its source."""

    def __init__(self, source: RowSource, export_manifest: ExportManifest, lines: RecordLines | None) -> None:
        """``lines`` are those of the export manifest's rows. Raises :class:`SourceError` where they do not fit it."""
        self.export_manifest = export_manifest
        self._source = source
        self._lines = lines
        self._manifest = export_manifest.manifest
        self._image = export_manifest.manifest.image
        columns = export_manifest.columns
        companions = {each.name for column in columns for each in column.companions}
        self._columns = [column for column in columns if column.name not in companions]
        as_png, reading = export_manifest.image == "png", Reading(export_manifest.manifest.image.pixels.name)
        self._decoder = get_decoder(max_pixels=source.options.max_pixels, reading=reading) if as_png else None
        self._starts = {s.name: s.start for s in self._manifest.splits} or {"": 0}
        self._counts = {s.name: len(s) for s in self._manifest.splits} or {"": self._manifest.records}
        if lines is not None and len(lines) != self._manifest.records:
            raise self._changed(
                f"{ROWS_FILE} has {len(lines):,} lines, {MANIFEST_FILE} {self._manifest.records:,} records"
            )

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._starts)

    def survey(self, chosen: Sequence[str], progress: ProgressCallback) -> Survey:
        """Counts the samples of the chosen splits, as :meth:`packstore.sources.base.Source.survey` does."""
        splits: dict[str, int] = {}
        size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        claims = Claims()
        for split in chosen:
            count = 0
            for number, row in self._rows(split):
                self._source.claim_row(claims, row)
                size_bytes += row.size_bytes
                value_bytes += row.value_bytes
                size_counts[rounded_size(row.size_bytes)] += 1
                key_bytes += key_size(self._key(number, row))
                count += 1
                if count % _REPORT_EVERY == 0:
                    progress(Progress("scan", sum(splits.values()) + count, None, size_bytes))
            splits[split] = count
        records = sum(splits.values())
        if not records:
            raise SourceError(f"{printable(str(self._source.path))} holds no samples, so there is nothing to pack")
        unlisted = self._source.unlisted()
        if unlisted:
            raise self._changed(f"it holds {unlisted:,} images that {ROWS_FILE} does not name")
        progress(Progress("scan", records, records, size_bytes))
        columns = self.export_manifest.columns
        return Survey(
            splits=splits,
            columns=columns,
            encoding=self._manifest.encoding,
            shape=self._image.shape if self._image.kind == "fixed" else None,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=key_bytes,
            store=self._manifest,
            sampled=frozenset(column.name for column in columns),
            value_bytes=value_bytes,
            ledger=self._source.ledger(claims),
        )

    def entries(self, split: str) -> Iterator[Entry]:
        """The samples of a split."""
        for number, row in self._rows(split):
            key = self._key(number, row)
            yield Entry(key, split, (), row.size_bytes, (number, row.ref), row.modified_ns, row.changed_ns)

    def read(self, entry: Entry) -> Sample:
        """Reads a sample. Raises :class:`SampleError`, :class:`ValueError` or :class:`OSError` for a bad one."""
        number, ref = entry.ref
        try:
            given = self._source.values(ref)
        except SampleError as error:  # named by its file, which is not its key here
            raise SampleError(entry.key, error.reason) from error
        line = {} if self._lines is None else self._lines[number]
        values: dict[str, Any] = {}
        in_line = line.get("values", {})
        for column in self._columns:
            if column.name not in self.export_manifest.held or column.name in in_line:
                for each in (column, *column.companions):
                    values[each.name] = parse_value(each, line)
                _check_classes(column, values[column.name])
                continue
            value = given.get(column.name)
            values[column.name] = _to_stored(column, value)
            if column.kind == "ragged" and column.layout is not None:
                values[column.shape_name] = shape_to_stored(column, value)
            if column.nullable:
                values[column.valid_name] = value is not None
        return Sample(self._image_of(given.get("image")), values, at_rest=True)

    def _image_of(self, value: Any) -> ImageData:
        """The image as a store of its encoding gives it. Raises :class:`ValueError`."""
        if self._decoder is not None and isinstance(value, bytes):
            value = self._decoder.decode(value)
        image = self._image
        if image.layout is None:
            if not isinstance(value, bytes):
                raise ValueError(f"found {type(value).__name__}, expected the bytes of an image file")
            return value
        if not isinstance(value, np.ndarray) or value.dtype != NUMPY_DTYPE[image.dtype]:
            raise ValueError(f"found {getattr(value, 'dtype', type(value).__name__)}, expected an array {image.dtype}")
        if (image.kind == "fixed" and value.shape != image.shape) or value.ndim != 3:
            raise ValueError(f"found shape {value.shape}, expected {image.shape or image.layout}")
        return np.ascontiguousarray(value)

    def _rows(self, split: str) -> Iterator[tuple[int, Row]]:
        """The rows of a split with the numbers of their records. Raises :class:`SourceError` where there are not as
        many as the export manifest says."""
        start, expected, found = self._starts[split], self._counts[split], 0
        for row in self._source.rows(split):
            if found < expected:
                yield start + found, row
            found += 1
        if found != expected:
            where = f" of {printable(split)}" if split else ""
            raise self._changed(f"it holds {found:,} samples{where}, {MANIFEST_FILE} says {expected:,}")

    def _key(self, number: int, row: Row) -> str:
        if self._lines is None:
            return row.key
        with suppress(ValueError):
            key = self._lines[number].get("key", row.key)
            if isinstance(key, str) and key_size(key) >= 0:  # raises for what is no text
                return key
        raise self._changed(f"line {number + 1} of {ROWS_FILE} is damaged")

    def _changed(self, how: str) -> SourceError:
        return SourceError(
            f"{printable(str(self._source.path))} is not as packstore exported it: {how}; "
            f"remove {MANIFEST_FILE} to read it like any other {self._source.kind}"
        )


def _to_stored(column: Column, value: Any) -> bytes | NDArray[Any]:
    """A value of a store as it lay there. Arrays of the column's dtype are not judged: the store had them so. Raises
    :class:`ValueError`."""
    if isinstance(value, StoredBytes):
        return bytes(value)
    if not isinstance(value, np.ndarray) or value.dtype != NUMPY_DTYPE[column.dtype] or column.type == "label":
        return to_stored(column, value)
    if column.kind == "fixed":
        fits = value.shape == column.shape
    elif column.layout is not None:
        fits = value.ndim == len(column.layout)
    else:
        fits = value.ndim == 1 + len(column.shape) and value.shape[1:] == column.shape
    if not fits:
        raise ValueError(f"column {column.name!r}: found an array {value.shape}, expected {column.shape}")
    _check_classes(column, value)
    return value.tobytes() if column.kind == "ragged" else value


def _check_classes(column: Column, value: Any) -> None:
    """Raises :class:`ValueError` where a number, at rest or in an array, is none of the column's classes."""
    if column.classes is None:
        return
    numbers = np.frombuffer(value, np.int64) if isinstance(value, bytes) else np.asarray(value)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(column.classes):
        raise ValueError(
            f"column {column.name!r} has {len(column.classes)} classes, numbered from 0; got {numbers.min()} to "
            f"{numbers.max()}"
        )
