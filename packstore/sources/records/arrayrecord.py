"""Reads files of ArrayRecord, whose records are ``tf.train.Example``: Riegeli's chunks, and an index of them at the end
(``array_record/cpp/layout.proto``, ``riegeli/doc/riegeli_records_file_format.md``).

A file consists of blocks of 64 KiB, each with a header of 24 bytes that may interrupt anything. A chunk is a header
and data: sizes of records, and the records, each compressed as a whole. The last block has a chunk with the place of
another chunk, which lists all others. The hash of each chunk that is read, and that of its header, are verified;
headers of blocks are not used.
"""

from __future__ import annotations

import bisect
import os
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.protobuf import Message
from packstore.images.engine import highway_hash
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import load_zstandard
from packstore.sources.base import Kind
from packstore.sources.records import RecordFiles, recognise_shards
from packstore.sources.records.tfrecord import TfrecordSource

SUFFIXES = (".array_record", ".arrayrecord")
_SIGNATURE = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_CHUNK = struct.Struct("<QQQB7sQ")
_MAGIC = 0x71930E704FDAE05E
_VERSION = 1
_MAX_CHUNK = 1 << 29
_MAX_RECORDS = 1 << 24
"""Maximum number of records in a chunk."""
_LEAST_KEPT, _MOST_KEPT, _KEPT_BYTES = 2, 64, 64 << 20
_NONE, _ZSTD = 0, ord("z")
_COMPRESSIONS = {ord("b"): "Brotli", ord("s"): "Snappy"}
_OTHER_CHUNKS = {ord("t"): "transposed chunks", ord("m"): "metadata", ord("p"): "padding", ord("s"): "a signature"}


class ArrayRecordFiles(RecordFiles):
    """Reads records of ArrayRecord files by their numbers; thread-safe. Caches the last chunks: always two, at most 64,
    and up to 64 MiB. Raises :class:`SourceError` for chunks compressed by Zstandard if its library is not
    installed."""

    fault = "{}, record {}: its chunk cannot be read"

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths)
        self._indexes: dict[int, tuple[array[int], array[int]]] = {}
        self._kept: OrderedDict[tuple[int, int], tuple[list[bytes], int]] = OrderedDict()
        self._lock = threading.Lock()

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields the number, size and message of each record of file ``number``. If a chunk cannot be read, each of its
        records has the size 0 and the message None. Raises :class:`SourceError` if the index or all chunks cannot be
        read."""
        read, why = 0, ""
        for chunk, (first, stop) in enumerate(pairwise(self._load_index(number)[1])):
            try:
                records = self._load_chunk(number, chunk)
                read += 1
                yield from ((first + i, len(each), Message.from_bytes(each)) for i, each in enumerate(records))
            except ValueError as error:
                why = str(error)
                yield from ((record, 0, None) for record in range(first, stop))  # reported when it is read
        if why and not read:
            raise SourceError(f"{printable(str(self.paths[number]))} cannot be read as ArrayRecord: {why}")

    def read_record(self, number: int, place: int, length: int) -> bytes | None:
        """Reads record ``place`` of file ``number``; returns None if its chunk is damaged or has no such record.
        Ignores ``length``. Raises :class:`SourceError` if the file has no valid index."""
        firsts = self._load_index(number)[1]
        chunk = bisect.bisect_right(firsts, place) - 1
        try:
            return self._load_chunk(number, chunk)[place - firsts[chunk]]
        except (ValueError, IndexError):
            return None

    def locate_span(self, number: int, place: int, length: int) -> None:
        """Returns None: headers of blocks interrupt the data of a chunk every 64 KiB, and most images are longer."""

    def close(self) -> None:
        """Closes the files, and empties the cache of chunks; reading opens the files again."""
        super().close()
        with self._lock:
            self._kept.clear()

    def _load_chunk(self, number: int, chunk: int) -> list[bytes]:
        """Returns the records of a chunk, from the cache or from the file; caches them. Raises :class:`ValueError` if
        the chunk is damaged, or has more or fewer records than the index says."""
        with self._lock:
            kept = self._kept.get((number, chunk))
        if kept is not None:
            return kept[0]
        places, firsts = self._load_index(number)
        expected = firsts[chunk + 1] - firsts[chunk]
        records = _read_chunk(self.opened[number], places[chunk], _MAX_CHUNK)
        if len(records) != expected:
            raise ValueError(f"a chunk has {len(records)} records, and the index says {expected}")
        with self._lock:
            self._kept[number, chunk] = records, sum(map(len, records))
            while len(self._kept) > _LEAST_KEPT and (
                len(self._kept) > _MOST_KEPT or sum(size for _, size in self._kept.values()) > _KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        return records

    def _load_index(self, number: int) -> tuple[array[int], array[int]]:
        """Returns the index of a file, see :func:`_read_index`; reads it at the first call. Raises :class:`SourceError`
        if it is not valid."""
        if number not in self._indexes:
            try:
                self._indexes[number] = _read_index(self.opened[number])
            except ValueError as error:
                path = printable(str(self.paths[number]))
                raise SourceError(f"{path} cannot be read as ArrayRecord: {error}") from None
        return self._indexes[number]


def is_riegeli(path: Path) -> bool:
    """Tells if a file has the signature of Riegeli, the format of ArrayRecord and others; False if it cannot be
    read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


def _read_index(file: OpenFile) -> tuple[array[int], array[int]]:
    """Reads the index at the end of a file: the offset of each chunk, and the numbers of their first records, followed
    by the number of all records. Raises :class:`ValueError` if it is missing, damaged or inconsistent."""
    size = os.fstat(file.descriptor).st_size
    if size < 2 * _BLOCK or size % _BLOCK:
        raise ValueError(
            f"it has {size} bytes, expected whole blocks of 64 KiB: it is cut off, or another Riegeli file"
        )
    try:
        script = _parse_varints(_read_chunk(file, size - _BLOCK, _BLOCK)[0])
    except (ValueError, IndexError):
        raise ValueError("its last block has no index: it is cut off, or another Riegeli file") from None
    if script.get(2) != _MAGIC or not 0 < script.get(1, 0) < size:
        raise ValueError("its last block has no index of ArrayRecord")
    metadata, *entries = _read_chunk(file, script[1], _MAX_CHUNK) or [b""]
    message = Message.from_bytes(metadata)
    spans = [(low, high) for field, wire, low, high in message.fields(0, message.size) if (field, wire) == (1, 2)]
    said = _parse_varints(metadata[spans[0][0] : spans[0][1]]) if spans else {}
    if said.get(1) != _VERSION:
        raise ValueError(f"its index has version {said.get(1)}, expected {_VERSION}")
    places, counts = array("q"), array("q")
    for entry in entries:
        row = _parse_varints(entry)
        places.append(min(row.get(1, -1), 1 << 62))
        counts.append(min(row.get(3, 0), 1 << 62))
    if len(entries) != said.get(2, 0) or sum(counts) != said.get(3, 0) or sum(counts) > size:
        raise ValueError("its index does not have as many chunks or records as it says")
    if entries and (min(places) < len(_SIGNATURE) or max(places) >= script[1] or min(counts) < 1):
        raise ValueError("its index names a chunk where none can be")
    return places, array("q", accumulate(counts, initial=0))


def _parse_varints(data: bytes) -> dict[int, int]:
    """Returns the integers in a protobuf message by field number; skips other fields. Raises :class:`ValueError` for an
    invalid message."""
    message = Message.from_bytes(data)
    return {
        field: message.read_varint(low, high)[0]
        for field, wire, low, high in message.fields(0, message.size)
        if wire == 0
    }


def _read_chunk(file: OpenFile, place: int, limit: int) -> list[bytes]:
    """Reads, verifies and decompresses the records of the chunk at ``place``. Raises :class:`ValueError` if it is
    damaged, of another type, or larger than ``limit`` bytes."""
    head, after = _read_without_block_headers(file, place, _CHUNK.size)
    if len(head) < _CHUNK.size:
        raise ValueError("a chunk is cut off")
    own, size, its, kind, counted, decoded = _CHUNK.unpack(head)
    _check_hash(head[8:], own, "the header of a chunk")
    count, end = int.from_bytes(counted, "little"), os.fstat(file.descriptor).st_size
    if size > end - after or count > end:
        raise ValueError(f"a chunk of {size} bytes and {count} records, where none can be")
    if kind != ord("r"):
        raise ValueError(f"{_OTHER_CHUNKS.get(kind, f'a chunk of type {kind}')}, where records should be")
    if max(size, decoded) > limit:
        raise ValueError(f"a chunk of {max(size, decoded)} bytes, more than {limit}")
    data, _ = _read_without_block_headers(file, after, size)
    if len(data) < max(1, size):
        raise ValueError("a chunk is cut off")
    _check_hash(data, its, "the data of a chunk")
    size, at = Message.from_bytes(data).read_varint(1, len(data))
    if at + size > len(data):
        raise ValueError("a chunk ends within the sizes of its records")
    if count > _MAX_RECORDS:
        raise ValueError(f"a chunk of {count} records, more than {_MAX_RECORDS}")
    sizes = Message.from_bytes(_decompress(data[0], data[at : at + size], 10 * count))
    values = _decompress(data[0], data[at + size :], decoded)
    records, start, at = [], 0, 0
    for _ in range(count):
        size, at = sizes.read_varint(at, sizes.size)
        if size > len(values) - start:
            raise ValueError("a chunk has records that are longer than itself")
        records.append(values[start : start + size])
        start += size
    if start != len(values) or at != sizes.size:
        raise ValueError("a chunk has more than its records")
    return records


def _check_hash(data: bytes, expected: int, what: str) -> None:
    """Raises :class:`ValueError` if data has another hash; ``what`` names the data."""
    found = highway_hash(data)
    if found != expected:
        raise ValueError(f"{what} has the hash {found:016x}, expected {expected:016x}: it is damaged")


def _read_without_block_headers(file: OpenFile, place: int, size: int) -> tuple[bytes, int]:
    """Reads ``size`` bytes from ``place`` on, without the headers of blocks among them. Returns the bytes, fewer at the
    end of the file, and the offset after them."""
    start, left, spans = place, size, []
    while left:
        if place % _BLOCK < _BLOCK_HEADER:
            place += _BLOCK_HEADER - place % _BLOCK
        part = min(left, _BLOCK - place % _BLOCK)
        spans.append((place, part))
        place, left = place + part, left - part
    raw = file.read(place - start, start)
    return b"".join([raw[at - start : at - start + part] for at, part in spans]), place


def _decompress(kind: int, data: bytes, limit: int) -> bytes:
    """Decompresses data; ``kind`` is Riegeli's code for no compression or Zstandard. Raises :class:`ValueError` for
    other compressions, damage and more than ``limit`` bytes. Raises :class:`SourceError` if the library for Zstandard
    is not installed."""
    if kind == _NONE:
        if len(data) > limit:
            raise ValueError(f"{len(data)} bytes, more than {limit}")
        return data
    if kind in _COMPRESSIONS:
        how = _COMPRESSIONS[kind]
        raise ValueError(f"it is compressed by {how}, which packstore does not read: write it again with zstd")
    if kind != _ZSTD:
        raise ValueError(f"a compression of type {kind}")
    size, at = Message.from_bytes(data).read_varint(0, len(data))
    if size > limit:
        raise ValueError(f"{size} bytes, more than {limit}")
    if not size:
        return b""
    zstandard = load_zstandard("ArrayRecord")
    try:
        with zstandard.ZstdDecompressor().stream_reader(data[at:]) as stream:
            content: bytes = stream.read(size + 1)
    except zstandard.ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
    if len(content) != size:
        raise ValueError(f"it has {len(content)} bytes decompressed, expected {size}")
    return content


class ArrayRecordSource(TfrecordSource):
    """Source of ArrayRecord files: one file, or all in a folder. Columns and refusals are those of
    :class:`TfrecordSource`."""

    kind = "arrayrecord"
    format_name = "ArrayRecord"
    suffixes = SUFFIXES
    is_shard = staticmethod(is_riegeli)

    def open_records(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of ArrayRecord files."""
        return ArrayRecordFiles(paths)


KIND = Kind(
    "arrayrecord",
    "ArrayRecord files of tf.train.Example",
    lambda path, _: recognise_shards(path, SUFFIXES, is_riegeli),
    ArrayRecordSource,
)
