"""Exports of an image folder in one file: a tar or a zip."""

from __future__ import annotations

import io
import os
import tarfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from packstore.core.files import drop, open_file
from packstore.exports.base import Record, ShardWriter
from packstore.exports.folder import FilesExport, image_file
from packstore.exports.zips import ZipWriter, read_zip_file
from packstore.stores.export_manifest import MANIFEST_FILE, ROWS_FILE, ExportManifest, parse_export_manifest


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

    def begin(self, number: int, split: str) -> ShardWriter:
        """Creates the archive at the first call, unless :meth:`resume` has opened it. Returns a writer that appends a
        shard. Ignores ``number`` and ``split``."""
        if self._out is None:
            self._out = open_file(self.path, "wb")
            self._opened = self.new_writer(self._out)
        return _ArchiveWriter(self)

    def resume(self, size: int) -> None:
        """Opens the archive, cuts it off after ``size`` bytes and appends from there. For a zip, reads the headers of
        all files before that."""
        self._out = open_file(self.path, "r+b")
        self._out.truncate(size)
        self._out.seek(size)
        self._opened = self.new_writer(self._out)

    def sync(self, shard: ShardWriter) -> None:
        """Flushes the whole archive to disk, whatever the shard."""
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

    def add_image(self, record: Record) -> str:
        """Adds the image of a record to the archive. Returns its path in the archive."""
        path = self.record_paths(record)
        self._writer.add(path, image_file(record))
        return path

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


class _ArchiveWriter(ShardWriter):
    """Adds the images of a shard to the archive of its export. Opens no file of its own."""

    def __init__(self, export: _ArchiveExport) -> None:
        self._export = export

    def add(self, record: Record) -> Mapping[str, str]:
        """Adds the image to the archive and returns its path as ``{"file": path}``."""
        return {"file": self._export.add_image(record)}

    def close(self) -> None:
        """Does nothing: the archive stays open for the next shard."""
        return
