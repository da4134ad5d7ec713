"""Exports of an image folder in one file: a tar or a zip."""

from __future__ import annotations

import io
import os
import tarfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from packstore.core.export_manifest import MANIFEST_FILE, ROWS_FILE, ExportManifest, parse_export_manifest
from packstore.core.files import drop, open_file
from packstore.exports.base import Record, ShardWriter
from packstore.exports.folder import FilesExport, image_file
from packstore.exports.zips import ZipWriter, read_zip_file


class TarWriter:
    """Writes a tar to an open file."""

    def __init__(self, out: IO[bytes]) -> None:
        # Whole seconds and GNU's format: a header of PAX would add 1 KB to each file.
        self._tar = tarfile.open(  # noqa: SIM115 - closed by close()
            fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def add(self, name: str, data: bytes) -> None:
        """Adds a file with the content ``data``."""
        self.add_file(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        """Adds a file with the next ``size`` bytes of ``file``."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        self._tar.addfile(member, file)
        self._tar.members.clear()  # type: ignore[attr-defined] # else tarfile keeps all of them

    def close(self) -> None:
        """Writes the end of the archive."""
        self._tar.close()

    def abort(self) -> None:
        """Does nothing: the caller closes the only open file."""
        return


class _ArchiveExport(FilesExport):
    """Base of exports of an image folder in one archive, which stays open for all shards."""

    one_file = True
    _out: IO[bytes] | None = None
    _writer: TarWriter | ZipWriter

    def begin(self, number: int, split: str) -> ShardWriter:
        if self._out is None:
            self._out = open_file(self.path, "wb")
            self._writer = self.new_writer(self._out)
        return _ArchiveWriter(self)

    def resume(self, size: int) -> None:
        self._out = open_file(self.path, "r+b")
        self._out.truncate(size)
        self._out.seek(size)
        self._writer = self.new_writer(self._out)

    def sync(self, shard: ShardWriter) -> None:
        assert self._out is not None
        self._out.flush()
        os.fsync(self._out.fileno())

    @abstractmethod
    def new_writer(self, out: IO[bytes]) -> TarWriter | ZipWriter:
        """Returns a writer that appends at the end of ``out``; begins the archive if ``out`` is empty."""

    def add(self, record: Record) -> str:
        """Adds the image of a record to the archive. Returns its path in there."""
        path = self.paths(record)
        self._writer.add(path, image_file(record))
        return path

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        assert lines is not None
        assert self._out is not None
        if not self.bare:
            with lines.open("rb") as file:
                self._writer.add_file(ROWS_FILE, file, lines.stat().st_size)
        self.end(self._out, export_manifest.to_json().encode("ascii"))
        self._out.close()
        return export_manifest

    @abstractmethod
    def end(self, out: IO[bytes], export_manifest: bytes) -> None:
        """Writes the export manifest and the end of the archive."""

    def abort(self) -> None:
        if self._out is not None and not self._out.closed:
            self._writer.abort()
            drop(self._out)


class TarExport(_ArchiveExport):
    """One tar. Its first file is the export manifest, so a reader recognises it at once."""

    name = "tar"
    help = "an image folder in a tar"
    suffixes = (".tar",)

    def overhead(self) -> int:
        return 512 + self.block_padding(512)

    def new_writer(self, out: IO[bytes]) -> TarWriter:
        writer = TarWriter(out)
        if not out.tell() and not self.bare:
            writer.add(MANIFEST_FILE, self.export_manifest.to_json().encode("ascii"))
        return writer

    def end(self, out: IO[bytes], export_manifest: bytes) -> None:
        self._writer.close()
        if self.bare:
            return
        # Only digests may have changed, so the new text takes the place of the old.
        assert len(export_manifest) == len(self.export_manifest.to_json())
        out.seek(tarfile.BLOCKSIZE)
        out.write(export_manifest)

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        try:
            with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.name == MANIFEST_FILE else None
                return None if file is None else parse_export_manifest(file.read())
        except tarfile.TarError:
            return None


class ZipExport(_ArchiveExport):
    """One zip. Files are stored without compression, since images are compressed already."""

    name = "zip"
    help = "an image folder in a zip"
    suffixes = (".zip",)

    def overhead(self) -> int:
        return 76 + 2 * self.key_bytes

    def new_writer(self, out: IO[bytes]) -> ZipWriter:
        return ZipWriter(out)

    def end(self, out: IO[bytes], export_manifest: bytes) -> None:
        if not self.bare:
            self._writer.add(MANIFEST_FILE, export_manifest)
        self._writer.close()

    @classmethod
    def read_export_manifest(cls, path: Path) -> ExportManifest | None:
        data = read_zip_file(path, MANIFEST_FILE)
        return None if data is None else parse_export_manifest(data)


class _ArchiveWriter(ShardWriter):
    """Writes a shard to the archive of its export."""

    def __init__(self, export: _ArchiveExport) -> None:
        self._export = export

    def add(self, record: Record) -> Mapping[str, str]:
        return {"file": self._export.add(record)}

    def close(self) -> None:
        return
