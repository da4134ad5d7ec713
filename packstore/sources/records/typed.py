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
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image
from packstore.images.sniff import begins_like_image, max_file_bytes
from packstore.sources.base import SourceOptions
from packstore.sources.columns import ANY, BYTES, FILE, PIXELS, ValueType, choose_main_image, guess, name_columns
from packstore.sources.records import OpenFiles, ShardSource
from packstore.sources.rows import PROBED, Row
from packstore.sources.values import names_an_image
from packstore.stores.link_files import Location

LEFT, PICKLE = "left", "pickle"
"""Kinds of values that no column holds, and of values that are refused."""
NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""dtypes of numbers and arrays."""
_MAX_VALUE = 1 << 31


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


class TypedSource(ShardSource):
    """Source of shards with typed values. Opening raises :class:`SourceError` if there are no shards, for shards with
    different types of values, and for pickles. Leaves out values that no column holds."""

    key_name = ""
    """Name of the value that is the key; empty if there is none."""
    unit = "shard"
    """Word for one file of the format."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.typed_shards = list(self.read_shards())
        if not self.typed_shards:
            raise SourceError(f"{printable(str(path))} holds no shards of {self.kind}")
        self.shards = [(shard.split, shard.file) for shard in self.typed_shards]
        first = self.typed_shards[0].types
        if any(shard.types != first or [*shard.types] != [*first] for shard in self.typed_shards):
            raise SourceError(f"{printable(str(path))}: its files have different fields")
        pickled = next((name for name, type in first.items() if type.kind == PICKLE), None)
        if pickled is not None:
            raise SourceError(
                f"{printable(str(path))}: {printable(pickled)} holds pickles, which packstore does not run: write the "
                "shards again with json, ndarray or bytes"
            )
        self.opened = self.open_files([shard.file for shard in self.typed_shards])
        plural = "s" * (len(self.shards) != 1)
        self.evidence = self.evidence.format(f"{len(self.shards)} {self.unit}{plural}")
        self._max_image = max_file_bytes(options.max_pixels)

    def open_files(self, paths: list[Path]) -> OpenFiles:
        """Returns a reader of the shards."""
        return OpenFiles(paths)

    @abstractmethod
    def read_shards(self) -> Iterable[Shard]:
        """Returns the shards at the source's path, in the order of reading. Raises :class:`SourceError` for invalid
        ones."""

    @abstractmethod
    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields start and stop of each sample of a shard, and the reason why it cannot be read, or ``""``."""

    @abstractmethod
    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value of the sample at ``start`` in a shard. Raises :class:`ValueError`, with the
        name of the file, if one is impossible."""

    @abstractmethod
    def decode(self, type: ValueType, data: bytes, form: Any) -> Any:
        """Decodes a value. Raises :class:`ValueError`, :class:`OverflowError` or :class:`RecursionError` for a damaged
        one."""

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """Type of each value."""
        return self.typed_shards[0].types

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of a shard, with the sizes of its values. Reading the row of a sample at an
        impossible place raises an error."""
        name, main, key_name = self.typed_shards[number].file.name, self.main_image, self.key_name
        for (start, stop, fault), key in zip(self.places(number), keys, strict=False):
            if fault:
                yield Row(key, (number, start, stop, f"{name}: {fault}"), 0)
                continue
            try:
                spans = self.spans(number, start, stop)
            except ValueError:
                yield Row(key, (number, start, stop), stop - start)  # reported when it is read
                continue
            size = spans[main].stop - spans[main].start
            if key_name in spans:
                low, high, _ = spans[key_name]
                key = self.opened[number].read(high - low, low).decode("utf-8", "surrogateescape")
            yield Row(key, (number, start, stop), size, max(0, stop - start - size))

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes a sample, by column. Raises :class:`ValueError` for a bad row or a damaged value."""
        number, start, stop, *fault = ref
        if fault:
            raise ValueError(fault[0])
        spans = self.spans(number, start, stop)
        return self.decode_sample(number, spans, self._read_spans(number, spans))

    def decode_sample(self, number: int, spans: Mapping[str, Span], raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the values of a sample, by column. Raises :class:`ValueError` with the names of file and value for a
        damaged one."""
        values = {}
        for name, column in self.columns.items():
            try:
                values[column] = self.decode(self.types[name], raw[name], spans[name].form)
            except (ValueError, OverflowError, RecursionError) as error:
                raise ValueError(f"{self.typed_shards[number].file.name}: {printable(name)}: {error}") from error
        return values

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the main image. Returns None for a sample that cannot be read, and if its file is compressed or has
        been replaced."""
        number, start, stop, *fault = ref
        try:
            low, high, _ = (0, 0, None) if fault else self.spans(number, start, stop)[self.main_image]
        except ValueError:
            return None  # reported when it is read
        return None if fault else self.opened.locate_span(number, low, high - low)

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns by the types of the values. Reads the first 16 samples of each split, on which the
        columns of bytes and arrays depend. Raises :class:`SourceError` for values that no column holds, or of which
        none can be read."""
        samples = []
        for row in chain.from_iterable(islice(self.rows(split), PROBED) for split in self.splits()):
            with suppress(ValueError, OSError):  # reported when it is read
                samples.append(self.read_values(row.ref))
        declared: dict[str, Field] = {}
        for name, column in self.columns.items():
            type = self.types[name]
            given = [sample[column] for sample in samples if column in sample]
            try:
                if name == self.main_image:
                    declared[column] = Image(None if type.kind in (FILE, BYTES) else "uint8")
                else:
                    declared[column] = guess(column, type, given)
            except ValueError as error:
                raise SourceError(f"{printable(str(self.path))}: {printable(name)}: {error}") from error
        return declared

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the values of each sample that no column can hold."""
        return dict(Counter(f"columns of {type.encoding}" for type in self.types.values() if type.kind == LEFT))

    def close(self) -> None:
        """Closes the source and its open shards."""
        super().close()
        self.opened.close()

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
        """Tells if a value of the first sample begins like an image file. False if the sample cannot be read."""
        first = ((n, place) for n in range(len(self.typed_shards)) for place in islice(self.places(n), 1))
        number, (start, stop, fault) = next(first, (0, (0, 0, "there is none")))
        try:
            low, high, _ = (0, 0, None) if fault else self.spans(number, start, stop)[name]
        except ValueError:  # a bad sample, which reading names
            return False
        return begins_like_image(self.opened[number].read(min(high - low, 16), low))

    def _read_spans(self, number: int, spans: Mapping[str, Span]) -> dict[str, bytes]:
        """Reads the bytes of the values that columns hold, at once if they follow each other. Raises
        :class:`ValueError` if one is too large or the file is cut off."""
        file, name = self.opened[number], self.typed_shards[number].file.name
        wanted = [(each, *spans[each][:2]) for each in self.columns]
        for each, low, high in wanted:
            limit = self._max_image if self.types[each].kind == FILE else _MAX_VALUE
            if high - low > limit:
                raise ValueError(
                    f"{name}: {printable(each)} has {high - low} bytes, more than {limit} within max_pixels"
                )
        start, stop = min(low for _, low, _ in wanted), max(high for _, _, high in wanted)
        together = stop - start == sum(high - low for _, low, high in wanted)
        data = file.read(stop - start, start) if together else b""
        raw = {
            each: data[low - start : high - start] if together else file.read(high - low, low)
            for each, low, high in wanted
        }
        if any(len(raw[each]) < high - low for each, low, high in wanted):
            raise ValueError(f"{name} ends within a sample")
        return raw


def to_array(data: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Converts bytes, little-endian, to an array. Raises :class:`ValueError` for another number of bytes."""
    if len(data) != math.prod(shape) * np.dtype(dtype).itemsize:
        expected = f"an array {dtype} of shape {tuple(shape)}" if len(shape) else f"one number {dtype}"
        raise ValueError(f"found {len(data)} bytes, expected {expected}")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
