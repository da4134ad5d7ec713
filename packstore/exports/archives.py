"""Exports in archives: an image folder in one tar or zip, and WebDataset.

WebDataset is tar shards in which the files of a sample share a stem and follow each other. The image has the extension
``.jpg``, ``.png`` … by its content; an array has ``.npy``. The column ``label`` has ``.cls``, ``text`` has ``.txt``,
``json`` has ``.json``; other columns put their name before the extension: ``.mask.png``, ``.caption.txt``. A list of
images has a file each: ``.further_images.0.jpg``, ``.further_images.1.png``. A missing value has no file.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from xxhash import xxh3_128_hexdigest

from packstore.core.columns import Column
from packstore.core.files import drop, open_file
from packstore.exports.base import Export, Record, can_be_lines, name_shard, safe_name, shorten_name
from packstore.exports.folder import FilesExport, image_file
from packstore.images.sniff import image_suffix
from packstore.stores.export_manifest import MANIFEST_FILE, ROWS_FILE, ExportManifest, parse_export_manifest

_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")
_SIZES = struct.Struct("<2H2Q")
_UTF8, _MADE_BY_UNIX, _VERSION, _VERSION64 = 1 << 11, 3 << 8, 20, 45
_FIRST_DAY = 1 << 5 | 1  # 1980-01-01, the earliest date of a zip
_MODE = 0o100644 << 16
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF  # mean that the number is in the fields of zip64
_LARGE, _MANY = _MAX32, _MAX16
_STEP = 1 << 20
_MAX_MANIFEST_BYTES = 256 << 20
CLASSES = "classnames.txt"
_LONGEST = 1000
_USUAL = {"label": "cls", "text": "txt", "json": "json"}
"""Extensions of columns with these names and matching types; other columns have ``name.extension``."""


class TarWriter:
    """Writes a tar of GNU's format to an open file. Files have the mode 644 and the date 1970-01-01. The caller closes
    the file."""

    def __init__(self, out: IO[bytes]) -> None:
        # Whole seconds and GNU's format: a header of PAX would add 1 KB to each file.
        self._tar = tarfile.open(  # noqa: SIM115 - closed by close()
            fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def add(self, name: str, data: bytes) -> None:
        """Adds a file with the content ``data``."""
        self.add_file(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        """Adds a file with the next ``size`` bytes of ``file``. Raises :class:`OSError` if there are fewer."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        self._tar.addfile(member, file)
        self._tar.members.clear()  # type: ignore[attr-defined] # else tarfile keeps all of them

    def close(self) -> None:
        """Writes the end of the archive."""
        self._tar.close()

    def abort(self) -> None:
        """Does nothing, since the caller closes the only open file."""
        return


class _ArchiveExport(FilesExport):
    """Base of exports of an image folder in one archive file. The archive stays open from the first shard to the last.

    A resumed run cuts it off after the last complete shard.
    """

    one_file = True
    _out: IO[bytes] | None = None
    _opened: TarWriter | ZipWriter | None = None

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> None:
        """Appends the records. The first call creates the archive, unless :meth:`resume` has opened it."""
        if self._out is None:
            self._out = open_file(self.path, "wb")
            self._opened = self.new_writer(self._out)
        super().write_shard(number, split, records)

    def resume(self, size: int) -> None:
        """Opens the archive, cuts it off after ``size`` bytes and appends from there. For a zip, reads the headers of
        all files before that."""
        self._out = open_file(self.path, "r+b")
        self._out.truncate(size)
        self._out.seek(size)
        self._opened = self.new_writer(self._out)

    def sync(self, file: str | None) -> None:
        """Flushes the whole archive to disk."""
        assert self._out is not None
        self._out.flush()
        os.fsync(self._out.fileno())

    @property
    def _writer(self) -> TarWriter | ZipWriter:
        """The writer of the open archive."""
        assert self._opened is not None
        return self._opened

    @abstractmethod
    def new_writer(self, out: IO[bytes]) -> TarWriter | ZipWriter:
        """Returns a writer that appends at the end of ``out``. If ``out`` is empty, begins the archive."""

    def write_record(self, record: Record) -> None:
        """Adds the image of a record to the archive."""
        record.line["file"] = path = self.record_paths(record)
        self._writer.add(path, image_file(record))

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Adds the record lines and the export manifest unless the export is bare. Ends the archive and closes it.

        Returns the export manifest unchanged.
        """
        assert lines is not None
        assert self._out is not None
        if not self.bare:
            with lines.open("rb") as file:
                self._writer.add_file(ROWS_FILE, file, lines.stat().st_size)
        self.write_end(self._out, export_manifest.to_json().encode("ascii"))
        self._out.close()
        return export_manifest

    @abstractmethod
    def write_end(self, out: IO[bytes], export_manifest: bytes) -> None:
        """Writes the export manifest, unless the export is bare, and the end of the archive."""

    def abort(self) -> None:
        """Closes the archive without writing its end."""
        if self._out is not None and not self._out.closed:
            if self._opened is not None:
                self._opened.abort()
            drop(self._out)


class TarExport(_ArchiveExport):
    """One tar. Its first file is the export manifest, unless the export is bare: a reader recognises it at once.

    The end of the export overwrites the manifest in place, since digests may have changed.
    """

    name = "tar"
    help = "an image folder in a tar"
    suffixes = (".tar",)

    def overhead(self) -> int:
        """Returns the bytes of a tar header, and the mean padding of an image."""
        return 512 + self.estimate_block_padding(512)

    def new_writer(self, out: IO[bytes]) -> TarWriter:
        """Returns a writer of the tar. If ``out`` is empty and the export is not bare, writes the export manifest
        first."""
        writer = TarWriter(out)
        if not out.tell() and not self.bare:
            writer.add(MANIFEST_FILE, self.export_manifest.to_json().encode("ascii"))
        return writer

    def write_end(self, out: IO[bytes], export_manifest: bytes) -> None:
        """Ends the tar. Overwrites the manifest at its start with ``export_manifest`` unless the export is bare.

        Both have the same length; another length fails an assertion.
        """
        self._writer.close()
        if self.bare:
            return
        # Only digests may have changed, so the new text takes the place of the old.
        assert len(export_manifest) == len(self.export_manifest.to_json())
        out.seek(tarfile.BLOCKSIZE)
        out.write(export_manifest)

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        """Reads the first file of a tar. Returns None if ``path`` is no tar, or its first file is no export manifest.

        Raises :class:`ManifestError` for a damaged manifest.
        """
        try:
            with (
                path.open("rb") as whole,
                tarfile.open(fileobj=whole, mode="r:", encoding="utf-8", errors="surrogateescape") as tar,
            ):
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.name == MANIFEST_FILE else None
                return None if file is None else parse_export_manifest(file.read())
        except tarfile.TarError:
            return None


class ZipExport(_ArchiveExport):
    """One zip. Files are not compressed, since images are compressed already. Unless the export is bare, its last file
    is the export manifest."""

    name = "zip"
    help = "an image folder in a zip"
    suffixes = (".zip",)

    def overhead(self) -> int:
        """Returns the bytes of the two zip headers of a file, each with the file's name."""
        return 76 + 2 * self.mean_key_bytes

    def new_writer(self, out: IO[bytes]) -> ZipWriter:
        """Returns a writer of the zip. Reads the headers of files that ``out`` holds already."""
        return ZipWriter(out)

    def write_end(self, out: IO[bytes], export_manifest: bytes) -> None:
        """Adds the export manifest, unless the export is bare, and writes the central directory. Ignores ``out``."""
        if not self.bare:
            self._writer.add(MANIFEST_FILE, export_manifest)
        self._writer.close()

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        """Reads ``packstore.json`` from a zip. Returns None if ``path`` is no zip, or has no such file.

        Raises :class:`ManifestError` for a damaged manifest.
        """
        data = read_zip_file(path, MANIFEST_FILE)
        return None if data is None else parse_export_manifest(data)


class ZipWriter:
    """Writes a zip to an open file, at its beginning or after the files of an interrupted writer, in bounded memory
    (APPNOTE.TXT of PKWARE, 4.3.6 to 4.3.16).

    :mod:`zipfile` keeps some 600 bytes of memory for each file until the end, a gigabyte for ImageNet. This class keeps
    the central directory in a temporary file.

    Files are not compressed, and have the mode 644 and the date 1980-01-01. Creating the writer creates a temporary
    file, and reads the headers of the files before the present position of ``out``.
    """

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._directory = tempfile.TemporaryFile()  # noqa: SIM115 - until the end
        self._count = 0
        self._at = 0
        end = out.tell()
        if end:
            self._restore_directory(end)
            out.seek(end)

    def add(self, name: str, data: bytes) -> None:
        """Adds a file with the content ``data``."""
        self._write_header(name, zlib.crc32(data), len(data))
        self._write_output(data)

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        """Adds a file with the rest of ``file``, which must have ``size`` bytes; this is not checked.

        Reads ``file`` twice: it must be seekable.
        """
        start, check = file.tell(), 0
        while piece := file.read(_STEP):
            check = zlib.crc32(piece, check)
        file.seek(start)
        self._write_header(name, check, size)
        while piece := file.read(_STEP):
            self._write_output(piece)

    def close(self) -> None:
        """Writes the central directory and deletes the temporary file. Leaves the output file open."""
        start = self._at
        size = self._directory.tell()
        self._directory.seek(0)
        shutil.copyfileobj(self._directory, self._out)
        self._directory.close()
        at = start + size
        end = (self._count, self._count, size, start)
        if self._count >= _MANY or start >= _LARGE or size >= _LARGE:
            version = (_MADE_BY_UNIX | _VERSION64, _VERSION64)
            self._out.write(_END64.pack(b"PK\6\6", _END64.size - 12, *version, 0, 0, *end))
            self._out.write(_LOCATOR.pack(b"PK\6\7", 0, at, 1))
            end = (_MAX16, _MAX16, _MAX32, _MAX32)
        self._out.write(_END.pack(b"PK\5\6", 0, 0, *end, 0))

    def abort(self) -> None:
        """Deletes the temporary file. Leaves the output file open, without a directory."""
        drop(self._directory)

    def _write_header(self, name: str, check: int, size: int) -> None:
        """Writes the local header of a file with the CRC-32 ``check``, and adds its entry to the directory."""
        raw, place = name.encode("utf-8"), self._at
        large = size >= _LARGE
        local = _SIZES.pack(1, 16, size, size) if large else b""
        sizes = (_MAX32, _MAX32) if large else (size, size)
        head = (_VERSION64 if large else _VERSION, _UTF8, 0, 0, _FIRST_DAY, check, *sizes, len(raw))
        self._write_output(_LOCAL.pack(b"PK\3\4", *head, len(local)) + raw + local)
        self._add_entry(raw, place, size, head)

    def _restore_directory(self, end: int) -> None:
        """Adds the entries of files that the output has already, up to offset ``end``, to the directory."""
        self._out.seek(0)
        while self._at < end:
            _, *head, extra = _LOCAL.unpack(self._out.read(_LOCAL.size))
            raw = self._out.read(head[-1])
            size = _SIZES.unpack(self._out.read(extra))[2] if extra else head[-2]
            self._add_entry(raw, self._at, size, head)
            self._at = self._out.seek(size, os.SEEK_CUR)

    def _add_entry(self, raw: bytes, place: int, size: int, head: Sequence[int]) -> None:
        """Adds the entry of a file, whose local header is at offset ``place``, to the directory."""
        large = size >= _LARGE
        values = [size, size] if large else []
        values += [place] if place >= _LARGE else []
        extra = struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        # ``head`` has the values of the local header.
        version = (_MADE_BY_UNIX | _VERSION64, _VERSION64 if values else _VERSION, *head[1:])
        self._directory.write(
            _CENTRAL.pack(b"PK\1\2", *version, len(extra), 0, 0, 0, _MODE, _MAX32 if place >= _LARGE else place)
            + raw
            + extra
        )
        self._count += 1

    def _write_output(self, data: bytes) -> None:
        """Writes ``data`` and counts its bytes."""
        self._out.write(data)
        self._at += len(data)


def read_zip_file(path: Path, name: str) -> bytes | None:
    """Reads the file ``name`` from a zip.

    Returns None if the zip is damaged or has no such file, or the file has over 256 MiB.
    """
    try:
        with path.open("rb") as whole, zipfile.ZipFile(whole) as opened, opened.open(name) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError):
        return None  # damaged, encrypted, or compressed in a way that packstore does not write
    return data if len(data) <= _MAX_MANIFEST_BYTES else None


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
