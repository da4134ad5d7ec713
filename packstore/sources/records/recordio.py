"""Reads MXNet's RecordIO: ``train.rec``, with ``train.idx`` and ``train.lst`` beside it
(:mod:`packstore.core.recordio`).

InsightFace's datasets begin with a record without an image, and end with one for each identity: none of these is a
sample (``insightface/recognition/arcface_torch/dataset.py``).
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Array, Field, Image, Label
from packstore.core.protobuf import Message
from packstore.core.recordio import HEADER, LAST, MAGIC, MIDDLE, find_parts
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import (
    DamageError,
    RecordFiles,
    RecordIndex,
    WalkedSource,
    find_shards,
    recognise_shards,
)
from packstore.sources.refusals import first_bytes

_SUFFIXES = (".rec",)
_MAX_LABELS = 1 << 16
_MAX_LIST = 1 << 32
_FACES_LINE = re.compile(r"[01]\t([^\t]*[^\t\d.][^\t]*)\t\d+(?:\.0)?(?:\t[^\t]*)*")
"""Line of InsightFace's lists: aligned or not, path, class; its record has the number of the line."""
EXACT = 1 << 24
"""Limit up to which float32 represents every integer."""
_HEADER = np.dtype([("label", "<f4"), ("flag", "<u4"), ("id", "<u8"), ("id2", "<u8")])
"""Header of an indexed record: first label, number of labels after the header (0 if the only label is in it), and its
two numbers."""
_PACKED = struct.Struct("<fIQQ")


class RecordioFiles(RecordFiles):
    """Reads records of RecordIO files by the offsets of their first parts. A record is its framed bytes."""

    max_bytes = 0
    """Maximum bytes of a record with an image."""

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields offset, framed size and message of each record. Reads only headers: a message has the bytes of the
        record's header and first label, and the size of the whole record. Raises :class:`DamageError` for a damaged
        part."""
        file = self.opened[number]
        at, end = 0, os.fstat(file.descriptor).st_size
        while at < end:
            try:
                parts = list(_find_parts(file, at))
            except ValueError as error:
                raise DamageError(at, str(error)) from None
            (_, start, first), (_, last, size) = parts[0], parts[-1]
            total = sum(size for *_, size in parts) + 4 * (len(parts) - 1)
            head = file.read(min(first, HEADER.size + 4), start)
            yield at, last + size - at, Message(total, lambda size, at: b"", head)
            at = last + size + -size % 4

    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads the parts of a record. Raises :class:`ValueError` if one is damaged, or they are too large."""
        file, data = self.opened[number], b""
        for flag, at, size in _find_parts(file, place):
            if len(data) + size > self.max_bytes + 4 * _MAX_LABELS:
                raise ValueError(f"it has more bytes than the {self.max_bytes} of an image within max_pixels")
            data += (MAGIC if flag in (MIDDLE, LAST) else b"") + file.read(size, at)
        return data


class RecordioSource(WalkedSource):
    """Source of ``.rec`` files: one file, or all in a folder. Refuses a path without such files. Their names decide
    their splits. InsightFace's records without an image are left out.

    Keys are the paths in ``.lst`` files. Listing raises :class:`AmbiguousSourceError` if a list lacks a record, or has
    a path twice. If the user named the kind, keys are numbers instead."""

    kind = "recordio"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        super().__init__(path, options, self.list_shards())
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no .rec files")
        self.evidence = f"the magic number of {self.shards[0][1].name}"

    def open_records(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of RecordIO files."""
        files = RecordioFiles(paths)
        files.max_bytes = max_file_bytes(self.options.max_pixels)
        return files

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
        assert self.index
        columns: dict[str, Field] = {"image": Image()}
        labels = np.concatenate([table["label"] for table in self._tables])
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
        if not self.has_keys and self._has_ids:
            columns["id"] = Array("uint64")
        if any(np.any(table["id2"]) for table in self._tables):
            columns["id2"] = Array("uint64")
        return columns

    @cached_property
    def _has_single_label(self) -> bool:
        """True if each record has at most one label. Also True for InsightFace's records, whose first label is the
        class."""
        return self._label_counts <= {0, 1} or self._without > 0

    @cached_property
    def _label_counts(self) -> set[int]:
        """Numbers of labels that records have after their headers."""
        flags = np.concatenate([table["flag"] for table in self._tables])
        return set(np.unique(flags[flags <= _MAX_LABELS]).tolist())

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts InsightFace's records without an image, and lines of lists without a record. Counts all lines if the
        lists are incomplete and therefore not used."""
        records, listed = sum(len(index.keys) for index in self.index), sum(len(each or ()) for each in self._lists)
        return +Counter(
            {
                "records without an image (of InsightFace)": self._without,
                "lines of lists without a record": listed - records if self.has_keys else 0,
                "lines of lists that do not name all records": 0 if self.has_keys else listed,
            }
        )

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, None]:
        """Returns the size of the image, -1 if the record ends before it. Keeps the record's header."""
        flag, label, identity, further = 0, 0.0, len(self._packed) // _PACKED.size, 0
        with suppress(ValueError):  # reported when it is read
            flag, label, identity, further = HEADER.unpack(message.get(0, HEADER.size))
            if flag:
                (label,) = struct.unpack("<f", message.get(HEADER.size, HEADER.size + 4))
        size = max(-1, message.size - HEADER.size - 4 * flag)
        self._packed += _PACKED.pack(label, flag if size >= 0 else _MAX_LABELS + 1, identity, further)
        return size, None

    def decode_record(self, data: bytes) -> dict[str, Any]:
        """Decodes image, labels and numbers of a record. Raises :class:`ValueError` if it is damaged."""
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

    @cached_property
    def schema_fields(self) -> Mapping[str, Field]:
        """Columns that :meth:`fields` declares, computed once."""
        return self.fields()

    def files(self) -> Iterator[Path]:
        """Yields each ``.rec`` file, and the ``.lst`` file beside it if there is one."""
        for path in super().files():
            yield path
            yield from (file for file in (path.with_suffix(".lst"),) if file.is_file())

    @cached_property
    def has_keys(self) -> bool:
        """True if lists beside the files name all records. Enters these keys in :attr:`index`. A list that lacks a
        record, or has a path twice, raises :class:`AmbiguousSourceError`. If the user named the kind, the value is
        False instead."""
        assert self.index
        if all(listed is None for listed in self._lists):
            return False
        key_lists: list[list[str | None]] = []
        seen, reason = set[str | None](), ""
        for listed, table, (_, path) in zip(self._lists, self._tables, self.shards, strict=True):
            name, ids = printable(path.with_suffix(".lst").name), table["id"].tolist()
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
            key_lists.append([*keys])
        if reason and not self.options.named:
            raise AmbiguousSourceError(
                f"{printable(str(self.path))}: {reason}, so that the paths of the images are not known: complete the "
                f"list, or number the images with --source {self.kind}",
                [Answer(("--source", self.kind))],
                self.path,
            )
        for index, own in zip(self.index, key_lists, strict=True):
            index.keys = index.keys if reason else own
        return not reason

    @cached_property
    def _lists(self) -> list[dict[int, str] | None]:
        """Paths by number in the list beside each file; None without a list."""
        return [self._read_list(path) for _, path in self.shards]

    def index_file(self, number: int) -> RecordIndex:
        """Indexes the records of file ``number``. Drops InsightFace's records without an image."""
        if number == 0:
            self._tables: list[NDArray[Any]] = []
            self._has_ids, self._without = False, 0
        self._packed = bytearray()
        index = super().index_file(number)
        table, sizes = np.frombuffer(bytes(self._packed), _HEADER), np.frombuffer(index.sizes, np.int64)
        samples = self.find_samples(sizes, table["flag"])
        self._has_ids |= bool(np.any(table["id"] != np.arange(len(table), dtype=np.uint64)))
        self._without += len(table) - (samples.stop - samples.start)
        self._tables.append(table[samples])
        sizes = np.maximum(sizes[samples], 0)
        return RecordIndex(
            index.places[samples],
            index.lengths[samples],
            array("q", sizes.tobytes()),
            index.keys[samples],
            index.damaged,
        )

    def find_samples(self, sizes: NDArray[np.int64], flags: NDArray[np.uint32]) -> slice:
        """Returns the place of the samples among indexed records: all but InsightFace's records without an image. They
        are the first record, and the records of identities at the end. If the numbers of labels are not InsightFace's,
        all records are samples."""
        some = np.flatnonzero(sizes)
        stop = int(some[-1]) + 1 if len(some) else 0
        trailing = flags[stop:]
        first = int(stop > 0 and not sizes[0])
        is_faces = (first and (len(trailing) or flags[0])) or (len(trailing) and trailing.min() > 1)
        return slice(first, stop) if stop and is_faces else slice(0, len(sizes))

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

    def find_samples(self, sizes: NDArray[np.int64], flags: NDArray[np.uint32]) -> slice:
        """Returns all records: an export has no records of identities, which have no image."""
        return slice(0, len(sizes))

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
