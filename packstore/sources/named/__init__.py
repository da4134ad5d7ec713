"""Published data sets, recognised by the names of their files.

A set is a generator in :mod:`.sets`, with the files that mark it. Splits and labels are those of
``torchvision.datasets``, or the publisher's if torchvision has none. Boxes have the published numbers: corners stay,
width and height are added to the corner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.sources.annotation_questions import ambiguous_source_error
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import is_file, join
from packstore.sources.found import Files, Found, FoundSource
from packstore.sources.found import has_path as has_path
from packstore.sources.listing import is_passed_over
from packstore.sources.tree import Tree

_DEPTH = 3
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".md5")

Generator = Callable[[Files], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """Published data set whose images are files that lists or folders name.

    A path is the folder of the set, or a folder up to three levels above. A folder above holds nothing else but
    archives, as torchvision leaves it. All paths are relative to the folder of the set; ``a|b`` is either.

    Attributes:
        kind: Name of the kind.
        title: The publisher's name for it.
        markers: Files and folders that mark the set, all of them.
        generate: Yields the images.
        required: Further files and folders without which the set is incomplete.
        needs: Files and folders that are required if another exists.
        also: Further files that belong to the set, such as lists of the same images.
        within: Folder that may be between the given path and the set.
        class_folders: Pattern of the names of all folders in the markers.
        parsers: See :attr:`packstore.sources.found.FoundSource.parsers`.
    """

    kind: str
    title: str
    markers: tuple[str, ...]
    generate: Generator
    required: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    within: str = ""
    class_folders: str = ""
    parsers: Mapping[str, Callable[[bytes], Mapping[str, Any]]] = field(default_factory=dict)

    def __call__(self, path: Path, options: SourceOptions) -> PublishedSource:
        """Opens a path as this set."""
        return PublishedSource(self, path, options)

    def find_base(self, tree: Tree) -> str | None:
        """Finds the folder that holds all :attr:`markers`. Returns its path; None if there is none."""
        tops = [
            each for top in walk_lone_folders(tree) for each in (top, join(top, self.within) if self.within else top)
        ]
        return next((top for top in tops if self._marks(tree, top)), None)

    def find_missing(self, tree: Tree, base: str) -> list[str]:
        """Lists the paths that are missing. A ``.mat`` file that does not begin as a MAT file counts as missing."""
        needed = [path for other, path in self.needs.items() if has_path(tree, base, other)]
        paths = dict.fromkeys((*self.markers, *self.required, *needed))
        return [path for path in paths if not has_path(tree, base, path, check_content=True)]

    def recognise(self, path: Path, options: SourceOptions) -> Certainty:
        """Returns ``CERTAIN`` if a path has the layout. Returns ``NO`` otherwise, and for a damaged archive.

        Raises :class:`AmbiguousSourceError` if files are missing.
        """
        try:
            tree = open_tree(path)
        except SourceError:
            return Certainty.NO  # the general kinds report a damaged archive
        base = None if tree is None else self.find_base(tree)
        if tree is None or base is None:
            return Certainty.NO
        if missing := self.find_missing(tree, base):
            markers, lacks = format_paths(self.markers), format_paths(missing)
            raise ambiguous_source_error(path, f"looks like {self.title} ({markers}), without {lacks}")
        return Certainty.CERTAIN

    def _marks(self, tree: Tree, base: str) -> bool:
        """Tells if a folder holds all markers, with folders of classes in them if the set has such."""
        if not all(has_path(tree, base, marker) for marker in self.markers):
            return False
        for marker in self.markers if self.class_folders else ():
            place = next(name for name in marker.split("|") if has_path(tree, base, name))
            folders = tree.names(join(base, place)).folders
            if not folders or not all(re.fullmatch(self.class_folders, name) for name in folders):
                return False
        return True


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
        if base is None:
            raise SourceError(f"{printable(str(path))} is not {form.title}, which has {format_paths(form.markers)}")
        if missing := form.find_missing(self.tree, base):
            raise SourceError(f"{printable(str(path))} is {form.title} without {format_paths(missing)}")
        self.base = base
        self.evidence = format_paths(map(Files(self).choose, form.markers))

    def generate(self, files: Files) -> Iterator[Found]:
        return self._form.generate(files)

    def describing_files(self) -> list[str]:
        """Returns the files that were read, and the others that belong to the set."""
        form, read = self._form, super().describing_files()
        names = {each for name in (*form.markers, *form.required, *form.also) for each in name.split("|")}
        return sorted({*read, *(path for name in names if is_file(self.tree, path := join(self.base, name)))})


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


def format_paths(names: Iterable[str]) -> str:
    """Joins names for a message, ``a|b`` as "a or b"."""
    return ", ".join(printable(name.replace("|", " or ")) for name in names)
