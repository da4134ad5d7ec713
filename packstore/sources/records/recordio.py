"""Reads MXNet's RecordIO: ``train.rec``, with ``train.idx`` and ``train.lst`` beside it (``dmlc-core``,
``include/dmlc/recordio.h``, ``mxnet/recordio.py``).

A record is a magic number, a word with a flag of 3 bits and a length of 29 bits, and the data, padded to a multiple of
four bytes. If the magic number occurs in the data at a multiple of four, the data are split there into parts, without
the magic number.

InsightFace's datasets begin with a record without an image, and end with one for each identity: none of these is a
sample (``insightface/recognition/arcface_torch/dataset.py``).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.fields import Array, Field, Image, Label
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Kind
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import DamageError, RecordFiles, RecordIndex, WalkedSource, refuse_damage
from packstore.sources.records.wire import Message
from packstore.sources.refusals import first_bytes

MAGIC = struct.pack("<I", 0xCED7230A)
WHOLE, FIRST, MIDDLE, LAST = 0, 1, 2, 3
"""Flags: a record in one part, or the first, a middle, or the last part of a record."""
LONGEST = (1 << 29) - 1
HEADER = struct.Struct("<IfQQ")
"""Header of an image: number of further labels (0: only the next field), a label, and two ids."""
_MAX_RECORD, _DAMAGED = 1 << 31, (1 << 32) - 1
# Line of a list: number of the record, labels, path.
_LINE = re.compile(r"(\d{1,18})\t(?:.*\t)?([^\t]+)")
# Line of InsightFace's lists: aligned or not, path, class; its record has the number of the line.
_FACES_LINE = re.compile(r"[01]\t/*([^\t]*[^\t\d.][^\t]*)\t\d+(?:\.0)?(?:\t[^\t]*)*")
_MAX_LINE = 1 << 20
# Header of a record: number of labels after it (0 if the only label is in it), label, two numbers; and the first label
# after it.
_HEAD = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8"), ("first", "<f4")])


def frame_record(data: bytes) -> bytes:
    """Returns the bytes of a RecordIO record that contains ``data``. Raises :class:`ValueError` for 512 MiB or more."""
    if len(data) > LONGEST:
        raise ValueError(f"a record of {len(data)} bytes is longer than {LONGEST}, the most that RecordIO holds")
    parts, start, at = [], 0, -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if at % 4 == 0 and at + 4 <= len(data) // 4 * 4:
            parts.append(_frame_part(MIDDLE if start else FIRST, data[start:at]))
            start = at + 4
    parts.append(_frame_part(LAST if start else WHOLE, data[start:]))
    return b"".join(parts)


def find_parts(read: Callable[[int, int], bytes], at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields flag, place and size of each part of the record at ``at``. Raises :class:`ValueError` if the record is
    damaged.

    ``read(size, place)`` reads the file, which has ``end`` bytes.
    """
    first = True
    while True:
        head = read(8, at)
        if len(head) < 8:
            raise ValueError("the file ends within a record")
        flag, size = (word := int.from_bytes(head[4:], "little")) >> 29, word & LONGEST
        if head[:4] != MAGIC or flag not in ((WHOLE, FIRST) if first else (MIDDLE, LAST)):
            raise ValueError("no record begins here")
        if size > end - at - 8:
            raise ValueError(f"a record of {size} bytes is cut off")
        yield flag, at + 8, size
        if flag in (WHOLE, LAST):
            return
        at, first = at + 8 + size + -size % 4, False


def _frame_part(flag: int, data: bytes) -> bytes:
    """Returns a part of a record: magic number, flag and length, data, padding."""
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + bytes(-len(data) % 4)


class RecordioFiles(RecordFiles):
    """Reads records of RecordIO files by the offsets of their first parts. A record is its framed bytes."""

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields offset, framed size and message of each record. Reads only headers: a message has the bytes of the
        record's header and first label, and the size of the whole record. Raises :class:`DamageError` for a damaged
        part."""
        file, at = self[number], 0
        while at < file.size:
            try:
                parts = list(find_parts(file.read, at, file.size))
            except ValueError as error:
                raise DamageError(at, str(error)) from None
            _, last, size = parts[-1]
            total = sum(size for *_, size in parts) + 4 * (len(parts) - 1)
            head = _join_parts(file, [(flag, at, min(size, _HEAD.itemsize)) for flag, at, size in parts[:8]])
            yield at, last + size - at, Message(total, lambda size, at: b"", head[: _HEAD.itemsize])
            at = last + size + -size % 4

    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads the parts of a record. Raises :class:`ValueError` if one is damaged, or they are too large."""
        if length > _MAX_RECORD:
            raise ValueError(f"a record has {length} bytes, more than {_MAX_RECORD}")
        file = self[number]
        return _join_parts(file, find_parts(file.read, place, file.size))


def _join_parts(file: OpenFile, parts: Iterable[tuple[int, int, int]]) -> bytes:
    """Reads parts of a record, given by flag, offset and size, and joins them by the magic number."""
    return b"".join(MAGIC * (flag in (MIDDLE, LAST)) + file.read(size, at) for flag, at, size in parts)


class RecordioSource(WalkedSource):
    """Source of ``.rec`` files: one file, or all in a folder. Their names decide their splits. InsightFace's records
    without an image are left out. Keys are the paths in ``.lst`` files if these name each record once, else numbers."""

    kind = "recordio"
    unit = ".rec file"
    suffixes = (".rec",)

    @classmethod
    def is_shard(cls, path: Path) -> bool:
        """Tells if a file has the suffix and the magic number of RecordIO."""
        return path.suffix.lower() in cls.suffixes and first_bytes(path, 4) == MAGIC

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of RecordIO files."""
        return RecordioFiles(paths)

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns; the first call indexes all records.

        - ``image``.
        - ``label``: a class if all labels are whole numbers from 0, else float32; an array if
          records have several.
        - ``labels``: array of all labels of InsightFace, whose ``label`` is the first.
        - ``id``: number that the file gives the record. Left out if every id is the record's position, or if a list is
          used.
        """
        return self._declared

    @cached_property
    def _declared(self) -> dict[str, Field]:
        """Columns, see :meth:`fields`."""
        table = self._table[self._table["flag"] != _DAMAGED]
        counts = set(np.unique(table["flag"]).tolist())
        single = counts <= {0, 1} or self._without > 0
        labels = np.where(table["flag"] > 0, table["first"], table["label"])
        whole = len(labels) and np.all((labels >= 0) & (labels == np.floor(labels)))
        columns: dict[str, Field] = {"image": Image()}
        if single:
            columns["label"] = Label() if whole else Array("float32")
        if counts - {0, 1}:
            shared = Array("float32", (max(counts),)) if len(counts) == 1 else Array("float32", ragged=True)
            columns["labels" if single else "label"] = shared
        if not self.has_keys and self._has_ids:
            columns["id"] = Array("uint64")
        return columns

    @cached_property
    def _table(self) -> NDArray[Any]:
        """Headers of all samples."""
        assert self.index
        return np.concatenate(self._tables)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts InsightFace's records without an image, and lines of lists without a record; all lines if the lists
        are incomplete."""
        lines = sum(map(len, self._lists)) - (len(self._table) if self.has_keys else 0)
        counts = {"records without an image (of InsightFace)": self._without, "lines of lists that are not used": lines}
        return +Counter(counts)

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, None]:
        """Returns the size of the image, -1 if the record ends before it. Keeps the record's header."""
        head = message.get(0, min(message.size, _HEAD.itemsize)).ljust(_HEAD.itemsize, b"\0")
        self._heads += head
        return max(-1, message.size - HEADER.size - 4 * int.from_bytes(head[:4], "little")), None

    def decode_record(self, data: bytes) -> dict[str, Any]:
        """Decodes image, labels and number of a record. Raises :class:`ValueError` if it is damaged."""
        flag, label, identity, _ = HEADER.unpack(data[: HEADER.size].ljust(HEADER.size, b"\0"))
        start = HEADER.size + 4 * flag
        if len(data) < start:
            raise ValueError("it is cut off: it ends within its labels")
        labels = np.frombuffer(data[HEADER.size : start], "<f4") if flag else np.array([label], "<f4")
        return {"image": data[start:], **self.decode_header(labels, identity)}

    def decode_header(self, labels: NDArray[np.float32], identity: int) -> dict[str, Any]:
        """Returns labels and number of a record, for the columns that :meth:`fields` declares."""
        values: dict[str, Any] = {"label": labels, "labels": labels, "id": np.uint64(identity)}
        if isinstance(self._declared.get("label"), Label):
            values["label"] = int(labels[0])
        elif self._declared.get("label") == Array("float32"):
            values["label"] = labels[0]
        return {name: value for name, value in values.items() if name in self._declared}

    def files(self) -> Iterator[Path]:
        """Yields each ``.rec`` file, and the ``.lst`` file beside it if there is one."""
        for path in super().files():
            yield from (file for file in (path, path.with_suffix(".lst")) if file == path or file.is_file())

    @cached_property
    def has_keys(self) -> bool:
        """True if lists beside the files name each record once. Enters these keys in :attr:`index`."""
        assert self.index
        pairs = zip(self._lists, self._tables, strict=True)
        keys = [[listed.get(identity) for identity in table["id"].tolist()] for listed, table in pairs]
        every = {key for its in keys for key in its}
        complete = None not in every and len(every) == len(self._table)
        for index, own in zip(self.index, keys, strict=True):
            index.keys = [*own] if complete else index.keys
        return complete

    @cached_property
    def _lists(self) -> list[dict[int, str]]:
        """Paths by number in the list beside each file; empty without a list."""
        return [_read_list(path.with_suffix(".lst")) for _, path in self.shards]

    def index_file(self, number: int) -> RecordIndex:
        """Indexes the records of file ``number``. Drops InsightFace's records without an image: the first, which has
        the numbers of the records of identities, and those at the end."""
        if number == 0:
            self._tables: list[NDArray[Any]] = []
            self._has_ids, self._without = False, 0
        self._heads = bytearray()
        index = super().index_file(number)
        table, sizes = np.frombuffer(self._heads, _HEAD), np.array(index.numbers[2::3], np.int64)
        table["flag"][sizes < 0] = _DAMAGED
        self._has_ids |= bool(np.any(table["id"] != np.arange(len(table), dtype=np.uint64)))
        first, stop = 0, len(table)
        if np.any(sizes > 0) and sizes[0] == 0 and table["flag"][0] == 2:
            first, stop = 1, int(np.flatnonzero(sizes)[-1]) + 1
        self._without += first + len(table) - stop
        self._tables.append(table[first:stop])
        return RecordIndex(index.numbers[3 * first : 3 * stop], index.keys[first:stop], index.damaged)


def _read_list(file: Path) -> dict[int, str]:
    """Reads the paths of images by number from a ``.lst`` file; none if there is no such file."""
    paths: dict[int, str] = {}
    if not file.is_file():
        return paths
    with refuse_damage(file), file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for place, text in enumerate(iter(lambda: lines.readline(_MAX_LINE), ""), 1):
            line = text.rstrip("\n")
            faces, plain = _FACES_LINE.fullmatch(line), _LINE.fullmatch(line)
            # A line of InsightFace has no number, and gets the number of the line.
            number, name = (place, faces[1]) if faces else (int(plain[1]), plain[2]) if plain else (-1, "")
            if not name or number in paths:
                raise ValueError(f"{line!r:.80} is not a line of a list")
            paths[number] = name
    return paths


class ExportedRecordio(ExportedRows, RecordioSource):
    """Source of ``.rec`` files that packstore exported. Labels are the store's."""

    has_keys = False
    _lists = ()  # type: ignore[assignment]  # the export manifest has the keys

    def decode_header(self, labels: NDArray[np.float32], identity: int) -> dict[str, Any]:
        """Returns the label as an integer; an empty dict if the export holds no labels."""
        return {"label": int(labels[0])} if "label" in self.export_manifest.held else {}


_open = open_with(RecordioSource, ExportedRecordio)
KIND = Kind("recordio", "RecordIO files of MXNet", RecordioSource.recognise, _open)
