"""Annotation formats with a file for many images; keeps the annotations in a temporary file."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.columns import MALFORMED, Raw
from packstore.sources.annotation_formats.parsing import clean_image_path
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture
from packstore.sources.annotation_formats.source import AnnotatedSource, Format, ReadParts, make_kind
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.beside import find_base_folder, join, read_text
from packstore.sources.contents import path_and_parents
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import FileRow, Row, in_packing_order
from packstore.sources.splits import find_split_of_file
from packstore.sources.spread import find_spread
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
_IMAGES = (
    *("images", "data", "img", "imgs", "JPEGImages", "Images", "obj_train_data", "upload", "media", "images/100k"),
    "",
)


ListImages = Callable[[Document], Iterator[Listed]]
"""Lists the images of a document. May raise any error of reading a value that lacks the structure of the format."""


@dataclass(frozen=True, kw_only=True)
class DocumentFormat(Format):
    """Format with a file of annotations for many images.

    Attributes:
        list_images: Lists the images of a file.
        suffixes: Suffixes of the names of such files.
        names: Pattern that their whole names match.
        max_depth: Number of levels below the top folder in which such files are searched.
        max_files: A folder with more matching names has annotations of single images; its files are passed over.
    """

    list_images: ListImages
    suffixes: Sequence[str] = (".json",)
    names: str = ".*"
    max_depth: int = 2
    max_files: int = 16


class DocumentSource(AnnotatedSource):
    """Source of a format with one file of annotations, or one for each split.

    Paths of images are relative to the file of annotations, or to a folder beside or above that file. A missing image
    may be in any other folder, if it is the only one of its name. Images that no file names are left out.

    Opening parses all files, and raises :class:`SourceError`:

    - if there is no file of annotations, or a file is damaged
    - if an image has two entries, without :attr:`allows_repeats`
    - if several folders have images of the names, see :meth:`_search_missing`
    - for more than 255 splits
    - if the temporary file for the annotations cannot be written

    Attributes:
        allows_repeats: An image may have several entries, each a sample. Later entries have keys with ``#1``, ``#2`` ….
        absent_reason: Reason for leaving out entries without their images. If empty, such entries are bad samples.
        max_further: Largest number of further images of an entry.
        documents: The files, without their content.
    """

    format: DocumentFormat
    left_images = "images that no annotations name"
    allows_repeats: ClassVar[bool] = False
    absent_reason: ClassVar[str] = ""
    max_further = 0

    def __init__(self, path: Path, options: SourceOptions, format: DocumentFormat) -> None:
        super().__init__(path, options, format)
        files = self.find_files()
        if not files:
            raise SourceError(f"{printable(str(path))} has no annotations of {self.title}")
        self.documents: list[Document] = []
        self._images: list[bytes] = []
        self._splits: list[str] = []
        self._split_of = bytearray()
        self._file_of = array("I")
        self._earlier = array("q")  # by entry, number of earlier entries of the same image
        self._spool = Spool(self.tree.name(), self._read_files(files))
        self.listed = [name for each in self.documents for name in each.classes.values()]
        self.expected = [start for each in self.documents for start in each.expected]
        self.evidence = ", ".join(map(printable, files))

    def find_files(self) -> list[str]:
        """Finds the files of annotations."""
        return find_documents(self.tree, self.format)

    def _read_files(self, files: Sequence[str]) -> Iterator[Any]:
        """Parses all files, and yields for each entry a list: paths of its further images, raw annotation.

        Records image, file and split of each entry, and updates :attr:`max_further`. Entries without their images are
        counted and left out if :attr:`absent_reason` is set.

        Raises :class:`SourceError` for a damaged file and for more than 255 splits. Without :attr:`allows_repeats`,
        raises :meth:`_repeated_image_error` for a second entry of an image.
        """
        seen: dict[bytes, str] = {}
        times: Counter[bytes] = Counter()
        for number, file in enumerate(files):
            document, entries, names = self._parse_file(file)
            self.documents.append(document)
            of = [entry for entry in entries for _ in (entry.name, *entry.further_images)]
            paths = self._resolve_images(file, names, of)
            there = self._list_folders_of(paths) if self.absent_reason else {}
            places = iter(paths)
            for entry in entries:
                name, *further = islice(places, 1 + len(entry.further_images))
                if self.absent_reason and not all(_folder_has_file(there, each) for each in (name, *further)):
                    document.leave(self.absent_reason, identifier=entry.identifier)
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
                yield [further, entry.item]

    def _parse_file(self, file: str) -> tuple[Document, list[Listed], list[str]]:
        """Parses a file to its entries, and the paths of all their images in order.

        Raises :class:`SourceError` for a file that is not in the format, cannot be read, or is larger than 4 GiB.
        Raises :class:`AmbiguousSourceError` for an unknown encoding."""
        try:
            document = Document(file, self.format.parse(read_text(self.tree, file, _MAX_BYTES)), self.tree)
            entries = list(self.format.list_images(document))
            document.content = None
            names = [clean_image_path(name) for each in entries for name in (each.name, *each.further_images)]
            return document, entries, names
        except AmbiguousSourceError:
            raise
        except MALFORMED as error:
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

    def _resolve_images(self, file: str, names: Sequence[str], entries: Sequence[Listed]) -> list[str]:
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
        paths = self._join_to_folder(names, folders)
        if any(entry.split for entry in entries):
            deeper = [join(entry.split or "", name) for entry, name in zip(entries, names, strict=True)]
            own = self._join_to_folder(deeper, folders)
            there = self._list_folders_of(own)
            paths = [each if _folder_has_file(there, each) else path for path, each in zip(paths, own, strict=True)]
        return paths if self.absent_reason else self._search_missing(file, names, paths)

    def _search_missing(self, file: str, names: Sequence[str], paths: Sequence[str]) -> list[str]:
        """Returns the ``paths`` of the images ``names``, of which missing ones are searched in all folders.

        A missing image gets the path of the only file of its name. If there are none, it keeps its path. A name with a
        folder is searched only if that folder does not exist. If it exists, a file of that name elsewhere would be
        another image. Of images in several folders, those in the group of folders that has each once are taken, see
        :func:`find_spread`. Raises :class:`AmbiguousSourceError` for several such groups, and if there is none and most
        images are in several folders.
        """
        result, there = list(paths), self._list_folders_of(paths)
        parts = [path.rpartition("/") for path in paths]
        absent = [(n, folder) for n, (folder, _, name) in enumerate(parts) if name not in there[folder]]
        wanted = {n: parts[n][2] for n, folder in absent if "/" not in names[n] or not there[folder]}
        places: dict[str, list[str]] = {name: [] for name in wanted.values()}
        for folder, listed in self.tree.folders(is_passed_over) if places else ():
            for name in places.keys() & set(listed.files):
                places[name].append(folder)
        repeated = [folders for folders in places.values() if len(folders) > 1]
        found = [name for name, folders in places.items() if folders]
        if repeated and (chosen := find_spread(self.tree, found, file)) is not None:
            places |= {name: [folder] for name, folder in zip(found, chosen, strict=True)}
        elif 2 * len(repeated) > len(found):
            raise self._several_folders_error(file, repeated)
        for n, name in wanted.items():
            result[n] = join(places[name][0], name) if len(places[name]) == 1 else result[n]
        return result

    def _several_folders_error(self, file: str, places: Sequence[Sequence[str]]) -> AmbiguousSourceError:
        """Returns the error for images that are in several folders. Its answers each ignore all of these folders but
        one that has the most of the images."""
        counts = Counter(chain.from_iterable(places))
        most = [folder for folder, count in counts.items() if count == max(counts.values())]
        answers = [Answer(ignore_paths(sorted(counts.keys() - {each}))) for each in most]
        named = ", ".join(printable(each) or "the top folder" for each in counts)
        return AmbiguousSourceError(
            f"{self.tree.name(file)} names images that are in several folders ({named}): leave all but one out with "
            "--ignore",
            [each for each, folder in zip(answers, most, strict=True) if not _hides(counts.keys() - {folder}, folder)],
        )

    def _list_folders_of(self, paths: Iterable[str]) -> dict[str, frozenset[str]]:
        """Lists the names of files in each folder of ``paths``."""
        return {each: frozenset(self.tree.names(each).files) for each in {path.rpartition("/")[0] for path in paths}}

    def _join_to_folder(self, names: Sequence[str], folders: Sequence[str]) -> list[str]:
        """Joins names of images to the folder of ``folders`` that has most of these images. If no folder has any,
        returns the names as paths from the top folder."""
        folder = (find_base_folder(self.tree, names, folders) if names else None) or ""
        return [join(folder, name) for name in names]

    def splits(self) -> Sequence[str]:
        """Returns the splits of all entries in packing order, or ``("",)`` if there are no entries."""
        return in_packing_order(self._splits) or ("",)

    def annotated_rows(self, split: str) -> Iterator[FileRow]:
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

    def parse_parts(self, item: Any, picture: Picture) -> tuple[Any, Parts]:
        """Reads the item of an entry; the value of ``json`` is the item itself."""
        return item, self.format.read_parts(item, picture)

    def pop_annotation(self, values: dict[str, Any]) -> Raw | None:
        """Removes the entry's number from ``values``, and reads the entry's raw annotation from the temporary file."""
        raw = self._read_annotation(values.pop("entry"))
        return None if raw.item is None else raw

    def _read_annotation(self, entry: int) -> Raw:
        """Reads the raw annotation of entry number ``entry`` from the temporary file."""
        return Raw(self._spool.read_value(entry)[1], self.documents[self._file_of[entry]].classes)

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the file that has the entry of a row."""
        document: Document = self.documents[self._file_of[ref[3]["entry"]]]
        return document.path

    def read_further_images(self, entry: int) -> list[str]:
        """Reads the paths of the further images of entry number ``entry``."""
        paths: list[str] = self._spool.read_value(entry)[0]
        return paths

    def raw_annotations(self) -> Iterator[Raw]:
        """Yields the raw annotations of all entries, from the temporary file."""
        return map(self._read_annotation, range(len(self._spool)))

    def describing_files(self) -> Iterable[str]:
        """Returns the files of annotations, and the further files that were read, each once."""
        return dict.fromkeys(
            [*(each.path for each in self.documents), *chain(*(each.files for each in self.documents))]
        )

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts values and entries of files of annotations that are left out, by reason."""
        return dict(+sum((each.ignored for each in self.documents), Counter[str]()))

    def close(self) -> None:
        """Removes the temporary file of annotations as well."""
        if hasattr(self, "_spool"):
            self._spool.close()
        super().close()


def find_documents(tree: Tree, format: DocumentFormat) -> list[str]:
    """Finds the files of annotations of a format, by names and first bytes.

    Searches the top folder and a few levels below. Skips hidden and ignored files, and passes over folders with more
    than :attr:`DocumentFormat.max_files` matching names: these have annotations of single images.

    A file with other first bytes is included, too, if a found file in another folder has its name. Such a file is
    damaged.
    """
    paths: list[str] = []
    for folder, names in tree.folders(is_passed_over):  # near ones first
        if len([*path_and_parents(folder)]) > format.max_depth:
            break
        listed = [name for name in names.ending(*format.suffixes) if re.fullmatch(format.names, name)]
        listed = [join(folder, name) for name in listed if not is_passed_over(name)]
        paths += listed if len(listed) <= format.max_files else []
    matches = {path for path in paths if format.begins(tree, path)}
    known = {path.rpartition("/")[2] for path in matches}
    return [path for path in paths if path in matches or path.rpartition("/")[2] in known]


def _folder_has_file(files_by_folder: Mapping[str, frozenset[str]], path: str) -> bool:
    """Tells if the folder of ``path`` has that file."""
    folder, _, name = path.rpartition("/")
    return name in files_by_folder[folder]


def _hides(ignored: Iterable[str], folder: str) -> bool:
    """Tells if ignoring some folders hides another one, which is in one of them."""
    return any(f"{folder}/".startswith(f"{each}/") or not each for each in ignored)


def document(help: str, list_images: ListImages, **options: Any) -> Callable[[ReadParts], Kind]:
    """Makes the kind of a format with a file of annotations for many images from two generators: ``list_images`` lists
    the images of a file, the decorated one, whose name is the kind's, reads the annotation of one image. ``options``
    are the other attributes of :class:`DocumentFormat`. Recognition is certain of each path with such a file."""

    def make(read_parts: ReadParts) -> Kind:
        options.setdefault("kind", read_parts.__name__)
        format = DocumentFormat(help=help, read_parts=read_parts, list_images=list_images, **options)
        return make_kind(format, find_documents, DocumentSource)

    return make
