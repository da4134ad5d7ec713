"""Shards of TFRecord whose records are ``tf.train.Example``: an index of them, and what their features hold.

A record is a length (64 bits), its masked CRC-32C, the data, and theirs
(https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

from __future__ import annotations

import os
import struct
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.crc32c import masked_crc32c
from packstore.core.errors import SourceError, printable
from packstore.images.sniff import begins_like_image
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import compression_of, decompressor
from packstore.sources.base import SourceOptions
from packstore.sources.dataset import key_of
from packstore.sources.records.files import OpenFiles, faults_of
from packstore.sources.records.protobuf import Feature, Message, read_example
from packstore.sources.rows import Row, RowSource, in_packing_order

KEYS = ("key", "image/filename", "file_name", "filename", "image/file_name")
"""Features that are the samples' keys where they are all different."""
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz", ".tfrecord.zlib")
"""Of TFRecord files."""
MAX_RECORD = (1 << 31) - 1
_HEADER = 12
_WINDOW = 1 << 11
_MAX_LABELS = 1 << 17
_MAX_KEY = 4096
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def record_length(header: bytes, left: int) -> int:
    """The length of a record's data, by its header, of a file with ``left`` bytes from there on.

    Raises :class:`ValueError` where nothing after it can be found."""
    if len(header) < _HEADER:
        raise ValueError("the file ends within the header of a record")
    length, check = struct.unpack_from("<QI", header)
    if masked_crc32c(header[:8]) != check:
        raise ValueError("the length of a record does not match its checksum")
    if length > left - _HEADER - 4:
        raise ValueError(f"a record of {length} bytes is cut off")
    return int(length)


def is_tfrecord(path: Path) -> bool:
    """Whether the first record of a file may be an example; of an empty file, that it is one of records."""
    try:
        kind = compression(path)
        with path.open("rb") as file, faults_of(path):
            start = file.read(64) if kind is None else decompressor(file, kind, path.name).read(64)
        if kind is None and not start:
            return path.name.lower().endswith(SUFFIXES) or "-of-" in path.name
        record_length(start, 1 << 62)
    except (OSError, ValueError, SourceError):
        return False
    return start[_HEADER:][:1] in (b"", b"\x0a") or start[:8] == bytes(8)


def compression(path: Path) -> str | None:
    """How a file of records is compressed: gzip, or zlib, which has no magic number; None where it is not."""
    with path.open("rb") as file:
        start = file.read(_HEADER)
    try:
        record_length(start, 1 << 62)
    except ValueError:
        return "zlib" if start.startswith(_ZLIB) else compression_of(path)
    return None


@dataclass(slots=True)
class Facts:
    """What all examples say of one feature.

    Attributes:
        kinds: ``bytes``, ``floats``, ``ints``.
        looks: Of bytes: ``image``, ``text``, ``bytes``.
        low: The least number of values.
        high: The largest one.
        examples: Number of examples that have it.
        largest: Of floats, the largest absolute value.
    """

    kinds: set[str] = field(default_factory=set)
    looks: set[str] = field(default_factory=set)
    low: int = 1 << 62
    high: int = 0
    examples: int = 0
    largest: float = 0.0


@dataclass(slots=True)
class LabelFacts:
    """What all examples say of the numbers of a feature of labels.

    Attributes:
        names: By number, the values of each feature that names the class; None where they differ.
        missing: Some examples have -1, which stands for no label.
    """

    names: dict[int, dict[str, bytes | None]] = field(default_factory=dict)
    missing: bool = False

    def is_news(self, number: int) -> bool:
        """Whether an example with this number tells anything."""
        return not self.missing if number == -1 else number not in self.names and len(self.names) < _MAX_LABELS


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


class ExampleSource(RowSource):
    """Shards of examples.

    The first listing walks all records, and reads all of each but its image. A record whose checksum is wrong is a bad
    sample; where a length is wrong, what is left of that file is one.

    Attributes:
        shards: Split and path of each, in order.
        label_names: By the feature of a label, the features that name its class.
        facts: What the records say of each feature, once :attr:`index` is there.
        labels: What they say of each label.
        parsed: Number of records that this was read from.
    """

    label_names: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, path: Path, options: SourceOptions, shards: Sequence[tuple[str, Path]] | None = None) -> None:
        """``shards`` are those that the sheet names, where None is given."""
        super().__init__(path, options)
        self.shards = list(self.sheet_shards if shards is None else shards)
        self._files = OpenFiles([file for _, file in self.shards], compression)
        self.facts: dict[str, Facts] = {}
        self.labels: dict[str, LabelFacts] = {}
        self.parsed = 0

    @abstractmethod
    def decoded(self, features: Mapping[str, Feature], message: Message) -> dict[str, Any]:
        """The values of an example by column. Raises :class:`ValueError`."""

    def splits(self) -> Sequence[str]:
        """See :meth:`RowSource.splits`."""
        return in_packing_order(split for split, _ in self.shards)

    def rows(self, split: str) -> Iterator[Row]:
        """See :meth:`RowSource.rows`."""
        count = 0
        for number, (its, path) in enumerate(self.shards):
            if its != split:
                continue
            index = self.index[number]
            for i, (place, length, size) in enumerate(zip(index.places, index.lengths, index.sizes, strict=True)):
                key = index.keys[i] if self.has_keys else key_of(split, count)
                key = f"{path.name}#{place}" if key is None else key
                yield Row(key, (number, place, length), size, length - size)
                count += 1
            if index.damaged is not None:
                at, reason = index.damaged
                yield Row(f"{key_of(split, count)}…", (number, at, -1, f"{path.name}, byte {at}: {reason}"), 0)
                count += 1

    def values(self, ref: Any) -> dict[str, Any]:
        """See :meth:`RowSource.values`."""
        number, place, length, *reason = ref
        if reason:
            raise ValueError(f"{reason[0]}; what is left of this file cannot be read")
        data = self._checked(number, place, length)
        name = self.shards[number][1].name
        if data is None:
            raise ValueError(f"{name}, byte {place}: the record does not match its checksum")
        message = Message.of(data)
        return self.decoded(read_example(message), message)

    def files(self) -> Iterable[Path]:
        """See :meth:`RowSource.files`."""
        return (path for _, path in self.shards)

    def close(self) -> None:
        """See :meth:`Source.close`."""
        self._files.close()

    @cached_property
    def index(self) -> list[_Index]:
        """The records of all shards; fills :attr:`facts` and :attr:`labels`."""
        found = [self._indexed(number) for number in range(len(self.shards))]
        if not any(len(index.places) or index.damaged for index in found):
            raise SourceError(f"{printable(str(self.path))}: its files hold no records")
        if not self.parsed:
            reason = next((index.damaged[1] for index in found if index.damaged), "none of its records is an example")
            raise SourceError(f"{printable(str(self.path))}: {reason}")
        return found

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
        if not 0 < self.parsed <= counts.sum():
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
            if self._checked(number, index.places[i], index.lengths[i]) is None:
                index.keys[i] = None
            elif digest in good:
                return True
            else:
                good.add(digest)
        return False

    @cached_property
    def _key_feature(self) -> str:
        return next((name for name in KEYS if name in self.facts), "")

    def _checked(self, number: int, place: int, length: int) -> bytes | None:
        """The data of a record; None where they do not match their checksum."""
        data = self._files[number].read(length + 4, place)
        good = len(data) == length + 4 and masked_crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")
        return data[:-4] if good else None

    def _indexed(self, number: int) -> _Index:
        index, file = _Index(), self._files[number]
        at, end = 0, os.fstat(file.descriptor).st_size
        while at < end:
            start = file.read(_HEADER + _WINDOW, at)
            try:
                length = record_length(start, end - at)
                if length > MAX_RECORD:
                    raise ValueError(f"a record has {length} bytes, more than an example can have")
            except ValueError as error:
                index.damaged = at, str(error)
                break
            place = at + _HEADER
            message = Message(length, _reader(file, place, length), start[_HEADER:][:length])
            size, key = self.look(number, place, message)
            index.places.append(place)
            index.lengths.append(length)
            index.sizes.append(size)
            index.keys.append(key)
            at = place + length + 4
        return index

    def look(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Size of the image and key of a record, read as far as that is needed. A key is None where there is none."""
        length = message.size
        try:
            features = read_example(message)
            new, facts = self._new(features, message)
            if not new or self._checked(number, place, length) is not None:
                self._note(facts)
                self._note_labels(features, message)
                self.parsed += 1
            return image_size(features), _key(features, message)
        except ValueError:
            return length, None  # it says so when its turn comes

    def _new(
        self, features: Mapping[str, Feature], message: Message
    ) -> tuple[bool, list[tuple[str, str, int, str, float]]]:
        """What a record says of its features, and whether that is news."""
        facts: list[tuple[str, str, int, str, float]] = []
        new = any(known.examples == self.parsed and name not in features for name, known in self.facts.items())
        for name, feature in features.items():
            count, look, largest = feature.count(message), "", 0.0
            if feature.kind == "bytes" and count:
                _, start, stop = feature.spans[0]
                look = _looks(message.get(start, min(stop, start + 256)), stop - start > 256)
            elif feature.kind == "floats" and count and name.endswith(("xmin", "ymin", "xmax", "ymax")):
                largest = float(np.abs(feature.numbers(message)).max())
            facts.append((name, feature.kind, count, look, largest))
            known = self.facts.get(name)
            new = new or known is None or not known.low <= count <= known.high or largest > known.largest
            new = new or (known is not None and (feature.kind not in known.kinds or bool({look} - known.looks - {""})))
        for label in self.label_names.keys() & features.keys():
            if features[label].kind == "ints":
                seen = self.labels.get(label, LabelFacts())
                new = new or any(map(seen.is_news, features[label].numbers(message).tolist()))
        return new, facts

    def _note(self, facts: Sequence[tuple[str, str, int, str, float]]) -> None:
        for name, kind, count, look, largest in facts:
            known = self.facts.setdefault(name, Facts())
            known.kinds.add(kind)
            if look:
                known.looks.add(look)
            known.low, known.high = min(known.low, count), max(known.high, count)
            known.examples += 1
            known.largest = max(known.largest, largest)

    def _note_labels(self, features: Mapping[str, Feature], message: Message) -> None:
        for label, naming in self.label_names.items():
            if label not in features or features[label].kind != "ints":
                continue
            facts = self.labels.setdefault(label, LabelFacts())
            numbers = features[label].numbers(message).tolist()
            named = {
                name: features[name].bytes(message)
                for name in naming
                if name in features and features[name].kind == "bytes" and len(features[name].spans) == len(numbers)
            }
            for i, n in enumerate(numbers):
                if n == -1:
                    facts.missing = True
                    continue
                if n not in facts.names and len(facts.names) >= _MAX_LABELS:
                    continue
                known = facts.names.setdefault(n, {name: values[i] for name, values in named.items()})
                for name in known:
                    if known[name] is not None and (name not in named or named[name][i] != known[name]):
                        known[name] = None


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


def _looks(start: bytes, cut: bool) -> str:
    """What the beginning of a value says of it."""
    if begins_like_image(start[:16]):
        return "image"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return "text" if cut and error.start > len(start) - 4 else "bytes"
    return "bytes" if b"\0" in start else "text"
