"""Reads shards whose records are ``tf.train.Example``: the files of TFRecord, and one declaration and decoding of
features for all formats of examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Bytes, Field, Image, Images, Json, Label, Labels, Mask, Text
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.archives.index import OpenFile
from packstore.sources.archives.tar import TAR_FAULTS, detect_compression, open_decompressor
from packstore.sources.columns import ValueType, guess_field
from packstore.sources.records import DamageError, RecordFiles, RecordIndex, WalkedSource
from packstore.sources.records.facts import UNCHANGED, ExampleFacts, Numbering
from packstore.sources.records.wire import (
    CHECK,
    HEADER,
    PACKED,
    Feature,
    Message,
    parse_record_length,
    read_example,
    verify_data,
)
from packstore.sources.schema import RELATIVE
from packstore.stores.export_manifest import StoredBytes

# Features that are the samples' keys if all their values differ.
KEYS = ("key", "image/filename", "file_name", "filename", "image/file_name")
# Suffixes of TFRecord files.
SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz", ".tfrecord.zlib")
MAX_RECORD = (1 << 31) - 1
BOX_FORMATS = ("XYXY", "YXYX", "XYWH", "REL_XYXY", "REL_YXYX")
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
    else None. Raises :class:`OSError`.
    """
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
    """Returns a function ``(size, offset)`` that reads bytes of one record, fewer at its end."""
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

    def count(self, name: str) -> int:
        """Counts the values of a feature; 0 if it is missing."""
        return self.features.get(name, Feature()).count(self.message)

    def byte_values(self, name: str) -> list[bytes]:
        """Reads the values of a feature of bytes; ``[]`` if there are none. Raises :class:`ValueError` for numbers."""
        feature = self.features.get(name, Feature())
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
        """Reads the numbers of a feature; none if it is missing. Raises :class:`ValueError` for bytes, and for numbers
        beyond an integer ``dtype``."""
        feature = self.features.get(name, Feature())
        if feature.kind == "bytes":
            raise ValueError("found bytes, expected numbers")
        numbers: NDArray[Any] = feature.numbers(self.message)
        if dtype == "uint64" and numbers.dtype == np.int64:
            return numbers.view(np.uint64)
        values = numbers.astype(dtype or numbers.dtype, copy=False)
        if values.dtype.kind in "iub" and not np.array_equal(values, numbers):
            raise ValueError(f"found numbers beyond {dtype}")
        return values


@dataclass(frozen=True)
class FeatureColumn:
    """Column of a feature.

    Attributes:
        feature: Name in an example.
        kind: ``image``, ``mask``, ``pixels``, ``text``, ``bytes``, ``class``, ``box``; or the dtype of numbers.
        shape: Shape of the numbers of an example; -1 for any size.
        repeated: An example has a list of values that are no numbers.
        optional: An example may lack it.
        numbering: Converts class numbers.
        of: Column of boxes to which the classes of a list belong; False for none.
        box_format: Format of boxes, one of :data:`BOX_FORMATS`.
        packed: The numbers are the bytes of an array, as one value.
    """

    feature: str
    kind: str
    shape: tuple[int, ...] = ()
    repeated: bool = False
    optional: bool = False
    numbering: Numbering = UNCHANGED
    of: str | bool = False
    box_format: str = ""
    packed: bool = False

    def declare(self) -> Field:
        """Declares the column. Pixels, labels of lists, and arrays of any length are never optional."""
        many, classes = self.repeated, self.numbering.classes
        plain: dict[str, Field] = {
            "image": Images() if many else Image(),
            "mask": Mask(),
            "pixels": Image("uint8"),
            "class": Labels(classes, of=self.of) if many else Label(classes),
            "box": Boxes(),
            "text": Json() if many else Text(),
            "bytes": Json() if many else Bytes(),
        }
        declared = plain.get(self.kind) or guess_field("", ValueType(self.kind, self.shape))
        never = isinstance(declared, Labels) or self.kind == "pixels" or getattr(declared, "ragged", False)
        return declared if never else replace(declared, optional=self.optional)

    def decode(self, example: Example) -> Any:
        """Decodes the value of the column. Returns None if it is missing or the label -1, and an empty list for missing
        classes or numbers of any length. Raises :class:`ValueError` for a value that does not fit the feature."""
        name = f"{self.feature}/value" if self.shape.count(-1) > 1 else self.feature
        if name not in example.features or not (self.repeated or self.shape or example.count(name)):
            is_list = self.shape[:1] == (-1,) and -1 not in self.shape[1:] and self.kind != "pixels"
            if is_list:
                return np.zeros((0, *self.shape[1:]), self.kind)
            return [] if self.kind == "class" and self.repeated else None
        if self.kind == "box":
            return example.numbers(name, "float32").reshape(-1, 4).astype(np.float64)
        if self.kind == "class":
            values: list[Any] = [self.numbering(number) for number in example.numbers(name, "int64").tolist()]
            if self.repeated and None in values:
                raise ValueError("found -1 among numbers of classes")
        elif self.kind in ("image", "mask", "bytes", "text"):
            values = list(example.byte_values(name))
            if self.kind == "text":
                values = [value.decode("utf-8") for value in values]
        else:
            array = self.decode_array(example)
            return array.tolist() if -1 in self.shape[1:] and self.kind != "pixels" else array
        return values if self.repeated else self.take_only(values)

    def decode_array(self, example: Example) -> NDArray[Any]:
        """Decodes the numbers of the column to an array of its shape. Those with several axes of any length have a
        feature of their shape and one of the numbers. Raises :class:`ValueError` for numbers that do not fit."""
        name, shape = self.feature, self.shape
        if shape.count(-1) > 1:
            said = tuple(example.numbers(f"{name}/shape").tolist())
            if len(said) != len(shape) or any(n != most >= 0 for n, most in zip(said, shape, strict=True)):
                raise ValueError(f"found the shape {said}, expected {shape}")
            name, shape = f"{name}/value", said
        dtype = "uint8" if self.kind == "pixels" else self.kind
        if self.packed:
            array = np.frombuffer(example.only_bytes(name), np.dtype(dtype).newbyteorder("<"))
        else:
            array = example.numbers(name, dtype)
        if -1 not in shape and array.size != math.prod(shape):
            raise ValueError(f"found {array.size} numbers, expected {math.prod(shape)}")
        return array.reshape(shape)

    def take_only(self, values: Sequence[Any]) -> Any:
        """Returns the only value; None if there is none. Raises :class:`ValueError` for several."""
        if len(values) > 1:
            raise ValueError(f"found {len(values)} values, expected one")
        return values[0] if values else None


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
        values: dict[str, Any] = {}
        for name, column in self.example_columns.items():
            try:
                values[name] = column.decode(example)
                if column.kind == "box" and values[name] is not None:
                    values[name] = to_pixels(column.box_format, values[name], values["image"])
                    values[RELATIVE] = column.box_format.startswith("REL_")
            except (ValueError, OverflowError) as error:
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
        """Raises :class:`SourceError` if no record is an example, with the damage to a file if there is any."""
        if not self.facts.parsed:
            faults = (index.damaged.fault for index in indexes if index.damaged is not None)
            reason = next(faults, "none of its records is a tf.train.Example")
            raise SourceError(f"{printable(str(self.path))}: {reason}")

    @cached_property
    def key_feature(self) -> str | None:
        """Name of the feature with the samples' keys; None unless :attr:`has_keys`."""
        return next((name for name in KEYS if name in self.facts.features), "") if self.has_keys else None

    @cached_property
    def has_keys(self) -> bool:
        """True if every readable record has a key, and all keys differ. False if no record is readable."""
        keys = (key for index in self.index for key in index.keys if key is not None)
        digests = np.fromiter((xxhash.xxh3_64_intdigest(key.encode()) for key in keys), np.uint64)
        return 0 < self.facts.parsed <= len(digests) == len(np.unique(digests))

    def index_record(self, number: int, place: int, message: Message) -> tuple[int, str | None]:
        """Returns the size of a record's image, and its key or None; adds to :attr:`facts`.

        Reads only the needed parts of a record. A record with new facts is read whole, and its facts only count if its
        checksum is right. For an invalid record, returns the size of the record and None.
        """
        try:
            example = Example(message)
            self.facts.add_example(example.features, message, lambda: self.opened.is_sound(number, place, message.size))
            # The largest single value of bytes is probably the image.
            spans = (its.spans[0] for its in example.features.values() if its.kind == "bytes" and len(its.spans) == 1)
            return max((stop - start for _, start, stop in spans), default=0), self.read_key(example)
        except ValueError:
            return message.size, None  # reported when it is read

    def read_key(self, example: Example) -> str | None:
        """Reads the key of an example from the first of :data:`KEYS` among its features. Returns None unless the value
        is printable text of less than 4,096 bytes. Raises :class:`ValueError` for a text that is not UTF-8."""
        feature = example.features.get(next((name for name in KEYS if name in example.features), ""), Feature())
        if feature.kind != "bytes" or len(feature.spans) != 1:
            return None
        _, start, stop = feature.spans[0]
        name = example.message.get(start, stop).decode("utf-8") if stop - start < _MAX_KEY else ""
        return name if name and name.isprintable() else None


def decode_stored(column: Column, example: Example) -> Any:
    """Decodes the value of a column of an export to an array, a list of files, or :class:`StoredBytes`. Raises
    :class:`ValueError` for values that do not fit the column."""
    is_array = column.layout is not None or column.kind == "fixed"
    if not is_array and column.form != "numbers":
        many = column.form == "files"
        return example.byte_values(column.name) if many else StoredBytes(example.only_bytes(column.name))
    shape = column.shape
    if column.kind != "fixed":
        shape = (-1,) * len(column.layout) if column.layout else (-1, *shape)
    packed = column.layout is not None or column.dtype in PACKED
    array = FeatureColumn(column.name, NUMPY_DTYPE[column.dtype].name, shape, packed=packed).decode_array(example)
    return array if is_array else StoredBytes(array.tobytes())


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
