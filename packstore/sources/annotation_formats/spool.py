"""Keeps values in a temporary file, to be read by number: annotations that are too large for memory."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.archives.index import OpenFile
from packstore.sources.ignoring import ignore_paths
from packstore.sources.rows import FileRow, FileRowSource, Row, in_packing_order
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
                # The temporary file has no name, so the descriptor is all that keeps it.
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


class SpooledEntry(NamedTuple):
    """Entry of a list of images.

    Attributes:
        image: Path of the image in the tree.
        split: Split of the image.
        lister: Path of the file that has the entry.
        value: What the file has about the image: JSON.
    """

    image: str
    split: str
    lister: str
    value: Any


class SpooledSource(FileRowSource):
    """Source of images that lists name; keeps the entries of the lists in a temporary file.

    Attributes:
        allows_repeats: An image may have several entries, each a sample. Later entries have keys with ``#1``, ``#2`` ….
    """

    allows_repeats: ClassVar[bool] = False

    def spool_entries(self, entries: Iterable[SpooledEntry]) -> None:
        """Writes the entries to the temporary file; takes memory for the paths of their images.

        Raises :class:`SourceError` if the file cannot be written. Without
        :attr:`allows_repeats`, raises :class:`AmbiguousSourceError` for a second entry of an image.
        """
        self._images: list[bytes] = []
        self._splits: list[str] = []
        self._listers: list[str] = []
        self._split_of, self._lister_of = array("I"), array("I")
        self._earlier = array("q")  # by entry, number of earlier entries of the same image
        self._spool = Spool(self.tree.name(), self._record_entries(entries))

    def _record_entries(self, entries: Iterable[SpooledEntry]) -> Iterator[Any]:
        """Records image, split and file of each entry, and yields its value."""
        seen: dict[bytes, str] = {}
        times: Counter[bytes] = Counter()
        splits, listers = dict[str, int](), dict[str, int]()
        for path, split, lister, value in entries:
            image = path.encode("utf-8", "surrogateescape")
            first = seen.setdefault(image, lister)
            if times[image] and not self.allows_repeats:
                raise AmbiguousSourceError(
                    f"{self.tree.name(path)} is annotated twice, by {printable(first)} and {printable(lister)}: "
                    "leave one out with --ignore, or remove one of the entries",
                    [Answer(ignore_paths([each])) for each in (first, lister) if first != lister],
                )
            self._earlier.append(times[image])
            times[image] += 1
            self._images.append(image)
            self._split_of.append(splits.setdefault(split, len(splits)))
            self._lister_of.append(listers.setdefault(lister, len(listers)))
            yield value
        self._splits, self._listers = [*splits], [*listers]

    def splits(self) -> Sequence[str]:
        """Returns the splits of all entries in packing order, or ``("",)`` if there are no entries."""
        return in_packing_order(self._splits) or ("",)

    def entry_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each entry of a split, in the order of the lists. Its value ``entry`` is the number of the
        entry. Later entries of an image have keys with ``#1``, ``#2`` …."""
        number = self._splits.index(split) if split in self._splits else -1
        for entry in np.flatnonzero(np.frombuffer(self._split_of, np.uint32) == number).tolist():
            name, earlier = self._images[entry].decode("utf-8", "surrogateescape"), self._earlier[entry]
            yield FileRow(name, {"entry": entry}, f"{name}#{earlier}" if earlier else None)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, with the bytes of their entries added to ``value_bytes``."""
        for row in super().rows(split):
            entry = row.ref[3]["entry"] if isinstance(row.ref[3], Mapping) else None
            yield row if entry is None else row._replace(value_bytes=row.value_bytes + self._spool.value_size(entry))

    def read_entry(self, entry: int) -> Any:
        """Reads the value of an entry by its number. Thread-safe."""
        return self._spool.read_value(entry)

    def lister_of(self, entry: int) -> str:
        """Returns the path of the file that has an entry."""
        return self._listers[self._lister_of[entry]]

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the file that has the entry of a row."""
        return self.lister_of(ref[3]["entry"])

    def close(self) -> None:
        """Removes the temporary file as well."""
        if hasattr(self, "_spool"):
            self._spool.close()
        super().close()


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
