"""Published sets described by a pattern for the paths of images, and paths of the files beside them.

A set fits a source if the path of each image matches its pattern, or belongs to a matching image. A source with other
images raises a question, so it is never mistaken for another set.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Label
from packstore.sources.annotation_questions import ambiguous_source_error
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import join
from packstore.sources.found import Files, Found, FoundSource, has_path
from packstore.sources.ignoring import escape_pattern
from packstore.sources.named import walk_lone_folders
from packstore.sources.rows import InTree
from packstore.sources.tree import Tree

_MOST_FOLDERS = 64
_NOTES = r"(.*/)?(readme|licen[cs]e|copyright)[^/]*"


@dataclass(frozen=True, slots=True)
class FolderSet:
    """Published data set, described by patterns of paths. Paths are relative to the folder that holds all
    :attr:`markers`.

    Attributes:
        markers: Files and folders that mark the set, all of them. In ``a|b``, either is enough. ``*/a`` is ``a`` in any
            folder, if there are at most 64.
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
        names = tree.names(base)
        has_marker = partial(_has_marker, tree, base, {*names.folders, *names.files})
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
        for folder, listing in tree.walk(base, tree.above, None, skip_cycles=True):
            top = folder[len(base) + 1 if base else 0 :]
            yield from (_lower_suffix(join(top, name)) for name in listing.images)

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


def _has_marker(tree: Tree, base: str, there: set[str], marker: str) -> bool:
    """Tells if the folder ``base``, which contains the names ``there``, holds a marker, see
    :attr:`FolderSet.markers`."""
    for each in marker.split("|"):
        top, _, rest = each.partition("/")
        fitting = fnmatch.filter(there, top) if "*" in top else [top] if top in there else []
        if not rest and fitting:
            return True
        for name in fitting if rest and len(fitting) <= _MOST_FOLDERS else ():
            place = join(base, name)
            if (
                has_path(tree, place, rest)
                if "*" not in rest
                else _has_marker(tree, place, {*tree.names(place).folders}, rest)
            ):
                return True
    return False


def make_folder_set_kind(name: str, help: str, rows: Mapping[str, FolderSet]) -> Kind:
    """Makes the :class:`Kind` of some sets. It recognises a path by the images that a set matches:

    - All images: ``CERTAIN``.
    - At least half of the images: raises :class:`AmbiguousSourceError`.
    - Fewer, and a damaged archive: ``NO``.
    """

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        try:
            tree = open_tree(path)
        except SourceError:
            return Certainty.NO  # the general kinds report a damaged archive
        fit = None if tree is None else find_folder_set(tree, rows)
        if fit is None or fit.strangers > fit.images:
            return Certainty.NO
        if fit.strangers:
            raise ambiguous_source_error(
                path,
                f"looks like {fit.title}, but {fit.strangers:,} of its images have other names, "
                f"{printable(fit.first_stranger)} among them",
                [f"/{escape_pattern(fit.first_stranger)}"] if fit.strangers == 1 else [],
            )
        return Certainty.CERTAIN

    return Kind(name, help, recognise, partial(FolderSetSource, name, rows), in_objects=True)
