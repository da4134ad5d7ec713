"""Reads MXNet's RecordIO: ``train.rec``, with ``train.idx`` and ``train.lst`` beside it
(:mod:`packstore.core.recordio`).

InsightFace's datasets begin with a record without an image, and end with one for each identity: none of these is a
sample (``insightface/recognition/arcface_torch/dataset.py``).
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Field, Image, Label
from packstore.core.recordio import HEADER, LAST, MAGIC, MIDDLE, find_parts
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.exported_rows import ExportedRows, open_with
from packstore.sources.records.shards import OpenFiles, ShardSource, find_shards, recognise_shards
from packstore.sources.refusals import first_bytes
from packstore.sources.rows import Row
from packstore.stores.link_files import Location

_SUFFIXES = (".rec",)
_MAX_LABELS = 1 << 16
_MAX_LIST = 1 << 32
_FACES_LINE = re.compile(r"[01]\t([^\t]*[^\t\d.][^\t]*)\t\d+(?:\.0)?(?:\t[^\t]*)*")
"""Line of InsightFace's lists: aligned or not, path, class; its record has the number of the line."""
EXACT = 1 << 24
"""Limit up to which float32 represents every integer."""


_RECORD = np.dtype(
    [("place", "<i8"), ("size", "<i8"), ("label", "<f4"), ("flag", "<u4"), ("id", "<u8"), ("id2", "<u8")]
)
"""Indexed record: offset of its first part, bytes of its image (-1 if it ends before), first label, number of labels
after the header (0 if the only label is in the header), and its two numbers. 40 bytes."""
_PACKED = struct.Struct("<qqfIQQ")


class _RecordIndex(NamedTuple):
    """Index of the samples of a file.

    Attributes:
        table: A :data:`_RECORD` for each sample.
        ids: Some record's number is not its position.
        further: Some record has a second number.
        without: Number of InsightFace's records without an image.
        listed: Paths by number in the list beside the file; None without a list.
        damaged: Offset and reason if the rest of the file cannot be read.
    """

    table: NDArray[Any]
    ids: bool
    further: bool
    without: int
    listed: dict[int, str] | None
    damaged: tuple[int, str] | None


class RecordioSource(ShardSource):
    """Source of ``.rec`` files: one file, or all in a folder. Refuses a path without such files. Their names decide
    their splits. InsightFace's records without an image are left out.

    Keys are the paths in ``.lst`` files. Listing raises :class:`AmbiguousSourceError` if a list lacks a record, or has
    a path twice. If the user named the kind, keys are numbers instead."""

    kind = "recordio"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.shards = self.list_shards()
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no .rec files")
        self._files = OpenFiles([file for _, file in self.shards], lambda file: None)
        self._max_bytes = max_file_bytes(options.max_pixels)
        self.evidence = f"the magic number of {self.shards[0][1].name}"

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each file."""
        return find_shards(self.path, _SUFFIXES).files

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns; the first call indexes all records.

        - ``image``.
        - ``label``: a class if all labels are whole numbers from 0, else float32; an array if records have several.
        - ``labels``: array of all labels of InsightFace, whose ``label`` is the first.
        - ``id``: number that the file gives the record. Left out if every id is the record's position, or if a list is
          used.
        - ``id2``: second number, if some record has one.

        Raises :class:`AmbiguousSourceError` for class numbers from 2^24 on, which float32 rounds. If the user named the
        kind, accepts them.
        """
        columns: dict[str, Field] = {"image": Image()}
        labels = np.concatenate([index.table["label"] for index in self._indexes])
        whole = bool(len(labels)) and bool(np.all((labels >= 0) & (labels == np.floor(labels))))
        single, counts = self._has_single_label, self._label_counts
        if single and whole:
            if labels.max() >= EXACT and not self.options.named:
                raise AmbiguousSourceError(
                    f"{printable(str(self.path))} has labels up to {int(labels.max())} as float32, which has not every "
                    f"integer from {EXACT} on: two classes may have one number. Pack them as they are with "
                    f"--source {self.kind}",
                    [Answer(("--source", self.kind))],
                    self.path,
                )
            columns["label"] = Label()
        elif single:
            columns["label"] = Array("float32")
        if counts - {0, 1} or (counts - {0} and not single):
            count = max(counts)
            name = "labels" if single else "label"
            columns[name] = Array("float32", (count,)) if counts == {count} else Array("float32", ragged=True)
        if self._listed_keys is None and any(index.ids for index in self._indexes):
            columns["id"] = Array("uint64")
        if any(index.further for index in self._indexes):
            columns["id2"] = Array("uint64")
        return columns

    @cached_property
    def _has_single_label(self) -> bool:
        """True if each record has at most one label. Also True for InsightFace's records, whose first label is the
        class."""
        return self._label_counts <= {0, 1} or any(index.without for index in self._indexes)

    @cached_property
    def _label_counts(self) -> set[int]:
        """Numbers of labels that records have after their headers."""
        tables = [index.table for index in self._indexes]
        flags = np.concatenate([table["flag"][table["size"] >= 0] for table in tables])
        return set(np.unique(flags[flags <= _MAX_LABELS]).tolist())

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts InsightFace's records without an image, and lines of lists without a record. Counts all lines if the
        lists are incomplete and therefore not used."""
        listed, keys = sum(len(index.listed or ()) for index in self._indexes), self._listed_keys
        counts = Counter(
            {
                "records without an image (of InsightFace)": sum(index.without for index in self._indexes),
                "lines of lists without a record": 0 if keys is None else listed - sum(map(len, keys)),
                "lines of lists that do not name all records": listed if keys is None else 0,
            }
        )
        return +counts

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each record. Its key is the path from the list if the lists are complete. If the rest of the
        file is damaged, yields one more row, and reading that row raises an error."""
        index, paths = self._indexes[number], None if self._listed_keys is None else self._listed_keys[number]
        places, sizes = (map(int, index.table[name]) for name in ("place", "size"))
        for i, (place, size) in enumerate(zip(places, sizes, strict=True)):
            key = next(keys)
            yield Row(key if paths is None else paths[i], (number, place), max(0, size))
        if index.damaged is not None:
            at, reason = index.damaged
            reason = f"{self.shards[number][1].name}, byte {at}: {reason}"
            yield Row(f"{next(keys)}…", (number, at, reason), 0)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads image, labels and numbers of a record. Raises :class:`ValueError` if it is damaged or too large."""
        number, place, *reason = ref
        if reason:
            raise ValueError(f"{reason[0]}; the rest of this file cannot be read")
        file = self._files[number]
        data = b""
        for flag, at, size in _find_parts(file, place):
            if len(data) + size > self._max_bytes + 4 * _MAX_LABELS:
                raise ValueError(f"it has more bytes than the {self._max_bytes} of an image within max_pixels")
            data += (MAGIC if flag in (MIDDLE, LAST) else b"") + file.read(size, at)
        if len(data) < HEADER.size:
            raise ValueError("it ends within its header")
        flag, label, identity, further = HEADER.unpack_from(data)
        labels = np.frombuffer(data[HEADER.size : HEADER.size + 4 * flag], "<f4") if flag else np.array([label], "<f4")
        if flag and len(labels) < flag:
            raise ValueError("it ends within its labels")
        return {"image": data[HEADER.size + 4 * flag :], **self.decode_header(labels, identity, further)}

    def decode_header(self, labels: NDArray[np.float32], identity: int, further: int) -> dict[str, Any]:
        """Returns labels and numbers of a record by column, for the columns that :meth:`fields` declares."""
        values: dict[str, Any] = {}
        for name, declared in self.schema_fields.items():
            if name == "label" and isinstance(declared, Label):
                values[name] = int(labels[0])
            elif name in ("label", "labels"):
                values[name] = labels[0] if self._has_single_label and name == "label" else labels
        further_values = {"id": np.uint64(identity), "id2": np.uint64(further)}
        return values | {name: value for name, value in further_values.items() if name in self.schema_fields}

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the record, from the first part to the last. If the record is one part, its bytes contain the image
        as it is. Returns None for a damaged record, and if the file has been replaced."""
        number, place = ref[:2]
        try:
            *_, (_, start, size) = _find_parts(self._files[number], place)
        except ValueError:
            return None  # reported when it is read
        return self._files.locate_span(number, place, start + size - place)

    @cached_property
    def schema_fields(self) -> Mapping[str, Field]:
        """Columns that :meth:`fields` declares, computed once."""
        return self.fields()

    def files(self) -> Iterator[Path]:
        """Yields each ``.rec`` file, and the ``.lst`` file beside it if there is one."""
        for path in super().files():
            yield path
            yield from (file for file in (path.with_suffix(".lst"),) if file.is_file())

    def close(self) -> None:
        """Closes the source and its open files."""
        super().close()
        self._files.close()

    @cached_property
    def _listed_keys(self) -> list[list[str]] | None:
        """Paths of the images of each file, from the lists beside the files; None without lists. A list that lacks a
        record, or has a path twice, raises :class:`AmbiguousSourceError`. If the user named the kind, the value is
        None instead."""
        if all(index.listed is None for index in self._indexes):
            return None
        key_lists, seen, reason = [], set[str](), ""
        for index, (_, path) in zip(self._indexes, self.shards, strict=True):
            listed, name = index.listed, printable(path.with_suffix(".lst").name)
            ids = index.table["id"].tolist()
            lacking = [identity for identity in ids if identity not in (listed or ())]
            keys = [] if listed is None or lacking else [listed[identity] for identity in ids]
            if listed is None:
                reason = reason or f"{name} is missing, and other files have such a list"
            elif lacking:
                some = ", ".join(map(str, lacking[:3])) + (" …" if len(lacking) > 3 else "")
                reason = reason or f"{name} has no line for {len(lacking):,} of {len(ids):,} records: {some}"
            elif twice := len(keys) - len(set(keys)) + len(seen.intersection(keys)):
                reason = reason or f"{name} has paths that come twice ({twice:,})"
            seen.update(keys)
            key_lists.append(keys)
        if not reason:
            return key_lists
        if self.options.named:
            return None
        raise AmbiguousSourceError(
            f"{printable(str(self.path))}: {reason}, so that the paths of the images are not known: complete the list, "
            f"or number the images with --source {self.kind}",
            [Answer(("--source", self.kind))],
            self.path,
        )

    @cached_property
    def _indexes(self) -> list[_RecordIndex]:
        """Index of each file. The first use reads the headers of all records. Raises
        :class:`SourceError` if there are no records."""
        indexes = [self._index_file(number) for number in range(len(self.shards))]
        if not any(len(index.table) or index.damaged for index in indexes):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records of images")
        return indexes

    def _index_file(self, number: int) -> _RecordIndex:
        """Indexes the records of file ``number`` up to the first damage. Reads the list beside the file. Drops
        InsightFace's records without an image."""
        file, path = self._files[number], self.shards[number][1]
        at, end, packed, damaged = 0, os.fstat(file.descriptor).st_size, bytearray(), None
        listed = self._read_list(path)
        while at < end:
            try:
                parts = list(_find_parts(file, at))
            except ValueError as error:
                damaged = at, str(error)
                break
            _, start, size = parts[0]
            total = sum(size for *_, size in parts) + 4 * (len(parts) - 1)
            head = file.read(min(size, HEADER.size + 4), start)
            flag, label, identity, further = 0, 0.0, len(packed) // _PACKED.size, 0
            if len(head) >= HEADER.size:
                flag, label, identity, further = HEADER.unpack_from(head)
            if flag and len(head) >= HEADER.size + 4:
                (label,) = struct.unpack_from("<f", head, HEADER.size)
            packed += _PACKED.pack(at, max(-1, total - HEADER.size - 4 * flag), label, flag, identity, further)
            _, last, size = parts[-1]
            at = last + size + -size % 4
        table = np.frombuffer(bytes(packed), _RECORD)
        samples = self.find_samples(table)
        ids = bool(np.any(table["id"] != np.arange(len(table), dtype=np.uint64)))
        without = len(table) - (samples.stop - samples.start)
        return _RecordIndex(table[samples], ids, bool(np.any(table["id2"])), without, listed, damaged)

    def find_samples(self, table: NDArray[Any]) -> slice:
        """Returns the place of the samples among indexed records: all but InsightFace's records without an image. They
        are the first record, and the records of identities at the end. If the numbers of labels are not InsightFace's,
        all records are samples."""
        some = np.flatnonzero(table["size"])
        stop = int(some[-1]) + 1 if len(some) else 0
        trailing = table["flag"][stop:]
        first = int(stop > 0 and not table["size"][0])
        is_faces = (first and (len(trailing) or table["flag"][0])) or (len(trailing) and trailing.min() > 1)
        return slice(first, stop) if stop and is_faces else slice(0, len(table))

    def _read_list(self, path: Path) -> dict[int, str] | None:
        """Reads paths of images by number from the ``.lst`` file beside a file. Returns None if there is none. A line
        of InsightFace has no number, and gets the number of the line.

        Raises :class:`SourceError` for a file that cannot be read, is no list, or is larger than 4 GiB. Also raises it
        for a number that comes twice."""
        file = path.with_suffix(".lst")
        if not file.is_file():
            return None
        paths: dict[int, str] = {}
        try:
            if file.stat().st_size > _MAX_LIST:
                raise SourceError(
                    f"{printable(str(file))} has more than {_MAX_LIST:,} bytes: it is not a list of images"
                )
            with file.open(encoding="utf-8", errors="surrogateescape") as lines:
                for place, line in enumerate(lines, 1):
                    number, _, rest = line.rstrip("\r\n").partition("\t")
                    name = rest.rpartition("\t")[2]
                    if (own := _FACES_LINE.fullmatch(line.rstrip("\r\n"))) is not None:
                        number, name = str(place), own[1].lstrip("/")
                    if not re.fullmatch(r"\d{1,18}", number) or int(number) in paths or not name:
                        raise SourceError(
                            f"{printable(str(file))}: {printable(line[:80].strip())} is not a line of a list"
                        )
                    paths[int(number)] = name
        except OSError as error:
            raise SourceError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from None
        return paths


def _find_parts(file: OpenFile, at: int) -> Iterator[tuple[int, int, int]]:
    """Yields flag, offset and size of each part of a record. Raises :class:`ValueError` for a damaged header."""
    return find_parts(file.read, at, os.fstat(file.descriptor).st_size)


class ExportedRecordio(ExportedRows, RecordioSource):
    """Source of ``.rec`` files that packstore exported. Labels are the store's, and a record without an image is
    damaged."""

    def decode_header(self, labels: NDArray[np.float32], identity: int, further: int) -> dict[str, Any]:
        """Returns the label as an integer; an empty dict if the export holds no labels."""
        return {"label": int(labels[0])} if "label" in self.export_manifest.held else {}

    def find_samples(self, table: NDArray[Any]) -> slice:
        """Returns all records: an export has no records of identities, which have no image."""
        return slice(0, len(table))

    def _read_list(self, path: Path) -> None:
        """Returns None: the export manifest has the keys, so lists are not used."""
        return


def _is_recordio(file: Path) -> bool:
    """Tells if a file has the suffix and the magic number of RecordIO."""
    return file.suffix.lower() in _SUFFIXES and first_bytes(file, 4) == MAGIC


KIND = Kind(
    "recordio",
    "RecordIO files of MXNet",
    lambda path, _: recognise_shards(path, _SUFFIXES, _is_recordio),
    open_with(RecordioSource, ExportedRecordio),
)
