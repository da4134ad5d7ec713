"""Base of sources whose images a list names, each with values and a split: labels files and files of captions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_formats.spool import ValuesByImage
from packstore.sources.rows import FileRow, FileRowSource, in_packing_order
from packstore.sources.tree import Tree

_MAX_SPLITS = 100


class ListedValues(ValuesByImage):
    """Values of images, and the split of each image.

    Creating it raises :class:`SourceError` for an image in two splits, for more than 100 splits, and if the temporary
    file cannot be written.

    Attributes:
        splits: Names of the splits in the order of the list; ``[""]`` without any.
        split_of: Number of the split of each image.
    """

    def __init__(self, tree: Tree, where: str, lines: Iterable[tuple[str, Any, str]]) -> None:
        """``lines`` are image, value and split. ``where`` names their file."""
        self.splits: list[str] = []
        self.split_of = bytearray()
        self._where = where
        super().__init__(tree, self._assign_splits(lines))

    def _assign_splits(self, lines: Iterable[tuple[str, Any, str]]) -> Iterator[tuple[str, Any]]:
        """Yields image and value of each line; sets the splits of the images."""
        for name, value, split in lines:
            if split not in self.splits:
                if len(self.splits) == _MAX_SPLITS:
                    raise SourceError(f"{self._where} names more than {_MAX_SPLITS} splits; is this column a split?")
                self.splits.append(split)
            place, image = self.splits.index(split), self.number_image(name)
            if image == len(self.split_of):
                self.split_of.append(place)
            elif self.split_of[image] != place:
                raise SourceError(f"{self._where}: {printable(name)} is in two splits")
            yield name, value


class ListedSource(FileRowSource):
    """Images of a list, in the order in which they are first named. Subclasses set :attr:`listed` when they open, and
    read the values of a row from its number, the value ``entry``."""

    listed: ListedValues

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order."""
        return in_packing_order(self.listed.splits)

    def file_of(self, image: int) -> str:
        """Returns the path of an image in the tree, by its number: in this base as it is listed."""
        return self.listed.image_path(image)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. Its value ``entry`` is the number of the image."""
        number = self.listed.splits.index(split)
        for image in np.flatnonzero(np.frombuffer(self.listed.split_of, np.uint8) == number).tolist():
            yield FileRow(self.file_of(image), {"entry": image})

    def close(self) -> None:
        """Closes the list and the tree. Nothing can be read afterwards."""
        if hasattr(self, "listed"):
            self.listed.close()
        super().close()
