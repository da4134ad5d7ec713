"""MDS shards of MosaicML Streaming: a folder a split with ``index.json`` and ``shard.00000.mds``
(``streaming/base/format/mds/``, version 2 of the format).

Each column becomes a value of the same name, and the key a ``str`` named ``key``. Arrays are ``ndarray``, which has
neither bool (written as ``uint8``) nor bfloat16 (its bits as ``uint16``). A missing value is empty or zeros, and
``name_valid`` is 0.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.columns import NUMPY_DTYPE, Column
from packstore.core.errors import UsageError
from packstore.core.files import sync_directory
from packstore.exports.base import Export, Record, name_folder
from packstore.stores.export_manifest import ExportManifest

_INDEX = "index.json"
_MAX_SHARD_BYTES = (1 << 32) - 1
"""Most bytes of a shard: its offsets have 32 bits."""
_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
"""Codes of the dtypes of ``ndarray``."""


class MdsExport(Export):
    """MDS shards, and an ``index.json`` for each split. A shard of 4 GiB or more raises :class:`UsageError`.

    A missing value is empty or zeros, and 0 in the column ``NAME_valid``.
    """

    name = "mds"
    help = "MDS shards of MosaicML Streaming"
    suffixes = (".mds",)
    source = "mds"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})
    keeps_keys = True
    shard_bytes = 1 << 26

    def exact_columns(self) -> Sequence[str]:
        """Returns the names of all the user's columns, without ``image``."""
        return [column.name for column in self.columns]

    def losses(self) -> Sequence[str]:
        """Returns a text for each of these parts that the store has: class names, bfloat16 values, lists of images,
        normalisation."""
        lost = []
        if any(column.classes is not None for column in self.columns):
            lost.append("names of classes: labels are numbers")
        if lists := [column.name for column in self.columns if column.form == "files"]:
            lost.append(
                f"that {', '.join(lists)} are images: a value is their sizes and files (packstore guide formats)"
            )
        return [*lost, *self.array_losses()]

    def overhead(self) -> int:
        """Returns estimated bytes of a sample's key, offset and sizes."""
        return 16 + self.mean_key_bytes + 4 * len(self.columns)

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Creates the folder of the split and the shard's file in it. Collects the samples in a temporary file, since
        the shard's header needs their number."""
        folder, encodings = name_folder(split), self._choose_encodings()
        (self.path / folder).mkdir(exist_ok=True)
        file, ends = f"{folder}/shard.{number:05}.mds".lstrip("/"), array("Q", [0])
        with self.open_files(file) as (out,), tempfile.TemporaryFile(dir=self.path / folder) as samples:
            for record in records:
                ends.append(ends[-1] + samples.write(self._encode_sample(record, encodings)))
            described = json.dumps(_describe_columns(encodings), sort_keys=True).encode("ascii")
            begin = 4 * (len(ends) + 1) + len(described)
            if begin + ends[-1] > _MAX_SHARD_BYTES:
                raise UsageError(f"an MDS shard of {begin + ends[-1]} bytes is too large; give a smaller --shard-size")
            out.write(np.uint32(len(ends) - 1).tobytes())
            out.write((np.frombuffer(ends, np.uint64) + np.uint64(begin)).astype("<u4").tobytes())
            out.write(described)
            samples.seek(0)
            shutil.copyfileobj(samples, out, 1 << 20)
        return file

    def _encode_sample(self, record: Record, encodings: Mapping[str, str]) -> bytes:
        """Returns the sample of a record: the sizes of values that vary in size, then all values."""
        values = {"key": record.key.encode("utf-8", "surrogateescape"), "image": record.image_bytes}
        if isinstance(record.image, np.ndarray):
            values["image"] = _encode_value(record.columns["image"], values["image"], record.image.shape)
        for column in self.columns:
            values[column.name] = _encode_value(column, record.stored_bytes(column.name), record.shape_of(column))
            if column.nullable:
                values[column.valid_name] = bytes([record.has_value(column.name)])
        data = [values[name] for name in encodings]
        sizes = [len(values[name]) for name, encoding in encodings.items() if not _parse_fixed_size(encoding)]
        return np.array(sizes, "<u4").tobytes() + b"".join(data)

    def sync(self, file: str | None) -> None:
        """Makes the shard's file and the export's folder durable, but not the entry in the split's folder."""
        super().sync(file)
        sync_directory(self.path)

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns ``index.json`` for each split that has records."""
        shards: dict[str, list[dict[str, Any]]] = {}
        for file, _, records in export_manifest.shards:
            folder, _, name = file.rpartition("/")
            size = (self.path / file).stat().st_size
            said = {"samples": records, "raw_data": {"basename": name, "bytes": size, "hashes": {}}, "zip_data": None}
            shards.setdefault(folder, []).append(_describe_columns(self._choose_encodings()) | said)
        indexes = {folder: {"version": 2, "shards": listed} for folder, listed in shards.items()}
        return {
            f"{folder}/{_INDEX}".lstrip("/"): [json.dumps(index, sort_keys=True).encode("ascii")]
            for folder, index in indexes.items()
        }

    def _choose_encodings(self) -> dict[str, str]:
        """Returns the MDS encoding of each field of a sample."""
        image = self.manifest.image
        # Image files of any kind are ``jpeg``.
        encodings = {"key": "str", "image": "jpeg" if image.layout is None or self.recoded else _choose_encoding(image)}
        for column in self.columns:
            encodings[column.name] = _choose_encoding(column)
            if column.nullable:
                encodings[column.valid_name] = "uint8"
        return dict(sorted(encodings.items()))  # sorted by name, as in the format


def _describe_columns(encodings: Mapping[str, str]) -> dict[str, Any]:
    """Returns the description of the columns for shards and indexes: names, encodings and fixed sizes."""
    return {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None,
        "column_names": list(encodings), "column_encodings": list(encodings.values()),
        "column_sizes": [_parse_fixed_size(encoding) for encoding in encodings.values()],
    }  # fmt: skip


def _choose_encoding(column: Column) -> str:
    """Returns the name of the MDS encoding of a column, such as ``jpeg``, ``int`` or ``ndarray:float32:4``."""
    dtype = _element_dtype(column)
    if column.form == "text":
        return "json" if column.traits.extension == "json" else "str"
    if column.form == "files":
        return "bytes"  # framed, as in the store
    if column.form in ("file", "bytes"):
        # Readers must not decode a missing file.
        return "bytes" if column.form == "bytes" or column.nullable else "jpeg" if column.holds_images else "png"
    if column.kind == "fixed" and not column.shape:
        return dtype
    whole = column.kind == "fixed" and 0 not in column.shape
    return f"ndarray:{dtype}:{','.join(map(str, column.shape))}" if whole else f"ndarray:{dtype}"


def _encode_value(column: Column, raw: bytes, shape: Sequence[int]) -> bytes:
    """Encodes a value for MDS from its stored bytes."""
    if not _choose_encoding(column).startswith("ndarray") or _parse_fixed_size(_choose_encoding(column)):
        return raw
    # Arrays without a fixed size get a header with their shape.
    if column.kind == "ragged" and column.layout is None:
        row = max(math.prod(column.shape) * NUMPY_DTYPE[column.dtype].itemsize, 1)
        shape = (len(raw) // row, *column.shape)
    sizes = np.array(shape, np.uint64)
    width = next(w for w in (1, 2, 4, 8) if w == 8 or not sizes.size or int(sizes.max()) < 1 << 8 * w)
    return bytes([len(sizes) << 2 | width.bit_length() - 1]) + sizes.astype(f"<u{width}").tobytes() + raw


def _element_dtype(column: Column) -> str:
    """Returns the dtype of a column's numbers in MDS."""
    name = NUMPY_DTYPE[column.dtype].name
    return name if name in _CODES else "uint8"  # MDS has no bool


def _parse_fixed_size(encoding: str) -> int | None:
    """Returns the bytes of each value with an encoding; None if values vary in size."""
    name, _, rest = encoding.partition(":")
    if name in _CODES:
        return np.dtype(name).itemsize
    dtype, _, shape = rest.partition(":")
    return np.dtype(dtype).itemsize * math.prod(map(int, shape.split(","))) if shape else None
