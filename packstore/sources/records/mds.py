"""Reads MDS shards of MosaicML Streaming: ``index.json`` and ``shard.00000.mds``, also compressed
(``streaming/base/format/mds/``, version 2 of the format).

A shard is the number of its samples, the offset of each and of the end (32 bits each), a description, and the
samples: sizes of the values without a fixed size, then the values.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError, printable
from packstore.core.export_manifest import StoredBytes
from packstore.core.files import read_bounded
from packstore.core.plainjson import load_json
from packstore.sources.archives.tar import detect_compression
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import ANY, BYTES, FILE, JSON, PIXELS, TEXT, ValueType, choose_main_image
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import INDEX, MAX_INDEX, OpenFiles, check_file_name, find_indexes, read_index
from packstore.sources.records.typed import LEFT, NUMBERS, PICKLE, Shard, Span, TypedSource, to_array
from packstore.sources.rows import in_packing_order

_MAX_COLUMNS = 1000
_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_KINDS = {
    **{name: name for name in NUMBERS}, "int": "int64", "str_int": "int64", "str_float": "float64", "jpeg": FILE,
    "png": FILE, "pil": PIXELS, "bytes": BYTES, "str": TEXT, "str_decimal": TEXT, "json": JSON, "pkl": PICKLE,
    **dict.fromkeys(("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray"), LEFT),
}  # fmt: skip
"""Kinds of values by their encodings; ``ndarray`` is any."""
_COMPRESSED = ("zstd", "gz", "bz2")


class Layout(NamedTuple):
    """Layout of a shard.

    Attributes:
        samples: Number of samples by the index.
        sizes: Sizes of the values in bytes; None if each value has its own size.
        nbytes: Bytes of the uncompressed shard; None if unknown.
    """

    samples: int
    sizes: tuple[int | None, ...]
    nbytes: int | None


class MdsSource(TypedSource):
    """Source of MDS shards that ``index.json`` names; with splits, ``train/index.json``, ``val/index.json`` …

    Opening raises :class:`SourceError` for a path without shards, a missing shard, shards with different columns, and
    pickles. Leaves out lists of images."""

    kind = "mds"
    evidence = f"{INDEX} and {{}}"

    def open_files(self, paths: list[Path]) -> OpenFiles:
        """Returns a reader of the shards, which decompresses compressed ones."""
        return OpenFiles(paths, detect_compression)

    @cached_property
    def indexes(self) -> list[tuple[str, Path]]:
        """Split and path of each ``index.json``."""
        return find_indexes(self.path)

    def read_shards(self) -> Iterator[Shard]:
        """Yields the shards that the indexes name. Raises :class:`SourceError` for an invalid index."""
        for split, index in self.indexes:
            try:
                yield from self.read_index_shards(split, index)
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
                raise SourceError(f"{printable(str(index))} cannot be used: {printable(str(error))}") from None

    def make_shard(self, split: str, file: Path, types: Mapping[str, ValueType], layout: Layout, most: int) -> Shard:
        """Makes a shard that an index names. Raises :class:`SourceError` if its file is missing, :class:`ValueError`
        for a number of samples that is negative or more than ``most``."""
        if not file.is_file():
            raise SourceError(f"{printable(str(file))} is missing; {INDEX} names it")
        if not 0 <= layout.samples <= most:
            raise ValueError(f"{printable(file.name)} cannot hold {layout.samples} samples")
        return Shard(split, file, types, layout)

    def read_index_shards(self, split: str, index: Path) -> Iterator[Shard]:
        """Yields the shards that an index names. If an index names both forms of a shard, prefers the uncompressed
        file. Raises :class:`SourceError` for a missing shard, an unknown compression, and another version. Raises other
        errors for an invalid index."""
        for plain in read_index(index)["shards"]:
            if plain["format"] != "mds" or plain["version"] != 2:
                raise SourceError(
                    f"{printable(str(index))} is of shards {plain['format']!r:.20} {plain['version']!r:.20}; packstore "
                    "reads mds of version 2"
                )
            names, encodings = tuple(map(str, plain["column_names"])), tuple(map(str, plain["column_encodings"]))
            sizes = tuple(_fixed_value_size(encoding) for encoding in encodings)
            said = tuple(None if not size else int(size) for size in plain["column_sizes"])
            if not len(names) == len(encodings) == len(said) <= _MAX_COLUMNS or len(set(names)) < len(names):
                raise ValueError("its columns do not go together")
            if sizes != said:
                raise ValueError(f"columns {encodings} have sizes {said}")
            raw, packed = plain["raw_data"], plain.get("zip_data")
            file = index.parent / check_file_name(raw["basename"])
            if packed and not file.is_file():
                kind = str(plain.get("compression") or "").partition(":")[0]
                file = index.parent / check_file_name(packed["basename"])
                if kind not in _COMPRESSED:
                    raise SourceError(f"{printable(str(file))} is compressed by {printable(kind)}: decompress it first")
            pairs = zip(names, encodings, strict=True)
            types = {name: ValueType(_KINDS.get(its, ANY), encoding=its) for name, its in pairs}
            nbytes = int(raw["bytes"])
            layout = Layout(int(plain["samples"]), sizes, nbytes)
            yield self.make_shard(split, file, types, layout, max(0, nbytes // 4 - 2))

    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields start and stop of each sample, and the reason why it cannot be read. A damaged shard has one reason
        for all its samples."""
        samples, sizes, nbytes = self.typed_shards[number].layout
        file = self.opened[number]
        end, count = os.fstat(file.descriptor).st_size, int.from_bytes(file.read(4, 0), "little")
        data = file.read(4 * (samples + 1), 4)
        if nbytes not in (None, end):
            fault = f"it has {end} bytes, and {INDEX} says {nbytes}"
        elif count != samples:
            fault = f"it has {count} samples, and {INDEX} says {samples}"
        else:
            fault = "" if len(data) == 4 * (samples + 1) else "it ends within its offsets"
        if fault:
            yield from repeat((0, 0, fault), samples)
            return
        head, least = 4 * (samples + 2), sum(4 if size is None else size for size in sizes)
        for start, stop in pairwise(map(int, np.frombuffer(data, "<u4"))):
            good = head <= start and start + least <= stop <= end
            yield start, stop, "" if good else f"a sample is from byte {start} to {stop}, where none can be"

    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value. Raises :class:`ValueError` if the values do not fill the sample."""
        shard = self.typed_shards[number]
        sizes = shard.layout.sizes
        unsaid = sizes.count(None)
        own = iter(np.frombuffer(self.opened[number].read(4 * unsaid, start), "<u4").tolist())
        at, spans = start + 4 * unsaid, {}
        for name, size in zip(shard.types, sizes, strict=True):
            length = next(own, 0) if size is None else size
            spans[name] = Span(at, at + length)
            at += length
        if at != stop:
            raise ValueError(f"{shard.file.name}: a sample of {stop - start} bytes has values of {at - start}")
        return spans

    def decode(self, type: ValueType, data: bytes, form: None = None) -> Any:
        """Decodes a value by its encoding, see :func:`decode_value`."""
        return decode_value(type.encoding, data)

    def splits(self) -> Sequence[str]:
        """Returns the split of each ``index.json`` in packing order, including splits without shards."""
        return in_packing_order(split for split, _ in self.indexes)

    def files(self) -> Iterator[Path]:
        """Yields the index files, then the shards."""
        yield from (index for _, index in self.indexes)
        yield from super().files()


def decode_value(encoding: str, data: bytes) -> Any:
    """Decodes a value by its encoding: a text, a number, JSON, pixels or an array; files and bytes stay as they are.
    Raises :class:`ValueError` if it is damaged."""
    kind = _KINDS.get(encoding, ANY)
    if kind in (FILE, BYTES):
        return data
    if kind == TEXT:
        return data.decode("utf-8")
    if kind == JSON:
        return load_json(data)
    if kind == PIXELS:
        return _decode_pixels(data)
    if kind == ANY:
        return decode_array(encoding, data)
    if encoding == "str_int":
        if not re.fullmatch(rb"[+-]?\d{1,18}", data):
            raise ValueError(f"found {data[:40]!r}, expected an integer")
        return int(data)
    if encoding == "str_float":
        return float(data)
    return to_array(data, kind, ())[()]


def decode_array(encoding: str, data: bytes, dtype: str = "") -> NDArray[Any]:
    """Decodes an array with the encoding ``ndarray:DTYPE:SHAPE``, read-only. ``data`` begins with the dtype unless
    ``encoding`` or ``dtype`` has it, and with the shape unless ``encoding`` has it. Raises :class:`ValueError` if they
    do not fit the data."""
    parts = encoding.split(":")
    dtype = dtype or (parts[1] if len(parts) > 1 else "")
    at = 0
    if not dtype:
        if not data or data[0] not in _CODES:
            raise ValueError("found an array of no known dtype")
        dtype, at = _CODES[data[0]], 1
    if len(parts) > 2:
        shape = [int(n) for n in parts[2].split(",")]
    else:
        if len(data) <= at:
            raise ValueError("it ends within its shape")
        count, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = data[at + 1 : at + 1 + count * width]
        if len(sizes) < count * width or count > 8:
            raise ValueError("it ends within its shape")
        shape, at = np.frombuffer(sizes, f"<u{width}").tolist(), at + 1 + count * width
    return to_array(data[at:], dtype, shape)


def _decode_pixels(data: bytes) -> NDArray[np.uint8]:
    """Decodes pixels of Pillow in mode L or RGB to ``(H, W, C)``. ``data`` is width, height, length of the mode's name,
    the name, and the pixels. Raises :class:`ValueError` for other modes and damage."""
    width, height, length = np.frombuffer(data[:12], "<u4").tolist() if len(data) >= 12 else (0, 0, 0)
    mode = data[12 : 12 + length].decode("ascii", "replace") if length < 16 else ""
    channels = {"L": 1, "RGB": 3}.get(mode)
    if channels is None:
        raise ValueError(f"found an image of mode {printable(mode)}; packstore reads L and RGB of these")
    if len(data) - 12 - length != width * height * channels:
        raise ValueError(f"found {len(data) - 12 - length} bytes, expected {width} x {height} pixels")
    return np.frombuffer(data, np.uint8, offset=12 + length).reshape(height, width, channels)


def _fixed_value_size(encoding: str) -> int | None:
    """Returns the number of bytes of each value of an encoding, or None if it varies.

    Raises :class:`ValueError` for an unknown encoding. For ``ndarray``, raises it also for an unknown dtype, and for a
    shape of more than eight axes or with an invalid length."""
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        if dtype and dtype not in NUMBERS:
            raise ValueError(f"an array of {dtype!r:.40}")
        if not shape:
            return None
        sizes = [int(n) for n in shape.split(",")]
        if len(sizes) > 8 or any(not 0 < n < 1 << 31 for n in sizes):
            raise ValueError(f"an array of shape {shape!r:.40}")
        return math.prod(sizes) * np.dtype(dtype).itemsize
    if rest or encoding not in _KINDS:
        raise ValueError(f"the encoding {encoding!r:.40}, which packstore does not know")
    return 8 if encoding == "int" else np.dtype(encoding).itemsize if encoding in NUMBERS else None


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """``CERTAIN`` if the first ``index.json`` names the format mds, else ``NO``. Does not parse the file, which may be
    damaged."""
    for _, index in find_indexes(path)[:1]:
        try:
            data = read_bounded(index, MAX_INDEX)
        except OSError:
            return Certainty.NO
        if b'"shards"' in data and re.search(rb'"format"\s*:\s*"mds"', data):
            return Certainty.CERTAIN
    return Certainty.NO


class ExportedMds(ExportedRows, MdsSource):
    """Source of MDS shards that packstore exported, see :mod:`packstore.exports.mds`."""

    key_name = "key"

    @cached_property
    def main_image(self) -> str:
        """``image``. Raises :class:`SourceError` if the shards have no such value."""
        return choose_main_image(self.path, [name for name in self.types if name == "image"], self.types)

    @cached_property
    def indexes(self) -> list[tuple[str, Path]]:
        """Split and path of the index beside each shard that the export names."""
        return list(dict.fromkeys((split, file.parent / INDEX) for split, file in self.list_shards()))

    def decode_sample(self, number: int, spans: Mapping[str, Span], raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the image and the exported columns; leaves out missing values. Values of varying length that are no
        images become :class:`StoredBytes`, the bytes that the store had. Raises :class:`ValueError` for a damaged
        value."""
        sample: dict[str, Any] = {}
        held = {"image", *self.export_manifest.held}
        for column in (self.export_manifest.manifest.image, *self.export_manifest.columns):
            name, data, numbers = column.name, raw.get(column.name), NUMPY_DTYPE[column.dtype]
            if data is None or name not in held or (column.nullable and not any(raw[column.valid_name])):
                continue
            if name == "image" and (column.layout is None or self.export_manifest.image == "png"):
                sample[name] = data
            elif column.kind == "fixed":
                sample[name] = np.frombuffer(b"" if 0 in column.shape else data, numbers).reshape(column.shape)
            elif column.layout is not None:
                sample[name] = decode_array("ndarray", data, numbers.name)
            elif column.form == "numbers":
                dtype = "uint8" if numbers == np.bool_ else numbers.name
                sample[name] = StoredBytes(decode_array("ndarray", data, dtype).tobytes())
            else:
                sample[name] = StoredBytes(data)
        return sample


KIND = Kind("mds", "MDS shards of MosaicML Streaming", _recognise, open_with(MdsSource, ExportedMds))
