"""An image folder, ``root/split/class/name``, and the same in a tar or a zip."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from packstore.core.files import drop, open_file, sync_file_system
from packstore.core.sheet import ROWS, SHEET, Sheet, parse_sheet
from packstore.exports.base import Export, Record, ShardWriter
from packstore.exports.paths import ClassFolders, Paths
from packstore.exports.zips import ZipWriter, read_of_zip

_STEP = 1 << 20


class _Files(Export):
    """Images as files in folders of splits and classes."""

    source = "exported"

    def held(self) -> Sequence[str]:
        return ()

    def shown(self) -> Sequence[str]:
        return ("label",) if ClassFolders(self.manifest, self.reader).names is not None else ()

    def losses(self) -> Sequence[str]:
        lost = ClassFolders(self.manifest, self.reader).losses()
        return [*lost, "the order of the records, and keys whose names no file can have"]

    @cached_property
    def paths(self) -> Paths:
        """The paths of all files."""
        return Paths(self.manifest, self.reader, recoded=self.recoded)


class ImageFolderExport(_Files):
    """A folder."""

    name = "imagefolder"
    help = "an image folder, root/split/class/file"
    shard_bytes = None

    def begin(self, number: int, split: str) -> ShardWriter:
        return _FolderWriter(self.path, self.paths)

    def sync(self, shard: ShardWriter) -> None:
        sync_file_system(self.path)


class _FolderWriter(ShardWriter):
    def __init__(self, root: Path, paths: Paths) -> None:
        self._root = root
        self._paths = paths
        self._made: set[PurePosixPath] = set()

    def add(self, record: Record) -> Mapping[str, str]:
        path = self._paths(record)
        folder = PurePosixPath(path).parent
        if folder not in self._made:
            (self._root / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open_file(self._root / path, "wb") as file:
            file.write(file_of(record))
        return {"file": path}

    def close(self) -> None:
        return


class TarExport(_Files):
    """One tar. Its first file is the sheet, so that it is known for what it is."""

    name = "tar"
    help = "an image folder in a tar"
    suffixes = (".tar",)
    one_file = True

    def begin(self, number: int, split: str) -> ShardWriter:
        self._head = self.sheet.to_json().encode("ascii")
        self._out = open_file(self.path, "wb")
        # Whole seconds and GNU's format: a header of PAX would add 1 KB to each file.
        self._tar = tarfile.open(  # noqa: SIM115 - until the export is finished
            fileobj=self._out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )
        self._write(SHEET, len(self._head), io.BytesIO(self._head))
        return _ArchiveWriter(self, self._out, self.paths)

    def add(self, path: str, data: bytes) -> None:
        """Writes a file."""
        self._write(path, len(data), io.BytesIO(data))

    def finish(self, sheet: Sheet, lines: Path | None) -> Sheet:
        assert lines is not None
        with lines.open("rb") as file:
            self._write(ROWS, lines.stat().st_size, file)
        self._tar.close()
        head = sheet.to_json().encode("ascii")
        assert len(head) == len(self._head)  # only digests may have changed
        self._out.seek(tarfile.BLOCKSIZE)
        self._out.write(head)
        self._out.close()
        return sheet

    @classmethod
    def read_sheet(cls, path: Path) -> Sheet | None:
        try:
            with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.name == SHEET else None
                return None if file is None else parse_sheet(file.read())
        except tarfile.TarError:
            return None

    def _write(self, name: str, size: int, data: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        self._tar.addfile(member, data)
        self._tar.members.clear()  # type: ignore[attr-defined] # it would keep them all


class ZipExport(_Files):
    """One zip, whose files are stored and not compressed: images are compressed already."""

    name = "zip"
    help = "an image folder in a zip"
    suffixes = (".zip",)
    one_file = True

    def begin(self, number: int, split: str) -> ShardWriter:
        self._out = open_file(self.path, "wb")
        self._zip = ZipWriter(self._out)
        return _ArchiveWriter(self, self._out, self.paths)

    def add(self, path: str, data: bytes) -> None:
        """Writes a file."""
        self._zip.add(path, data)

    def finish(self, sheet: Sheet, lines: Path | None) -> Sheet:
        assert lines is not None
        with lines.open("rb") as file:
            self._zip.add_file(ROWS, iter(lambda: file.read(_STEP), b""))
        self._zip.add(SHEET, sheet.to_json().encode("ascii"))
        self._zip.close()
        self._out.close()
        return sheet

    @classmethod
    def read_sheet(cls, path: Path) -> Sheet | None:
        data = read_of_zip(path, SHEET)
        return None if data is None else parse_sheet(data)


class _ArchiveWriter(ShardWriter):
    def __init__(self, export: TarExport | ZipExport, out: IO[bytes], paths: Paths) -> None:
        self._export = export
        self._out = out
        self._paths = paths

    def add(self, record: Record) -> Mapping[str, str]:
        path = self._paths(record)
        self._export.add(path, file_of(record))
        return {"file": path}

    def close(self) -> None:
        return

    def abort(self) -> None:
        if not self._out.closed:
            drop(self._out)


def file_of(record: Record) -> bytes:
    """The image file of a record of an export that holds no arrays."""
    assert not isinstance(record.image, np.ndarray)
    return record.image
