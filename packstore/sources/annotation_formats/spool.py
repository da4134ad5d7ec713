"""Keeps values in a temporary file, to be read by number: annotations that are too large for memory."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from packstore.core.errors import SourceError
from packstore.sources.archives.index import OpenFile
from packstore.sources.tree import Tree


class Spool:
    """List of values, written as JSON to a temporary file and read back by number. Takes 8 bytes of memory for each
    value."""

    def __init__(self, where: str, values: Iterable[Any], what: str = "its annotations") -> None:
        """Writes all values. Raises :class:`SourceError` if the file cannot be written: ``where`` names the source, and
        ``what`` the values."""
        self._ends = array("q", [0])
        end = 0
        try:
            with tempfile.TemporaryFile() as file:
                for value in values:
                    end += file.write(json.dumps(value, separators=(",", ":")).encode("ascii"))
                    self._ends.append(end)
                file.flush()
                self._file: OpenFile | None = OpenFile(os.dup(file.fileno()))
        except OSError as error:
            raise SourceError(f"{where}: {what} cannot be written to a temporary file: {error.strerror}") from None

    def __len__(self) -> int:
        return len(self._ends) - 1

    def value_size(self, number: int) -> int:
        """Returns the size of a value in the file, in bytes."""
        return self._ends[number + 1] - self._ends[number]

    def read_value(self, number: int) -> Any:
        """Reads a value by its number. Thread-safe. Raises :class:`ValueError` after :meth:`close`."""
        if self._file is None:
            raise ValueError("its source is closed")
        return json.loads(self._file.read(self.value_size(number), self._ends[number]))

    def close(self) -> None:
        """Removes the temporary file. Idempotent."""
        self._file = None


class ValuesByImage:
    """Values of images, several for each, in a temporary file. Images are numbered in the order in which they occur.
    Takes memory for the images' paths, and 24 bytes for each value."""

    def __init__(self, tree: Tree, values: Iterable[tuple[str, Any]]) -> None:
        """Writes all ``values``, each with the path of its image. Raises :class:`SourceError` if the temporary file
        cannot be written."""
        self._paths: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        owners = array("q")
        self._spool = Spool(tree.name(), self._assign_owners(values, owners), "its rows")
        self._numbers.clear()
        images = np.array(owners, np.int64)
        self._order = np.argsort(images, kind="stable")
        self._starts = np.searchsorted(images[self._order], np.arange(len(self._paths) + 1))

    def __len__(self) -> int:
        """Returns the number of values."""
        return len(self._spool)

    def __iter__(self) -> Iterator[Any]:
        """Yields all values, in the order in which they were written."""
        return (self._spool.read_value(number) for number in range(len(self._spool)))

    @property
    def image_count(self) -> int:
        """Number of images."""
        return len(self._paths)

    def image_path(self, image: int) -> str:
        """Returns the path of an image."""
        return self._paths[image].decode("utf-8", "surrogateescape")

    def numbers_of(self, image: int) -> list[int]:
        """Returns the numbers of an image's values, in order."""
        numbers: list[int] = self._order[self._starts[image] : self._starts[image + 1]].tolist()
        return numbers

    def values_of(self, image: int) -> list[Any]:
        """Returns the values of an image, in order. Thread-safe. Raises :class:`ValueError` after :meth:`close`."""
        return [self._spool.read_value(number) for number in self.numbers_of(image)]

    def images_with_several(self) -> list[int]:
        """Returns the numbers of the images with several values."""
        numbers: list[int] = np.flatnonzero(np.diff(self._starts) > 1).tolist()
        return numbers

    def close(self) -> None:
        """Closes the temporary file. Values cannot be read afterwards."""
        self._spool.close()

    def number_image(self, path: str) -> int:
        """Returns the number of an image, while values are written; adds a new one."""
        raw = path.encode("utf-8", "surrogateescape")
        number = self._numbers.setdefault(raw, len(self._numbers))
        if number == len(self._paths):
            self._paths.append(raw)
        return number

    def _assign_owners(self, values: Iterable[tuple[str, Any]], owners: array[int]) -> Iterator[Any]:
        """Yields the values, and adds the numbers of their images to ``owners``."""
        for path, value in values:
            owners.append(self.number_image(path))
            yield value
