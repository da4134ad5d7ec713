"""Reads shards of TFRecord whose records are ``tf.train.Example``: an index of records, and facts about their
features.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.protobuf import Feature, Message, read_example
from packstore.core.tfrecord import CHECK, HEADER, parse_record_length, verify_data
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import detect_compression, open_decompressor
from packstore.sources.base import SourceOptions
from packstore.sources.records.facts import ExampleFacts
from packstore.sources.records.shards import OpenFiles, ShardSource, explain_damage
from packstore.sources.rows import Row
from packstore.stores.link_files import Location

KEYS = ("key", "image/filename", "file_name", "filename", "image/file_name")
"""Features that are the samples' keys if all their values differ."""
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz", ".tfrecord.zlib")
"""Suffixes of TFRecord files."""
MAX_RECORD = (1 << 31) - 1
_WINDOW = 1 << 11
_MAX_KEY = 4096
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def is_tfrecord(path: Path) -> bool:
    """Tells if the first record of a file, also a compressed one, may be an example. True for an empty file with the
    name of a record file. False if the file cannot be read."""
    try:
        kind = find_compression(path)
        with path.open("rb") as file, explain_damage(path):
            start = file.read(64) if kind is None else open_decompressor(file, kind, path.name).read(64)
        if kind is None and not start:
            return path.name.lower().endswith(SUFFIXES) or "-of-" in path.name
        parse_record_length(start, 1 << 62)
    except (OSError, ValueError, SourceError):
        return False
    return start[HEADER:][:1] in (b"", b"\x0a") or start[:8] == bytes(8)


def find_compression(path: Path) -> str | None:
    """Detects the compression of a file of records by its first bytes: ``gz``, ``bz2``, ``xz``, ``zst`` or ``zlib``;
    returns None for plain records, and for any other file. Raises :class:`OSError`."""
    with path.open("rb") as file:
        start = file.read(HEADER)
    try:
        parse_record_length(start, 1 << 62)
    except ValueError:
        return "zlib" if start.startswith(_ZLIB) else detect_compression(path)
    return None


class Example:
    """A ``tf.train.Example``, whose values are read when they are asked for.

    Attributes:
        message: The bytes of the example.
        features: Location of the values of each feature.
    """

    def __init__(self, message: Message) -> None:
        """Locates the features. Raises :class:`ValueError` for any other message."""
        self.message, self.features = message, read_example(message)

    def byte_values(self, name: str) -> list[bytes]:
        """Reads the values of a feature of bytes; ``[]`` without values. Raises :class:`ValueError` for numbers, and if
        the feature is missing."""
        feature = self.find(name)
        if feature.kind not in ("bytes", ""):
            raise ValueError("found numbers, expected texts or files")
        return feature.bytes(self.message)

    def only_bytes(self, name: str) -> bytes:
        """Reads the only value of a feature of bytes. Raises :class:`ValueError` for any other number or type of
        values."""
        values = self.byte_values(name)
        if len(values) != 1:
            raise ValueError(f"found {len(values)} values, expected one of bytes")
        return values[0]

    def numbers(self, name: str, dtype: str = "") -> NDArray[Any]:
        """Reads the numbers of a feature. Raises :class:`ValueError` for bytes, for numbers beyond an integer
        ``dtype``, and if the feature is missing."""
        feature = self.find(name)
        if feature.kind == "bytes":
            raise ValueError("found bytes, expected numbers")
        numbers = feature.numbers(self.message)
        if not dtype or numbers.dtype.name == dtype:
            return numbers
        if dtype == "uint64" and numbers.dtype == np.int64:
            return numbers.view(np.uint64)
        values = numbers.astype(dtype)
        if dtype != "uint64" and values.dtype.kind in "iub" and not np.array_equal(values, numbers):
            raise ValueError(f"found numbers beyond {dtype}")
        return values

    def only_number(self, name: str) -> Any:
        """Reads the only number of a feature; None if the feature is missing or has no values. Raises
        :class:`ValueError` for several numbers or bytes."""
        numbers = self.numbers(name) if name in self.features else np.zeros(0)
        if len(numbers) > 1:
            raise ValueError(f"found {len(numbers)} numbers, expected one")
        return numbers[0] if len(numbers) else None

    def has_values(self, name: str) -> bool:
        """Tells if a feature is there, and has a type of values."""
        return name in self.features and self.features[name].kind != ""

    def find(self, name: str) -> Feature:
        """Returns a feature. Raises :class:`ValueError` if it is missing."""
        if name not in self.features:
            raise ValueError(f"it has no feature {name}")
        return self.features[name]


@dataclass(slots=True)
class _ExampleIndex:
    """Index of the records of a shard. A record takes 24 bytes and its key.

    Attributes:
        places: Offset of the data of each record.
        lengths: Bytes of the data.
        sizes: Bytes of the main image.
        keys: Keys of the records; None for records without one, and for damaged ones.
        damaged: Offset and reason if the rest of the file cannot be read.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str | None] = field(default_factory=list)
    damaged: tuple[int, str] | None = None


class RecordFiles(Protocol):
    """Reader of numbered files of records.

    Attributes:
        fault: Message for a damaged record, with placeholders for file name and offset.
    """

    fault: str

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields place, size and message of each record of file ``number``; the message of a damaged record is None.
        Raises :class:`DamageError` if the rest of the file cannot be read, and :class:`SourceError` if no record can
        be read."""

    def read_record(self, number: int, place: int, length: int) -> bytes | None:
        """Reads the data of a record, and verifies its checksum. Returns None for a damaged record."""

    def locate_span(self, number: int, place: int, length: int) -> Location | None:
        """Locates the data of a record. Returns None if they are not plain bytes of the file."""

    def close(self) -> None:
        """Closes all files; reading opens them again."""


class DamageError(ValueError):
    """Damage after which the rest of a file of records cannot be read.

    Attributes:
        at: Offset of the damage in bytes.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


class TfrecordFiles:
    """Reads records of TFRecord files, also compressed ones, by the offsets of their data."""

    fault = "{}, byte {}: the record does not match its checksum"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = OpenFiles(paths, find_compression)

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields offset, size and message of each record. Reads only headers, and the first bytes of data. A message
        reads further bytes when the caller asks for them. Does not verify checksums of data. Raises
        :class:`DamageError` for a damaged header, and for a record larger than an example can be."""
        file = self._files[number]
        at, end = 0, os.fstat(file.descriptor).st_size
        while at < end:
            start = file.read(HEADER + _WINDOW, at)
            try:
                length = parse_record_length(start, end - at)
                if length > MAX_RECORD:
                    raise ValueError(f"a record has {length} bytes, more than an example can have")
            except ValueError as error:
                raise DamageError(at, str(error)) from None
            place = at + HEADER
            yield place, length, Message(length, _make_range_reader(file, place, length), start[HEADER:][:length])
            at = place + length + CHECK

    def read_record(self, number: int, place: int, length: int) -> bytes | None:
        """Reads the ``length`` bytes of a record's data at offset ``place``; returns None if they do not match the
        checksum."""
        return verify_data(self._files[number].read(length + CHECK, place), length)

    def locate_span(self, number: int, place: int, length: int) -> Location | None:
        """Locates the data of a record. Returns None if the file is compressed, or has been replaced."""
        return self._files.locate_span(number, place, length)

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        self._files.close()


class ExampleSource(ShardSource):
    """Base of sources whose shards hold ``tf.train.Example`` records.

    The first listing reads all records except their images. A record with a wrong checksum is a bad sample. If a length
    is wrong, the rest of the file is one bad sample.

    Attributes:
        label_names: Features that name the class of a label, by the feature of the label.
        record_files: Class that reads the records of the shards.
    """

    label_names: Mapping[str, tuple[str, ...]] = {}
    record_files: Callable[[Sequence[Path]], RecordFiles] = TfrecordFiles

    def __init__(self, path: Path, options: SourceOptions, shards: Sequence[tuple[str, Path]]) -> None:
        super().__init__(path, options)
        self.shards = shards
        self._files = self.record_files([file for _, file in self.shards])

    @abstractmethod
    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the values of an example, by column. Raises :class:`ValueError` for a value that does not fit its
        column."""

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each record. If the rest of a shard is damaged, yields one more row, and reading that row
        raises an error. If :attr:`has_keys`, rows have the keys of their records; a damaged record has file name and
        offset as key. Else all rows take ``keys``."""
        index, name = self.index[number], self.shards[number][1].name
        for i, (place, length, size) in enumerate(zip(index.places, index.lengths, index.sizes, strict=True)):
            key, own = next(keys), index.keys[i]
            if self.has_keys:
                key = f"{name}#{place}" if own is None else own
            yield Row(key, (number, place, length), size, length - size)
        if index.damaged is not None:
            at, reason = index.damaged
            yield Row(f"{next(keys)}…", (number, at, -1, f"{name}, byte {at}: {reason}"), 0)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads a record, verifies its checksum, and decodes it. Raises :class:`ValueError` if the record is damaged,
        or a value does not fit its column."""
        number, place, length, *reason = ref
        if reason:
            raise ValueError(f"{reason[0]}; the rest of this file cannot be read")
        data = self._files.read_record(number, place, length)
        if data is None:
            raise ValueError(self._files.fault.format(self.shards[number][1].name, place))
        return self.decode_example(Example(Message.from_bytes(data)))

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the data of the record that has the image. Returns None if these data are not plain bytes of the
        file, or cannot be read."""
        number, place, length, *reason = ref
        return None if reason else self._files.locate_span(number, place, length)

    def close(self) -> None:
        """Closes the source and its open shards."""
        super().close()
        self._files.close()

    @cached_property
    def facts(self) -> ExampleFacts:
        """Facts about the features of all records; complete once :attr:`index` is."""
        return ExampleFacts(self.label_names)

    @cached_property
    def index(self) -> list[_ExampleIndex]:
        """Indexes of the shards. The first use reads all records, and collects :attr:`facts`. Raises
        :class:`SourceError` if there are no records, or none is an example."""
        indexes = [self._index_file(number) for number in range(len(self.shards))]
        if not any(len(index.places) or index.damaged for index in indexes):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records")
        if not self.facts.parsed:
            reason = next((index.damaged[1] for index in indexes if index.damaged), "none of its records is an example")
            raise SourceError(f"{printable(str(self.path))}: {self._pickle_advice(indexes) or reason}")
        return indexes

    def _pickle_advice(self, indexes: Sequence[_ExampleIndex]) -> str | None:
        """Returns advice for the user if records are pickles, else None. The first record decides, by its first and
        last bytes."""
        number = next(number for number, index in enumerate(indexes) if index.places or index.damaged)
        index = indexes[number]
        data = self._files.read_record(number, index.places[0], index.lengths[0]) if index.places else None
        if not data or data[0] != 0x80 or data[1:2] not in (b"\2", b"\3", b"\4", b"\5") or data[-1:] != b".":
            return None
        return (
            "its records are pickles, which packstore does not unpickle, since that can run code: read them with the "
            "program that wrote them, and write tf.train.Example, or files"
        )

    @cached_property
    def key_feature(self) -> str | None:
        """Name of the feature with the samples' keys; None unless :attr:`has_keys`."""
        assert self.index
        return self._first_key_feature if self.has_keys else None

    @cached_property
    def has_keys(self) -> bool:
        """True if every readable record has a key, and all keys differ. False if no record is readable. Reads records
        with equal keys again, and removes the keys of damaged ones from :attr:`index`."""
        names = (name for index in self.index for name in index.keys)
        digests = np.fromiter(map(_digest_key, names), np.uint64)
        values, counts = np.unique(digests[digests != 0], return_counts=True)
        if not 0 < self.facts.parsed <= counts.sum():
            return False
        twice = set(values[counts > 1].tolist())
        return not twice or not self._has_duplicate_key(digests, twice)

    def _has_duplicate_key(self, digests: NDArray[np.uint64], twice: set[int]) -> bool:
        """Tells if two undamaged records have the same key. Reads only records whose key has a digest in ``twice``, and
        removes the keys of damaged ones from the index."""
        good: set[int] = set()
        places = ((number, i) for number, index in enumerate(self.index) for i in range(len(index.keys)))
        for digest, (number, i) in zip(digests.tolist(), places, strict=True):
            if digest not in twice:
                continue
            index = self.index[number]
            if self._files.read_record(number, index.places[i], index.lengths[i]) is None:
                index.keys[i] = None
            elif digest in good:
                return True
            else:
                good.add(digest)
        return False

    @cached_property
    def _first_key_feature(self) -> str:
        """First of the usual features of keys that occurs in a record; ``""`` if none does."""
        return next((name for name in KEYS if name in self.facts.features), "")

    def _index_file(self, number: int) -> _ExampleIndex:
        """Indexes the records of file ``number``, and adds to :attr:`facts`. Stops at a wrong length, and records its
        place as damage."""
        index = _ExampleIndex()
        try:
            for place, length, message in self._files.walk_records(number):
                size, key = (length, None) if message is None else self.index_record(number, place, message)
                index.places.append(place)
                index.lengths.append(length)
                index.sizes.append(size)
                index.keys.append(key)
        except DamageError as damage:
            index.damaged = damage.at, str(damage)
        return index

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of a record's image, and its key or None; adds to :attr:`facts`. For an invalid record,
        returns the size of the record and None. Reads only the needed parts of a record. If the record has new facts,
        reads all of it, and discards the facts if its checksum is wrong."""
        try:
            example = Example(message)
            self.facts.add_example(
                example.features, message, lambda: self._files.read_record(number, place, message.size) is not None
            )
            return measure_largest_value(example.features), _read_key(example)
        except ValueError:
            return message.size, None  # reported when it is read


def _make_range_reader(file: OpenFile, place: int, length: int) -> Callable[[int, int], bytes]:
    """Returns a function ``(size, offset)`` that reads bytes of one record. It reads fewer at the record's end."""
    return lambda size, at: file.read(min(size, length - at), place + at)


def measure_largest_value(features: Mapping[str, Feature]) -> int:
    """Returns the size of the largest single value of bytes, which is probably the image; 0 if there is none."""
    spans = (f.spans[0] for f in features.values() if f.kind == "bytes" and len(f.spans) == 1)
    return max((stop - start for _, start, stop in spans), default=0)


def _read_key(example: Example) -> str | None:
    """Reads the key of an example from the first of :data:`KEYS` among its features. Returns None unless the value is
    printable text of less than 4,096 bytes. Raises :class:`ValueError` for a text that is not UTF-8."""
    feature = example.features.get(next((name for name in KEYS if name in example.features), ""), Feature())
    if feature.kind != "bytes" or len(feature.spans) != 1:
        return None
    _, start, stop = feature.spans[0]
    name = example.message.get(start, stop).decode("utf-8") if stop - start < _MAX_KEY else ""
    return name if name and name.isprintable() else None


def _digest_key(key: str | None) -> int:
    """Hashes a key to a positive integer, or returns 0 for None."""
    return 0 if key is None else xxhash.xxh3_64_intdigest(key.encode()) or 1


def scale_boxes(boxes: NDArray[np.float64], image: Any) -> NDArray[np.float64]:
    """Converts boxes ``(n, 4)`` as fractions of the image to pixels. ``image``: the bytes of its file, or an array.
    Raises :class:`ValueError` if its size cannot be read."""
    if isinstance(image, np.ndarray):
        height, width = image.shape[:2]
    else:
        try:
            width, height = upright_size(image or b"")
        except HeaderError as error:
            raise ValueError(error.reason) from None
    scaled: NDArray[np.float64] = boxes * (width, height, width, height)
    return scaled
