"""Reads files of ArrayRecord, whose records are ``tf.train.Example``: Riegeli's chunks, and an index of them at the end
(``array_record/cpp/layout.proto``, ``riegeli/doc/riegeli_records_file_format.md``).

A file consists of blocks of 64 KiB, each with a header of 24 bytes that may interrupt anything. A chunk is a header
and data: sizes of records, and the records, each compressed as a whole. The last block has a chunk with the place of
another chunk, which lists all others. The hash of each chunk that is read, and that of its header, are verified;
headers of blocks are not used.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.core.protobuf import Message
from packstore.images.engine import highway_hash
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import load_zstandard
from packstore.sources.base import Kind
from packstore.sources.records import RecordFiles, refuse_damage
from packstore.sources.records.tfrecord import TfrecordSource
from packstore.sources.refusals import first_bytes

_SIGNATURE = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_CHUNK = struct.Struct("<QQQB7sQ")
_MAGIC = 0x71930E704FDAE05E
_VERSION = 1
_MAX_CHUNK = 1 << 29
_MAX_RECORDS = 1 << 24
"""Maximum number of records in a chunk."""
_KEPT = 4
"""Number of chunks to keep in memory."""
_RECORDS, _NONE, _ZSTD = b"r\0z"


class ArrayRecordFiles(RecordFiles):
    """Reads records of ArrayRecord files by their numbers; thread-safe. Caches the last four chunks. Raises
    :class:`SourceError` for chunks compressed by Zstandard if its library is not installed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths)
        self._load_index = lru_cache(None)(self._read_index)
        self._load_chunk = lru_cache(_KEPT)(self._read_chunk)

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields the number, size and message of each record of file ``number``. If a chunk cannot be read, each of its
        records has the size 0 and the message None. Raises :class:`SourceError` if the index or all chunks cannot be
        read."""
        firsts, faults = self._load_index(number)[1], list[str]()
        for chunk, (first, stop) in enumerate(pairwise(firsts)):
            try:
                records = self._load_chunk(number, chunk)
                yield from ((first + i, len(each), Message.from_bytes(each)) for i, each in enumerate(records))
            except ValueError as error:
                faults.append(str(error))
                yield from ((record, 0, None) for record in range(first, stop))  # reported when it is read
        if faults and len(faults) == len(firsts) - 1:
            raise SourceError(f"{printable(str(self.paths[number]))} cannot be read: {faults[0]}")

    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads record ``place`` of file ``number``; ignores ``length``. Raises :class:`ValueError` if its chunk is
        damaged, and :class:`SourceError` if the file has no valid index."""
        firsts = self._load_index(number)[1]
        chunk = bisect.bisect_right(firsts, place) - 1
        try:
            return self._load_chunk(number, chunk)[place - firsts[chunk]]
        except ValueError as error:
            raise ValueError(f"record {place}: {error}") from None

    def close(self) -> None:
        """Closes the files, and empties the cache of chunks; reading opens the files again."""
        super().close()
        self._load_chunk.cache_clear()

    def _read_chunk(self, number: int, chunk: int) -> list[bytes]:
        """Reads the records of a chunk. Raises :class:`ValueError` if it is damaged, or has more or fewer records than
        the index says."""
        places, firsts = self._load_index(number)
        records = _read_chunk(self[number], places[chunk], _MAX_CHUNK)
        if len(records) != firsts[chunk + 1] - firsts[chunk]:
            raise ValueError(f"a chunk has {len(records)} records, unlike its index")
        return records

    def _read_index(self, number: int) -> tuple[array[int], array[int]]:
        """Reads the index at the end of a file: the offset of each chunk, and the numbers of their first records,
        followed by the number of all records. Raises :class:`SourceError` if it is missing, damaged or inconsistent."""
        with refuse_damage(self.paths[number]):
            file = self[number]
            if file.size < 2 * _BLOCK or file.size % _BLOCK:
                raise ValueError(f"it has {file.size} bytes, expected whole blocks of 64 KiB: it is cut off")
            script = _parse_varints(_read_chunk(file, file.size - _BLOCK, _BLOCK)[0])
            if script.get(2) != _MAGIC or not 0 < script.get(1, 0) < file.size:
                raise ValueError("its last block has no index of ArrayRecord")
            metadata, *entries = _read_chunk(file, script[1], _MAX_CHUNK)
            spans = [span[2:] for span in Message.from_bytes(metadata).fields(0, len(metadata)) if span[:2] == (1, 2)]
            said = _parse_varints(metadata[slice(*spans[0])])
            places, counts = array("q"), array("q")
            for row in map(_parse_varints, entries):
                places.append(row.get(1, -1))
                counts.append(row.get(3, 0))
            if said.get(1) != _VERSION or (len(places), sum(counts)) != (said.get(2, 0), said.get(3, 0)):
                raise ValueError(f"its index has another version or other numbers than it says: {said}")
            possible = all(len(_SIGNATURE) <= place < script[1] for place in places) and min(counts, default=1) > 0
            if not possible or sum(counts) > file.size:
                raise ValueError("its index names chunks where none can be")
            return places, array("q", accumulate(counts, initial=0))


def _parse_varints(data: bytes) -> dict[int, int]:
    """Returns the integers in a protobuf message by field number; skips other fields. Raises :class:`ValueError` for an
    invalid message."""
    message = Message.from_bytes(data)
    numbers = (each for each in message.fields(0, message.size) if each[1] == 0)
    return {field: message.read_varint(low, high)[0] for field, _, low, high in numbers}


def _read_chunk(file: OpenFile, place: int, limit: int) -> list[bytes]:
    """Reads, verifies and decompresses the records of the chunk at ``place``. Raises :class:`ValueError` if it is
    damaged, of another type, or larger than ``limit`` bytes."""
    head, after = _read_without_block_headers(file, place, _CHUNK.size)
    own, size, its, kind, counted, decoded = _CHUNK.unpack(head.ljust(_CHUNK.size, b"\0"))
    count = int.from_bytes(counted, "little")
    _check_hash(head[8:], own)
    if kind != _RECORDS or not 0 < size <= min(limit, file.size) or decoded > limit or count > _MAX_RECORDS:
        raise ValueError(f"a chunk of type {chr(kind)!r} with {count} records of {decoded} bytes, which is not read")
    data, _ = _read_without_block_headers(file, after, size)
    if len(data) < size:
        raise ValueError("a chunk is cut off")
    _check_hash(data, its)
    packed, at = Message.from_bytes(data).read_varint(1, len(data))
    sizes = Message.from_bytes(_decompress(data[0], data[at : at + packed], 10 * count))
    values, records = _decompress(data[0], data[at + packed :], decoded), []
    start = at = 0
    for _ in range(count):
        size, at = sizes.read_varint(at, sizes.size)
        records.append(values[start : start + size])
        start += size
    if start != len(values) or at != sizes.size:
        raise ValueError(f"a chunk has records of {start} bytes in {len(values)}")
    return records


def _check_hash(data: bytes, expected: int) -> None:
    """Raises :class:`ValueError` if data has another hash."""
    if highway_hash(data) != expected:
        raise ValueError("a chunk is damaged: it does not match its hash")


def _read_without_block_headers(file: OpenFile, place: int, size: int) -> tuple[bytes, int]:
    """Reads ``size`` bytes from ``place`` on, without the headers of blocks among them. Returns the bytes, fewer at the
    end of the file, and the offset after them."""
    start, left, spans = place, size, []
    while left:
        place += max(0, _BLOCK_HEADER - place % _BLOCK)
        part = min(left, _BLOCK - place % _BLOCK)
        spans.append((place - start, place - start + part))
        place, left = place + part, left - part
    raw = file.read(place - start, start)
    return b"".join([raw[at:end] for at, end in spans]), place


def _decompress(kind: int, data: bytes, limit: int) -> bytes:
    """Decompresses data; ``kind`` is Riegeli's code for no compression or Zstandard. Raises :class:`ValueError` for
    other compressions, damage and more than ``limit`` bytes. Raises :class:`SourceError` if the library for Zstandard
    is not installed."""
    size, at = (len(data), 0) if kind == _NONE else Message.from_bytes(data).read_varint(0, len(data))
    if kind not in (_NONE, _ZSTD) or size > limit:
        raise ValueError(f"{size} bytes in the compression {chr(kind)!r}, which packstore does not read")
    if kind == _NONE or not size:
        return data[at:] if kind == _NONE else b""
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
    unit = "ArrayRecord file"
    suffixes = (".array_record", ".arrayrecord")

    @classmethod
    def is_shard(cls, path: Path) -> bool:
        """Tells if a file has the signature of Riegeli, the format of ArrayRecord and others."""
        return first_bytes(path, len(_SIGNATURE)) == _SIGNATURE

    def find_image(self, number: int, place: int, length: int) -> None:
        """Returns None: headers of blocks interrupt the data of a chunk every 64 KiB, and most images are longer."""

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of ArrayRecord files."""
        return ArrayRecordFiles(paths)


KIND = Kind("arrayrecord", "ArrayRecord files of tf.train.Example", ArrayRecordSource.recognise, ArrayRecordSource)
