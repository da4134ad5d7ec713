"""Reads shards whose records are ``tf.train.Example``: the files of TFRecord, and one declaration and decoding of
features for all formats of examples.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Bytes, Field, Image, Images, Json, Label, Labels, Mask, Text
from packstore.core.protobuf import Feature, Message, read_example
from packstore.core.tfrecord import CHECK, HEADER, parse_record_length, verify_data
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError, max_file_bytes
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, detect_compression, open_decompressor
from packstore.sources.columns import ValueType, guess
from packstore.sources.records import DamageError, RecordFiles, RecordIndex, WalkedSource
from packstore.sources.records.facts import UNCHANGED, ExampleFacts, Numbering
from packstore.sources.schema import RELATIVE

KEYS = ("key", "image/filename", "file_name", "filename", "image/file_name")
"""Features that are the samples' keys if all their values differ."""
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz", ".tfrecord.zlib")
"""Suffixes of TFRecord files."""
MAX_RECORD = (1 << 31) - 1
BOX_FORMATS = ("XYXY", "YXYX", "XYWH", "REL_XYXY", "REL_YXYX")
_PLAIN = frozenset(("image", "mask", "text", "bytes", "class", "box"))
"""Kinds of columns that are no arrays of numbers."""
_WINDOW = 1 << 11
_MAX_KEY = 4096
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def is_tfrecord(path: Path) -> bool:
    """Tells if the first record of a file, also a compressed one, may be an example. True for an empty file with the
    name of a record file. False if the file cannot be read."""
    try:
        kind = find_compression(path)
        with path.open("rb") as file:
            start = file.read(64) if kind is None else open_decompressor(file, kind, path.name).read(64)
        if kind is None and not start:
            return path.name.lower().endswith(SUFFIXES) or "-of-" in path.name
        parse_record_length(start, 1 << 62)
    except (OSError, ValueError, SourceError, *TAR_FAULTS):
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


class TfrecordFiles(RecordFiles):
    """Reads records of TFRecord files, also compressed ones, by the offsets of their data."""

    def walk_records(self, number: int) -> Iterator[tuple[int, int, Message | None]]:
        """Yields offset, size and message of each record. Reads only headers, and the first bytes of data. A message
        reads further bytes when the caller asks for them. Does not verify checksums of data. Raises
        :class:`DamageError` for a damaged header."""
        file = self[number]
        at, end = 0, file.size
        while at < end:
            start = file.read(HEADER + _WINDOW, at)
            try:
                length = parse_record_length(start, end - at)
            except ValueError as error:
                raise DamageError(at, str(error)) from None
            place = at + HEADER
            yield place, length, Message(length, _make_range_reader(file, place, length), start[HEADER:][:length])
            at = place + length + CHECK

    def read_record(self, number: int, place: int, length: int) -> bytes:
        """Reads the ``length`` bytes of a record's data at offset ``place``. Raises :class:`ValueError` if they do not
        match the checksum, and for a record larger than an example can be."""
        data = None if length > MAX_RECORD else verify_data(self[number].read(length + CHECK, place), length)
        if data is None:
            raise ValueError(f"byte {place}: the record does not match its checksum")
        return data


def _make_range_reader(file: OpenFile, place: int, length: int) -> Callable[[int, int], bytes]:
    """Returns a function ``(size, offset)`` that reads bytes of one record. It reads fewer at the record's end."""
    return lambda size, at: file.read(min(size, length - at), place + at)


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
        feature = self._find(name)
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
        feature = self._find(name)
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

    def only_number(self, name: str) -> int | None:
        """Reads the only number of a feature; None if the feature is missing or has no values. Raises
        :class:`ValueError` for several numbers or bytes."""
        numbers = self.numbers(name) if name in self.features else np.zeros(0)
        if len(numbers) > 1:
            raise ValueError(f"found {len(numbers)} numbers, expected one")
        return int(numbers[0]) if len(numbers) else None

    def has_values(self, name: str) -> bool:
        """Tells if a feature is there, and has a type of values."""
        return name in self.features and self.features[name].kind != ""

    def _find(self, name: str) -> Feature:
        """Returns a feature. Raises :class:`ValueError` if it is missing."""
        if name not in self.features:
            raise ValueError(f"it has no feature {name}")
        return self.features[name]


@dataclass(frozen=True)
class FeatureColumn:
    """Column of a feature.

    Attributes:
        feature: Name in an example.
        kind: ``image``, ``mask``, ``pixels``, ``text``, ``bytes``, ``class``, ``box``; or the dtype of numbers.
        shape: Shape of one value; -1 for any size.
        lengths: Lengths of the sequences that contain it, outermost first; -1 for any length.
        optional: An example may lack it.
        numbering: Converts class numbers.
        of: Column of boxes to which the classes of a sequence belong; False for none.
        encoding: Encoding of numbers that are packed into bytes, ``bytes`` or ``zlib``; format of boxes. Else ``""``.
    """

    feature: str
    kind: str
    shape: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    optional: bool = False
    numbering: Numbering = UNCHANGED
    of: str | bool = False
    encoding: str = ""

    def declare(self) -> Field:
        """Declares the column. Pixels, labels of sequences, sequences of sequences and arrays of any length are never
        optional."""
        shape = (*self.lengths, *self.shape)
        if len(self.lengths) > 1:
            return Json()
        plain: dict[str, Field] = {
            "image": Images() if self.lengths else Image(),
            "mask": Mask(),
            "pixels": Image("uint8"),
            "class": Labels(self.numbering.classes, of=self.of) if self.lengths else Label(self.numbering.classes),
            "box": Boxes(),
            "text": Json() if shape else Text(),
            "bytes": Json() if shape else Bytes(),
        }
        declared = plain.get(self.kind) or guess("", ValueType(self.kind, shape))
        never = isinstance(declared, Labels) or self.kind == "pixels" or getattr(declared, "ragged", False)
        return declared if never else replace(declared, optional=self.optional)

    def decode(self, example: Example, limit: int) -> Any:
        """Decodes the value of the column. Returns None if it is missing or the label -1. Numbers become an array;
        nested lists if any length but the first varies. Sequences of other values become lists. Raises
        :class:`ValueError` for a value that does not fit the feature, and for more than ``limit`` compressed bytes."""
        name, shape = self.feature, (*self.lengths, *self.shape)
        if len(self.lengths) > 1:
            flat = f"{name}/ragged_flat_values"
            items = self._decode_items(example, flat) if flat in example.features else []
            rows = (f"{name}/ragged_row_lengths_{i}" for i in range(len(self.lengths) - 1))
            return _nest_rows(items, [example.numbers(row).tolist() if row in example.features else [] for row in rows])
        numeric, dtype = self.kind not in _PLAIN, "int64" if self.kind == "class" else self.kind
        if numeric and self.shape.count(-1) > 1:
            name = f"{name}/value"
        if not (name in example.features if shape else example.has_values(name)):
            is_list = self.kind not in (*_PLAIN - {"class"}, "pixels") and shape[:1] == (-1,) and -1 not in shape[1:]
            return np.zeros((0, *shape[1:]), dtype) if is_list else None
        if self.kind in ("image", "mask"):
            return example.byte_values(name) if self.lengths else self.take_only(example.byte_values(name))
        if numeric:
            if not shape and not self.encoding and not len(example.numbers(name)):
                return None
            array = self.decode_array(example, limit)
            return array.tolist() if -1 in shape[1:] and self.kind != "pixels" else array
        items = self._decode_items(example, name)
        if self.kind == "box":
            return np.array(items, np.float64).reshape(-1, 4)
        if self.shape and -1 not in self.shape:  # of strings
            return np.array(items, object).reshape(self.shape).tolist()
        if self.kind == "class" and self.lengths and None in items:
            raise ValueError("found -1 among numbers of classes")
        return items if shape else self.take_only(items)

    def decode_array(self, example: Example, limit: int) -> NDArray[Any]:
        """Decodes the numbers of the column. Those with several axes of any length have features of their shape and
        value. Raises as :meth:`_decode_numbers`, and :class:`ValueError` if the shape is not that of the column."""
        if self.shape.count(-1) <= 1:
            return self._decode_numbers(example, self.feature, (*self.lengths, *self.shape), limit)
        name = f"{self.feature}/shape"
        said = tuple(example.numbers(name).tolist() if name in example.features else ())
        if len(said) != len(self.shape) or any(n != most >= 0 for n, most in zip(said, self.shape, strict=True)):
            raise ValueError(f"found the shape {said}, expected {self.shape}")
        return self._decode_numbers(example, f"{self.feature}/value", (*self.lengths, *said), limit)

    def take_only(self, items: Sequence[Any]) -> Any:
        """Returns the only item; None if there is none. Raises :class:`ValueError` for several."""
        if len(items) > 1:
            raise ValueError(f"found {len(items)} values, expected one")
        return items[0] if items else None

    def _decode_items(self, example: Example, name: str) -> list[Any]:
        """Decodes the values of a feature to a list of plain values. Raises :class:`ValueError` for values of another
        type, and for a text that is not UTF-8."""
        if self.kind in ("text", "bytes"):
            values = example.byte_values(name)
            return [value.decode("utf-8") for value in values] if self.kind == "text" else list(values)
        if self.kind == "class":
            return list(map(self.numbering, example.numbers(name, "int64").tolist()))
        shape = (-1, 4) if self.kind == "box" else (-1, *self.shape)
        return list(self._decode_numbers(example, name, shape, 1 << 30).tolist())

    def _decode_numbers(self, example: Example, name: str, shape: tuple[int, ...], limit: int) -> NDArray[Any]:
        """Decodes the numbers of a feature to an array of ``shape``. Raises :class:`ValueError` for numbers that do not
        fit the shape or an integer dtype. Also raises it for compressed numbers of more than ``limit`` bytes."""
        dtype = {"pixels": "uint8", "box": "float32"}.get(self.kind, self.kind)
        if self.encoding in ("bytes", "zlib"):
            data = example.only_bytes(name)
            if self.encoding == "zlib":
                inflate = zlib.decompressobj()
                data = inflate.decompress(data, limit)
                if not inflate.eof:
                    raise ValueError(f"it is cut off, or larger than {limit} bytes")
            array = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
        else:
            array = example.numbers(name, dtype)
        if -1 not in shape and array.size != math.prod(shape):
            raise ValueError(f"found {array.size} numbers, expected {math.prod(shape)}")
        return array.reshape(shape)


def _nest_rows(items: list[Any], row_lengths: Sequence[list[int]]) -> list[Any]:
    """Nests values in lists of lists. ``row_lengths`` has the lengths of the rows of each level, outermost first.
    Raises :class:`ValueError` if they do not add up."""
    for lengths in reversed(row_lengths):
        if sum(lengths) != len(items) or any(length < 0 for length in lengths):
            raise ValueError(f"{len(items)} values do not make rows of {sum(lengths)}")
        rows = iter(items)
        items = [list(islice(rows, length)) for length in lengths]
    return items


class ExampleSource(WalkedSource):
    """Base of sources whose shards hold ``tf.train.Example`` records.

    The first listing reads all records except their images. A record with a wrong checksum is a bad sample.

    Attributes:
        label_names: Features that name the class of a label, by the feature of the label.
    """

    label_names: Mapping[str, tuple[str, ...]] = {}

    def open_files(self, paths: Sequence[Path]) -> RecordFiles:
        """Returns a reader of TFRecord files."""
        return TfrecordFiles(paths, find_compression)

    @property
    def example_columns(self) -> Mapping[str, FeatureColumn]:
        """Columns by name, the image before boxes. Read once all records are indexed."""
        raise NotImplementedError

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns. The first call indexes all records."""
        assert self.index
        return {name: column.declare() for name, column in self.example_columns.items()}

    def decode_record(self, data: bytes) -> dict[str, Any]:
        """Decodes an example, see :meth:`decode_example`."""
        return self.decode_example(Example(Message.from_bytes(data)))

    def decode_example(self, example: Example) -> dict[str, Any]:
        """Decodes the features of an example, by column; a missing one to None. Converts boxes to pixels. Raises
        :class:`ValueError`, with the name of the feature, for a value that does not fit its column."""
        values, limit = {}, max_file_bytes(self.options.max_pixels)
        for name, column in self.example_columns.items():
            try:
                values[name] = column.decode(example, limit)
                if column.kind == "box" and values[name] is not None:
                    values[name] = to_pixels(column.encoding, values[name], values["image"])
                    values[RELATIVE] = column.encoding.startswith("REL_")
            except (ValueError, zlib.error, OverflowError) as error:
                raise ValueError(f"{printable(column.feature)}: {error}") from error
        return values

    @cached_property
    def facts(self) -> ExampleFacts:
        """Facts about the features of all records; complete once :attr:`index` is."""
        return ExampleFacts(self.label_names)

    @property
    def all_facts(self) -> ExampleFacts:
        """Facts about the features of all records, once these are indexed."""
        assert self.index
        return self.facts

    def check_index(self, indexes: Sequence[RecordIndex]) -> None:
        """Raises :class:`SourceError` if no record is an example, with the damage to a file or the first bytes of a
        record."""
        if not self.facts.parsed:
            damaged = next((index.damaged for index in indexes if index.damaged is not None), None)
            if damaged is not None and damaged.fault:
                raise SourceError(f"{printable(str(self.path))}: {damaged.fault}")
            spans = ((number, *index.numbers[:2]) for number, index in enumerate(indexes) if index.keys)
            start = next((self.opened.read_record(*span)[:8] for span in spans if self.opened.is_sound(*span)), b"")
            raise SourceError(
                f"{printable(str(self.path))}: none of its records is a tf.train.Example: one begins with {start!r}"
            )

    @cached_property
    def key_feature(self) -> str | None:
        """Name of the feature with the samples' keys; None unless :attr:`has_keys`."""
        return next((name for name in KEYS if name in self.facts.features), "") if self.has_keys else None

    @cached_property
    def has_keys(self) -> bool:
        """True if every readable record has a key, and all keys differ. False if no record is readable. Reads records
        with equal keys again, and removes the keys of damaged ones from :attr:`index`."""
        names = (name for index in self.index for name in index.keys)
        digests = np.fromiter(map(_digest_key, names), np.uint64)
        values, counts = np.unique(digests[digests != 0], return_counts=True)
        if not 0 < self.facts.parsed <= counts.sum():
            return False
        firsts = [*accumulate((len(index.keys) for index in self.index), initial=0)]
        good = set[int]()
        for each in np.flatnonzero(np.isin(digests, values[counts > 1])).tolist():
            number = bisect_right(firsts, each) - 1
            index, i = self.index[number], each - firsts[number]
            if not self.opened.is_sound(number, *index.numbers[3 * i : 3 * i + 2]):
                index.keys[i] = None
            elif int(digests[each]) in good:
                return False
            else:
                good.add(int(digests[each]))
        return True

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of a record's image, and its key or None; adds to :attr:`facts`. For an invalid record,
        returns the size of the record and None. Reads only the needed parts of a record. If the record has new facts,
        reads all of it, and discards the facts if its checksum is wrong."""
        try:
            example = Example(message)
            self.facts.add_example(example.features, message, lambda: self.opened.is_sound(number, place, message.size))
            return measure_largest_value(example.features), read_key(example)
        except ValueError:
            return message.size, None  # reported when it is read


def measure_largest_value(features: Mapping[str, Feature]) -> int:
    """Returns the size of the largest single value of bytes, which is probably the image; 0 if there is none."""
    spans = (f.spans[0] for f in features.values() if f.kind == "bytes" and len(f.spans) == 1)
    return max((stop - start for _, start, stop in spans), default=0)


def read_key(example: Example) -> str | None:
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


def to_pixels(form: str, boxes: NDArray[np.float64], image: Any) -> NDArray[np.float32]:
    """Converts boxes ``(n, 4)`` of a format in :data:`BOX_FORMATS` to left, top, right, bottom in pixels, float32.
    ``image``: the bytes of its file, or an array. Raises :class:`ValueError` for another format, and for relative boxes
    if the size of the image cannot be read."""
    if form not in BOX_FORMATS:
        raise ValueError(f"found boxes in the format {printable(form)}; expected {', '.join(BOX_FORMATS)}")
    if form.endswith("YXYX"):
        boxes = boxes[:, [1, 0, 3, 2]]
    elif form.endswith("XYWH"):
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    if form.startswith("REL_"):
        try:
            height, width = image.shape[:2] if isinstance(image, np.ndarray) else upright_size(image or b"")[::-1]
        except HeaderError as error:
            raise ValueError(error.reason) from None
        boxes = boxes * (width, height, width, height)
    return boxes.astype(np.float32)
