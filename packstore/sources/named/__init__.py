"""Published data sets, recognised by the names of their files.

A :class:`PublishedSet` is a generator in :mod:`.sets`, with the files that mark it. Splits and labels are those of
``torchvision.datasets``, or the publisher's if torchvision has none. Boxes have the published numbers: corners stay,
width and height are added to the corner.

A :class:`~packstore.sources.named.published.FolderSet` is a pattern for the paths of images, without lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import is_file, join
from packstore.sources.found import Files, Found, FoundSource, has_path
from packstore.sources.listing import is_passed_over
from packstore.sources.questions import ask
from packstore.sources.tree import Tree

_DEPTH = 3
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".md5")

Generator = Callable[[Files], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """Published data set whose images are files that lists or folders name.

    A path is the folder of the set, or a folder up to three levels above. A folder above holds nothing else but
    archives, as torchvision leaves it. The files may also be in a folder ``data`` in the folder of the set. All paths
    are relative to the folder of the files; ``a|b`` is either.

    Attributes:
        kind: Name of the kind.
        title: The publisher's name for it.
        markers: Files and folders that mark the set, all of them.
        generate: Yields the images.
        required: Further files and folders without which the set is incomplete; ``a>b`` needs ``b`` if ``a`` exists.
        parsers: See :attr:`packstore.sources.found.FoundSource.parsers`.
    """

    kind: str
    title: str
    markers: tuple[str, ...]
    generate: Generator
    required: tuple[str, ...] = ()
    parsers: Mapping[str, Callable[[bytes], Mapping[str, Any]]] = field(default_factory=dict)

    def __call__(self, path: Path, options: SourceOptions) -> PublishedSource:
        """Opens a path as this set."""
        return PublishedSource(self, path, options)

    def find_base(self, tree: Tree) -> str | None:
        """Finds the folder that holds all :attr:`markers`. Returns its path; None if there is none."""
        tops = [each for top in walk_lone_folders(tree) for each in (top, join(top, "data"))]
        return next((top for top in tops if all(has_path(tree, top, each) for each in self.markers)), None)

    def find_missing(self, tree: Tree, base: str) -> list[str]:
        """Lists the paths that are missing. A ``.mat`` file that does not begin as a MAT file counts as missing."""
        needed = [each.rpartition(">") for each in self.required]
        wanted = [path for other, mark, path in needed if not mark or has_path(tree, base, other)]
        paths = dict.fromkeys((*self.markers, *wanted))
        return [path for path in paths if not has_path(tree, base, path, check_content=True)]

    def recognise(self, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if a path has the layout. Returns ``NO`` otherwise, and for a damaged archive.

        Raises :class:`AmbiguousSourceError` if files are missing.
        """
        tree = open_tree_or_none(path)
        base = None if tree is None else self.find_base(tree)
        if tree is None or base is None:
            return Certainty.NO
        if missing := self.find_missing(tree, base):
            markers, lacks = format_paths(self.markers), format_paths(missing)
            raise ask(path, f"looks like {self.title} ({markers}), without {lacks}")
        return Certainty.CERTAIN


class PublishedSource(FoundSource):
    """Source of a published data set. Opening raises :class:`SourceError` for a path of another layout, and if a file
    is missing."""

    asks_about_left = False
    left_images = "images that no list names"

    def __init__(self, form: PublishedSet, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.kind, self.parsers = form.kind, form.parsers
        self._form = form
        base = form.find_base(self.tree)
        if base is None or form.find_missing(self.tree, base):
            expected = format_paths((*form.markers, *(each.rpartition(">")[2] for each in form.required)))
            raise SourceError(f"{printable(str(path))} is not {form.title}, which has {expected}")
        self.base = base
        self.evidence = format_paths(map(Files(self).choose, form.markers))

    def generate(self, files: Files) -> Iterator[Found]:
        return self._form.generate(files)

    def describing_files(self) -> list[str]:
        """Returns the files that were read, and those that mark the set."""
        names = {
            each for name in (*self._form.markers, *self._form.required) for each in name.rpartition(">")[2].split("|")
        }
        marks = (path for name in names if is_file(self.tree, path := join(self.base, name)))
        return sorted({*super().describing_files(), *marks})


def published_set(title: str, *markers: str, kind: str = "", **options: Any) -> Callable[[Generator], Kind]:
    """Decorates the generator of a published set: makes its :class:`Kind`, which is also read from object stores.

    ``kind`` is the name of the kind; that of the generator if it is empty. ``options`` are further attributes of
    :class:`PublishedSet`.
    """

    def make(generate: Generator) -> Kind:
        form = PublishedSet(kind or generate.__name__, title, markers, generate, **options)
        return Kind(form.kind, f"{title} as published", form.recognise, form, in_objects=True)

    return make


def find_marked_folder(tree: Tree, markers: Sequence[str]) -> str | None:
    """Finds the first folder of :func:`walk_lone_folders` that holds all ``markers``. Returns its path; None if
    there is none."""
    return next((base for base in walk_lone_folders(tree) if all(has_path(tree, base, each) for each in markers)), None)


def walk_lone_folders(tree: Tree) -> Iterator[str]:
    """Yields the root, its only folder, the only folder in that, and so on, at most three levels deep.

    Stops at a folder that holds several folders, or files other than archives. Ignores hidden names.
    """
    base = ""
    yield base
    for _ in range(_DEPTH):
        names = tree.names(base)
        folders = [name for name in names.folders if not is_passed_over(name)]
        files = [name for name in names.files if not is_passed_over(name) and not name.lower().endswith(_ARCHIVES)]
        if files or len(folders) != 1:
            return
        base = join(base, folders[0])
        yield base


def open_tree_or_none(path: Path) -> Tree | None:
    """Opens a folder or an archive as a tree; returns None if it is neither, or damaged."""
    try:
        return open_tree(path)
    except SourceError:
        return None  # the general kinds report the error


def format_paths(names: Iterable[str]) -> str:
    """Joins names for a message, ``a|b`` as "a or b"."""
    return ", ".join(printable(name.replace("|", " or ")) for name in names)
