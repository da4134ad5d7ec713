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

from packstore.core.errors import SampleError, SourceError, printable
from packstore.sources.archives import open_required_tree, open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import is_folder, join
from packstore.sources.found import Files, Found, FoundSource, has_path
from packstore.sources.ledger import Claims
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
        required: Further files and folders without which the set is incomplete.
        archives: Archives by folder: if the folder is missing, the content of the archive is read as that folder.
        parsers: See :attr:`packstore.sources.found.FoundSource.parsers`.
    """

    kind: str
    title: str
    markers: tuple[str, ...]
    generate: Generator
    required: tuple[str, ...] = ()
    archives: Mapping[str, str] = field(default_factory=dict)
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
        paths = (*self.markers, *self.required)
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
            expected = format_paths((*form.markers, *form.required))
            raise SourceError(f"{printable(str(path))} is not {form.title}, which has {expected}")
        self.base = base
        self.evidence = format_paths(map(Files(self).choose, form.markers))
        self._archives: list[str] = []
        mounted: dict[str, tuple[Tree, str]] = {}
        for folder, names in form.archives.items():
            if not has_path(self.tree, base, folder) and has_path(self.tree, base, names):
                self._archives.append(join(base, Files(self).choose(names)))
                tree = open_required_tree(path / self._archives[-1])
                mounted[join(base, folder)] = tree, folder if is_folder(tree, folder) else ""
        if mounted:
            self.tree = MountedTree(self.tree, mounted)

    def generate(self, files: Files) -> Iterator[Found]:
        return self._form.generate(files)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and its values. Raises :class:`ValueError` if the image cannot be read."""
        try:
            return super().read_values(ref)
        except SampleError as error:  # it names the path, which may differ from the key
            raise ValueError(error.reason) from None

    def claim_files(self, claims: Claims) -> None:
        """Claims all files that were read, and the archives."""
        super().claim_files(claims)
        for archive in self._archives:
            claims.claim(archive)


def _delegate(method: str) -> Any:
    """Makes a method that calls that of the tree to which a path belongs."""

    def call(tree: MountedTree, path: str, *arguments: Any) -> Any:
        inner, place = tree.find(path)
        return getattr(inner, method)(place, *arguments)

    return call


class MountedTree(Tree):
    """Folder in which archives stand for folders that are missing: ``train.tar`` for ``train``."""

    def __init__(self, folder: Tree, archives: Mapping[str, tuple[Tree, str]]) -> None:
        """``archives``: by the path of the missing folder, the tree of an archive and a folder in it."""
        self.root, self.above, self.rules = folder.root, folder.above, folder.rules
        self._folder, self._archives = folder, archives

    def find(self, path: str) -> tuple[Tree, str]:
        """Returns the tree of a path, and the path in it."""
        for folder, (tree, top) in self._archives.items():
            if path == folder or path.startswith(f"{folder}/"):
                return tree, f"{top}{path[len(folder) :]}".strip("/")
        return self._folder, path

    read_names = _delegate("read_names")
    stat_any = _delegate("stat_any")
    read_first_bytes = _delegate("read_first_bytes")
    read_part = _delegate("read_part")
    read = _delegate("read")
    locate = _delegate("locate")
    identity = _delegate("identity")

    def stamp(self) -> str:
        return " ".join(tree.stamp() for tree, _ in self._archives.values())

    def close(self) -> None:
        for tree in (self._folder, *(tree for tree, _ in self._archives.values())):
            tree.close()


def published_set(title: str, *markers: str, **options: Any) -> Callable[[Generator], Kind]:
    """Decorates the generator of a published set: makes the :class:`Kind` of its name, which is also read from object
    stores. ``options`` are further attributes of :class:`PublishedSet`."""

    def make(generate: Generator) -> Kind:
        form = PublishedSet(generate.__name__, title, markers, generate, **options)
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
