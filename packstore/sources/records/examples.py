"""Shards of TFRecord whose records are ``tf.train.Example``: an index of them, and what their features hold."""

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
from packstore.core.tfrecord import CHECK, HEADER, record_length, verify_data
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import detect_compression, open_decompressor
from packstore.sources.base import SourceOptions
from packstore.sources.records.facts import ExampleFacts
from packstore.sources.records.files import OpenFiles, faults_of
from packstore.sources.records.shards import ShardSource
from packstore.sources.rows import Row
from packstore.stores.link_files import Location

KEYS = ("key", "image/filename", "file_name", "filename", "image/file_name")
"""Features that are the samples' keys where they are all different."""
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz", ".tfrecord.zlib")
"""Of TFRecord files."""
MAX_RECORD = (1 << 31) - 1
_WINDOW = 1 << 11
_MAX_KEY = 4096
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def is_tfrecord(path: Path) -> bool:
    """Whether the first record of a file may be an example; of an empty file, that it is one of records."""
    try:
        kind = compression(path)
        with path.open("rb") as file, faults_of(path):
            start = file.read(64) if kind is None else open_decompressor(file, kind, path.name).read(64)
        if kind is None and not start:
            return path.name.lower().endswith(SUFFIXES) or "-of-" in path.name
        record_length(start, 1 << 62)
    except (OSError, ValueError, SourceError):
        return False
    return start[HEADER:][:1] in (b"", b"\x0a") or start[:8] == bytes(8)


def compression(path: Path) -> str | None:
    """How a file of records is compressed: gzip, or zlib, which has no magic number; None where it is not."""
    with path.open("rb") as file:
        start = file.read(HEADER)
    try:
        record_length(start, 1 << 62)
    except ValueError:
        return "zlib" if start.startswith(_ZLIB) else detect_compression(path)
    return None


@dataclass(slots=True)
class _Index:
    """The records of a shard: some 30 bytes each, and their keys.

    Attributes:
        places: Where their data begin.
        lengths: Bytes of their data.
        sizes: Bytes of their main image.
        keys: What they are called; None for those that cannot be read.
        damaged: Where nothing more can be read, and why.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str | None] = field(default_factory=list)
    damaged: tuple[int, str] | None = None


class RecordFiles(Protocol):
    """Files of records.

    Attributes:
        fault: What is wrong with a record that :meth:`checked` does not give, of the name of its file and its place.
    """

    fault: str

    def walk(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Place, size and data of each record of a file; no data where they are known to be damaged. Raises
        :class:`DamageError` where nothing after it can be found, and :class:`SourceError`."""

    def checked(self, number: int, place: int, length: int) -> bytes | None:
        """The data of a record; None where they are damaged."""

    def stretch(self, number: int, place: int, length: int) -> Location | None:
        """Where a record's data lie; None if they are no plain bytes of the file."""

    def close(self) -> None:
        """Closes what nobody reads; reading opens it again."""


class DamageError(ValueError):
    """What ends a file of records before its end.

    Attributes:
        at: Where, in bytes.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


class TfrecordFiles:
    """The records of TFRecord files, by the bytes where their data begin."""

    fault = "{}, byte {}: the record does not match its checksum"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = OpenFiles(paths, compression)

    def walk(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        file = self._files[number]
        at, end = 0, os.fstat(file.descriptor).st_size
        while at < end:
            start = file.read(HEADER + _WINDOW, at)
            try:
                length = record_length(start, end - at)
                if length > MAX_RECORD:
                    raise ValueError(f"a record has {length} bytes, more than an example can have")
            except ValueError as error:
                raise DamageError(at, str(error)) from None
            place = at + HEADER
            yield place, length, Message(length, _reader(file, place, length), start[HEADER:][:length])
            at = place + length + CHECK

    def checked(self, number: int, place: int, length: int) -> bytes | None:
        return verify_data(self._files[number].read(length + CHECK, place), length)

    def stretch(self, number: int, place: int, length: int) -> Location | None:
        return self._files.stretch(number, place, length)

    def close(self) -> None:
        self._files.close()


class ExampleSource(ShardSource):
    """Shards of examples.

    The first listing walks all records, and reads all of each but its image. A record whose checksum is wrong is a bad
    sample; where a length is wrong, what is left of that file is one.

    Attributes:
        label_names: By the feature of a label, the features that name its class.
        record_files: How the records of its shards are read.
    """

    label_names: Mapping[str, tuple[str, ...]] = {}
    record_files: Callable[[Sequence[Path]], RecordFiles] = TfrecordFiles

    def __init__(self, path: Path, options: SourceOptions, shards: Sequence[tuple[str, Path]]) -> None:
        super().__init__(path, options)
        self.shards = shards
        self._files = self.record_files([file for _, file in self.shards])

    @abstractmethod
    def decoded(self, features: Mapping[str, Feature], message: Message) -> dict[str, Any]:
        """The values of an example by column. Raises :class:`ValueError`."""

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        index, name = self.index[number], self.shards[number][1].name
        for i, (place, length, size) in enumerate(zip(index.places, index.lengths, index.sizes, strict=True)):
            key, own = next(keys), index.keys[i]
            if self.has_keys:
                key = f"{name}#{place}" if own is None else own
            yield Row(key, (number, place, length), size, length - size)
        if index.damaged is not None:
            at, reason = index.damaged
            yield Row(f"{next(keys)}…", (number, at, -1, f"{name}, byte {at}: {reason}"), 0)

    def values(self, ref: Any) -> dict[str, Any]:
        number, place, length, *reason = ref
        if reason:
            raise ValueError(f"{reason[0]}; what is left of this file cannot be read")
        data = self._files.checked(number, place, length)
        if data is None:
            raise ValueError(self._files.fault.format(self.shards[number][1].name, place))
        message = Message.from_bytes(data)
        return self.decoded(read_example(message), message)

    def locate_row(self, ref: Any) -> Location | None:
        return self._files.stretch(*ref[:3])

    def close(self) -> None:
        super().close()
        self._files.close()

    @cached_property
    def found(self) -> ExampleFacts:
        """What the records say of their features, once :attr:`index` is there."""
        return ExampleFacts(self.label_names)

    @cached_property
    def index(self) -> list[_Index]:
        """The records of all shards; fills :attr:`found`."""
        found = [self._indexed(number) for number in range(len(self.shards))]
        if not any(len(index.places) or index.damaged for index in found):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records")
        if not self.found.parsed:
            reason = next((index.damaged[1] for index in found if index.damaged), "none of its records is an example")
            raise SourceError(f"{printable(str(self.path))}: {self._pickled(found) or reason}")
        return found

    def _pickled(self, found: Sequence[_Index]) -> str | None:
        """What to do about records that begin and end as pickles do."""
        number = next(number for number, index in enumerate(found) if index.places or index.damaged)
        index = found[number]
        data = self._files.checked(number, index.places[0], index.lengths[0]) if index.places else None
        if not data or data[0] != 0x80 or data[1:2] not in (b"\2", b"\3", b"\4", b"\5") or data[-1:] != b".":
            return None
        return (
            "its records are pickles, which packstore does not unpickle, since that can run code: read them with the "
            "program that wrote them, and write tf.train.Example, or files"
        )

    @cached_property
    def key_feature(self) -> str | None:
        """The feature that is the samples' key."""
        assert self.index
        return self._key_feature if self.has_keys else None

    @cached_property
    def has_keys(self) -> bool:
        """Every record has a key, and no two have the same."""
        names = (name for index in self.index for name in index.keys)
        digests = np.fromiter(map(_digest, names), np.uint64)
        values, counts = np.unique(digests[digests != 0], return_counts=True)
        if not 0 < self.found.parsed <= counts.sum():
            return False
        twice = set(values[counts > 1].tolist())
        return not twice or not self._share_a_key(digests, twice)

    def _share_a_key(self, digests: NDArray[np.uint64], twice: set[int]) -> bool:
        """Whether two records really have one key; where one of them is damaged, its key is not to be believed."""
        good: set[int] = set()
        places = ((number, i) for number, index in enumerate(self.index) for i in range(len(index.keys)))
        for digest, (number, i) in zip(digests.tolist(), places, strict=True):
            if digest not in twice:
                continue
            index = self.index[number]
            if self._files.checked(number, index.places[i], index.lengths[i]) is None:
                index.keys[i] = None
            elif digest in good:
                return True
            else:
                good.add(digest)
        return False

    @cached_property
    def _key_feature(self) -> str:
        return next((name for name in KEYS if name in self.found.features), "")

    def _indexed(self, number: int) -> _Index:
        index = _Index()
        try:
            for place, length, message in self._files.walk(number):
                size, key = (length, None) if message is None else self.look(number, place, message)
                index.places.append(place)
                index.lengths.append(length)
                index.sizes.append(size)
                index.keys.append(key)
        except DamageError as damage:
            index.damaged = damage.at, str(damage)
        return index

    def look(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Size of the image and key of a record, read as far as that is needed. A key is None where there is none."""
        try:
            features = read_example(message)
            self.found.add(features, message, lambda: self._files.checked(number, place, message.size) is not None)
            return image_size(features), _key(features, message)
        except ValueError:
            return message.size, None  # it says so when its turn comes


def _reader(file: OpenFile, place: int, length: int) -> Callable[[int, int], bytes]:
    return lambda size, at: file.read(min(size, length - at), place + at)


def image_size(features: Mapping[str, Feature]) -> int:
    """The largest value is the image."""
    spans = (f.spans[0] for f in features.values() if f.kind == "bytes" and len(f.spans) == 1)
    return max((stop - start for _, start, stop in spans), default=0)


def _key(features: Mapping[str, Feature], message: Message) -> str | None:
    feature = features.get(next((name for name in KEYS if name in features), ""), Feature())
    if feature.kind != "bytes" or len(feature.spans) != 1:
        return None
    _, start, stop = feature.spans[0]
    name = message.get(start, stop).decode("utf-8") if stop - start < _MAX_KEY else ""
    return name if name and name.isprintable() else None


def _digest(key: str | None) -> int:
    """Of a key; 0 for none."""
    return 0 if key is None else xxhash.xxh3_64_intdigest(key.encode()) or 1
