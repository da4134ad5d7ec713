"""Base of sources whose images a list names, each with values and a split: tables, labels files, files of captions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_formats.spool import ValuesByImage
from packstore.sources.rows import FileRow, FileRowSource, in_packing_order
from packstore.sources.tree import Tree

_MAX_SPLITS = 100


class SplitNumbers:
    """Names of the splits of images, and the number of each image's split.

    Attributes:
        names: Names of the splits in the order of the list.
        of_image: Number of the split of each image.
    """

    def __init__(self, where: str, splits: Iterable[str] = ()) -> None:
        """Adds the ``splits`` of images, in their order. ``where``: Name of the list, for messages."""
        self.names: list[str] = []
        self.of_image = bytearray()
        self._where = where
        for split in splits:
            self.of_image.append(self.number_split(split))

    def number_split(self, split: str) -> int:
        """Returns the number of a split; adds a new one. Raises :class:`SourceError` for more than 100."""
        if split not in self.names:
            self.names.append(split)
            if len(self.names) > _MAX_SPLITS:
                raise SourceError(f"{self._where}: more than {_MAX_SPLITS} splits")
        return self.names.index(split)


class ListedValues(ValuesByImage):
    """Values of images, and the split of each image.

    Creating it raises :class:`SourceError` for an image in two splits, for more than 100 splits, and if the temporary
    file cannot be written.

    Attributes:
        splits: Splits of the images.
    """

    def __init__(self, tree: Tree, where: str, lines: Iterable[tuple[str, Any, str]]) -> None:
        """``lines`` are image, value and split. ``where`` names their file."""
        self.splits = SplitNumbers(where)
        super().__init__(tree, self._assign_splits(where, lines))

    def _assign_splits(self, where: str, lines: Iterable[tuple[str, Any, str]]) -> Iterator[tuple[str, Any]]:
        """Yields image and value of each line; sets the splits of the images."""
        of_image = self.splits.of_image
        for name, value, split in lines:
            number, image = self.splits.number_split(split), self.number_image(name)
            if image == len(of_image):
                of_image.append(number)
            elif of_image[image] != number:
                raise SourceError(f"{where}: {printable(name)} is in two splits")
            yield name, value


class ListedSource(FileRowSource):
    """Images of a list, in the order in which they are first named. Subclasses set :attr:`listed` and :attr:`assigned`
    when they open, and read the values of a row from its number, the value ``entry``."""

    listed: ValuesByImage
    assigned: SplitNumbers

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order."""
        return in_packing_order(self.assigned.names)

    def file_of(self, image: int) -> str:
        """Returns the path of an image in the tree, by its number: in this base as it is listed."""
        return self.listed.image_path(image)

    def images_of(self, split: str) -> list[int]:
        """Returns the numbers of the images of a split."""
        number = self.assigned.names.index(split)
        images: list[int] = np.flatnonzero(np.frombuffer(self.assigned.of_image, np.uint8) == number).tolist()
        return images

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. Its value ``entry`` is the number of the image."""
        for image in self.images_of(split):
            yield FileRow(self.file_of(image), {"entry": image})

    def close(self) -> None:
        """Closes the list and the tree. Nothing can be read afterwards."""
        if hasattr(self, "listed"):
            self.listed.close()
        super().close()
