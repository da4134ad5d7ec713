"""Data sets in the layout in which they are published, told by the names of their files.

A layout is a file with one class: what it is told by, and the rows of each split. Splits and labels are those of
``torchvision.datasets``, or the publisher's where torchvision has none. Boxes have the published numbers: corners as
they are, and width and height added to the corner where these are given.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import SampleError, SourceError, printable
from packstore.sources.annotations import ambiguous_source
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.listing import is_passed_over
from packstore.sources.named.mat import variable
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRowSource
from packstore.sources.tree import Tree

_DEPTH = 3
_ALONE = 64
"""Names beside a folder that are looked at."""
_BESIDE = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".md5")
_MAX_LIST = 1 << 30


class NamedSource(FileRowSource):
    """A data set whose images are files that lists name.

    Its folder may lie alone in the one that is given, beside archives, as torchvision puts it.

    Attributes:
        title: What its publisher calls it.
        signs: Files and folders by which it is told, all of them; ``a|b`` is any of the two.
        needs: What it must have besides.
        lists: Further files that are read, where they are there.
    """

    asks_about_left = False
    left_images = "images that no list names"
    title: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        base = self.find(self.tree)
        if base is None:
            raise SourceError(f"{printable(str(path))} is not {self.title}, which has {_shown(self.signs)}")
        if missing := self.missing(self.tree, base):
            raise SourceError(f"{printable(str(path))} is {self.title} without {_shown(missing)}")
        self.base = base
        self._tables: dict[tuple[str, int], Table] = {}
        self.evidence = _shown([self._which(sign) for sign in self.signs])

    @classmethod
    def find(cls, tree: Tree) -> str | None:
        """The folder that holds all :attr:`signs`; None where there is none."""
        return find_base(tree, cls.signs)

    @classmethod
    def missing(cls, tree: Tree, base: str) -> list[str]:
        """What of :attr:`needs` is not there, or is not what its name says."""
        return [need for need in (*cls.signs, *cls.needs) if not holds(tree, base, need, sound=True)]

    @classmethod
    def recognise(cls, path: Path, options: SourceOptions) -> Certainty:
        """Tells whether a path has the layout. Raises :class:`AmbiguousSourceError` if a part of it is missing."""
        try:
            tree = open_tree(path)
        except SourceError:
            return Certainty.NO  # the general kinds say what is wrong with an archive
        base = None if tree is None else cls.find(tree)
        if tree is None or base is None:
            return Certainty.NO
        if missing := cls.missing(tree, base):
            raise ambiguous_source(path, f"looks like {cls.title} ({_shown(cls.signs)}), without {_shown(missing)}")
        return Certainty.CERTAIN

    @abstractmethod
    def splits(self) -> Sequence[str]: ...

    def at(self, name: str) -> str:
        """The path in the tree of a file or folder of the layout."""
        return f"{self.base}/{name}" if self.base else name

    def has(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return holds(self.tree, self.base, name)

    def content_of(self, name: str) -> bytes:
        """All of a file that says something of the images. Raises :class:`SourceError` where it cannot be read."""
        return read_whole(self.tree, self.at(name))

    def table(self, name: str, separator: str | None = None, skip: int = 0) -> Table:
        """The lines of a text file, which is read once. Raises :class:`SourceError` where it cannot be read."""
        found = self._tables.get((name, skip))
        if found is None:
            table = Table(self.tree.name(self.at(name)), self.content_of(name), separator, skip)
            found = self._tables[name, skip] = table
        return found

    def mat(self, name: str, key: str) -> tuple[str, Any]:
        """What a MAT file is called in messages, and one of its variables. Raises :class:`SourceError`."""
        shown = self.tree.name(self.at(name))
        return shown, variable(shown, self.content_of(name), key)

    def images(self, folder: str) -> Iterator[str]:
        """The images below a folder, by their paths in the tree, in torchvision's order."""
        above = self.tree.above
        for directory, listing in self.tree.walk(self.at(folder), above, skip_cycles=self.options.skip_bad):
            for name in listing.images:
                yield f"{directory}/{name}"

    def describing_files(self) -> Iterable[str]:
        named = {each for name in (*self.signs, *self.needs, *self.lists) for each in name.split("|")}
        for name in sorted(named):
            try:
                if not self.tree.stat(self.at(name)).is_directory:
                    yield self.at(name)
            except OSError:  # an alternative, or something that may be missing
                continue

    def _which(self, sign: str) -> str:
        return next((name for name in sign.split("|") if self.has(name)), sign)


def named(source: type[NamedSource]) -> Kind:
    """The kind of a layout."""
    return Kind(source.kind, f"{source.title} as published", source.recognise, source, in_objects=True)


def find_base(tree: Tree, signs: Sequence[str]) -> str | None:
    """The folder of ``tree`` that holds all of ``signs``: its root, or one that lies alone in the root, beside
    archives at most, or alone in that one."""
    return next((base for base in lone_folders(tree) if all(holds(tree, base, sign) for sign in signs)), None)


def lone_folders(tree: Tree) -> Iterator[str]:
    """Yields the root, and the folders that lie alone in it, beside archives at most, or alone in such a one."""
    base: str | None = ""
    for _ in range(_DEPTH + 1):
        if base is None:
            return
        yield base
        base = _alone(tree, base)


def holds(tree: Tree, base: str, name: str, *, sound: bool = False) -> bool:
    """Whether a folder of ``tree`` holds a file or folder, or any of several (``a|b``); ``sound``: a file for MATLAB is
    one by its first bytes, too."""
    for each in name.split("|"):
        path = f"{base}/{each}" if base else each
        try:
            found = tree.stat(path)
        except OSError:
            continue
        if found.is_directory or not sound or not path.endswith(".mat") or tree.start(path, 6) == b"MATLAB":
            return True
    return False


def read_whole(tree: Tree, file: str, limit: int = _MAX_LIST) -> bytes:
    """All bytes of a file of ``tree``. Raises :class:`SourceError` where it cannot be read."""
    try:
        found = tree.stat(file)
        return tree.read(file, max(0, found.size), found.modified_ns, limit)
    except (OSError, SampleError) as error:
        reason = error.reason if isinstance(error, SampleError) else error.strerror or str(error)
        raise SourceError(f"{tree.name(file)} cannot be read: {printable(reason)}") from None


def _alone(tree: Tree, base: str) -> str | None:
    names = tree.names(base)
    folders = [name for name in names.folders if not is_passed_over(name)]
    files = [name for name in names.files if not is_passed_over(name) and not name.lower().endswith(_BESIDE)]
    if files or len(folders) != 1:
        return None
    return f"{base}/{folders[0]}" if base else folders[0]


def _shown(names: Iterable[str]) -> str:
    return ", ".join(printable(name.replace("|", " or ")) for name in names)
