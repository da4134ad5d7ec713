"""Reads an export of packstore as the records that it was made of, by the ``packstore.json`` beside the data; see
:mod:`packstore.stores.export_manifest`.

A kind of source that also reads exports has a class for them, which inherits :class:`ExportedRows` and the kind's own
class, and reads the values of a store from its format. Exports whose records are files of a folder, a tar or a zip are
read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Column, ImageData, shape_to_stored, to_stored, without_companions
from packstore.core.errors import ManifestError, SampleError, SourceError, StoreError, printable
from packstore.core.fields import Field
from packstore.core.files import Location
from packstore.core.manifest import MAX_JSON_BYTES, Manifest
from packstore.core.registry import SOURCES
from packstore.images.decoders import Decoder, get_decoder
from packstore.images.reading import Reading
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives import open_required_tree
from packstore.sources.archives.tar import TAR_FAULTS, is_tar, read_first_names
from packstore.sources.archives.zip import is_zip
from packstore.sources.base import Certainty, Entry, Kind, Sample, Source, SourceOptions
from packstore.sources.ledger import Claims, Role, list_files
from packstore.sources.listing import IMAGE_SUFFIXES, key_size
from packstore.sources.refusals import NeedsCopyError, first_bytes
from packstore.sources.rows import RecordForm, Row, RowSource
from packstore.sources.tree import FolderTree
from packstore.stores.export_manifest import (
    MANIFEST_FILE,
    ROWS_FILE,
    ExportManifest,
    RecordLines,
    StoredBytes,
    names_sidecar,
    parse_export_manifest,
    parse_value,
    read_export_manifest,
    stays_in_folder,
)

# Maximum bytes of lines in an archive; larger archives may have as many as their own bytes.
_MAX_LINES = 1 << 28


class ExportedRows(RowSource):
    """Records of a store, read from an export.

    Subclasses read the format. :meth:`rows` yields its records in order, split by split. :meth:`read_values` returns
    the columns in :attr:`ExportManifest.held`, in the form of :meth:`packstore.stores.Reader.item`. The lines of the
    records have the other columns, and the keys. Surveying or listing, not opening, refuses more or fewer rows, lines
    or images than packstore wrote."""

    def find_lines(self) -> RecordLines:
        """Opens the lines of the records, beside the export manifest. Raises :class:`OSError` if they cannot be
        opened."""
        return RecordLines.map_file(self.path / ROWS_FILE)

    @cached_property
    def export_manifest(self) -> ExportManifest:
        """The export manifest, read once. Raises :class:`SourceError` if it is missing, damaged, or names another kind
        of source."""
        manifest = find_export_manifest(self.path)
        if manifest is None or manifest.source != self.kind:
            raise SourceError(f"{printable(str(self.path))} holds no {MANIFEST_FILE} of an export of files")
        return manifest

    @property
    def store_manifest(self) -> Manifest:
        """Manifest of the exported store."""
        return self.export_manifest.manifest

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each shard in the export manifest. Raises :class:`SourceError` if one is missing."""
        shards = [(shard.split, self.path / shard.file) for shard in self.export_manifest.shards]
        missing = next((path for _, path in shards if not path.is_file()), None)
        if missing is not None:
            raise SourceError(f"{printable(str(missing))} is missing, one of the shards that {MANIFEST_FILE} names")
        return shards

    @cached_property
    def lines(self) -> RecordLines | None:
        """Lines of the records, opened once; None if the export has none. Raises :class:`SourceError` if they cannot
        be opened, or are not as many as the records."""
        if not self.export_manifest.rows:
            return None
        try:
            record_lines = self.find_lines()
        except OSError as error:
            raise SourceError(f"{printable(str(self.path))}: {ROWS_FILE}: {error.strerror or error}") from None
        if len(record_lines) != self.store_manifest.records:
            raise self._changed_error(
                f"{ROWS_FILE} has {len(record_lines):,} lines, {MANIFEST_FILE} {self.store_manifest.records:,} records"
            )
        return record_lines

    def splits(self) -> Sequence[str]:
        """Returns the splits of the exported store; ``("",)`` if it has none."""
        return tuple(self.ranges)

    def fields(self) -> dict[str, Field]:
        """Returns no declarations: the export manifest has the columns."""
        return {}

    def claim_files(self, claims: Claims) -> None:
        """Claims :meth:`files` as packed, the export manifest and the lines of the records as annotations.

        Claims the files in :attr:`ExportManifest.files` as evidence.
        """
        for name in self.export_manifest.files:
            claims.claim(name, Role.EVIDENCE)
        super().claim_files(claims)
        self.claim_paths(claims, [self.path / MANIFEST_FILE, self.path / ROWS_FILE], Role.ANNOTATION)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image of a record by :meth:`RowSource.locate_row`; None if its place is unknown."""
        return self.locate_row(entry.ref[1])

    def close(self) -> None:
        """Closes the source, and drops the lines of the records. Reading opens them again."""
        super().close()
        self.__dict__.pop("lines", None)

    @cached_property
    def ranges(self) -> dict[str, range]:
        """Record numbers of each split; all under ``""`` without splits."""
        return {name: range(start, stop) for name, start, stop in self.store_manifest.ranges}

    @cached_property
    def columns_at_rest(self) -> list[Column]:
        """Columns of the store without their companions."""
        return without_companions(self.export_manifest.columns)

    @cached_property
    def _decoder(self) -> Decoder | None:
        """Decoder of the PNG files that arrays were exported as; None if images are not arrays."""
        reading = Reading(self.store_manifest.image.pixels.name)
        as_png = self.export_manifest.image == "png"
        return get_decoder(max_pixels=self.options.max_pixels, reading=reading) if as_png else None

    def read_sample(self, entry: Entry) -> Sample:
        """Reads a record in stored form. A value comes from the record's line if it has the value, else from the
        export's format. Raises :class:`SampleError` or :class:`ValueError` for values that the columns cannot have, and
        for a record that cannot be read."""
        number, ref = entry.ref
        try:
            given = self.read_values(ref)
        except SampleError as error:  # named by its file, which is not its key here
            raise SampleError(entry.key, error.reason) from error
        line = {} if self.lines is None else self.lines[number]
        values: dict[str, Any] = {}
        for column in self.columns_at_rest:
            name = column.name
            if name in self.export_manifest.held and name not in line.get("values", {}):
                value = given.get(name)
                values[name] = _to_stored(column, value)
                if column.kind == "ragged" and column.layout is not None:
                    values[column.shape_name] = shape_to_stored(column, value)
                if column.nullable:
                    values[column.valid_name] = value is not None
            else:
                values |= {each.name: parse_value(each, line) for each in (column, *column.companions)}
            if not column.nullable or values[column.valid_name]:
                _check_stored(column, values[name])
        return Sample(self._convert_image(given.get("image")), values, at_rest=True)

    def _convert_image(self, value: Any) -> ImageData:
        """Converts the image to the form that it had in the exported store, and checks it."""
        # It is a PNG that was made from an array.
        if self._decoder is not None and isinstance(value, bytes):
            value = self._decoder.decode(value)
        image = self.store_manifest.image
        if image.layout is None:
            if not isinstance(value, bytes):
                raise ValueError(f"found {type(value).__name__}, expected the bytes of an image file")
            return value
        if not isinstance(value, np.ndarray) or value.dtype != NUMPY_DTYPE[image.dtype]:
            raise ValueError(f"found {getattr(value, 'dtype', type(value).__name__)}, expected an array {image.dtype}")
        if (image.kind == "fixed" and value.shape != image.shape) or value.ndim != 3:
            raise ValueError(f"found shape {value.shape}, expected {image.shape or image.layout}")
        return np.ascontiguousarray(value)

    def _yield_rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split with the keys of their records; ``ref`` is the record's number and the row's
        ``ref``.
        """
        numbers, count = self.ranges[split], 0
        for row in self.rows(split):
            if count < len(numbers):
                yield Row(self._record_key(numbers[count], row), (numbers[count], row.ref), *row[2:])
            count += 1
        if count != len(numbers):
            where = f" of {printable(split)}" if split else ""
            raise self._changed_error(f"it holds {count:,} samples{where}, {MANIFEST_FILE} says {len(numbers):,}")

    def _record_key(self, number: int, row: Row) -> str:
        """Returns the key of a record from its line, or else the row's key."""
        if self.lines is None:
            return row.key
        with suppress(ValueError):
            key = self.lines[number].get("key", row.key)
            if isinstance(key, str) and key_size(key) >= 0:  # raises for an invalid text
                return key
        raise self._changed_error(f"line {number + 1} of {ROWS_FILE} is damaged")

    def _record_form(self) -> RecordForm:
        """Returns the form of the records in the exported store."""
        image = self.store_manifest.image
        shape = image.shape if image.kind == "fixed" else None
        return RecordForm(self.export_manifest.columns, self.store_manifest.encoding, None, shape, self.store_manifest)

    def _changed_error(self, how: str) -> SourceError:
        """Returns the error for an export that was changed after packstore wrote it."""
        return SourceError(
            f"{printable(str(self.path))} is not as packstore exported it: {how}; "
            f"remove {MANIFEST_FILE} to read it like any other {self.kind}"
        )


def find_export_manifest(path: Path) -> ExportManifest | None:
    """Reads the export manifest at ``path``: in a folder, in a zip, or as the first file of a tar.

    Returns None if there is none, or the archive is damaged. Raises :class:`SourceError` for a damaged manifest.
    """
    try:
        if path.is_dir():
            return read_export_manifest(path)
        start = first_bytes(path, 512)
        if is_zip(start) or (is_tar(start) and read_first_names(path, 1) == [MANIFEST_FILE]):
            tree = open_required_tree(path)
            status = tree.stat(MANIFEST_FILE)
            return parse_export_manifest(tree.read(MANIFEST_FILE, status.size, status.modified_ns, 2 * MAX_JSON_BYTES))
    except ManifestError as error:
        raise SourceError(f"{printable(str(path))}: {error}; remove {MANIFEST_FILE} to read it without it") from error
    except (*TAR_FAULTS, SourceError, OSError):
        return None  # another kind reports what is wrong
    return None


def open_with(plain: type[RowSource], exported: type[ExportedRows]) -> Callable[[Path, SourceOptions], Source]:
    """Returns a function that opens a path. An export of packstore with the kind of ``plain`` is opened as
    ``exported``, any other path as ``plain``. The function raises :class:`SourceError` for a damaged export
    manifest."""

    def open(path: Path, options: SourceOptions) -> Source:
        export_manifest = find_export_manifest(path) if path.is_dir() else None
        is_exported = export_manifest is not None and export_manifest.source == plain.kind
        return exported(path, options) if is_exported else plain(path, options)

    return open


def _to_stored(column: Column, value: Any) -> bytes | NDArray[Any]:
    """Converts a value of an export to its stored form."""
    if isinstance(value, StoredBytes):
        return bytes(value)
    if not isinstance(value, np.ndarray) or value.dtype != NUMPY_DTYPE[column.dtype] or column.holds_class:
        return to_stored(column, value)
    # Of the column's own arrays, only the shape is checked: stores may hold values that a user cannot add, such as
    # boxes whose left is behind their right.
    if column.kind == "fixed":
        fits = value.shape == column.shape
    elif column.layout is not None:
        fits = value.ndim == len(column.layout)
    else:
        fits = value.ndim == 1 + len(column.shape) and value.shape[1:] == column.shape
    if not fits:
        raise ValueError(f"column {column.name!r}: found an array {value.shape}, expected {column.shape}")
    return value.tobytes() if column.kind == "ragged" else value


def _check_stored(column: Column, value: Any) -> None:
    """Raises :class:`ValueError` for damaged files, and for a number that is not one of the column's classes."""
    if column.form == "files":
        try:
            column.traits.files(column, value)
        except StoreError as error:
            raise ValueError(str(error)) from None
    if column.classes is not None:
        numbers = np.frombuffer(value, np.int64) if isinstance(value, bytes) else np.asarray(value)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(column.classes):
            raise ValueError(
                f"column {column.name!r} has {len(column.classes)} classes, numbered from 0; got {numbers.min()} to "
                f"{numbers.max()}"
            )


class ExportedFiles(ExportedRows):
    """Export in a folder or an archive. Its records are image files, which the lines of the records name. The
    constructor reads the export manifest, and raises :class:`SourceError` for a missing or damaged one. The survey
    refuses images that no line names, and another number of lines than records."""

    kind = "exported"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = open_required_tree(path)
        self._max_bytes = max_file_bytes(options.max_pixels)
        if not self.export_manifest.rows:
            raise SourceError(f"{printable(str(path))} holds no {MANIFEST_FILE} of an export of files")

    def _record_form(self) -> RecordForm:
        """Returns the form of the records; raises if the folder has images that the lines do not name."""
        there = sum(len(listing.images) for _, listing in self.tree.walk("", self.tree.above, skip_cycles=True))
        more = there - len(self._lines)
        if more > 0:  # masks beside images
            beside = (file.lower() for number in range(len(self._lines)) for file in self._list_sidecars(number))
            more -= sum(file.endswith(IMAGE_SUFFIXES) for file in beside)
        if more > 0:
            raise self._changed_error(f"it holds {more:,} images that {ROWS_FILE} does not name")
        return super()._record_form()

    @property
    def _lines(self) -> RecordLines:
        """Lines of the records, which an export of files always has."""
        assert self.lines is not None
        return self.lines

    def _list_sidecars(self, number: int) -> list[str]:
        """Returns the files that line ``number`` names besides its image; none for a damaged line."""
        try:
            line = self._lines[number]
        except ValueError:
            return []
        return [file for name, file in line.items() if names_sidecar(name) and isinstance(file, str)]

    def find_lines(self) -> RecordLines:
        """Opens the lines of the records: maps them in a folder, else reads them into memory. Raises
        :class:`SampleError` for lines of more than 256 MiB that are larger than their archive."""
        if isinstance(self.tree, FolderTree):
            return super().find_lines()
        status = self.tree.stat(ROWS_FILE)
        most = max(_MAX_LINES, self.path.stat().st_size) if self.path.is_file() else status.size  # else it is a bomb
        return RecordLines(self.tree.read(ROWS_FILE, status.size, status.modified_ns, most))

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the image file of a record."""
        claims.claim(row.ref[1][0])

    def claim_files(self, claims: Claims) -> None:
        """Claims the export manifest, the lines of the records and the files beside images as annotations.

        Claims the files in :attr:`ExportManifest.files` as evidence.
        """
        claims.claim_all("", (MANIFEST_FILE, ROWS_FILE), Role.ANNOTATION)
        for name in self.export_manifest.files:
            claims.claim(name, Role.EVIDENCE)
        for number in range(len(self._lines)) if self._lines.may_name_sidecars else ():
            for name in self._list_sidecars(number):
                claims.claim(name, Role.ANNOTATION)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists the files of the folder or archive."""
        return list_files(self.tree)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for the file of each record. Reading the row of a missing file fails. Raises
        :class:`SourceError` for a damaged line, and for a line that names no file within the export."""
        for number in self.ranges[split]:
            try:
                file = self._lines[number].get("file")
            except ValueError as error:
                raise SourceError(f"{printable(str(self.path))}: {error}") from error
            if not isinstance(file, str) or not stays_in_folder(file):
                raise SourceError(f"{self.tree.name(ROWS_FILE)}: line {number + 1} names no file of the export")
            try:
                status = self.tree.stat(file)
            except OSError as error:
                yield Row(file, (file, -1, 0, error.strerror or str(error)), 0)
                continue
            ref = (file, status.size, status.modified_ns, "is not a file")
            yield Row(file, ref, max(0, status.size), 0, status.modified_ns, status.changed_ns)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image file of a row. Raises :class:`ValueError` if it is missing or no regular file, and
        :class:`SampleError` if it cannot be read."""
        file, size, modified, problem = ref
        if size < 0:
            raise ValueError(problem)
        return {"image": self.tree.read(file, size, modified, self._max_bytes)}

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the image file of a record; None if it is compressed or at a URL."""
        return self.tree.locate(ref[0])

    def close(self) -> None:
        """Closes the tree, too."""
        super().close()
        self.tree.close()


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for a path with an export manifest of a known kind of source, else ``NO``."""
    export_manifest = find_export_manifest(path)
    return Certainty.NO if export_manifest is None or export_manifest.source not in SOURCES else Certainty.CERTAIN


def _open(path: Path, options: SourceOptions) -> Source:
    """Opens an export by the kind of source that reads its format, else as files."""
    export_manifest = find_export_manifest(path)
    if export_manifest is None or export_manifest.source == "exported" or export_manifest.source not in SOURCES:
        opened: Source = ExportedFiles(path, options)
    else:
        kind: Kind = SOURCES[export_manifest.source]
        if not kind.reads(path):
            raise NeedsCopyError(f"{printable(str(path))} is an export as {kind.name}")
        opened = kind.open(path, options)
    opened.evidence = MANIFEST_FILE
    return opened


KIND = Kind("exported", "an export of packstore, with its packstore.json", _recognise, _open, in_objects=True)
