"""Data sets in the layout in which they are published, recognised by the names of their files.

A layout is one module with one class: the files that mark it, and the rows of each split. Splits and labels are those
of ``torchvision.datasets``, or the publisher's if torchvision has none. Boxes have the published numbers: published
corners stay, a published width and height are added to the corner.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_questions import ambiguous_source_error
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join, read_text, read_whole
from packstore.sources.file_rows import FileRowSource
from packstore.sources.listing import is_passed_over
from packstore.sources.named.mat import load_variable
from packstore.sources.named.text_table import TextTable
from packstore.sources.tree import Tree

_DEPTH = 3
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".md5")
_MAX_LIST_BYTES = 1 << 30


class NamedSource(FileRowSource):
    """Base of published data sets whose images are files that lists name.

    The given path is the data set's folder, or a folder up to three levels above. A folder above holds nothing else but
    archives, as torchvision leaves it. Opening raises :class:`SourceError` for a path of another layout, and if a
    required file is missing.

    Attributes:
        title: The publisher's name for it.
        markers: Files and folders that mark the layout, all of them; ``a|b`` is either.
        required: Further files and folders without which the set is incomplete.
        optional_files: Further files, which are read if they exist.
    """

    asks_about_left = False
    left_images = "images that no list names"
    title: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    required: ClassVar[tuple[str, ...]] = ()
    optional_files: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        base = self.find_base(self.tree)
        if base is None:
            raise SourceError(f"{printable(str(path))} is not {self.title}, which has {_format_paths(self.markers)}")
        if missing := self.find_missing(self.tree, base):
            raise SourceError(f"{printable(str(path))} is {self.title} without {_format_paths(missing)}")
        self.base = base
        self._tables: dict[tuple[str, int], TextTable] = {}
        self.evidence = _format_paths([self.resolve_alternative(marker) for marker in self.markers])

    @classmethod
    def find_base(cls, tree: Tree) -> str | None:
        """Finds the folder that holds all :attr:`markers`. Returns its path; None if there is none."""
        return find_marked_folder(tree, cls.markers)

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists the markers and required paths that are missing. An alternative stays as it is written, ``a|b``.

        A ``.mat`` file that does not begin as a MAT file counts as missing.
        """
        return [path for path in (*cls.markers, *cls.required) if not has_path(tree, base, path, check_content=True)]

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if a path has the layout. Returns ``NO`` otherwise, and for a damaged archive.

        Raises :class:`AmbiguousSourceError` if required files are missing.
        """
        try:
            tree = open_tree(path)
        except SourceError:
            return Certainty.NO  # the general kinds report a damaged archive
        base = None if tree is None else cls.find_base(tree)
        if tree is None or base is None:
            return Certainty.NO
        if missing := cls.find_missing(tree, base):
            markers, lacks = _format_paths(cls.markers), _format_paths(missing)
            raise ambiguous_source_error(path, f"looks like {cls.title} ({markers}), without {lacks}")
        return Certainty.CERTAIN

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the names of the splits that exist at the path."""

    def tree_path(self, name: str) -> str:
        """Converts the name of a file or folder of the layout to its path in the tree."""
        return join(self.base, name)

    def exists(self, name: str) -> bool:
        """Tells if the layout's folder holds a file or folder; ``a|b`` is either."""
        return has_path(self.tree, self.base, name)

    def file_name(self, name: str) -> str:
        """Returns the path of a file of the layout as messages show it."""
        return self.tree.name(self.tree_path(name))

    def read_file(self, name: str) -> bytes:
        """Reads all bytes of a list or table. Raises :class:`SourceError` if it cannot be read, or has more than 1
        GiB."""
        return read_whole(self.tree, self.tree_path(name), _MAX_LIST_BYTES)

    def read_text(self, name: str) -> bytes:
        """Reads a list or table as UTF-8 bytes. Raises :class:`SourceError` if it cannot be read, or has more than 1
        GiB.

        Raises :class:`AmbiguousSourceError` for an unknown encoding.
        """
        return read_text(self.tree, self.tree_path(name), _MAX_LIST_BYTES)

    def read_table(self, name: str, separator: str | None = None, skip: int = 0) -> TextTable:
        """Reads a text file as a table, without its first ``skip`` lines. Caches the table by ``name`` and ``skip``,
        whatever the ``separator``.

        ``separator`` divides the cells of a line; None means blanks. Raises as :meth:`read_text` does.
        """
        table = self._tables.get((name, skip))
        if table is None:
            table = TextTable(self.file_name(name), self.read_text(name), separator, skip)
            self._tables[name, skip] = table
        return table

    def read_mat(self, name: str, key: str) -> tuple[str, Any]:
        """Reads the variable ``key`` of a MAT file. Returns the file's name for messages, and the value.

        Raises :class:`SourceError` if the file is damaged, or has no such variable.
        """
        shown = self.file_name(name)
        return shown, load_variable(shown, self.read_file(name), key)

    def list_images(self, folder: str) -> Iterator[str]:
        """Yields the paths in the tree of the images below a folder, in torchvision's order.

        Raises :class:`SourceError` for a cycle of links, unless ``skip_bad``.
        """
        above = self.tree.above
        for directory, listing in self.tree.walk(self.tree_path(folder), above, skip_cycles=self.options.skip_bad):
            for name in listing.images:
                yield f"{directory}/{name}"

    def describing_files(self) -> Iterable[str]:
        """Yields the paths of the existing files among markers, required and optional files."""
        named = {each for name in (*self.markers, *self.required, *self.optional_files) for each in name.split("|")}
        for name in sorted(named):
            try:
                if not self.tree.stat(self.tree_path(name)).is_directory:
                    yield self.tree_path(name)
            except OSError:  # an alternative, or an optional file
                continue

    def resolve_alternative(self, names: str) -> str:
        """Returns the first of the names in ``a|b`` that exists. Returns ``a|b`` unchanged if neither exists."""
        return next((name for name in names.split("|") if self.exists(name)), names)


def make_named_kind(source: type[NamedSource]) -> Kind:
    """Makes the :class:`Kind` of a published layout. It is also read from object stores."""
    return Kind(source.kind, f"{source.title} as published", source.recognise, source, in_objects=True)


def find_marked_folder(tree: Tree, markers: Sequence[str]) -> str | None:
    """Finds the first folder of :func:`walk_lone_folders` that holds all ``markers``. Returns its path; None if
    there is none."""
    return next((base for base in walk_lone_folders(tree) if all(has_path(tree, base, each) for each in markers)), None)


def walk_lone_folders(tree: Tree) -> Iterator[str]:
    """Yields the root, its only folder, the only folder in that, and so on, at most three levels deep.

    Stops at a folder that holds several folders, or files other than archives. Ignores hidden names.
    """
    base: str | None = ""
    for _ in range(_DEPTH + 1):
        if base is None:
            return
        yield base
        base = _find_lone_subfolder(tree, base)


def has_path(tree: Tree, base: str, name: str, *, check_content: bool = False) -> bool:
    """Tells if the folder ``base`` of a tree holds a file or folder; ``a|b`` is either. A path that cannot be reached
    is missing.

    ``check_content``: a ``.mat`` file counts only if it begins like one.
    """
    for each in name.split("|"):
        path = join(base, each)
        try:
            entry = tree.stat(path)
        except OSError:
            continue
        if (
            entry.is_directory
            or not check_content
            or not path.endswith(".mat")
            or tree.first_bytes(path, 6) == b"MATLAB"
        ):
            return True
    return False


def _find_lone_subfolder(tree: Tree, base: str) -> str | None:
    """Returns the path of the only folder in a folder. Returns None if there are several folders, none, or files other
    than archives.

    Ignores hidden names.
    """
    names = tree.names(base)
    folders = [name for name in names.folders if not is_passed_over(name)]
    files = [name for name in names.files if not is_passed_over(name) and not name.lower().endswith(_ARCHIVES)]
    if files or len(folders) != 1:
        return None
    return join(base, folders[0])


def _format_paths(names: Iterable[str]) -> str:
    """Joins names for a message, ``a|b`` as "a or b"."""
    return ", ".join(printable(name.replace("|", " or ")) for name in names)
