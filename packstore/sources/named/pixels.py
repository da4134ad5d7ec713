"""Base of data sets with a few files of uint8 pixels: images of one size, one after the other, each colour by
colour."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Image, Label
from packstore.sources.arrays.stored import ArrayInfo, BlockCache, OpenArrays
from packstore.sources.base import SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.rows import Row, RowSource, in_packing_order


@dataclass(frozen=True)
class PixelFile:
    """Labels of one file of pixels, and position of its images.

    Attributes:
        split: Their split.
        file: The file, for :meth:`PixelSource.open_reader`.
        length: Number of images.
        offset: Position of the first image in the bytes that the reader reads.
        labels: int64 ``(length,)``, from 0; None for images without labels.
        values: Other columns by name, each with a first axis of ``length``.
    """

    split: str
    file: Path
    length: int
    offset: int = 0
    labels: NDArray[np.int64] | None = None
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)


ReadRange = Callable[[int, int], bytes]
"""Reads a range of a file's bytes, given its size and offset."""


class PixelSource(RowSource):
    """Base of sources with images in arrays ``(n, 3, side, side)``. Keys are split and number.

    Files stay open until the source is closed. Memory holds all labels and some blocks of images.

    Attributes:
        column_major: The file has the pixels of an image column by column, as MATLAB writes them; else row by row.
        side: Height and width of the images; :meth:`read_pixel_files` sets it.
    """

    column_major: ClassVar[bool] = False
    side: int

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._opened: BlockCache | None = None

    @abstractmethod
    def read_pixel_files(self) -> Sequence[PixelFile]:
        """Reads the labels of all files, and sets :attr:`side` if it is not fixed. Called once. Raises
        :class:`SourceError` if a file is missing or damaged."""

    @abstractmethod
    def open_reader(self, file: Path) -> tuple[ReadRange, Callable[[], None]]:
        """Opens a file. Returns a function that reads bytes of its pixels, and a function that closes the file."""

    def read_class_names(self) -> tuple[str, ...] | None:
        """Returns the names of the classes; None if they are unknown. The base returns None."""
        return None

    def splits(self) -> Sequence[str]:
        """Returns the splits of all files, in packing order. Reads all labels."""
        return in_packing_order(part.split for part in self._pixel_files)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of pixels and label. The label is optional if some images have none."""
        return {"image": Image("uint8"), "label": Label(self.read_class_names(), optional=self.has_unlabelled)}

    @property
    def has_unlabelled(self) -> bool:
        """True if some images have no label."""
        return any(part.labels is None for part in self._pixel_files)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields a row for each image of a split, with split and number as key."""
        index, size = 0, 3 * self.side * self.side
        for number, part in enumerate(self._pixel_files):
            if part.split == split:
                for row in range(part.length):
                    yield Row(index_key(split, index), (number, row), size)
                    index += 1

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads an image ``(side, side, 3)`` with its other values, and the label, if the image's file has labels.

        Raises :class:`ValueError` for a file that is cut off.
        """
        number, row = ref
        part = self._pixel_files[number]
        info = ArrayInfo("", "", (part.length, 3, self.side, self.side), np.dtype("u1"))
        planes = self._block_cache.read_row(number, info, 0, row, 1)
        result: dict[str, Any] = {name: values[row] for name, values in part.values.items()}
        if part.labels is not None:
            result["label"] = int(part.labels[row])
        image = planes.transpose((2, 1, 0) if self.column_major else (1, 2, 0))
        return result | {"image": np.ascontiguousarray(image)}

    def close(self) -> None:
        """Closes the open files."""
        if self._opened is not None:
            self._opened.close()

    @cached_property
    def _pixel_files(self) -> Sequence[PixelFile]:
        """All files with their labels. Reads them, and sets :attr:`shape`."""
        files = self.read_pixel_files()
        self.shape = (self.side, self.side, 3)
        return files

    @cached_property
    def _block_cache(self) -> BlockCache:
        """Cache of blocks of images; opens files as needed, until :meth:`close`."""
        self._opened = BlockCache(
            [part.file for part in self._pixel_files],
            lambda file: _OpenPixels(*self.open_reader(file), self._find_pixel_file(file), self.side),
        )
        return self._opened

    def _find_pixel_file(self, file: Path) -> PixelFile:
        """Returns the :class:`PixelFile` of a file."""
        return next(part for part in self._pixel_files if part.file == file)


class _OpenPixels(OpenArrays):
    """Open file of a :class:`PixelFile`: an array of uint8 images, read by images."""

    def __init__(self, read: ReadRange, close: Callable[[], None], part: PixelFile, side: int) -> None:
        self._read, self._close, self._part, self._side = read, close, part, side

    def list_arrays(self) -> Sequence[ArrayInfo]:
        """Returns ``()``: :class:`PixelSource` knows the arrays."""
        return ()

    def read_rows(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads the images ``start`` to ``stop``, uint8 ``(n, 3, side, side)``. Ignores ``name`` and ``axis``.

        Raises :class:`ValueError` if the file ends before ``stop``.
        """
        row = 3 * self._side * self._side
        data = self._read((stop - start) * row, self._part.offset + start * row)
        if len(data) != (stop - start) * row:
            raise ValueError(f"{printable(self._part.file.name)} ends before image {stop}")
        return np.frombuffer(data, np.uint8).reshape(-1, 3, self._side, self._side)

    def close(self) -> None:
        """Closes the file."""
        self._close()


def renumber_from_zero(shown: str, labels: NDArray[np.int64], length: int, classes: int) -> NDArray[np.int64]:
    """Returns a copy of labels that begin at 1, less 1. Raises :class:`SourceError` unless there are ``length`` labels,
    all from 1 to ``classes``."""
    if len(labels) != length:
        raise SourceError(f"{shown} has {len(labels):,} labels for {length:,} images")
    if length and not 1 <= labels.min() <= labels.max() <= classes:
        raise SourceError(f"{shown} has labels from {labels.min()} to {labels.max()}; expected 1 to {classes:,}")
    return labels - 1
