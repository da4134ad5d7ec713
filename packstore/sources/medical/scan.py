"""Base of sources of medical files. It reads all headers before anything is packed: one mode must hold all pixels."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError
from packstore.core.fields import Image
from packstore.core.modes import RGB, Mode
from packstore.core.progress import Progress, active_progress
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, SourceOptions
from packstore.sources.beside import join
from packstore.sources.contents import list_contents
from packstore.sources.ledger import Claims
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import Row, TreeRowSource
from packstore.sources.tree import FileStat, Tree

_REPORT_EVERY = 200
# Path, size and time of modification of a file.
FileRef = tuple[str, int, int]


class ScannedFile(NamedTuple):
    """File with its header.

    Attributes:
        stat: Its size and times.
        header: Its header; None for a file that cannot be read, or has no pixels.
        error: Reason why it cannot be read; ``""`` for a good header.
    """

    path: str
    stat: FileStat
    header: Any
    error: str = ""

    @property
    def bad_row(self) -> Row:
        """Row of a file that cannot be read."""
        return make_row(self.path, [self._replace(stat=FileStat(-1))], self.error, 0, 0)


def make_row(key: str, files: Sequence[ScannedFile], rest: Any, size_bytes: int, value_bytes: int) -> Row:
    """Makes a row that is read from files. Its reference has path, size and time of each file, and ``rest``."""
    ref = tuple((file.path, file.stat.size, file.stat.modified_ns) for file in files), rest
    times = max(file.stat.modified_ns for file in files), max(file.stat.changed_ns for file in files)
    return Row(key, ref, size_bytes, value_bytes, *times)


class HeaderScanSource(TreeRowSource):
    """Source whose rows are known after a scan of all headers. Ignores hidden files.

    Linked stores cannot be made of it: its pixels are converted.
    """

    @classmethod
    @abstractmethod
    def may_have(cls, suffix: str) -> bool:
        """Tells if files of this kind may have a suffix, in lower case."""

    @classmethod
    @abstractmethod
    def is_wanted(cls, tree: Tree, path: str) -> bool:
        """Tells if a file is of this kind."""

    @abstractmethod
    def read_header(self, path: str, size: int) -> Any:
        """Reads the header of a file; None for one without pixels. Raises :class:`ValueError` for a damaged header."""

    @abstractmethod
    def read_files(self, files: Sequence[FileRef], rest: Any) -> Mapping[str, Any]:
        """Reads the values of a row of :func:`make_row`, see :meth:`read_values`."""

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Recognises a folder or archive with such files: ``CERTAIN``; ``PARTIAL`` if it also has images of other
        formats. Of the files of a suffix in a folder, looks only at the first 64."""
        tree = open_tree(path)
        if tree is None:
            return Certainty.NO
        contents = list_contents(tree)
        for folder in contents.folders.values():
            for suffix, names in folder.others.items():
                if cls.may_have(suffix) and any(cls.is_wanted(tree, join(folder.path, name)) for name in names.first):
                    return Certainty.PARTIAL if contents.image_count else Certainty.CERTAIN
        return Certainty.NO

    @cached_property
    def scanned(self) -> list[ScannedFile]:
        """All files with their headers, sorted by path. Reads all headers."""
        paths = sorted(
            join(folder, name)
            for folder, names in self.tree.folders(is_passed_over)
            for name in names.files
            if not is_passed_over(name) and self.is_wanted(self.tree, join(folder, name))
        )
        found: list[ScannedFile] = []
        report = active_progress()
        for path in paths:
            if len(found) % _REPORT_EVERY == 0:
                report(Progress("headers", len(found), len(paths), 0))
            stat = self._stat_or_missing(path)
            try:
                if stat.size < 0:
                    raise ValueError("is no file that can be read")
                found.append(ScannedFile(path, stat, self.read_header(path, stat.size)))
            except ValueError as problem:
                found.append(ScannedFile(path, stat, None, str(problem)))
        return found

    def describing_files(self) -> Iterable[str]:
        """Returns no files: headers are in the image files themselves."""
        return ()

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads a row. Raises :class:`ValueError` for a file that the scan could not read."""
        files, rest = ref
        if files[0][1] < 0:
            raise ValueError(rest)
        return self.read_files(files, rest)

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the files of a row."""
        for path, *_ in row.ref[0]:
            claims.claim(path)


def load_library(module: str, extra: str) -> Any:
    """Imports a module. Raises :class:`SourceError`, with the ``extra`` of packstore that installs it, if it is
    missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f"needs {module}: pip install 'packstore[{extra}]' ({error})") from None


def declare_image_field(mode: Mode) -> Image:
    """Returns the field of the image for pixels of a mode. Leaves out the mode's name for RGB, which is the default."""
    return Image(mode.dtype, mode=None if mode == RGB else mode.name)
