"""Bases of sources whose rows are in files of a folder or an archive."""

from __future__ import annotations

import errno
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.files import Location
from packstore.images.sniff import HeaderError, max_file_bytes
from packstore.sources.archives import open_required_tree
from packstore.sources.base import Entry, Sample, SourceOptions
from packstore.sources.beside import raise_suffix
from packstore.sources.encodings import is_text, to_utf8
from packstore.sources.ledger import Claims, Role, list_files
from packstore.sources.listing import IMAGE_SUFFIXES, Listing
from packstore.sources.rows import Row, RowSource
from packstore.sources.schema import FieldError
from packstore.sources.tree import FileStat

_EVIDENCE = re.compile(
    r"(readme.*|licen[cs]e.*|.*class(es)?(_?names?)?[.]txt|.*[.]names|.*[.]data|data[.]ya?ml|wnids[.]txt|words[.]txt|"
    r".*synset.*|dataset_infos?[.]json)",
    re.I,
)
"""Names of files that list classes or describe the data set, but no single image."""


class FileRow(NamedTuple):
    """Row whose image is a file.

    Attributes:
        file: Path of the main image in the tree.
        values: The other values. A value that is a file is an :class:`InTree`. A value of several files is a list of
            :class:`InTree`.
        key: Key of the row; None for the path.
        is_folder: The row stands for all images below the folder ``file``, each with these values and no further files.
    """

    file: str
    values: Mapping[str, Any]
    key: str | None = None
    is_folder: bool = False


class InTree(NamedTuple):
    """Value that is the content of a file in the tree.

    Attributes:
        file: Path in the tree.
        optional: If the file is missing, so is the value; else the sample is bad.
        size_bytes: Size, set in the source's copy of the value; -1 before, and if the file is missing.
        modified_ns: Time of modification, set in the source's copy of the value.
    """

    file: str
    optional: bool = False
    size_bytes: int = -1
    modified_ns: int = 0


class TreeRowSource(RowSource):
    """Source whose rows are in files of a folder or an archive. Raises :class:`SourceError` for any other path.

    Attributes:
        tree: The folder or archive.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.tree = open_required_tree(path)
        self._max_bytes = max_file_bytes(options.max_pixels)

    @abstractmethod
    def describing_files(self) -> Iterable[str]:
        """Returns the files of the tree that describe images. :meth:`stamp` changes when one of these files changes."""

    def claim_files(self, claims: Claims) -> None:
        """Claims the describing files: class lists and the like as evidence, others as annotations."""
        for file in self.describing_files():
            claims.claim(file, Role.EVIDENCE if _EVIDENCE.fullmatch(file.rpartition("/")[2]) else Role.ANNOTATION)

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists the files of the folder or archive."""
        return list_files(self.tree)

    def _stat_inside(self, file: str) -> FileStat:
        """Returns size and times of a file that a list names. Raises :class:`OSError` for a missing file, and for a
        path outside of the source."""
        if "\0" in file or (".." in file and ".." in file.split("/")):
            raise OSError(errno.EINVAL, "is not a path within the source")
        return self.tree.stat(file)

    def _stat_or_missing(self, file: str) -> FileStat:
        """Returns size and times of a file that a list names. The size is -1 if the file is missing, or outside of the
        source."""
        try:
            return self._stat_inside(file)
        except OSError:
            return FileStat(-1)

    def stamp(self) -> str:
        """Returns the stamp of the tree, and size and times of the describing files. Raises :class:`SourceError` if one
        is missing."""
        parts = [self.tree.stamp()]
        for file in self.describing_files():
            try:
                status = self.tree.stat(file)
            except OSError as error:
                raise SourceError(f"{self.tree.name(file)} cannot be reached: {error.strerror or error}") from None
            parts.append(f"{status.size}@{status.modified_ns}/{status.changed_ns}")
        return " ".join(filter(None, parts))

    def close(self) -> None:
        """Closes the tree, too."""
        super().close()
        self.tree.close()


class FileRowSource(TreeRowSource):
    """Source whose main images are files of a folder or an archive, with their paths as keys.

    A row with a missing file is a bad sample, unless the file is an optional value. Values that are texts are converted
    to UTF-8. If the file of a value is missing, the same name with its suffix in upper case is tried.

    Attributes:
        main: Name of the main image.
    """

    main = "image"

    @abstractmethod
    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, lazily, the same at each call; their values are plain."""

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of :meth:`file_rows` with sizes of their files, and the latest of their times. Reading the
        row of a missing main image fails."""
        for row in self.file_rows(split):
            if row.is_folder:
                for folder, listing in self.tree.walk(row.file, self.tree.above, None, self.options.skip_bad):
                    yield from self._make_folder_rows(folder, listing, dict(row.values))
            else:
                yield self._make_sized_row(row)

    def _make_folder_rows(self, folder: str, listing: Listing, values: dict[str, Any]) -> Iterator[Row]:
        """Yields a row for each image in a listed folder, with the same values."""
        for name, size, modified, changed in zip(
            listing.images, listing.sizes, listing.modified, listing.changed, strict=True
        ):
            file = f"{folder}/{name}" if folder else name
            if size > 0:
                yield Row(file, (file, size, modified, values), size, 0, modified, changed)
            else:  # a broken link, a cycle
                yield self._make_sized_row(FileRow(file, values))

    def _make_sized_row(self, row: FileRow) -> Row:
        """Makes a row with sizes and times of its files."""
        file, values, own_key, _ = row
        key = file if own_key is None else own_key
        try:
            status = self._stat_inside(file)
        except OSError as error:
            return Row(key, (file, -1, 0, error.strerror or str(error)), 0)
        rest = dict(values)
        sizes: dict[str, int] = {}
        modified, changed = status.modified_ns, status.changed_ns
        for name, value in values.items():
            if files := _list_files_of(value):
                there = [self._stat_value(each) for each in files]
                filled = [each._replace(size_bytes=at.size, modified_ns=at.modified_ns) for each, at in there]
                rest[name] = filled[0] if isinstance(value, InTree) else filled
                sizes[name] = sum(max(0, at.size) for _, at in there)
                modified = max(modified, *(at.modified_ns for _, at in there))
                changed = max(changed, *(at.changed_ns for _, at in there))
        ref = (file, status.size, status.modified_ns, rest)
        return Row(key, ref, max(0, status.size), sum(sizes.values()), modified, changed, sizes)

    def _stat_value(self, value: InTree) -> tuple[InTree, FileStat]:
        """Returns a value that is a file, and the file's size and times. If ``a.png`` is missing and ``a.PNG`` exists,
        returns ``a.PNG``. If both are missing, returns the value with size -1."""
        status = self._stat_or_missing(value.file)
        if status.size >= 0:
            return value, status
        other = value._replace(file=raise_suffix(value.file))
        there = self._stat_or_missing(other.file)
        return (value, status) if there.size < 0 else (other, there)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the main image and all values that are files, texts as UTF-8; other values stay as they are. A missing
        optional file becomes None. Raises :class:`ValueError` for any other missing file, and :class:`SampleError` for
        a file that cannot be read."""
        file, size, modified, rest = ref
        if size < 0:
            raise ValueError(rest if isinstance(rest, str) else "is not a file")
        values = {name: self._read_value(value) for name, value in rest.items()}
        return {self.main: self.tree.read(file, size, modified, self._max_bytes), **values}

    def read_sample(self, entry: Entry) -> Sample:
        """Reads a sample, as the base does. For a bad value that was read from a file, raises :class:`ValueError` with
        the path of that file, and for any other value with that of its annotation."""
        try:
            return super().read_sample(entry)
        except FieldError as error:
            file = self.further_file_name(entry, error.field, error.item or 0)
            if file is None:
                raise
            # The message needs the bad file: the key is the path of the main image, which may be good.
            raise ValueError(f"{error.field}: its {printable(file)}: {error.reason}") from error

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the file of the main image; None if it is compressed or at a URL."""
        return self.tree.locate(ref[0])

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        """Returns the path of a file that is a value of the row, for any other value that of the row's annotation.
        Returns None for the main image, and if no such file is known."""
        *_, rest = entry.ref
        files = _list_files_of(rest.get(column)) if isinstance(rest, Mapping) else ()
        if number < len(files):
            return files[number].file
        return None if column == self.main else self.find_annotation_file(entry.ref) or None

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the file with the annotation of a row, for messages: in this base its only file that is
        no image. Empty if there is none, and for several."""
        rest = ref[-1].values() if isinstance(ref[-1], Mapping) else ()
        files = [each.file for value in rest for each in _list_files_of(value) if each.size_bytes >= 0]
        texts = [file for file in files if not file.lower().endswith(IMAGE_SUFFIXES)]
        return texts[0] if len(texts) == 1 else ""

    @contextmanager
    def name_annotation_file(self, ref: Any) -> Iterator[None]:
        """Adds the path of the annotation of a row to each :class:`ValueError` in the block."""
        try:
            yield
        except ValueError as error:
            file = self.find_annotation_file(ref)
            if not file or isinstance(error.__cause__, HeaderError):  # which is of the image
                raise
            raise ValueError(f"its {printable(file)}: {error}") from error

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the row's files: images as packed, others as annotations. Skips missing files, and claims none if the
        main image is missing."""
        file, size, _, rest = row.ref
        if size >= 0:
            claims.claim(file)
            for each in chain.from_iterable(map(_list_files_of, rest.values())):
                if each.size_bytes >= 0:
                    picture = each.file.lower().endswith(IMAGE_SUFFIXES)
                    claims.claim(each.file, Role.PACKED if picture else Role.ANNOTATION)

    def _read_value(self, value: Any) -> Any:
        """Reads the file that a value names, or each file of a list; converts texts to UTF-8. Returns any other value
        unchanged, and None for a missing optional file. Raises :class:`ValueError` for any other missing file."""
        if not isinstance(value, InTree):
            return [self._read_value(each) for each in value] if _list_files_of(value) else value
        if value.size_bytes >= 0:
            data = self.tree.read(value.file, value.size_bytes, value.modified_ns, self._max_bytes)
            try:
                return to_utf8(data, self.tree.encoding, self.tree.name(value.file)) if is_text(value.file) else data
            except SourceError as error:
                raise ValueError(str(error)) from None
        if value.optional:
            return None
        raise ValueError(f"its {printable(value.file)} is missing or is not a file")


def _list_files_of(value: Any) -> Sequence[InTree]:
    """Returns the files that a value consists of; empty for a plain value."""
    if isinstance(value, InTree):
        return (value,)
    return value if isinstance(value, list) and value and isinstance(value[0], InTree) else ()
