"""Data sets whose images are uint8 pixels of one size, one after the other in a few files, colour by colour."""

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
from packstore.sources.arrays.stored import ArrayInfo, Blocks, OpenArrays
from packstore.sources.base import SourceOptions
from packstore.sources.dataset import index_key
from packstore.sources.rows import Row, RowSource, in_packing_order


@dataclass(frozen=True)
class PixelPart:
    """The images of one file.

    Attributes:
        split: Their split.
        file: The file, as :meth:`PixelSource.reader` takes it.
        length: How many there are.
        place: Where the first begins among the bytes that the reader reads.
        labels: int64 ``(length,)``, from 0; None for images without labels.
        values: Other columns by name, each with a first axis of ``length``.
    """

    split: str
    file: Path
    length: int
    place: int = 0
    labels: NDArray[np.int64] | None = None
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)


Read = Callable[[int, int], bytes]
"""Given a size and a place: so many bytes from there on."""


class PixelSource(RowSource):
    """Images in arrays ``(n, 3, side, side)``. Memory holds all labels, and some blocks of images.

    Attributes:
        by_columns: The pixels of an image lie column by column, as MATLAB writes them; else row by row.
        side: Height and width of the images.
    """

    by_columns: ClassVar[bool] = False
    side: int

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._opened: Blocks | None = None

    @abstractmethod
    def parts(self) -> Sequence[PixelPart]:
        """The files, read for their labels once. Raises :class:`SourceError`."""

    @abstractmethod
    def reader(self, file: Path) -> tuple[Read, Callable[[], None]]:
        """What reads a file, and what closes it."""

    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes."""
        return None

    def splits(self) -> Sequence[str]:
        return in_packing_order(part.split for part in self._parts)

    def fields(self) -> Mapping[str, Field]:
        return {"image": Image("uint8"), "label": Label(self.classes(), optional=self.has_unlabelled)}

    @property
    def has_unlabelled(self) -> bool:
        """Some images have no label."""
        return any(part.labels is None for part in self._parts)

    def rows(self, split: str) -> Iterator[Row]:
        index, size = 0, 3 * self.side * self.side
        for number, part in enumerate(self._parts):
            if part.split == split:
                for row in range(part.length):
                    yield Row(index_key(split, index), (number, row), size)
                    index += 1

    def values(self, ref: Any) -> dict[str, Any]:
        number, row = ref
        part = self._parts[number]
        info = ArrayInfo("", "", (part.length, 3, self.side, self.side), np.dtype("u1"))
        planes = self._blocks.row(number, info, 0, row, 1)
        found: dict[str, Any] = {name: values[row] for name, values in part.values.items()}
        if part.labels is not None:
            found["label"] = int(part.labels[row])
        image = planes.transpose((2, 1, 0) if self.by_columns else (1, 2, 0))
        return found | {"image": np.ascontiguousarray(image)}

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @cached_property
    def _parts(self) -> Sequence[PixelPart]:
        found = self.parts()
        self.shape = (self.side, self.side, 3)
        return found

    @cached_property
    def _blocks(self) -> Blocks:
        self._opened = Blocks(
            [part.file for part in self._parts], lambda file: _Pixels(*self.reader(file), self._of(file), self.side)
        )
        return self._opened

    def _of(self, file: Path) -> PixelPart:
        return next(part for part in self._parts if part.file == file)


class _Pixels(OpenArrays):
    def __init__(self, read: Read, close: Callable[[], None], part: PixelPart, side: int) -> None:
        self._read, self._close, self._part, self._side = read, close, part, side

    def infos(self) -> Sequence[ArrayInfo]:
        """Returns nothing: :class:`PixelSource` knows the arrays."""
        return ()

    def read(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        row = 3 * self._side * self._side
        data = self._read((stop - start) * row, self._part.place + start * row)
        if len(data) != (stop - start) * row:
            raise ValueError(f"{printable(self._part.file.name)} ends before image {stop}")
        return np.frombuffer(data, np.uint8).reshape(-1, 3, self._side, self._side)

    def close(self) -> None:
        self._close()


def from_one(shown: str, labels: NDArray[np.int64], length: int, classes: int) -> NDArray[np.int64]:
    """Labels that begin at 1, from 0 on. Raises :class:`SourceError` for another number of them, or others."""
    if len(labels) != length:
        raise SourceError(f"{shown} has {len(labels):,} labels for {length:,} images")
    if length and not 1 <= labels.min() <= labels.max() <= classes:
        raise SourceError(f"{shown} has labels from {labels.min()} to {labels.max()}; expected 1 to {classes:,}")
    return labels - 1
