"""Reads MDS shards of MosaicML Streaming: ``index.json`` and ``shard.00000.mds``, also compressed
(``streaming/base/format/mds/``, version 2 of the format).

A shard is the number of its samples, the offset of each and of the end (32 bits each), a description, and the
samples: sizes of the values without a fixed size, then the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json
from packstore.sources.archives.tar import detect_compression
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import ANY, BYTES, FILE, JSON, PIXELS, TEXT, ValueType, choose_main_image
from packstore.sources.exported import ExportedRows, open_with
from packstore.sources.records import INDEX, OpenFiles, find_indexes, find_named_file, read_index, refuse_damage
from packstore.sources.records.typed import LEFT, NUMBERS, PICKLE, Shard, Span, TypedSource, to_array
from packstore.sources.refusals import first_bytes
from packstore.stores.export_manifest import StoredBytes

# dtypes by their codes in arrays.
_CODES = {8 * np.dtype(name).itemsize + "uif".index(name[0]): name for name in NUMBERS}
# Kinds of values by their encodings; ``ndarray`` is any.
_KINDS = {
    **{name: name for name in NUMBERS}, "int": "int64", "str_int": "int64", "str_float": "float64", "jpeg": FILE,
    "png": FILE, "pil": PIXELS, "bytes": BYTES, "str": TEXT, "str_decimal": TEXT, "json": JSON, "pkl": PICKLE,
    **dict.fromkeys(("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray"), LEFT),
}  # fmt: skip
_ARRAY = re.compile(r"ndarray(?::(\w+))?(?::(\d{1,9}(?:,\d{1,9}){0,7}))?")
# Sizes of values with a fixed size, by their encodings.
_SIZED = {**{name: np.dtype(name).itemsize for name in NUMBERS}, "int": 8}


class MdsSource(TypedSource):
    """Source of MDS shards that ``index.json`` names, or ``train/index.json``, ``val/index.json`` and so on.

    Opening raises :class:`SourceError` for a path without shards, a missing shard, shards with different columns, and
    pickles. Leaves out lists of images."""

    kind = "mds"
    unit = "MDS shard"
    # Patterns that an ``index.json`` of the format matches.
    index_patterns: tuple[bytes, ...] = (rb'"shards"', rb'"format"\s*:\s*"mds"')

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Certain if the first 16 MiB of the first ``index.json`` match all patterns, else ``NO``. Does not
        parse the file, which may be damaged."""
        with suppress(SourceError):
            data = b"".join(first_bytes(index, 1 << 24) for _, index in find_indexes(path)[:1])
            if all(re.search(pattern, data) for pattern in cls.index_patterns):
                return Certainty.CERTAIN
        return Certainty.NO

    def open_files(self, paths: Sequence[Path]) -> OpenFiles:
        """Returns a reader of the shards, which decompresses compressed ones."""
        return OpenFiles(paths, detect_compression)

    @cached_property
    def indexes(self) -> list[tuple[str, Path]]:
        """Split and path of each ``index.json``."""
        return find_indexes(self.path)

    def read_shards(self) -> Iterator[Shard]:
        """Yields the shards that the indexes name. Raises :class:`SourceError` for an invalid index."""
        for split, index in self.indexes:
            with refuse_damage(index):
                yield from self.read_index_shards(split, index.parent, read_index(index))

    def read_index_shards(self, split: str, folder: Path, index: Mapping[str, Any]) -> Iterator[Shard]:
        """Yields the shards that an index names, with number of samples and sizes of values as layout. A size is
        None if values have different ones. If an index names both forms of a shard, prefers the uncompressed file.
        Raises :class:`ValueError` and other errors for a missing shard, another version and an invalid index.
        """
        for said in index["shards"]:
            if (said["format"], said["version"]) != ("mds", 2):
                raise ValueError(f"found shards {said['format']!r:.20} {said['version']!r:.20}, expected mds 2")
            parsed = [_parse_encoding(str(encoding)) for encoding in said["column_encodings"]]
            types = dict(zip(map(str, said["column_names"]), (type for type, _ in parsed), strict=True))
            plain, packed = said["raw_data"]["basename"], (said.get("zip_data") or said["raw_data"])["basename"]
            file = find_named_file(folder, plain if (folder / str(plain)).is_file() else packed)
            yield Shard(split, file, types, (int(said["samples"]), tuple(size for _, size in parsed)))

    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields start and stop of each sample, and the reason why it cannot be read. A shard whose table is damaged is
        one sample."""
        samples, file = self.typed_shards[number].layout[0], self.opened[number]
        count = int.from_bytes(file.read(4, 0), "little")
        if count != samples or 4 * (count + 2) > file.size:
            yield 0, 0, f"found {count} samples in {file.size} bytes; {INDEX} says {samples}"
            return
        for start, stop in pairwise(map(int, np.frombuffer(file.read(4 * (count + 1), 4), "<u4"))):
            good = 4 * (samples + 2) <= start <= stop <= file.size
            yield start, stop, "" if good else f"a sample is from byte {start} to {stop}, where none can be"

    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value. Raises :class:`ValueError` if the values do not fill the sample."""
        sizes = self.typed_shards[number].layout[1]
        unsaid = sizes.count(None)
        own = iter(np.frombuffer(self.opened[number].read(4 * unsaid, start), "<u4").tolist())
        at, spans = start + 4 * unsaid, {}
        for name, size in zip(self.types, sizes, strict=True):
            length = next(own, 0) if size is None else size
            spans[name] = Span(at, at + length)
            at += length
        if at != stop:
            raise ValueError(f"a sample of {stop - start} bytes has values of {at - start}")
        return spans

    def decode(self, type: ValueType, data: bytes, form: None = None) -> Any:
        """Decodes a value by its encoding to a text, a number, JSON, pixels or an array; files and bytes stay."""
        decoder = _DECODERS.get(type.encoding, _DECODERS.get(type.kind))
        if decoder is not None:
            return decoder(data)
        return _decode_array(type.encoding, data) if type.kind == ANY else to_array(data, type.kind, ())[()]

    def files(self) -> Iterator[Path]:
        """Yields the index files, then the shards."""
        yield from (index for _, index in self.indexes)
        yield from super().files()


def _decode_array(encoding: str, data: bytes) -> NDArray[Any]:
    """Decodes an array with the encoding ``ndarray:DTYPE:SHAPE``, read-only."""
    dtype, sizes = _split_encoding(encoding)
    if sizes:
        return to_array(data, dtype, sizes)
    # ``data`` begins with the dtype and the shape, unless ``encoding`` has them.
    at = 0 if dtype else 1
    dtype = dtype or _CODES.get(data[0] if data else 0, "")
    count, width = (data[at] >> 2, 1 << (data[at] & 3)) if len(data) > at else (0, 0)
    end = at + 1 + count * width
    if not dtype or not width or count > 8 or len(data) < end:
        raise ValueError("found an array of an unknown dtype or shape")
    return to_array(data[end:], dtype, np.frombuffer(data[at + 1 : end], f"<u{width}").tolist())


def _decode_pixels(data: bytes) -> NDArray[np.uint8]:
    """Decodes pixels of Pillow in mode L or RGB to ``(H, W, C)``."""
    # ``data`` is width, height, length of the mode's name, the name, and the pixels.
    width, height, length = np.frombuffer(data[:12], "<u4").tolist() if len(data) >= 12 else (0, 0, 0)
    mode = data[12 : 12 + length].decode("ascii", "replace") if length < 16 else ""
    if mode not in ("L", "RGB"):
        raise ValueError(f"found an image of mode {printable(mode)}; packstore reads L and RGB of these")
    return to_array(data[12 + length :], "uint8", (height, width, len(mode)))


# Decoders by encoding, or by kind of value.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    FILE: bytes, BYTES: bytes, TEXT: bytes.decode, JSON: load_json, PIXELS: _decode_pixels, "str_int": int,
    "str_float": float,
}  # fmt: skip


def _split_encoding(encoding: str) -> tuple[str, list[int]]:
    """Splits the encoding of an array, such as ``ndarray:int8:2,3``, into dtype and shape, which may be empty.

    Raises :class:`ValueError` for an unknown encoding.
    """
    match = _ARRAY.fullmatch(encoding)
    if match is None or match[1] not in (None, *NUMBERS):
        raise ValueError(f"found the encoding {encoding!r:.40}, which packstore does not know")
    return match[1] or "", [int(size) for size in (match[2] or "").split(",") if size]


def _parse_encoding(encoding: str) -> tuple[ValueType, int | None]:
    """Returns the type of an encoding, and the number of bytes of each value; None if it varies."""
    if encoding in _KINDS:
        return ValueType(_KINDS[encoding], encoding=encoding), _SIZED.get(encoding)
    dtype, shape = _split_encoding(encoding)
    return ValueType(ANY, encoding=encoding), math.prod(shape) * np.dtype(dtype).itemsize if shape else None


class ExportedMds(ExportedRows, MdsSource):
    """Source of MDS shards that packstore exported, see :mod:`packstore.exports.records`."""

    key_name = "key"
    list_shards = MdsSource.list_shards

    @cached_property
    def main_image(self) -> str:
        """``image``. Raises :class:`SourceError` if the shards have no such value."""
        return choose_main_image(self.path, [name for name in self.types if name == "image"], self.types)

    @cached_property
    def indexes(self) -> list[tuple[str, Path]]:
        """Split and path of the index beside each shard that the export names."""
        return list(dict.fromkeys((split, file.parent / INDEX) for split, file in super().list_shards()))

    def decode_sample(self, spans: Mapping[str, Span], raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the image and the exported columns; leaves out missing values. Values of varying length that are no
        images become :class:`StoredBytes`, the bytes that the store had. Raises :class:`ValueError` for a damaged
        value."""
        sample: dict[str, Any] = {}
        held = {"image", *self.export_manifest.held}
        for column in (self.export_manifest.manifest.image, *self.export_manifest.columns):
            name, data = column.name, raw.get(column.name)
            if data is None or name not in held or (column.nullable and not any(raw[column.valid_name])):
                continue
            is_file = name == "image" and (column.layout is None or self.export_manifest.image == "png")
            is_array = column.kind == "fixed" or column.layout is not None
            if not is_file and (is_array or column.form == "numbers"):
                array = np.asarray(self.decode(self.types[name], data)).view(NUMPY_DTYPE[column.dtype])
                sample[name] = array if is_array else StoredBytes(array.tobytes())
            else:
                sample[name] = data if is_file else StoredBytes(data)
        return sample


KIND = Kind("mds", "MDS shards of MosaicML Streaming", MdsSource.recognise, open_with(MdsSource, ExportedMds))
