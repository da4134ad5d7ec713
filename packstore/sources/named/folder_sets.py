"""Published sets described by rows of a table: a pattern for the paths of images, and paths of the files beside them.

A row fits a source if the path of each image matches its pattern, or belongs to a matching image. A source with
other images raises a question, so it is never mistaken for another set.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Field, Image, Json, Label, Text
from packstore.core.plainjson import load_json
from packstore.sources.annotation_questions import ambiguous_source_error
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import find_file, infer_mask_field, is_file, join
from packstore.sources.encodings import to_utf8
from packstore.sources.file_rows import FileRow, FileRowSource, InTree
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.named import has_path, walk_lone_folders
from packstore.sources.rows import in_packing_order
from packstore.sources.tree import Tree

_PROBED, _MOST_FOLDERS = 32, 64
_MASK = re.compile(r".*(mask|vessels|field_of_view|panoptic).*")
_JSON = (".json", ".geojson")


@dataclass(frozen=True, slots=True)
class FolderSet:
    """Published data set, described by patterns of paths. Paths are relative to the folder that holds all
    :attr:`markers`.

    Attributes:
        title: The publisher's name for it.
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
        known: Pattern of other files that belong to the set and are left out.
        unless: Files and folders that mark another layout.
    """

    title: str
    markers: tuple[str, ...]
    path: str
    splits: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ("label",)
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
        base: Folder that holds the markers.
        images: Number of matching images.
        strangers: Number of images that do not belong to the set.
        first_stranger: The first of them; ``""`` if there are none.
        lacking: Required columns whose file is missing for some image.
    """

    base: str
    images: int
    strangers: int = 0
    first_stranger: str = ""
    lacking: tuple[str, ...] = ()


class FolderSetSource(FileRowSource):
    """Base of sources of one of :attr:`known_sets`; takes its images folder by folder.

    Leaves out images that do not match the set's pattern. Further files, such as masks, become a column if at least one
    exists. Opening raises :class:`SourceError` if no set fits the path.
    """

    left_images = "images whose names do not follow the set's pattern"
    known_sets: ClassVar[Sequence[FolderSet]]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        pair = find_folder_set(self.tree, self.known_sets)
        if pair is None:
            titles = [row.title for row in self.known_sets]
            raise SourceError(
                f"{printable(str(path))} is not {' or '.join(titles) if len(titles) < 4 else 'one of the known sets'}"
            )
        self.row, fit = pair
        self.base = fit.base
        self._path = re.compile(self.row.path)
        self.evidence = f"the folders of {self.row.title}, and the names of {fit.images:,} images"

    def splits(self) -> Sequence[str]:
        """Returns the splits in the paths of images, in packing order. Lists all images."""
        return in_packing_order({self._find_split(match) for _, match in self._match_images()})

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, each group of the pattern, and each further file that some image has.

        A group is a class or a text if the row lists it as such, else an int64 number. A further column whose name
        means masks has masks. Other further columns have images, JSON or texts, by the suffix of the first file.
        """
        columns: dict[str, Field] = {"image": Image()}
        for name in self._columns:
            if name in self.row.labels:
                columns[name] = Label(self._classes[name])
            else:
                columns[name] = Text() if name in self.row.texts else Array("int64")
        for name, files in self._files_beside.items():
            suffix = "." + files[0].rpartition(".")[2].lower()
            if suffix in IMAGE_SUFFIXES:
                columns[name] = infer_mask_field(self.tree, files) if _MASK.fullmatch(name) else Image(optional=True)
            else:
                columns[name] = Json(optional=True) if suffix in _JSON else Text(optional=True)
        return columns

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split whose path matches the pattern. The row has the image's further files.

        If a required file is missing, the image is a bad sample.
        """
        for image, match in self._match_images():
            if self._find_split(match) != split:
                continue
            values: dict[str, Any] = {name: self._convert_group(name, match[name]) for name in self._columns}
            files = self.row.format_beside_paths(match)
            for name in self._files_beside:
                values[name] = InTree(join(self.base, files[name]), optional=name not in self.row.required)
            yield FileRow(image, values)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its further files; parses JSON, and decodes texts. Raises :class:`ValueError` for
        invalid JSON."""
        values = dict(super().read_values(ref))
        for name, files in self._files_beside.items():
            content = values.get(name)
            if isinstance(content, bytes) and files[0].lower().endswith(_JSON):
                try:
                    values[name] = load_json(content, "is no JSON")
                except ValueError as error:
                    raise ValueError(f"its {name} {error}") from None
            elif isinstance(content, bytes) and not files[0].lower().endswith(IMAGE_SUFFIXES):
                values[name] = to_utf8(content, self.tree.encoding, f"its {name}").decode("utf-8-sig")
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns nothing: patterns of paths describe the images."""
        return ()

    def expects_left(self, path: str) -> bool:
        """Tells if the set leaves out a file on purpose: a known file that is no image, or an image that is no
        sample."""
        return re.fullmatch(f"{self.row.known}|{self.row.left}", _relative_path(self.base, path)) is not None

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for images that the set does not count. For other files, returns the base's reason."""
        if self.row.left and re.fullmatch(self.row.left, _relative_path(self.base, join(folder, name))):
            return f"images that {self.row.title} does not count"
        return super().reason_to_leave_out(folder, name)

    def _find_split(self, match: re.Match[str]) -> str:
        """Returns the split in the path of an image; ``""`` if the pattern has no group for it.

        The set may give a name to the text in the path. Otherwise returns the text in lower case.
        """
        word = match.groupdict().get("split") or ""
        return self.row.splits.get(word, word.lower())

    def _convert_group(self, column: str, text: str) -> Any:
        """Converts the text of a group. A label becomes its class number, a group of texts is unchanged, and the
        rest become integers. MARS's ``00-1`` is -1."""
        if column in self.row.labels:
            return self._class_numbers[column][text]
        return text if column in self.row.texts else -1 if text == "00-1" else int(text)

    def _match_images(self) -> Iterator[tuple[str, re.Match[str]]]:
        """Yields the path of each image of the set, and the match of the pattern with that path. Skips other images.

        The pattern sees the path with its suffix in lower case. Raises :class:`SourceError` for a cycle of links,
        unless bad samples are skipped.
        """
        for image in _list_images(self.tree, self.base, self.options.skip_bad):
            match = self._path.fullmatch(_lower_suffix(_relative_path(self.base, image)))
            if match is not None:
                yield image, match

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """Groups of the pattern that are columns, classes first."""
        named = [name for name in self._path.groupindex if name != "split" and name[0] != "_"]
        return (*(name for name in named if name in self.row.labels), *(n for n in named if n not in self.row.labels))

    @cached_property
    def _classes(self) -> dict[str, tuple[str, ...]]:
        """Classes of each label group. They are sorted as numbers if all are numbers, else as texts. Lists all
        images."""
        classes: dict[str, set[str]] = {name: set() for name in self._columns if name in self.row.labels}
        for _, match in self._match_images():
            for name, texts in classes.items():
                texts.add(match[name])
        return {
            name: tuple(sorted(texts, key=int if all(map(str.isdecimal, texts)) else str))
            for name, texts in classes.items()
        }

    @cached_property
    def _class_numbers(self) -> dict[str, dict[str, int]]:
        """Class number by text, for each label group."""
        return {name: {text: n for n, text in enumerate(texts)} for name, texts in self._classes.items()}

    @cached_property
    def _files_beside(self) -> dict[str, list[str]]:
        """Paths of the first 32 further files that exist, by column. Columns without files are left out."""
        by_column: dict[str, list[str]] = {}
        for name in self.row.beside:
            paths = (join(self.base, self.row.format_beside_paths(match)[name]) for _, match in self._match_images())
            files = (find_file(self.tree, path) for path in paths)
            some = list(islice((file for file in files if is_file(self.tree, file)), _PROBED))
            by_column |= {name: some} if some else {}
        return by_column


def find_folder_set(tree: Tree, rows: Sequence[FolderSet]) -> tuple[FolderSet, FolderSetMatch] | None:
    """Finds the first set that matches all images of a tree. If none does, finds the first that matches some. None if
    no set matches.

    Looks for the markers in the folders of :func:`walk_lone_folders`, up to the first folder in which a set matches.
    Skips sets with missing required files, or with a path of :attr:`FolderSet.unless`. Lists all images.
    """
    candidates: list[tuple[FolderSet, FolderSetMatch]] = []
    for base in walk_lone_folders(tree):
        names = tree.names(base)
        there = {*names.folders, *names.files}
        for row in rows:
            if not all(_has_marker(tree, base, there, marker) for marker in row.markers):
                continue
            if any(_has_marker(tree, base, there, name) for name in row.unless):
                continue
            fit = _match_set(tree, base, row)
            if fit.images and not fit.lacking:
                candidates.append((row, fit))
        if candidates:
            break
    return min(candidates, key=lambda each: each[1].strangers > 0, default=None)


def _match_set(tree: Tree, base: str, row: FolderSet) -> FolderSetMatch:
    """Matches all images of a tree with a set. Skips cycles of links.

    Keeps only hashes in memory: of each image that does not match, and of each further file.
    """
    pattern, left = re.compile(row.path), re.compile(row.left)
    others: set[int] = set()
    beside: set[int] = set()
    required: dict[str, set[int]] = {name: set() for name in row.required}
    images = 0

    def below() -> Iterator[str]:
        return (_lower_suffix(_relative_path(base, image)) for image in _list_images(tree, base, True))

    for image in below():
        match = pattern.fullmatch(image)
        if match is None:
            if not left.fullmatch(image):
                others.add(hash(image))
            continue
        images += 1
        files = row.format_beside_paths(match)
        beside.update(map(hash, files.values()))
        for name in required:
            required[name].add(hash(files[name]))
    lacking = tuple(name for name, wanted in required.items() if not wanted <= others)
    strangers = others - beside
    first = next((image for image in below() if hash(image) in strangers), "") if images and strangers else ""
    return FolderSetMatch(base, images, len(strangers), first, lacking)


def _relative_path(base: str, path: str) -> str:
    """Returns a path relative to a folder that holds it."""
    return path[len(base) + 1 if base else 0 :]


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
        if not rest or len(fitting) > _MOST_FOLDERS:
            continue
        if "*" not in rest and any(has_path(tree, base, f"{name}/{rest}") for name in fitting):
            return True
        inside = (join(base, name) for name in fitting if "*" in rest)
        if any(_has_marker(tree, each, {*tree.names(each).folders}, rest) for each in inside):
            return True
    return False


def _list_images(tree: Tree, base: str, skip_cycles: bool) -> Iterator[str]:
    """Yields the paths of all images below a folder. Raises :class:`SourceError` for a cycle of links, unless
    ``skip_cycles``."""
    for folder, listing in tree.walk(base, tree.above, None, skip_cycles):
        yield from (join(folder, name) for name in listing.images)


def make_folder_set_kind(name: str, help: str, rows: Sequence[FolderSet]) -> Kind:
    """Makes the :class:`Kind` of some sets. It recognises a path by the images that a set matches:

    - All images: ``CERTAIN``.
    - At least half of the images: raises :class:`AmbiguousSourceError`.
    - Fewer, and a damaged archive: ``NO``.
    """
    source = type(f"{name.title()}Source", (FolderSetSource,), {"kind": name, "known_sets": tuple(rows)})

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        try:
            tree = open_tree(path)
        except SourceError:
            return Certainty.NO  # the general kinds report a damaged archive
        pair = None if tree is None else find_folder_set(tree, rows)
        if pair is None:
            return Certainty.NO
        row, fit = pair
        if fit.strangers > fit.images:
            return Certainty.NO
        if fit.strangers:
            raise ambiguous_source_error(
                path,
                f"looks like {row.title}, but {fit.strangers:,} of its images have other names, "
                f"{printable(fit.first_stranger)} among them",
            )
        return Certainty.CERTAIN

    return Kind(name, help, recognise, source, in_objects=True)
