"""Reads images with the files that belong to them, by patterns: masks, further images, texts, numbers.

The options ``--pair``, ``--sidecar`` and ``--masks`` give the patterns, see :mod:`.companion_patterns`. Without them,
the patterns are those that :mod:`.pairing` finds in the names, if it is certain of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Field, Image, Images, Label, Text
from packstore.sources.annotations import find_other_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join, raise_suffix, read_whole
from packstore.sources.columns import make_column_name
from packstore.sources.companion_patterns import MASKS, OPTIONS, PAIR, SIDECAR, CompanionPattern, parse_companions
from packstore.sources.contents import is_clip_name, list_contents, path_and_parents
from packstore.sources.encodings import try_utf8
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.pairing import find_companions
from packstore.sources.palettes import Palette, declare_mask_columns, find_palette, read_mask_columns
from packstore.sources.relations import find_names
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.sidecars import MAX_BYTES, MAX_WORDS, declare_sidecar, is_words, parse_sidecar
from packstore.sources.splits import find_split, find_splits_of_folders
from packstore.sources.tree import Tree

_PROBED, _LOOKED_AT, _KEPT_FOLDERS, _FEWER, _FEW_CLASSES = 32, 8, 64, 4, 4


class CompanionsSource(FileRowSource):
    """Images with a column for each pattern. The value is missing for an image without such a file.

        - ``--pair``: an image column. ``--masks``: ``mask``, or a list of images ``masks`` if an image has several.
          ``--sidecar``: a column of the type given.
    - A palette beside the masks, see :mod:`.palettes`: coloured masks become class numbers, and ``mask_labels`` has the
      classes that occur in each mask.
        - Folders with names of splits are splits if each image is in one.
        - The folders of images are classes (``label``) if there are several, with two images or more on average, or
          four at most. Others, and folders that are called like clips (``scene1``) or numbers, are a text column
          ``folder``; if each has one image, there is none.
        - A few images at the top, beside folders of images and without companions, are left out.
    """

    kind = "companions"
    left_images = "images that belong to no image"
    # Names of folders are texts and no classes.
    folder_texts = False
    _has_strays = False

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._patterns = self._find_patterns()
        self._names_of = lru_cache(_KEPT_FOLDERS)(self._list_names)
        folders = Counter(image.rpartition("/")[0] for image in self._list_images())
        if not folders:
            raise SourceError(f"{printable(str(path))} holds no images other than those that belong to images")
        self._has_strays = self._find_strays(folders)
        if self._has_strays:
            del folders[""]
        self._split_of = find_splits_of_folders(folders)
        self._class_of = self._name_folders(folders)
        distinct = {*self._class_of.values()}
        count = sum(folders.values())
        # Beside splits, a single name tells no more than they do: train/image and test.
        names = distinct - {""} if self._split_of else distinct
        if len(names) < 2 or (not self.folder_texts and count == len(distinct)):
            self._class_of = {}
        has_classes = (
            not self.folder_texts
            and "" not in distinct
            and (count >= 2 * len(distinct) or len(distinct) <= _FEW_CLASSES)
            and not all(each.isdigit() or is_clip_name(each) for each in distinct)
        )
        self._folder_column = "" if not self._class_of else "label" if has_classes else "folder"
        self._lists: set[str] = set()
        self._columns = self._name_columns()
        self.evidence = ", ".join(f"{column}: {each[0].text}" for column, each in self._columns.items())

    def _find_patterns(self) -> tuple[CompanionPattern, ...]:
        """Returns the patterns that the user gives, else those found."""
        if not any(self.options.companions.values()):
            found = find_companions(self.tree)
            texts: dict[str, Any] = {
                name: tuple(each.text for each in found if each.option == name) for name in OPTIONS
            }
            self.options = replace(self.options, **texts)
        patterns = parse_companions(self.options.companions)
        if not patterns:
            raise SourceError(
                f"{printable(str(self.path))} has no files that belong to images by their names: name them with "
                "--pair, --sidecar or --masks"
            )
        return patterns

    def _find_strays(self, folders: Mapping[str, int]) -> bool:
        """Tells if the images at the top are no samples: few beside those in folders, and without companions."""
        count = folders.get("", 0)
        if not 0 < _FEWER * count <= sum(folders.values()) - count:
            return False
        images = self.tree.names("").ending(*IMAGE_SUFFIXES)
        return not any(self.find_files(each, image) for each in self._patterns for image in images)

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``("",)`` without splits."""
        return in_packing_order(self._split_of.values()) or ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image, its class or folder, and each pattern. Reads sidecars to declare labels and
        arrays."""
        return self._declared

    @cached_property
    def _declared(self) -> dict[str, Field]:
        """Field of the image, of its class or folder, and of each pattern."""
        folder: dict[str, Field] = {}
        if self._class_of:
            classes = sorted({*self._class_of.values()})
            folder = {self._folder_column: Label(classes) if self._folder_column == "label" else Text()}
        palette = {} if self._palette is None else declare_mask_columns(self._palette)
        return {"image": Image(), **folder, **self._companion_fields, **palette}

    @cached_property
    def _companion_fields(self) -> dict[str, Field]:
        """Field of each column of companions, without regard to a palette."""
        return {column: self._declare(column, patterns) for column, patterns in self._columns.items()}

    @cached_property
    def _palette(self) -> Palette | None:
        """Palette that fits the column ``mask``, from the top, or a folder of masks or above it."""
        if "mask" not in self._columns:
            return None
        folders = (file.rpartition("/")[0] for file in islice(self._list_files(self._columns["mask"]), _PROBED))
        places = ["", *chain.from_iterable(map(path_and_parents, folders))]
        return find_palette(self.tree, places, self._companion_fields["mask"])

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split that belongs to no other image."""
        for folder, listing in self.tree.walk("", self.tree.above, None, self.options.skip_bad):
            if listing.is_cycle:
                yield from (FileRow(join(folder, name), {}) for name in listing.images if split == self.splits()[0])
                continue
            if self._split_of.get(folder, "") == split and (folder or not self._has_strays):
                for name in listing.images:
                    if name.lower().endswith(IMAGE_SUFFIXES) and not self.is_companion(join(folder, name)):
                        yield self._make_row(folder, join(folder, name))

    def _make_row(self, folder: str, image: str) -> FileRow:
        """Returns the row of an image, with the files that belong to it."""
        values: dict[str, Any] = {}
        if self._class_of:
            name = self._class_of[folder]
            values = {self._folder_column: name}
        for column, patterns in self._columns.items():
            found = filter(None, (self.find_files(each, image) for each in patterns))
            files = [InTree(file, optional=True) for file in next(found, ())]
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
                    for each in find_names(names, name.partition("*")[0])
                    if pattern.file_name_matches(each, stem) and not self._has_longer_stem(image, stem, each)
                ]
            else:
                found = [each for each in (name, raise_suffix(name)) if each in find_names(names, each)][:1]
            if found := [file for each in found if (file := join(folder, each)) != image]:
                return found
        return []

    def _has_longer_stem(self, image: str, stem: str, name: str) -> bool:
        """Tells if a file belongs to another image with a longer name: ``a_b_0.png`` to ``a_b.jpg`` and not to
        ``a.jpg``.
        """
        folder, _, own = image.rpartition("/")
        last = stem.rpartition("/")[2]
        before, found, _ = own.partition(last)
        rest = name[name.find(last) :]
        for other in find_names(self._names_of(folder), before + last) if found and last in name else ():
            longer = other[len(before) :].rpartition(".")[0]
            if len(longer) > len(last) and rest.startswith(longer) and other.lower().endswith(IMAGE_SUFFIXES):
                return not self.is_companion(join(folder, other))
        return False

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the image and its files; a missing one is None. Raises :class:`ValueError` for a sidecar that is not of
        its type."""
        values = dict(super().read_values(ref))
        for column, (pattern, *_) in self._columns.items():
            raw = values.get(column)
            if isinstance(raw, bytes) and pattern.option == SIDECAR:
                value = parse_sidecar(pattern.type, raw, self.tree.encoding)
                field = self._declared[column]
                if isinstance(field, Array) and field.ragged and not value.size:  # a file without objects
                    value = value.reshape(0, *field.shape)
                values[column] = value
        if self._palette is not None and values.get("mask") is not None:
            values |= read_mask_columns(self._palette, values["mask"], self.options.max_pixels)
        return values

    def describing_files(self) -> Iterable[str]:
        """Returns the files of the palette; all others are values of the samples."""
        return () if self._palette is None else self._palette.files

    def has_folders_without_companions(self) -> bool:
        """Tells if the first images of some folder all lack companions. A whole split may have none, as many test
        sets have no masks.
        """
        seen: dict[str, list[bool]] = {}
        for image in self._list_images():
            tried = seen.setdefault(image.rpartition("/")[0], [])
            if len(tried) < _PROBED and not any(tried):
                tried.append(any(self.find_files(each, image) for each in self._patterns))
        having = {self._split_of.get(folder, "") for folder, tried in seen.items() if any(tried)}
        return any(not any(tried) and self._split_of.get(folder, "") in (*having, "") for folder, tried in seen.items())

    def has_plain_texts(self) -> bool:
        """Tells if all texts are for people, and there is one pattern of texts at most. Reads all texts. Raises
        :class:`AmbiguousSourceError` if these are in an unknown encoding."""
        patterns = [pattern for pattern in self._patterns if pattern.option == SIDECAR]
        if len(patterns) > 1:
            return False
        fault = None
        for file in self._list_files(patterns):
            raw = self.tree.first_bytes(file, MAX_WORDS + 1)
            text, wrong = try_utf8(raw, self.tree.encoding, self.tree.name(file))
            if not is_words(text) or len(raw) > MAX_WORDS:
                return False
            fault = fault or wrong
        if fault is not None:
            raise fault
        return True

    def is_companion(self, path: str) -> bool:
        """Tells if a file is of a pattern, and therefore no sample."""
        return any(pattern.matches_file(path) for pattern in self._patterns)

    def _list_names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files in a folder, sorted."""
        return self.tree.names(folder).files

    def _name_columns(self) -> Mapping[str, Sequence[CompanionPattern]]:
        """Names the columns of all patterns."""
        columns: dict[str, Sequence[CompanionPattern]] = {}
        several_masks = [pattern.option for pattern in self._patterns].count(MASKS) > 1
        for pattern in self._patterns:
            # Files in different folders that have the same words are one column.
            shared = next((name for name, others in columns.items() if pattern.may_share_column(others[0])), None)
            if shared is not None:
                columns[shared] = (*columns[shared], pattern)
                continue
            several = pattern.option == MASKS and self._has_several(pattern)
            default = {PAIR: "pair", MASKS: "masks" if several else "mask"}.get(pattern.option, pattern.type)
            words = pattern.words if several_masks or pattern.option != MASKS else ""
            taken = {"image", self._folder_column, *columns}
            name = make_column_name(words or default)
            if name in taken and pattern.words:
                name = make_column_name(f"{default}_{pattern.words}")
            while name in taken:
                name += "_"
            columns[name] = (pattern,)
            if several:
                self._lists.add(name)
        return columns

    def _has_several(self, pattern: CompanionPattern) -> bool:
        """Tells if several files of a pattern belong to one image."""
        return "*" in pattern.files and any(len(self.find_files(pattern, image)) > 1 for image in self._list_images())

    def _list_images(self) -> Iterator[str]:
        """Yields the paths of all samples, without reading sizes."""
        for folder, names in self.tree.folders(is_passed_over):
            for name in names.ending(*IMAGE_SUFFIXES) if folder or not self._has_strays else ():
                if name[0] != "." and not self.is_companion(join(folder, name)):
                    yield join(folder, name)

    def _list_files(self, patterns: Sequence[CompanionPattern]) -> Iterator[str]:
        """Yields the files of patterns that belong to an image."""
        for image in self._list_images():
            yield from chain.from_iterable(self.find_files(each, image) for each in patterns)

    def _declare(self, column: str, patterns: Sequence[CompanionPattern]) -> Field:
        """Returns the field of a column."""
        option, text = patterns[0].option, patterns[0].text
        some = list(islice(self._list_files(patterns), _PROBED))
        if not some:
            raise SourceError(f"{printable(str(self.path))}: no image has a file that --{option} {text!r} matches")
        if option == PAIR:
            return Image(optional=True)
        if option == MASKS:
            if column in self._lists:
                return Images(optional=True)
            suffixes = {file.rpartition(".")[2].lower() for file in self._list_files(patterns)}
            return infer_mask_field(self.tree, some) if suffixes == {"png"} else Image(optional=True)
        contents = (read_whole(self.tree, file, MAX_BYTES) for file in self._list_files(patterns))
        try:
            return declare_sidecar(patterns[0].type, contents, self.tree.encoding)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: --{option} {text!r}: {error}") from None

    def _name_folders(self, folders: Iterable[str]) -> dict[str, str]:
        """Returns the class folder of each folder of images: the first part of its path that not all share."""
        paths = {
            folder: [part for part in folder.split("/") if part and not (folder in self._split_of and find_split(part))]
            for folder in folders
        }
        counts = Counter(part for parts in paths.values() for part in set(parts))
        return {
            folder: next((part for part in parts if counts[part] < len(paths)), "") for folder, parts in paths.items()
        }


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises images with files that belong to them: certain if it is sure what all these files are."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    if any(options.companions.values()):
        return Certainty.CERTAIN
    found = find_companions(tree)
    if not found:
        return Certainty.NO
    certain = all(each.certain for each in found) and not _leaves_more(path, tree, options)
    return Certainty.CERTAIN if certain else Certainty.PARTIAL


def _leaves_more(path: Path, tree: Tree, options: SourceOptions) -> bool:
    """Tells if there are further annotations than those found, or folders of images without any, other than splits."""
    source = CompanionsSource(path, options)
    if source.has_folders_without_companions() or not source.has_plain_texts():
        return True
    for suspect in find_other_annotations(tree):
        folder = suspect.folder or ""
        names = list_contents(tree).folders[folder].other_names
        files = [suspect.file] if suspect.file else [join(folder, name) for name in names]
        if not any(file in source.describing_files() or source.is_companion(file) for file in files):
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
