"""Export of an image folder, ``root/split/class/name``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from packstore.core.files import open_file, sync_file_system
from packstore.exports.base import Export, Record, ShardWriter
from packstore.exports.paths import ClassFolders, RecordPaths


class FilesExport(Export):
    """Base of exports that hold images as files in folders of splits and classes.

    Files have the names in their keys, made safe. Labels are only in the names of folders.
    """

    source = "exported"

    def exact_columns(self) -> Sequence[str]:
        """Returns no columns: labels are only in the names of folders."""
        return ()

    def visible_columns(self) -> Sequence[str]:
        """Returns ``label`` if classes are folders, else none. Reads all labels."""
        return ("label",) if ClassFolders(self.manifest, self.reader).names is not None else ()

    def losses(self) -> Sequence[str]:
        """Returns the texts of :meth:`ClassFolders.losses`, and a text on the order of records and on keys. Reads all
        labels."""
        lost = ClassFolders(self.manifest, self.reader).losses()
        return [*lost, "the order of the records, and keys whose names no file can have"]

    @cached_property
    def record_paths(self) -> RecordPaths:
        """Callable that returns the path of a record's file. Creating it reads all keys and labels."""
        return RecordPaths(self.manifest, self.reader, recoded=self.recoded)


class ImageFolderExport(FilesExport):
    """A folder with a file for each image, in folders of splits and classes."""

    name = "imagefolder"
    help = "an image folder, root/split/class/file"
    shard_bytes = None

    def begin(self, number: int, split: str) -> ShardWriter:
        """Returns a writer of image files. Ignores ``number`` and ``split``: shards leave no trace in the folder."""
        return _FolderWriter(self.path, self.record_paths)

    def sync(self, shard: ShardWriter) -> None:
        """Flushes the whole file system, whatever the shard, since each image is a file."""
        sync_file_system(self.path)


class _FolderWriter(ShardWriter):
    """Writes each image as a file below ``root``; creates folders as needed."""

    def __init__(self, root: Path, paths: RecordPaths) -> None:
        self._root = root
        self._paths = paths
        self._folders: set[PurePosixPath] = set()

    def add(self, record: Record) -> Mapping[str, str]:
        """Writes the image file and returns its path as ``{"file": path}``. Creates its folder if needed."""
        path = self._paths(record)
        folder = PurePosixPath(path).parent
        if folder not in self._folders:
            (self._root / folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        with open_file(self._root / path, "wb") as file:
            file.write(image_file(record))
        return {"file": path}

    def close(self) -> None:
        """Does nothing: each file is closed once it is written."""
        return


def image_file(record: Record) -> bytes:
    """Returns the image file of a record. An array fails an assertion."""
    assert not isinstance(record.image, np.ndarray)
    return record.image
