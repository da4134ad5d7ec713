"""WebDataset: tar shards in which the files of a sample share a stem and follow each other.

The image has the extension ``.jpg``, ``.png`` … by its content; an array has ``.npy``. The column ``label`` has
``.cls``, ``text`` has ``.txt``, ``json`` has ``.json``; other columns put their name before the extension:
``.mask.png``, ``.caption.txt``. A list of images has a file each: ``.further_images.0.jpg``, ``.further_images.1.png``.
A missing value has no file.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from xxhash import xxh3_128_hexdigest

from packstore.core.column import Column
from packstore.exports.archives import TarWriter
from packstore.exports.base import (
    Export,
    Record,
    can_be_lines,
    name_shard,
    safe_name,
    shorten_name,
)
from packstore.images.sniff import image_suffix
from packstore.stores.export_manifest import ExportManifest

CLASSES = "classnames.txt"
_LONGEST = 1000
_USUAL = {"label": "cls", "text": "txt", "json": "json"}
"""Extensions of columns with these names and matching types; other columns have ``name.extension``."""


class WebDatasetExport(Export):
    """Shards ``train-000000.tar`` …, and ``classnames.txt`` if each class name can be a line.

    A missing value has no file. Dots in keys are escaped. A name that occurs again in a shard gets a number.
    """

    name = "webdataset"
    help = "tar shards of WebDataset"
    suffixes = (".wds",)
    source = "webdataset"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files", "uint8", "floats"})

    def exact_columns(self) -> Sequence[str]:
        """Returns the names of all columns."""
        return [column.name for column in self.columns]

    def losses(self) -> Sequence[str]:
        """Returns a text on dots in keys, and one for each of these that the store has: class names that cannot be
        lines, lists of images, bfloat16 values, and normalisation."""
        lost = ["dots in keys: a key ends at the first dot, so they are written as %2E"]
        if any(column.classes is not None for column in self.columns) and not self._lists_classes:
            lost.append("names of classes: labels are numbers")
        if lists := [column.name for column in self.columns if column.form == "files"]:
            lost.append(f"that images belong to one list: each is a file of its own ({lists[0]}.0.jpg …)")
        return [*lost, *self.array_losses()]

    def overhead(self) -> int:
        """Returns the bytes of the tar headers and of the padding of a record's files. The padding is estimated."""
        sizes = [column.size_of(self.manifest.records) // max(1, self.manifest.records) for column in self.columns]
        return 512 + self.estimate_block_padding(512) + sum(512 - (-(size + 64) // 512) * 512 - size for size in sizes)

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Writes a tar with one or more files for each record: its image, and a file for each value. A list of images
        has a file for each image.

        A missing value has no file. An empty list has no file either: if the column may have missing values, marks the
        list as inexact.
        """
        file, names = name_shard(split, number, "tar"), set[str]()
        with self.open_files(file) as (out,):
            tar = TarWriter(out)
            for record in records:
                name, image = _make_unique_name(record, names), record.image
                tar.add(f"{name}.{record.extension}", _encode_npy(image) if isinstance(image, np.ndarray) else image)
                for column in self.columns:
                    for suffix, data in _encode_value_files(column, record):
                        tar.add(f"{name}.{suffix}", data)
            tar.close()
        return file

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns ``classnames.txt`` if there are class names and each can be a line."""
        names = self.manifest.classes or ()
        return {CLASSES: (f"{name}\n".encode() for name in names)} if self._lists_classes else {}

    @property
    def _lists_classes(self) -> bool:
        """Tells if there are class names, and each can be a line of a file."""
        classes = self.manifest.classes
        return classes is not None and can_be_lines(classes)


def _make_unique_name(record: Record, used: set[str]) -> str:
    """Returns a path without extension for the files of a record, and adds it to those ``used`` in the shard."""
    *folders, base = record.key.split("/")
    stem, dot, suffix = base.rpartition(".")
    if not dot or suffix.lower() not in (record.extension, "jpeg"):
        stem = base
    base = shorten_name(safe_name(stem).replace(".", "%2E"))
    if base.startswith("_"):
        base = f"%5F{base[1:]}"  # readers reserve names that begin with __
    name = "/".join([*(safe_name(folder) for folder in folders), base])
    if len(name.encode()) > _LONGEST:
        name = xxh3_128_hexdigest(record.key.encode("utf-8", "surrogateescape"))
    unique, count = name, 1
    while unique in used:
        count += 1
        unique = f"{name}~{count}"
    used.add(unique)
    return unique


def _encode_value_files(column: Column, record: Record) -> Iterator[tuple[str, bytes]]:
    """Yields suffix and content of each file of a record's value; none if it is missing."""
    if not record.has_value(column.name):
        return
    as_stored = column.form in ("text", "bytes")
    value = bytes(record.stored[column.name]) if as_stored else record[column.name]
    if column.form == "files":
        for number, file in enumerate(value):
            yield f"{column.name}.{number}.{image_suffix(file)}", file
        if not value and column.nullable:
            record.inexact.add(column.name)  # without a file, the value would be missing
        return
    extension = image_suffix(value) if column.form == "file" else column.traits.extension
    if extension == "cls":
        value = str(value).encode("ascii")
    name = extension if _USUAL.get(column.name) == extension else f"{column.name}.{extension}"
    # Texts, files and bytes stay as they are.
    yield name, value if isinstance(value, bytes) else _encode_npy(value)


def _encode_npy(array: Any) -> bytes:
    """Encodes an array as an ``.npy`` file."""
    out = io.BytesIO()
    np.save(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()
