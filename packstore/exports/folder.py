"""An image folder, ``root/split/class/name``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from packstore.core.files import open_file, sync_file_system
from packstore.exports.base import Export, Record, ShardWriter
from packstore.exports.paths import ClassFolders, Paths


class FilesExport(Export):
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


class ImageFolderExport(FilesExport):
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


def file_of(record: Record) -> bytes:
    """The image file of a record of an export that holds no arrays."""
    assert not isinstance(record.image, np.ndarray)
    return record.image
