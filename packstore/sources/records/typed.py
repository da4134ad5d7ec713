"""Base of sources whose format states the types of a sample's values: MDS, LitData and FFCV.

A format states its shards with the types of their values, the place of each sample, and the place of each value of a
sample; and it decodes a value. Everything else is here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image
from packstore.images.sniff import begins_like_image, max_file_bytes
from packstore.sources.base import SourceOptions
from packstore.sources.columns import ANY, BYTES, FILE, PIXELS, ValueType, choose_main_image, guess_field, name_columns
from packstore.sources.records import Record, RecordSource
from packstore.sources.rows import PROBED
from packstore.sources.values import names_an_image

LEFT, PICKLE = "left", "pickle"
"""Kinds of values that no column holds, and of values that are refused."""
# dtypes of numbers and arrays.
NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_MAX_VALUE = 1 << 31
_MAX_COLUMNS = 1000


class Shard(NamedTuple):
    """File of samples.

    Attributes:
        split: Name of its split.
        file: Path of the file.
        types: Type of each value of a sample.
        layout: What the format knows of the file for itself.
    """

    split: str
    file: Path
    types: Mapping[str, ValueType]
    layout: Any


class Span(NamedTuple):
    """Place of a value in its file.

    Attributes:
        start: Offset of the first byte.
        stop: Offset after the last byte.
        form: Form of this value, if its type does not tell how to decode it.
    """

    start: int
    stop: int
    form: Any = None


class TypedSource(RecordSource):
    """Source of shards with typed values. Opening raises :class:`SourceError` if there are no shards, for shards with
    different types of values, and for pickles. Leaves out values that no column holds."""

    # Name of the value that is the key; empty if there is none.
    key_name = ""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        if len(self.types) > _MAX_COLUMNS:
            raise SourceError(f"{printable(str(path))} has samples of more than {_MAX_COLUMNS:,} values")
        if any([*shard.types.items()] != [*self.types.items()] for shard in self.typed_shards):
            raise SourceError(f"{printable(str(path))}: its files have different fields")
        pickled = next((name for name, type in self.types.items() if type.kind == PICKLE), None)
        if pickled is not None:
            raise SourceError(
                f"{printable(str(path))}: {printable(pickled)} holds pickles, which packstore does not run: write the "
                "shards again with json, ndarray or bytes"
            )
        self._max_image = max_file_bytes(options.max_pixels)

    def list_shards(self) -> list[tuple[str, Path]]:
        """Lists split and path of each shard, and keeps them as :attr:`typed_shards`."""
        self.typed_shards = list(self.read_shards())
        return [(shard.split, shard.file) for shard in self.typed_shards]

    @abstractmethod
    def read_shards(self) -> Iterable[Shard]:
        """Returns the shards at the source's path, in the order of reading. Raises :class:`SourceError` for invalid
        ones."""

    @abstractmethod
    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields start and stop of each sample of a shard, and the reason why it cannot be read, or ``""``."""

    @abstractmethod
    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value of the sample at ``start`` in a shard. Raises :class:`ValueError` if one is
        impossible."""

    @abstractmethod
    def decode(self, type: ValueType, data: bytes, form: Any) -> Any:
        """Decodes a value. Raises :class:`ValueError`, :class:`OverflowError` or :class:`RecursionError` for a damaged
        one."""

    @property
    def types(self) -> Mapping[str, ValueType]:
        """Type of each value."""
        return self.typed_shards[0].types

    def records(self, number: int) -> Iterator[Record]:
        """Yields the samples of a shard, with the sizes of their values."""
        main, key_name, file = self.main_image, self.key_name, self.opened[number]
        for start, stop, fault in self.places(number):
            size, key = 0, None
            with suppress(ValueError):  # reported when it is read
                spans = {} if fault else self.spans(number, start, stop)
                size = spans[main].stop - spans[main].start if spans else 0
                if key_name in spans:
                    low, high, _ = spans[key_name]
                    key = file.read(high - low, low).decode("utf-8", "surrogateescape")
            yield Record(start, stop, size, max(0, stop - start - size), key, fault)

    def read_record(self, number: int, place: int, length: int) -> dict[str, Any]:
        """Reads and decodes a sample, by column; ``length`` is the place after it."""
        spans = self.spans(number, place, length)
        return self.decode_sample(spans, self._read_spans(number, spans))

    def decode_sample(self, spans: Mapping[str, Span], raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the values of a sample, by column. Raises :class:`ValueError` with the name of the value for a
        damaged one."""
        values = {}
        for name, column in self.columns.items():
            try:
                values[column] = self.decode(self.types[name], raw[name], spans[name].form)
            except (ValueError, OverflowError, RecursionError) as error:
                raise ValueError(f"{printable(name)}: {error}") from error
        return values

    def find_image(self, number: int, place: int, length: int) -> tuple[int, int]:
        """Returns offset and size of the main image."""
        low, high, _ = self.spans(number, place, length)[self.main_image]
        return low, high - low

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns by the types of the values. Reads the first 16 samples of each split, on which the
        columns of bytes and arrays depend. Raises :class:`SourceError` for values that no column holds, or of which
        none can be read."""
        samples = self.read_first_samples()
        declared: dict[str, Field] = {}
        for name, column in self.columns.items():
            type = self.types[name]
            given = [sample[column] for sample in samples if column in sample]
            try:
                if name == self.main_image:
                    declared[column] = Image(None if type.kind in (FILE, BYTES) else "uint8")
                else:
                    declared[column] = guess_field(column, type, given)
            except ValueError as error:
                raise SourceError(f"{printable(str(self.path))}: {printable(name)}: {error}") from error
        return declared

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the values of each sample that no column can hold."""
        return dict(Counter(f"columns of {type.encoding}" for type in self.types.values() if type.kind == LEFT))

    @cached_property
    def columns(self) -> dict[str, str]:
        """Column of each value that a column can hold, by name; ``image`` for the main image."""
        kept = [name for name, type in self.types.items() if type.kind != LEFT]
        return name_columns(self.path, kept, self.main_image)

    @cached_property
    def main_image(self) -> str:
        """Name of the value that is the main image, see :func:`choose_main_image`. Candidates are images by type, bytes
        that begin like an image, and arrays with a usual name of images, in this order."""
        kinds = {name: type.kind for name, type in self.types.items() if type.kind != LEFT}
        images = [name for name, kind in kinds.items() if kind in (FILE, PIXELS)]
        images += [name for name, kind in kinds.items() if kind == BYTES and self._begins_like_image(name)]
        images += [name for name, kind in kinds.items() if kind == ANY and names_an_image(name)]
        return choose_main_image(self.path, images, kinds)

    def _begins_like_image(self, name: str) -> bool:
        """Tells if a value of the first readable sample begins like an image file."""
        for number in range(len(self.shards)):
            for start, stop, _ in islice(self.places(number), PROBED):
                with suppress(ValueError):  # reported when it is read
                    low, high, _ = self.spans(number, start, stop)[name]
                    return begins_like_image(self.opened[number].read(min(high - low, 16), low))
        return False

    def _read_spans(self, number: int, spans: Mapping[str, Span]) -> dict[str, bytes]:
        """Reads the bytes of the values that columns hold."""
        raw: dict[str, bytes] = {}
        for name in self.columns:
            size = spans[name].stop - spans[name].start
            limit = self._max_image if self.types[name].kind == FILE else _MAX_VALUE
            if size > limit:
                raise ValueError(f"{printable(name)} has {size} bytes, more than {limit} within max_pixels")
            raw[name] = self.opened[number].read(size, spans[name].start)
            if len(raw[name]) < size:
                raise ValueError("the file is cut off")
        return raw


def to_array(data: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Converts bytes, little-endian, to an array. Raises :class:`ValueError` for another number of bytes."""
    if len(data) != math.prod(shape) * np.dtype(dtype).itemsize:
        expected = f"an array {dtype} of shape {tuple(shape)}" if len(shape) else f"one number {dtype}"
        raise ValueError(f"found {len(data)} bytes, expected {expected}")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
