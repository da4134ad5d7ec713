"""Base of formats with a file of annotations for many images; keeps the annotations in a temporary file."""

from __future__ import annotations

import re
from abc import abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.objects import parse_json
from packstore.sources.annotation_formats.source import AnnotatedSource
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import clean_path, find_base_folder, join, read_text
from packstore.sources.contents import path_and_parents
from packstore.sources.encodings import convert_start
from packstore.sources.file_rows import FileRow
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import Row, in_packing_order
from packstore.sources.splits import find_split_of_file
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_START, _NAMED = 1 << 16, 4
_IMAGES = (
    "images",
    "data",
    "img",
    "imgs",
    "JPEGImages",
    "Images",
    "obj_train_data",
    "upload",
    "media",
    "images/100k",
    "",
)


class AnnotationEntry(NamedTuple):
    """Annotation of one image, from a file with annotations of many.

    Attributes:
        name: Path of the image. It may be a path on the machine that wrote the file.
        raw: Raw annotation for :meth:`AnnotationColumns.parse_annotation`; any JSON value.
        split: Split of the image, in any case of letters; None for the split of the file.
        further_images: Paths of further images that the entry describes.
        identifier: Its id in the file, for messages.
    """

    name: str
    raw: Any
    split: str | None = None
    further_images: Sequence[str] = ()
    identifier: str = ""


class DocumentSource(AnnotatedSource):
    """Base of formats with one file of annotations, or one for each split.

    Paths of images are relative to the file of annotations, or to a folder beside or above that file. A missing image
    may be in any other folder, if it is the only one of its name. Images that no file names are left out.

    Opening parses all files, and raises :class:`SourceError`:

    - if there is no file of annotations, or a file is damaged
    - if an image has two entries, without :attr:`allows_repeats`
    - for more than 255 splits
    - if the temporary file for the annotations cannot be written

    Attributes:
        name_pattern: Matches the names of files of annotations.
        signature: Matches the first 64 KiB of such a file.
        max_depth: Number of levels below the top folder in which such files are searched.
        max_files: A folder with more matching names has annotations of single images; its files are passed over.
        allows_repeats: An image may have several entries, each a sample. Later entries have keys with ``#1``, ``#2`` ….
        absent_reason: Reason for leaving out entries without their images. If empty, such entries are bad samples.
        max_further: Largest number of further images of an entry.
        ignored: Number of values and entries that are left out, by reason.
        first_ignored: Identifiers of the first entries that are left out, by reason.
    """

    left_images = "images that no annotations name"
    name_pattern: ClassVar[re.Pattern[str]] = re.compile(r".*\.json", re.I)
    signature: ClassVar[re.Pattern[bytes]]
    max_depth: ClassVar[int] = 2
    max_files: ClassVar[int] = 16
    allows_repeats: ClassVar[bool] = False
    absent_reason: ClassVar[str] = ""
    max_further = 0

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.ignored: Counter[str] = Counter()
        self.first_ignored: defaultdict[str, list[str]] = defaultdict(list)
        self._files = self.find_files(self.tree)
        if not self._files:
            raise SourceError(f"{printable(str(path))} has no annotations of {self.title}")
        self._images: list[bytes] = []
        self._splits: list[str] = []
        self._split_of = bytearray()
        self._file_of = array("I")
        self._earlier = array("q")  # by entry, number of earlier entries of the same image
        try:
            self._spool = Spool(self._read_files())
        except OSError as error:
            raise SourceError(
                f"{self.tree.name()}: its annotations cannot be written to a temporary file: {error.strerror}"
            ) from None
        self.evidence = ", ".join(map(printable, self._files))

    @abstractmethod
    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image of a parsed file. Counts in :attr:`ignored` the values of the file that no
        entry has. May raise any error of reading a value that lacks the structure of the format."""

    def count_ignored(self, reason: str, identifier: str) -> None:
        """Counts in :attr:`ignored` an entry that is left out. Adds its identifier to :attr:`first_ignored`, if it is
        not empty and one of the first 4 for its reason."""
        self.ignored[reason] += 1
        if identifier and len(self.first_ignored[reason]) < _NAMED:
            self.first_ignored[reason].append(identifier)

    def parse_document(self, data: bytes) -> Any:
        """Parses the bytes of a file of annotations, JSON in this base. Subclasses may assign another parser. Raises
        :class:`ValueError` for an invalid file."""
        return parse_json(data)

    @classmethod
    def find_files(cls, tree: Tree) -> list[str]:
        """Finds the files of annotations, by names and first bytes.

        Searches the top folder and :attr:`max_depth` levels below. Passes over folders with more than
        :attr:`max_files` matching names.

        A file with other first bytes is included, too, if a found file in another folder has its name. Such a file is
        damaged.
        """
        folders = _list_folders_to_depth(tree, cls.max_depth)
        paths = [path for each in folders for path in _list_matching_files(tree, each, cls.name_pattern, cls.max_files)]
        matches = {path for path in paths if cls.signature.search(convert_start(tree.first_bytes(path, _START)))}
        names = {path.rpartition("/")[2] for path in matches}
        return [path for path in paths if path in matches or path.rpartition("/")[2] in names]

    def _read_files(self) -> Iterator[Any]:
        """Parses all files, and yields for each entry a list: paths of its further images, raw annotation.

        Records image, file and split of each entry, and updates :attr:`max_further`. Entries without their images are
        counted and left out if :attr:`absent_reason` is set.

        Raises :class:`SourceError` for a damaged file and for more than 255 splits. Without :attr:`allows_repeats`,
        raises :meth:`_repeated_image_error` for a second entry of an image.
        """
        seen: dict[bytes, str] = {}
        times: Counter[bytes] = Counter()
        for number, file in enumerate(self._files):
            entries, names = self._parse_file(file)
            of = [entry for entry in entries for _ in (entry.name, *entry.further_images)]
            paths = self._resolve_images(file, names, of)
            there = self._list_folders_of(paths) if self.absent_reason else {}
            places = iter(paths)
            for entry in entries:
                name, *further = islice(places, 1 + len(entry.further_images))
                if self.absent_reason and not all(_folder_has_file(there, each) for each in (name, *further)):
                    self.count_ignored(self.absent_reason, entry.identifier)
                    continue
                image = name.encode("utf-8", "surrogateescape")
                if image in seen:
                    raise self._repeated_image_error(name, seen[image], file)
                self._earlier.append(times[image])
                if self.allows_repeats:
                    times[image] += 1
                else:
                    seen[image] = file
                self.max_further = max(self.max_further, len(further))
                split = (find_split_of_file(file) if entry.split is None else entry.split).lower()
                if split not in self._splits:
                    self._splits.append(split)
                if len(self._splits) > 255:
                    raise SourceError(f"{self.tree.name(file)}: more than 255 splits")
                self._images.append(image)
                self._split_of.append(self._splits.index(split))
                self._file_of.append(number)
                yield [further, entry.raw]

    def _parse_file(self, file: str) -> tuple[list[AnnotationEntry], list[str]]:
        """Parses a file to its entries, and the paths of all their images in order.

        Raises :class:`SourceError` for a file that is not in the format, cannot be read, or is larger than 4 GiB.
        Raises :class:`AmbiguousSourceError` for an unknown encoding."""
        try:
            entries = list(self.read_entries(file, self.parse_document(read_text(self.tree, file, _MAX_BYTES))))
            return entries, [_clean_image_path(name) for each in entries for name in (each.name, *each.further_images)]
        except AmbiguousSourceError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            OverflowError,
            RecursionError,
        ) as error:
            reason = f"{type(error).__name__}: {printable(str(error))[:200]}"
            raise SourceError(f"{self.tree.name(file)} is not in the format of {self.title} ({reason})") from None

    def _repeated_image_error(self, image: str, first: str, second: str) -> SourceError:
        """Returns the error for an image with two entries, in the files ``first`` and ``second``. For two different
        files it is an :class:`AmbiguousSourceError`, whose answers each ignore one of them."""
        if first == second:
            return SourceError(f"{self.tree.name(first)} has two annotations of {printable(image)}: remove one")
        answers = [Answer(ignore_paths([each])) for each in (first, second)]
        return AmbiguousSourceError(
            f"{self.tree.name(image)} is annotated twice, by {printable(first)} and {printable(second)}: leave one "
            "out with --ignore",
            answers,
        )

    def _resolve_images(self, file: str, names: Sequence[str], entries: Sequence[AnnotationEntry]) -> list[str]:
        """Returns the path of each image that a file names. Joins names to the usual folder that has most of the
        images.

        If entries have splits, an image may also be in the folder of its entry's split. Without :attr:`absent_reason`,
        missing images are searched by :meth:`_search_missing`.
        """
        beside = file.rpartition("/")[0]
        above = beside.rpartition("/")[0]
        split = find_split_of_file(file)
        bases = [join(base, place) if place else base for base in (beside, above) for place in _IMAGES]
        folders = [*(join(base, split) for base in bases if split), *bases]
        deeper = [join(entry.split or "", name) for entry, name in zip(entries, names, strict=True)]
        paths = self._join_to_folder(names, folders)
        if any(entry.split for entry in entries):
            pairs = zip(paths, self._join_to_folder(deeper, folders), strict=True)
            paths = [own if self._file_exists(own) else other for other, own in pairs]
        return paths if self.absent_reason else self._search_missing(names, paths)

    def _search_missing(self, names: Sequence[str], paths: Sequence[str]) -> list[str]:
        """Returns the ``paths`` of the images ``names``, of which missing ones are searched in all folders.

        A missing image gets the path of the only file of its name; if there are none or several, it keeps its path. A
        name with a folder is searched only if that folder does not exist. If it exists, a file of that name elsewhere
        would be another image.
        """
        result, there = list(paths), self._list_folders_of(paths)
        parts = [path.rpartition("/") for path in paths]
        absent = [(n, folder) for n, (folder, _, name) in enumerate(parts) if name not in there[folder]]
        missing = [n for n, folder in absent if "/" not in names[n] or not there[folder]]
        by_name = self._find_by_name({names[n].rpartition("/")[2] for n in missing}) if missing else {}
        for n in missing:
            places = by_name[names[n].rpartition("/")[2]]
            result[n] = places[0] if len(places) == 1 else result[n]
        return result

    def _find_by_name(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Lists by name the paths of all files with one of the ``names``. Looks in all folders but hidden ones."""
        paths: dict[str, list[str]] = {name: [] for name in names}
        for folder, listed in self.tree.folders(is_passed_over):
            for name in paths.keys() & set(listed.files):
                paths[name].append(join(folder, name))
        return paths

    def _list_folders_of(self, paths: Iterable[str]) -> dict[str, frozenset[str]]:
        """Lists the names of files in each folder of ``paths``."""
        return {each: frozenset(self.tree.names(each).files) for each in {path.rpartition("/")[0] for path in paths}}

    def _join_to_folder(self, names: Sequence[str], folders: Sequence[str]) -> list[str]:
        """Joins names of images to the folder of ``folders`` that has most of these images. If no folder has any,
        returns the names as paths from the top folder."""
        folder = (find_base_folder(self.tree, names, folders) if names else None) or ""
        return [join(folder, name) for name in names]

    def _file_exists(self, path: str) -> bool:
        """Tells if a file exists, by the list of files in its folder."""
        return path.rpartition("/")[2] in self.tree.names(path.rpartition("/")[0]).files

    def splits(self) -> Sequence[str]:
        """Returns the splits of all entries in packing order, or ``("",)`` if there are no entries."""
        return in_packing_order(self._splits) or ("",)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each entry of a split, in the order of the files. Later entries of an image have keys with
        ``#1``, ``#2`` …."""
        if split in self._splits:
            number = self._splits.index(split)
            for image in np.flatnonzero(np.frombuffer(self._split_of, np.uint8) == number).tolist():
                name, earlier = self._images[image].decode("utf-8", "surrogateescape"), self._earlier[image]
                yield FileRow(name, {"entry": image}, f"{name}#{earlier}" if earlier else None)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, with the bytes of their annotations added to ``value_bytes``."""
        for row in super().rows(split):
            entry = row.ref[3]["entry"] if isinstance(row.ref[3], Mapping) else None
            yield row if entry is None else row._replace(value_bytes=row.value_bytes + self._spool.value_size(entry))

    def pop_annotation(self, values: dict[str, Any]) -> Any:
        """Removes the entry's number from ``values``, and reads the entry's raw annotation from the temporary file."""
        return self._spool.read_value(values.pop("entry"))[1]

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the file that has the entry of a row."""
        file: str = self._files[self._file_of[ref[3]["entry"]]]
        return file

    def read_further_images(self, entry: int) -> list[str]:
        """Reads the paths of the further images of entry number ``entry``."""
        paths: list[str] = self._spool.read_value(entry)[0]
        return paths

    def raw_annotations(self) -> Iterator[Any]:
        """Yields the raw annotations of all entries, from the temporary file."""
        return (self._spool.read_value(number)[1] for number in range(len(self._spool)))

    def describing_files(self) -> Iterable[str]:
        """Returns the files of annotations."""
        return self._files

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts values and entries of files of annotations that are left out, by reason."""
        return dict(+self.ignored)

    def close(self) -> None:
        """Removes the temporary file of annotations as well."""
        if hasattr(self, "_spool"):
            self._spool.close()
        super().close()


def _folder_has_file(files_by_folder: Mapping[str, frozenset[str]], path: str) -> bool:
    """Tells if the folder of ``path`` has that file."""
    folder, _, name = path.rpartition("/")
    return name in files_by_folder[folder]


def _list_folders_to_depth(tree: Tree, max_depth: int) -> Iterator[str]:
    """Yields the top folder, and the folders up to ``max_depth`` levels below it. Skips hidden and ignored folders, and
    links to a folder above."""
    for folder, _ in tree.folders(is_passed_over):  # near ones first
        if len([*path_and_parents(folder)]) > max_depth:
            return
        yield folder


def _list_matching_files(tree: Tree, folder: str, pattern: re.Pattern[str], max_files: int) -> list[str]:
    """Lists the paths of the files in a folder whose names match, without hidden files. Returns ``[]`` for more than
    ``max_files`` files: these are annotations of single images."""
    suffix = re.search(r"\\[.]\(?(\w+(?:\|\w+)*)\)?$", pattern.pattern)
    names = tree.names(folder)
    listed = names.ending(*(f".{each}" for each in suffix[1].split("|"))) if suffix else names.files
    matches = [name for name in listed if pattern.fullmatch(name) and not is_passed_over(name)]
    return [join(folder, name) for name in matches] if len(matches) <= max_files else []


def _clean_image_path(name: Any) -> str:
    """Converts the name of an image in an annotation file to a path within the source. Of an absolute path or a URL,
    keeps the last part alone. Raises :class:`ValueError` for a value that is no text, and for a path that leads out of
    the source."""
    if not isinstance(name, str):
        raise ValueError(f"found {name!r:.60} as the name of an image, expected a text")
    bare = name
    if re.match(r"\w{2,}:|[A-Za-z]:[\\/]|[\\/]", name):
        bare = re.split(r"[\\/]", re.split("[?#]", name)[0])[-1]
    return clean_path(bare)


def make_document_kind(source: type[DocumentSource], help: str) -> Kind:
    """Makes the kind of a format. Recognition is certain of each path with a file of annotations."""

    def recognise(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree(path)
        return Certainty.CERTAIN if tree is not None and source.find_files(tree) else Certainty.NO

    return Kind(source.kind, help, recognise, source, in_objects=True)
