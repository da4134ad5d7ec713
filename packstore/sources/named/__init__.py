"""Published data sets, recognised by the names of their files.

A :class:`PublishedSet` is a generator in :mod:`.sets`, with the files that mark it. Splits and labels are those of
``torchvision.datasets``, or the publisher's if torchvision has none. Boxes have the published numbers: corners stay,
width and height are added to the corner.

A :class:`FolderSet` in :mod:`.published` is a pattern for the paths of images, and paths of the files beside them. It
fits a source if the path of each image matches its pattern, or belongs to a matching image. A source with other images
raises a question, so it is never mistaken for another set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import Answer, SourceError, printable
from packstore.core.fields import Label
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import is_file, join
from packstore.sources.found import Files, Found, FoundSource, has_path, walk_images
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.questions import ask
from packstore.sources.rows import InTree
from packstore.sources.tree import Tree

_DEPTH = 3
_NOTES = r"(.*/)?(readme|licen[cs]e|copyright)[^/]*"
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


@dataclass(frozen=True, slots=True)
class FolderSet:
    """Published data set, described by patterns of paths. Paths are relative to the folder that holds all
    :attr:`markers`.

    Attributes:
        markers: Files and folders that mark the set, all of them. In ``a|b``, either is enough. ``*/a`` is ``a`` in any
            folder.
        path: Pattern of the path of an image, with its suffix in lower case. Its groups are columns of whole numbers,
            except those named here. The group ``split`` is the split, and a group ``_name`` is no column.
        splits: Names of splits by the text of the group, if they differ.
        labels: Groups that are classes.
        texts: Groups that are texts.
        beside: Path of a further file of an image by column, with groups in braces: image, mask, ``.json`` or ``.txt``.
        required: Columns of :attr:`beside` that each image must have.
        left: Pattern of images that are no samples.
        known: Pattern of other files that belong to the set and are left out, besides read-me files and licences.
        unless: Files and folders that mark another layout.
    """

    markers: tuple[str, ...]
    path: str
    splits: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ("label", "object", "domain", "corruption", "eye", "disaster", "city")
    texts: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    left: str = ""
    known: str = ""
    unless: tuple[str, ...] = ()

    def format_beside_paths(self, match: re.Match[str]) -> dict[str, str]:
        """Returns the path of each further file of an image, by column; the file need not exist. ``match``: that of
        :attr:`path` with the image's path."""
        groups = {name: text or "" for name, text in match.groupdict().items()}
        return {column: template.format_map(groups) for column, template in self.beside.items()}


class FolderSetMatch(NamedTuple):
    """Result of matching a :class:`FolderSet` with the files of a source.

    Attributes:
        title: The publisher's name for the set.
        row: The set.
        base: Folder that holds the markers.
        images: Number of matching images.
        strangers: Number of images that do not belong to the set.
        first_stranger: The first of them; ``""`` if there are none.
    """

    title: str
    row: FolderSet
    base: str
    images: int
    strangers: int
    first_stranger: str


class FolderSetSource(FoundSource):
    """Source of one of several known sets; takes its images folder by folder.

    Leaves out images that do not match the set's pattern. Further files, such as masks, become a column if at least one
    exists. Opening raises :class:`SourceError` if no set fits the path.
    """

    left_images = "images whose names do not follow the set's pattern"

    def __init__(self, kind: str, known_sets: Mapping[str, FolderSet], path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.kind = kind
        fit = find_folder_set(self.tree, known_sets)
        if fit is None:
            named = " or ".join(known_sets) if len(known_sets) < 4 else "one of the known sets"
            raise SourceError(f"{printable(str(path))} is not {named}")
        self.title, self.row, self.base, *_ = fit
        self._path = re.compile(self.row.path)
        self.evidence = f"the folders of {self.title}, and the names of {fit.images:,} images"

    def generate(self, files: Files) -> Iterator[Found]:
        """Yields the images whose paths match the pattern, with their further files."""
        row, plain = self.row, (*self.row.labels, *self.row.texts)
        files.columns = {name: Label() for name in self._path.groupindex if name in row.labels}
        for image in files.images(""):
            if match := self._path.fullmatch(_lower_suffix(image)):
                groups = match.groupdict()
                word = groups.pop("split", None) or ""
                values: dict[str, Any] = {
                    name: text if name in plain else -1 if text == "00-1" else int(text)  # MARS has 00-1
                    for name, text in groups.items()
                    if name[0] != "_"
                }
                for column, path in row.format_beside_paths(match).items():
                    values[column] = InTree(files.path(path), optional=column not in row.required)
                yield Found(image, row.splits.get(word, word.lower()), values)

    def expects_left(self, path: str) -> bool:
        """Tells if the set leaves out a file on purpose: a known file that is no image, or an image that is no
        sample."""
        return self._matches(f"{_NOTES}|{self.row.known}|{self.row.left}", path)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for images that the set does not count. For other files, returns the base's reason."""
        if self.row.left and self._matches(self.row.left, join(folder, name)):
            return f"images that {self.title} does not count"
        return super().reason_to_leave_out(folder, name)

    def _matches(self, pattern: str, path: str) -> bool:
        """Tells if a path in the tree matches a pattern of paths in the set."""
        return re.fullmatch(pattern, path[len(self.base) + 1 if self.base else 0 :]) is not None


def find_folder_set(tree: Tree, rows: Mapping[str, FolderSet]) -> FolderSetMatch | None:
    """Finds the first set that matches all images of a tree. If none does, finds the first that matches some. None if
    no set matches.

    Looks for the markers in the folders of :func:`walk_lone_folders`, up to the first folder in which a set matches.
    Skips sets with missing required files, or with a path of :attr:`FolderSet.unless`. Lists all images.
    """
    for base in walk_lone_folders(tree):
        has_marker = partial(has_path, tree, base)
        fits = [
            fit
            for title, row in rows.items()
            if all(map(has_marker, row.markers)) and not any(map(has_marker, row.unless))
            if (fit := _match_set(tree, base, title, row)) is not None
        ]
        if fits:
            return min(fits, key=lambda fit: fit.strangers > 0)
    return None


def _match_set(tree: Tree, base: str, title: str, row: FolderSet) -> FolderSetMatch | None:
    """Matches all images of a tree with a set. Returns None if no image matches, or if a required file is missing.
    Skips cycles of links.

    Keeps only hashes in memory: of each image that does not match, and of each further file.
    """
    pattern, left = re.compile(row.path), re.compile(row.left)
    others: set[int] = set()
    beside: set[int] = set()
    required: set[int] = set()
    images = 0

    def below() -> Iterator[str]:
        return map(_lower_suffix, walk_images(tree, base))

    for image in below():
        match = pattern.fullmatch(image)
        if match is not None:
            images += 1
            paths = row.format_beside_paths(match)
            beside.update(map(hash, paths.values()))
            required.update(hash(paths[name]) for name in row.required)
        elif not left.fullmatch(image):
            others.add(hash(image))
    if not images or not required <= others:
        return None
    strangers = others - beside
    first = next((image for image in below() if hash(image) in strangers), "") if strangers else ""
    return FolderSetMatch(title, row, base, images, len(strangers), first)


def _lower_suffix(path: str) -> str:
    """Returns a path with its suffix in lower case, as the patterns of paths have it."""
    stem, dot, suffix = path.rpartition(".")
    return stem + dot + suffix.lower()


def make_folder_set_kind(name: str, help: str, rows: Mapping[str, FolderSet]) -> Kind:
    """Makes the :class:`Kind` of some sets. It recognises a path by the images that a set matches:

    - All images: ``CERTAIN``.
    - At least half of the images: raises :class:`AmbiguousSourceError`.
    - Fewer, and a damaged archive: ``NO``.
    """

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree_or_none(path)
        fit = None if tree is None else find_folder_set(tree, rows)
        if fit is None or fit.strangers > fit.images:
            return Certainty.NO
        if fit.strangers:
            why = f"looks like {fit.title}, but {fit.strangers:,} of its images have other names, "
            alone = [Answer(ignore_paths([fit.first_stranger]))] if fit.strangers == 1 else []
            raise ask(path, f"{why}{printable(fit.first_stranger)} among them", *alone)
        return Certainty.CERTAIN

    return Kind(name, help, recognise, partial(FolderSetSource, name, rows), in_objects=True)
