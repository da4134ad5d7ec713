"""Reads MDS shards of MosaicML Streaming: ``index.json`` and ``shard.00000.mds``, also compressed
(``streaming/base/format/mds/``, version 2 of the format).

A shard is the number of its samples, the offset of each and of the end (32 bits each), a description, and the
samples: sizes of the values without a fixed size, then the values.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import SourceError, printable
from packstore.core.export_manifest import StoredBytes
from packstore.core.fields import Array, Bytes, Field, Image, Json, Label, Text
from packstore.core.files import read_bounded
from packstore.images.sniff import begins_like_image, max_file_bytes
from packstore.sources.archives.tar import detect_compression
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.exported_rows import ExportedRows, open_with
from packstore.sources.ignoring import visible_paths
from packstore.sources.names import make_column_names
from packstore.sources.records.files import OpenFiles
from packstore.sources.records.mds_layout import (
    FILES,
    INDEX,
    LISTS,
    MAX_JSON,
    SCALARS,
    MdsShard,
    decode_array,
    decode_value,
    read_shards,
)
from packstore.sources.records.shards import ShardSource
from packstore.sources.rows import Row, in_packing_order
from packstore.sources.splits import find_split_folders
from packstore.sources.values import LABEL_NAMES, infer_field, names_an_image
from packstore.stores.link_files import Location

_MAX_VALUE = 1 << 31
_PROBED = 16


class MdsSource(ShardSource):
    """Source of MDS shards that ``index.json`` names; with splits, ``train/index.json``, ``val/index.json`` …

    Opening raises :class:`SourceError` for a path without shards, a missing shard, shards with different columns, and
    pickles. Leaves out lists of images."""

    kind = "mds"
    _key_name: str | None = None
    """Name of the value that is the key; None if there is none."""
    read_shards = staticmethod(read_shards)
    decode_by_encoding = staticmethod(decode_value)

    @staticmethod
    def open_files(paths: Sequence[Path]) -> OpenFiles:
        """Returns a reader of the shards, which decompresses compressed ones."""
        return OpenFiles(paths, detect_compression)

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._indexes = self.list_indexes()
        if not self._indexes:
            raise SourceError(f"{printable(str(path))} holds no {INDEX} of {self.kind}")
        self._shards = [shard for split, index in self._indexes for shard in self.read_shards(split, index)]
        if not self._shards:
            raise SourceError(f"{printable(str(path))}: {INDEX} names no shards")
        self.shards = [(shard.split, shard.file) for shard in self._shards]
        self._files = self.open_files([shard.file for shard in self._shards])
        first = self._shards[0]
        if any((s.names, s.encodings, s.sizes) != (first.names, first.encodings, first.sizes) for s in self._shards):
            raise SourceError(f"{printable(str(path))}: its shards have different columns")
        if "pkl" in first.encodings:
            name = first.names[first.encodings.index("pkl")]
            raise SourceError(
                f"{printable(str(path))}: {printable(name)} holds pickles, which packstore does not run: write the "
                "shards again with json, ndarray or bytes"
            )
        self._max_image = max_file_bytes(options.max_pixels)
        self.evidence = f"{INDEX} and {len(self._shards)} shard{'s' * (len(self._shards) != 1)}"

    def list_indexes(self) -> list[tuple[str, Path]]:
        """Lists split and path of each ``index.json``."""
        return find_indexes(self.path)

    def splits(self) -> Sequence[str]:
        """Returns the split of each ``index.json`` in packing order, including splits without shards."""
        return in_packing_order(split for split, _ in self._indexes)

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of a shard, with the sizes of its values. The size is 0 for a sample at an
        impossible offset, and for all samples of a damaged shard. Reading such a row raises an error."""
        shard, (offsets, reason, _) = self._shards[number], self._shard_offsets[number]
        for i, key in enumerate(islice(keys, shard.samples)):
            start, stop = (int(offsets[i]), int(offsets[i + 1])) if not reason else (0, 0)
            problem = reason or self._placement_error(number, start, stop)
            if problem:
                yield Row(key, (number, start, stop, f"{shard.file.name}: {problem}"), 0)
                continue
            size, rest, own = self._measure_sample(number, start, stop)
            yield Row(key if own is None else own, (number, start, stop), size, rest)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads and decodes a sample, by column. Raises :class:`ValueError` for a bad row or a damaged value."""
        number, start, stop, *reason = ref
        if reason:
            raise ValueError(reason[0])
        shard, raw = self._shards[number], self._read_fields(number, start, stop)
        return self.decode_sample(shard, dict(zip(shard.names, raw, strict=True)))

    def decode_sample(self, shard: MdsShard, raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the values of a sample, by column; leaves out lists of images. Raises :class:`ValueError` with the
        name of the value for a damaged one."""
        values = {}
        for name, encoding in zip(shard.names, shard.encodings, strict=True):
            if name in self._columns:
                try:
                    values[self._columns[name]] = self.decode_by_encoding(encoding, raw[name])
                except (ValueError, OverflowError, RecursionError) as error:
                    raise ValueError(f"{printable(name)}: {error}") from error
        return values

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the sample, from its first value to its last. Returns None if its shard is compressed, or has been
        replaced."""
        return self._files.locate_span(ref[0], ref[1], ref[2] - ref[1])

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns by their encodings. Reads the first 16 samples of each split: columns of bytes and
        arrays depend on these samples. Raises :class:`SourceError` for arrays that no column holds, or of which none
        can be read."""
        shard = self._shards[0]
        encodings = dict(zip(shard.names, shard.encodings, strict=True))
        probes = [self._read_first_samples(split) for split in self.splits()]
        samples = [sample for probe in probes for sample in probe]
        return {
            column: self._declare_column(
                name, encodings[name], [sample[column] for sample in samples if column in sample]
            )
            for name, column in self._columns.items()
        }

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the values in each sample that are lists of images, which no column can hold."""
        counts = Counter(f"columns of {name}" for name in self._shards[0].encodings if name in LISTS)
        return dict(counts)

    def files(self) -> Iterator[Path]:
        """Yields the index files, then the shards."""
        yield from (index for _, index in self._indexes)
        yield from super().files()

    def close(self) -> None:
        """Closes the source and its open shards."""
        super().close()
        self._files.close()

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Column of each value, by name, without lists of images; ``image`` for the main image. Raises
        :class:`SourceError` if another value is called ``image``."""
        shard = self._shards[0]
        names = [name for name, encoding in zip(shard.names, shard.encodings, strict=True) if encoding not in LISTS]
        columns = make_column_names(names)
        main = self._find_main_image(names, dict(zip(shard.names, shard.encodings, strict=True)))
        if "image" in columns.values() and columns[main] != "image":
            raise SourceError(f"{printable(str(self.path))}: 'image' is not an image, but {printable(main)} is")
        return {**columns, main: "image"}

    def _find_main_image(self, names: Sequence[str], encodings: Mapping[str, str]) -> str:
        """Finds the value that is the main image: the first with a usual name of images, else the first. The order is:
        images by encoding, bytes that begin like an image, arrays with a usual name. Raises :class:`SourceError` if
        there is no image."""
        images = [name for name in names if encodings[name] in (*FILES, "pil")]
        images += [name for name in names if encodings[name] == "bytes" and self._begins_like_image(name)]
        images += [name for name in names if encodings[name].startswith(("ndarray", "numpy")) and names_an_image(name)]
        if not images:
            raise SourceError(f"{printable(str(self.path))} holds no images, but {', '.join(map(printable, names))}")
        return next((name for name in images if names_an_image(name)), images[0])

    def _begins_like_image(self, name: str) -> bool:
        """Tells if a value of the first sample begins like an image file. False if the sample cannot be read."""
        number = next((n for n, shard in enumerate(self._shards) if shard.samples), 0)
        offsets, reason, _ = self._shard_offsets[number]
        if reason or self._placement_error(number, int(offsets[0]), int(offsets[1])):
            return False
        try:
            data = self._read_fields(number, int(offsets[0]), int(offsets[1]))[self._shards[number].names.index(name)]
        except ValueError:  # a bad sample, which reading names
            return False
        return begins_like_image(data[:16])

    def _declare_column(self, name: str, encoding: str, given: Sequence[Any]) -> Field:
        """Declares the column of a value by its encoding. ``given`` are its values in the first samples. Integers with
        a name of labels are labels. Bytes are images if the first value begins like an image. Arrays depend on all
        values. Raises :class:`SourceError` for arrays if there are no values, or no column holds them."""
        column = self._columns[name]
        if column == "image":
            return Image(None if encoding in (*FILES, "bytes") else "uint8")
        if encoding in (*FILES, "pil"):
            return Image(None if encoding in FILES else "uint8")
        plain: dict[str, Field] = {"str": Text(), "str_decimal": Text(), "bytes": Bytes(), "json": Json()}
        if encoding == "bytes" and given and begins_like_image(bytes(given[0][:16])):
            return Image()
        if encoding in plain:
            return plain[encoding]
        if encoding in ("int", "str_int", *SCALARS):
            dtype = encoding if encoding in SCALARS else "int64"
            return Label() if name.lower() in LABEL_NAMES and "int" in dtype else Array(dtype)
        if encoding == "str_float":
            return Array("float64")
        if not given:
            raise SourceError(f"{printable(str(self.path))}: no value of {printable(name)} can be read")
        try:
            return infer_field(column, given)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: {printable(name)}: {error}") from error

    def _read_first_samples(self, split: str) -> Iterator[dict[str, Any]]:
        """Yields those of the first 16 samples of a split that can be read; skips others."""
        for row in islice(self.rows(split), _PROBED):
            try:
                yield self.read_values(row.ref)
            except (ValueError, OSError):
                continue  # reported when it is read

    @cached_property
    def _shard_offsets(self) -> list[tuple[NDArray[np.uint32], str, int]]:
        """Results of :meth:`_read_offsets` for each shard."""
        return [self._read_offsets(number) for number in range(len(self._shards))]

    def _read_offsets(self, number: int) -> tuple[NDArray[np.uint32], str, int]:
        """Reads the offsets of a shard, and checks its size and count against the index. Returns

        - the offsets of its samples and of their end;
        - the reason if something is wrong, else ``""``;
        - the size of the shard.
        """
        shard, none = self._shards[number], np.zeros(0, np.uint32)
        file = self._files[number]
        end = os.fstat(file.descriptor).st_size
        if shard.nbytes not in (None, end):
            return none, f"it has {end} bytes, and {INDEX} says {shard.nbytes}", end
        count = int.from_bytes(file.read(4, 0), "little")
        if count != shard.samples:
            return none, f"it has {count} samples, and {INDEX} says {shard.samples}", end
        data = file.read(4 * (count + 1), 4)
        if len(data) < 4 * (count + 1):
            return none, "it ends within its offsets", end
        return np.frombuffer(data, "<u4"), "", end

    def _placement_error(self, number: int, start: int, stop: int) -> str:
        """Returns the error for a sample at an impossible place; ``""`` for a possible one."""
        shard = self._shards[number]
        head = 4 * (shard.samples + 2)
        least = sum(4 if size is None else size for size in shard.sizes)
        good = head <= start <= stop <= self._shard_offsets[number][2] and stop - start >= least
        return "" if good else f"a sample is from byte {start} to {stop}, where none can be"

    def _locate_values(self, number: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Returns start and end of each value of a sample. Raises :class:`ValueError` if they do not fill the
        sample."""
        shard = self._shards[number]
        unsaid = sum(size is None for size in shard.sizes)
        lengths = iter(np.frombuffer(self._files[number].read(4 * unsaid, start), "<u4").tolist())
        at, spans = start + 4 * unsaid, []
        for size in shard.sizes:
            length = next(lengths) if size is None else size
            spans.append((at, at + length))
            at += length
        if at != stop:
            raise ValueError(f"{shard.file.name}: a sample of {stop - start} bytes has values of {at - start}")
        return spans

    def _measure_sample(self, number: int, start: int, stop: int) -> tuple[int, int, str | None]:
        """Returns the sizes of a sample's main image and of its other values, and its key. The key is None if the
        shards have no keys. For a damaged sample, returns the size of the whole sample, 0 and None."""
        shard, file = self._shards[number], self._files[number]
        try:
            spans = dict(zip(shard.names, self._locate_values(number, start, stop), strict=True))
        except ValueError:
            return stop - start, 0, None  # reported when it is read
        low, high = spans.get(self._image_name, (start, start))
        key = None
        if self._key_name in spans:
            begin, end = spans[self._key_name]
            key = file.read(end - begin, begin).decode("utf-8", "surrogateescape")
        return high - low, stop - start - (high - low), key

    @cached_property
    def _image_name(self) -> str:
        """Name of the value that is the main image."""
        return next(name for name, column in self._columns.items() if column == "image")

    def _read_fields(self, number: int, start: int, stop: int) -> list[bytes]:
        """Reads the encoded values of a sample. Raises :class:`ValueError` if one is too large or the shard is cut
        off."""
        file, shard = self._files[number], self._shards[number]
        spans = self._locate_values(number, start, stop)
        limits = [self._max_image if encoding in FILES else _MAX_VALUE for encoding in shard.encodings]
        for name, (low, high), limit in zip(shard.names, spans, limits, strict=True):
            if high - low > limit:
                raise ValueError(f"{printable(name)} has {high - low} bytes, more than {limit} within max_pixels")
        data = file.read(stop - start, start)
        if len(data) < stop - start:
            raise ValueError(f"{shard.file.name} ends within a sample")
        return [data[low - start : high - start] for low, high in spans]


def find_indexes(path: Path) -> list[tuple[str, Path]]:
    """Finds ``index.json`` in a folder, or in its folders named after splits; returns split and path of each. Returns
    ``[]`` if there is none, or the folder cannot be listed."""
    if (path / INDEX).is_file():
        return [("", path / INDEX)]
    if not path.is_dir():
        return []
    try:
        splits = find_split_folders(each.name for each in visible_paths(path))
    except OSError:
        return []
    return [(split, path / name / INDEX) for name, split in splits.items() if (path / name / INDEX).is_file()]


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """``CERTAIN`` if the first ``index.json`` names the format mds, else ``NO``. Does not parse the file, which may be
    damaged."""
    for _, index in find_indexes(path)[:1]:
        try:
            data = read_bounded(index, MAX_JSON)
        except OSError:
            return Certainty.NO
        if b'"shards"' in data and re.search(rb'"format"\s*:\s*"mds"', data):
            return Certainty.CERTAIN
    return Certainty.NO


class ExportedMds(ExportedRows, MdsSource):
    """Source of MDS shards that packstore exported, see :mod:`packstore.exports.mds`."""

    _image_name, _key_name = "image", "key"

    def list_indexes(self) -> list[tuple[str, Path]]:
        """Lists split and path of the index beside each shard that the export names."""
        return list(dict.fromkeys((split, file.parent / INDEX) for split, file in self.list_shards()))

    def decode_sample(self, shard: MdsShard, raw: Mapping[str, bytes]) -> dict[str, Any]:
        """Decodes the image and the exported columns; leaves out missing values. Values of varying length that are no
        images become :class:`StoredBytes`, the bytes that the store had. Raises :class:`ValueError` for a damaged
        value."""
        sample: dict[str, Any] = {}
        for column in (self.export_manifest.manifest.image, *self.export_manifest.columns):
            if column.name not in raw or (column.name not in self.export_manifest.held and column.name != "image"):
                continue
            data = raw[column.name]
            if column.nullable and not any(raw[column.valid_name]):
                continue
            if column.name == "image" and (column.layout is None or self.export_manifest.image == "png"):
                sample["image"] = data
            elif column.layout is not None and column.kind == "ragged":
                sample[column.name] = decode_array("ndarray", data, NUMPY_DTYPE[column.dtype].name)
            elif column.kind == "fixed":
                numbers = NUMPY_DTYPE[column.dtype]
                values = np.zeros(0, numbers) if 0 in column.shape else np.frombuffer(data, numbers)
                sample[column.name] = values.reshape(column.shape)
            elif column.form == "numbers":
                dtype = NUMPY_DTYPE[column.dtype].name
                sample[column.name] = StoredBytes(
                    decode_array("ndarray", data, "uint8" if dtype == "bool" else dtype).tobytes()
                )
            else:
                sample[column.name] = StoredBytes(data)
        return sample


KIND = Kind("mds", "MDS shards of MosaicML Streaming", _recognise, open_with(MdsSource, ExportedMds))
