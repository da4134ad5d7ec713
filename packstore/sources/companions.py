"""Reads images with the files that belong to them, by patterns: masks, further images, texts, numbers.

The options ``--pair``, ``--sidecar`` and ``--masks`` give the patterns, see :mod:`.companion_patterns`. Without them,
the patterns are those that :mod:`.pairing` finds in the names, if it is certain of all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Field, Image, Images, Label, Text
from packstore.sources.annotations import find_further_files
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join, raise_suffix, read_whole
from packstore.sources.companion_patterns import (
    MASKS,
    OPTIONS,
    PAIR,
    SIDECAR,
    Companion,
    CompanionPattern,
    parse_companions,
)
from packstore.sources.contents import list_contents
from packstore.sources.file_rows import FileRow, FileRowSource, InTree
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.names import make_column_name
from packstore.sources.pairing import find_companions
from packstore.sources.rows import in_packing_order
from packstore.sources.sidecars import MAX_BYTES, declare_sidecar, is_line, parse_sidecar
from packstore.sources.splits import find_split, find_splits_of_folders
from packstore.sources.tree import Tree

_PROBED, _KEPT_FOLDERS, _MAX_LINE = 32, 64, 1 << 16
_COUNTED = re.compile(r"\d+")


class CompanionsSource(FileRowSource):
    """Images with a column for each pattern. The value is missing for an image without such a file.

    - ``--pair``: an image column. ``--masks``: ``mask``, or a list of images ``masks`` if an image has several.
      ``--sidecar``: a column of the type given.
    - Folders with names of splits are splits if each image is in one.
    - The folders of images are classes (``label``) if there are several, each with images enough, and their names do
      not merely count. Other folders are a text column ``folder``.
    """

    kind = "companions"
    left_images = "images that belong to no image"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        if not any(options.companions.values()):
            found = find_companions(self.tree)
            given = {name: tuple(each.text for each in found if each.option == name) for name in OPTIONS}
            self.options = replace(options, pair=given[PAIR], sidecar=given[SIDECAR], masks=given[MASKS])
        self._patterns = parse_companions(self.options.companions)
        if not self._patterns:
            raise SourceError(
                f"{printable(str(path))} has no files that belong to images by their names: name them with --pair, "
                "--sidecar or --masks"
            )
        self._names_of = lru_cache(_KEPT_FOLDERS)(self._list_names)
        folders = self._count_images()
        if not folders:
            raise SourceError(f"{printable(str(path))} holds no images other than those that belong to images")
        self._split_of = find_splits_of_folders(folders)
        self._class_of, has_classes = _find_classes(folders, self._split_of)
        self._folder_column = "label" if has_classes else "folder" if self._class_of else ""
        self._columns = self._name_columns()
        self.evidence = ", ".join(f"{column}: {each.text}" for column, each in self._columns.items())

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``("",)`` without splits."""
        return in_packing_order(self._split_of.values()) or ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, its class or folder, and each pattern. Reads sidecars to declare labels and
        arrays."""
        return self._declared

    @cached_property
    def _declared(self) -> dict[str, Field]:
        """Does the work of :meth:`fields`."""
        folder: dict[str, Field] = {}
        if self._class_of:
            classes = sorted(set(self._class_of.values()))
            folder = {self._folder_column: Label(classes) if self._folder_column == "label" else Text()}
        return {
            "image": Image(),
            **folder,
            **{column: self._declare(column, pattern) for column, pattern in self._columns.items()},
        }

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split that belongs to no other image."""
        for folder, listing in self.tree.walk("", self.tree.above, None, self.options.skip_bad):
            if listing.is_cycle:
                yield from (FileRow(join(folder, name), {}) for name in listing.images if split == self.splits()[0])
                continue
            if self._split_of.get(folder, "") == split:
                for name in listing.images:
                    if not self.is_companion(join(folder, name)):
                        yield self._make_row(folder, join(folder, name))

    def _make_row(self, folder: str, image: str) -> FileRow:
        """Returns the row of an image, with the files that belong to it."""
        values: dict[str, Any] = {}
        if self._class_of:
            name = self._class_of[folder]
            values = {self._folder_column: name}
        for column, pattern in self._columns.items():
            files = [InTree(file, optional=True) for file in self.find_files(pattern, image)]
            if files:
                values[column] = files if column in self._lists else files[0]
        return FileRow(image, values)

    def find_files(self, pattern: CompanionPattern, image: str) -> list[str]:
        """Finds the files of a pattern that belong to an image, sorted. Empty if there are none."""
        for base, stem in pattern.list_bases(image):
            folder, _, name = pattern.file_path(base, stem).rpartition("/")
            names = self._names_of(folder)
            if "*" in name:
                found = [
                    each
                    for each in _names_from(names, name.partition("*")[0])
                    if pattern.file_name_matches(each, stem) and not self._has_longer_stem(image, stem, each)
                ]
            else:
                found = [each for each in dict.fromkeys((name, raise_suffix(name))) if _is_in(names, each)][:1]
            if found := [file for each in found if (file := join(folder, each)) != image]:
                return found
        return []

    def _has_longer_stem(self, image: str, stem: str, name: str) -> bool:
        """Tells if a file belongs to another image beside ``image``, whose name is longer: ``a_b_0.png`` to ``a_b.jpg``
        and not to ``a.jpg``."""
        folder, _, own = image.rpartition("/")
        names = self._names_of(folder)
        last = stem.rpartition("/")[2]
        before = own.partition(last)[0]
        place = name.find(last)
        if not last or place < 0:
            return False
        for end in range(place + len(last) + 1, len(name)):
            longer = f"{before}{name[place:end]}."
            for other in _names_from(names, longer):
                if other.lower().endswith(IMAGE_SUFFIXES) and not self.is_companion(join(folder, other)):
                    return True
        return False

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its files; a missing one is None. Raises :class:`ValueError` for a sidecar that is not of
        its type."""
        values = dict(super().read_values(ref))
        for column, pattern in self._columns.items():
            raw = values.get(column)
            if isinstance(raw, bytes) and pattern.option == SIDECAR:
                value = parse_sidecar(pattern.type, raw, self.tree.encoding)
                field = self._declared[column]
                if isinstance(field, Array) and field.ragged and not value.size:  # a file without objects
                    value = value.reshape(0, *field.shape)
                values[column] = value
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns no files: all files are values of the samples."""
        return ()

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason why a file is left out; files of a pattern without an image have a reason of their own."""
        if self.is_companion(join(folder, name)):
            return "files of --pair, --sidecar or --masks without an image"
        return super().reason_to_leave_out(folder, name)

    def has_folders_without_companions(self) -> bool:
        """Tells if no image among the first in a folder has a file that belongs to it. A whole split may have none, as
        many test sets have no masks."""
        seen: dict[str, list[bool]] = {}
        for image in self._list_images():
            tried = seen.setdefault(image.rpartition("/")[0], [])
            if len(tried) < _PROBED and not any(tried):
                tried.append(any(self.find_files(each, image) for each in self._patterns))
        having = {self._split_of.get(folder, "") for folder, tried in seen.items() if any(tried)}
        return any(not any(tried) and self._split_of.get(folder, "") in (*having, "") for folder, tried in seen.items())

    def has_plain_texts(self) -> bool:
        """Tells if all texts are one line each, and there is one pattern of texts at most. Reads all texts."""
        patterns = [pattern for pattern in self._patterns if pattern.option == SIDECAR]
        files = (file for pattern in patterns for file in self._list_files(pattern))
        return len(patterns) < 2 and all(is_line(self.tree.first_bytes(file, _MAX_LINE)) for file in files)

    def is_companion(self, path: str) -> bool:
        """Tells if a file is of a pattern, and therefore no sample."""
        return any(pattern.matches_file(path) for pattern in self._patterns)

    def _list_names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files in a folder, sorted."""
        return self.tree.names(folder).files

    def _count_images(self) -> dict[str, int]:
        """Counts the images in each folder that belong to no other image. Leaves out folders without any."""
        counts = {}
        for folder, names in self.tree.folders(is_passed_over):
            images = (name for name in names.ending(*IMAGE_SUFFIXES) if name[0] != ".")
            count = sum(not self.is_companion(join(folder, name)) for name in images)
            if count:
                counts[folder] = count
        return counts

    def _name_columns(self) -> dict[str, CompanionPattern]:
        """Names the columns of all patterns. Patterns of one option whose files have the same words share no column."""
        self._lists = set()
        columns: dict[str, CompanionPattern] = {}
        for pattern in self._patterns:
            several = pattern.option == MASKS and self._has_several(pattern)
            default = {PAIR: "pair", MASKS: "masks" if several else "mask"}.get(pattern.option, pattern.type)
            name = default if pattern.option == MASKS else pattern.words or default
            taken = {"image", self._folder_column, *columns}
            if name in taken and pattern.words:
                name = f"{default}_{pattern.words}"
            name = make_column_name(name)
            while name in taken:
                name += "_"
            columns[name] = pattern
            if several:
                self._lists.add(name)
        return columns

    def _has_several(self, pattern: CompanionPattern) -> bool:
        """Tells if several files of a pattern belong to one image."""
        if not pattern.may_match_several:
            return False
        return any(len(self.find_files(pattern, image)) > 1 for image in self._list_images())

    def _list_images(self) -> Iterator[str]:
        """Yields the paths of all samples, without reading sizes."""
        for folder, names in self.tree.folders(is_passed_over):
            for name in names.ending(*IMAGE_SUFFIXES):
                if name[0] != "." and not self.is_companion(join(folder, name)):
                    yield join(folder, name)

    def _list_files(self, pattern: CompanionPattern) -> Iterator[str]:
        """Yields the files of a pattern that belong to an image."""
        return chain.from_iterable(self.find_files(pattern, image) for image in self._list_images())

    def _declare(self, column: str, pattern: CompanionPattern) -> Field:
        """Returns the field of a column. Raises :class:`SourceError` if no image has a file of its pattern."""
        some = list(islice(self._list_files(pattern), _PROBED))
        if not some:
            raise SourceError(
                f"{printable(str(self.path))}: no image has a file that --{pattern.option} {pattern.text!r} matches"
            )
        if pattern.option == PAIR:
            return Image(optional=True)
        if pattern.option == MASKS:
            if column in self._lists:
                return Images(optional=True)
            suffixes = {file.rpartition(".")[2].lower() for file in self._list_files(pattern)}
            return infer_mask_field(self.tree, some) if suffixes == {"png"} else Image(optional=True)
        contents = (read_whole(self.tree, file, MAX_BYTES) for file in self._list_files(pattern))
        try:
            return declare_sidecar(pattern.type, contents, self.tree.encoding)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: --{pattern.option} {pattern.text!r}: {error}") from None


def _names_from(names: Sequence[str], prefix: str) -> Iterator[str]:
    """Yields the names that begin with ``prefix``; ``names`` are sorted."""
    for number in range(bisect_left(names, prefix), len(names)):
        if not names[number].startswith(prefix):
            return
        yield names[number]


def _is_in(names: Sequence[str], name: str) -> bool:
    """Tells if sorted ``names`` have ``name``."""
    place = bisect_left(names, name)
    return place < len(names) and names[place] == name


def _find_classes(folders: Mapping[str, int], split_of: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Returns the name of the class folder of each folder of images, and if these are classes.

    The class folder is the first folder of a path that differs between folders, without those of splits. It is no
    class if all such names merely count (``scene1``, ``scene2``). Returns an empty dict without different names, and
    for fewer than two images to a name.
    """
    paths = {
        folder: [part for part in folder.split("/") if part and not (folder in split_of and find_split(part))]
        for folder in folders
    }
    counts = Counter(part for parts in paths.values() for part in set(parts))
    names = {folder: next((part for part in parts if counts[part] < len(paths)), "") for folder, parts in paths.items()}
    distinct = set(names.values())
    if len(distinct) < 2 or sum(folders.values()) < 2 * len(distinct):
        return {}, False
    return names, "" not in distinct and len({_COUNTED.sub("0", name) for name in distinct}) > 1


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain if the user gives patterns, or if it is sure what all files beside images are. Partial if there are other
    files that belong to images, else ``NO``."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    if any(options.companions.values()):
        return Certainty.CERTAIN
    found = find_companions(tree)
    if not found:
        return Certainty.NO
    return (
        Certainty.CERTAIN
        if all(each.certain for each in found) and not _leaves_more(path, tree, options, found)
        else Certainty.PARTIAL
    )


def _leaves_more(path: Path, tree: Tree, options: SourceOptions, found: Sequence[Companion]) -> bool:
    """Tells if there are further annotations than those found, or folders of images without any, other than splits."""
    texts = {name: tuple(each.text for each in found if each.option == name) for name in OPTIONS}
    source = CompanionsSource(path, replace(options, pair=texts[PAIR], sidecar=texts[SIDECAR], masks=texts[MASKS]))
    if source.has_folders_without_companions() or not source.has_plain_texts():
        return True
    for suspect in find_further_files(tree):
        folder = suspect.folder or ""
        names = () if suspect.file else list_contents(tree).folders[folder].other_names
        if not any(
            map(source.is_companion, [suspect.file] if suspect.file else [join(folder, name) for name in names])
        ):
            return True
    return False


KIND = Kind(
    "companions",
    "images with files that belong to them by name",
    _recognise,
    CompanionsSource,
    takes_companions=True,
    in_objects=True,
)
