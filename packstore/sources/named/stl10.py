"""STL-10 (https://cs.stanford.edu/~acoates/stl10/): ``train_X.bin``, ``train_y.bin`` …, column by column.

Labels begin at 1 in the files and at 0 here; those of ``unlabeled`` are missing. ``folds`` are the predefined folds, of
ten, that a training image belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.core.fields import Array, Field
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import read_text, read_whole
from packstore.sources.named import find_marked_folder, has_path
from packstore.sources.named.pixels import PixelFile, PixelSource, ReadRange, renumber_from_zero
from packstore.sources.named.text_table import TextTable
from packstore.sources.tree import Tree

_MARKERS = ("train_X.bin", "test_X.bin")
_REQUIRED = ("train_y.bin", "test_y.bin")
_FOLDS, _NAMES = "fold_indices.txt", "class_names.txt"
_SIDE = 96
_CLASSES = 10


class Stl10Source(PixelSource):
    """Source of STL-10 in a folder or an archive: ``train``, ``test`` and, if its file exists, ``unlabeled``.

    Images of ``unlabeled`` have no labels. Training images have ``folds`` if that file exists. Opening raises
    :class:`SourceError` for a path without pixels and labels of ``train`` and ``test``.
    """

    kind = "stl10"
    column_major = True
    side = _SIDE

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        tree = open_tree(path)
        base = None if tree is None else find_marked_folder(tree, _MARKERS)
        if tree is None or base is None or (missing := _list_missing_files(tree, base)):
            lacks = ", ".join(_MARKERS if tree is None or base is None else missing)
            raise SourceError(f"{printable(str(path))} is not STL-10: it has no {lacks}")
        self._tree: Tree = tree
        self._base = f"{base}/" if base else ""
        self.evidence = ", ".join(_MARKERS)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of pixels and label. Adds ``folds`` if their file exists."""
        folds = any(part.values for part in self._pixel_files)
        return {**super().fields(), **({"folds": Array("bool", (10,), optional=True)} if folds else {})}

    def read_class_names(self) -> tuple[str, ...] | None:
        """Reads ``class_names.txt``. Returns None if there is no such file. Raises :class:`SourceError` unless it
        has ten different names."""
        if not has_path(self._tree, self._base.rstrip("/"), _NAMES):
            return None
        lines = read_text(self._tree, self._base + _NAMES).decode("utf-8-sig").split("\n")
        names = tuple(line.strip() for line in lines if line.strip())
        if len(set(names)) != _CLASSES:
            raise SourceError(f"{self._file_name(_NAMES)} has {len(set(names))} names; expected {_CLASSES}")
        return names

    def read_pixel_files(self) -> list[PixelFile]:
        """Reads labels, from 0, of ``train`` and ``test``, and the folds of ``train``. Measures the pixels of all
        splits.

        Raises :class:`SourceError` for wrong labels or folds, and for a file that is cut off. Raises it also for pixels
        that are compressed in the archive: parts of them cannot be read.
        """
        files = []
        for split in ("train", "test", "unlabeled"):
            name = f"{split}_X.bin"
            if not has_path(self._tree, self._base.rstrip("/"), name):
                continue
            length, rest = divmod(self._tree.stat(self._base + name).size, 3 * _SIDE * _SIDE)
            if rest:
                raise SourceError(f"{self._file_name(name)} ends within an image: it is cut off; download it again")
            try:
                self._tree.read_part(self._base + name, 0, 1)
            except ValueError as error:
                raise SourceError(f"{self._file_name(name)}: {error}") from None
            labels = None
            if split != "unlabeled":
                raw = np.frombuffer(self._read_file(f"{split}_y.bin"), np.uint8).astype(np.int64)
                labels = renumber_from_zero(self._file_name(f"{split}_y.bin"), raw, length, _CLASSES)
            values = self._read_folds(length) if split == "train" else {}
            files.append(PixelFile(split, Path(self._base + name), length, labels=labels, values=values))
        return files

    def open_reader(self, file: Path) -> tuple[ReadRange, Callable[[], None]]:
        """Returns a function that reads bytes of a file, also in an archive. The second function does nothing."""
        part = partial(self._tree.read_part, file.as_posix())
        return lambda size, offset: part(offset, size), lambda: None

    def files(self) -> Iterator[Path]:
        """Yields the existing files of pixels and labels, but not those of folds and names. For an archive, yields
        only its path."""
        if self.path.is_dir():
            for split in ("train", "test", "unlabeled"):
                for name in (f"{split}_X.bin", f"{split}_y.bin"):
                    if (self.path / (self._base + name)).exists():
                        yield self.path / (self._base + name)
        else:
            yield self.path

    def close(self) -> None:
        """Closes the source and its folder or archive."""
        super().close()
        self._tree.close()

    def _read_folds(self, length: int) -> dict[str, NDArray[np.bool_]]:
        """Reads the folds of the training images as ``{"folds": bool (length, 10)}``. Returns ``{}`` if their file does
        not exist.

        Raises :class:`SourceError` for an invalid file.
        """
        if not has_path(self._tree, self._base.rstrip("/"), _FOLDS):
            return {}
        folds = np.zeros((length, 10), np.bool_)
        table = TextTable(self._file_name(_FOLDS), self._read_file(_FOLDS))
        lines = list(table)
        if len(lines) != 10:
            raise SourceError(f"{table.name} has {len(lines)} folds; expected 10")
        for fold, line in enumerate(lines):
            for text in line:
                image = table.parse_int(text, "numbers of images", line)
                if not 0 <= image < length:
                    table.refuse_line([text], f"one of {length:,} images")
                folds[image, fold] = True
        return {"folds": folds}

    def _read_file(self, name: str) -> bytes:
        """Reads all bytes of a file. Raises :class:`SourceError` if it cannot be read."""
        return read_whole(self._tree, self._base + name)

    def _file_name(self, name: str) -> str:
        """Returns the name of a file for messages."""
        return self._tree.name(self._base + name)


def _list_missing_files(tree: Tree, base: str) -> list[str]:
    """Lists the required files that are missing."""
    return [name for name in _REQUIRED if not has_path(tree, base, name)]


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns ``CERTAIN`` for the files of pixels with labels. Returns ``NO`` for other paths, and for a damaged
    archive.

    Raises :class:`AmbiguousSourceError` if required files, such as labels, are missing.
    """
    try:
        tree = open_tree(path)
    except SourceError:
        return Certainty.NO  # the general kinds report a damaged archive
    base = None if tree is None else find_marked_folder(tree, _MARKERS)
    if tree is None or base is None:
        return Certainty.NO
    if missing := _list_missing_files(tree, base):
        markers, lacks = ", ".join(_MARKERS), ", ".join(missing)
        raise AmbiguousSourceError(
            f"{printable(str(path))} looks like STL-10 ({markers}), without {lacks}: download it again"
        )
    return Certainty.CERTAIN


KIND = Kind("stl10", "STL-10 as published", _recognise, Stl10Source)
