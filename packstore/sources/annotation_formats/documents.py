"""Annotation formats with a file for many images; keeps the annotations in a temporary file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import AmbiguousSourceError, SourceError, printable
from packstore.sources.annotation_formats.parsing import check_class_names, clean_image_path
from packstore.sources.annotation_formats.shapes import Document, Listed
from packstore.sources.annotation_formats.source import MALFORMED, AnnotatedSource, Format, ReadParts, make_decorator
from packstore.sources.annotation_formats.spool import SpooledEntry, SpooledSource
from packstore.sources.base import Kind, SourceOptions
from packstore.sources.beside import find_base_folder, is_folder, join, read_text
from packstore.sources.contents import path_and_parents
from packstore.sources.listing import is_passed_over
from packstore.sources.rows import FileRow
from packstore.sources.splits import find_split_of_file
from packstore.sources.spread import find_present, find_scattered, list_usual_folders
from packstore.sources.tree import Tree

_MAX_BYTES = 4 << 30
# Lists the images of a document. May raise any error of reading a value that lacks the structure of the format.
ListImages = Callable[[Document], Iterator[Listed]]


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

    def find(self, tree: Tree) -> list[str]:
        """Finds the files of annotations, by names and first bytes, in the top folder and a few levels below.

        Skips hidden and ignored files. Passes over folders with more than :attr:`max_files` matching names, since these
        have a file for each image. A file with other first bytes is damaged; it is included if a file of its name was
        found in another folder.
        """
        paths: list[str] = []
        for folder, names in tree.folders(is_passed_over):  # near ones first
            if len([*path_and_parents(folder)]) > self.max_depth:
                break
            listed = [name for name in names.ending(*self.suffixes) if re.fullmatch(self.names, name)]
            listed = [join(folder, name) for name in listed if not is_passed_over(name)]
            paths += listed if len(listed) <= self.max_files else []
        matches = {path for path in paths if self.begins(tree, path)}
        known = {path.rpartition("/")[2] for path in matches}
        return [path for path in paths if path in matches or path.rpartition("/")[2] in known]


class DocumentSource(AnnotatedSource, SpooledSource):
    """Source of a format with one file of annotations, or one for each split.

    Paths of images are relative to the file of annotations, or to a folder beside or above that file. A missing image
    may be in any other folder, if it is the only one of its name. Images that no file names are left out.

    Opening parses all files. It raises :class:`SourceError` if there is none, or one is damaged, and the errors of
    :meth:`SpooledSource.spool_entries` and :func:`find_scattered`.

    Attributes:
        absent_reason: Reason for leaving out entries without their images. If empty, such entries are bad samples.
        max_further: Largest number of further images of an entry.
        documents: The files by path, without their content.
    """

    format: DocumentFormat
    raw = "entry"
    left_images = "images that no annotations name"
    absent_reason: ClassVar[str] = ""
    max_further = 0

    def __init__(self, path: Path, options: SourceOptions, format: DocumentFormat) -> None:
        super().__init__(path, options, format)
        files = self.format.find(self.tree)
        if not files:
            raise SourceError(f"{printable(str(path))} has no annotations of {format.title}")
        self.documents: dict[str, Document] = {}
        self.spool_entries(chain.from_iterable(map(self._read_file, files)))
        self.listed = [name for each in self.documents.values() for name in each.classes.values()]
        self.expected = [start for each in self.documents.values() for start in each.expected]
        self.evidence = ", ".join(map(printable, files))

    def _read_file(self, file: str) -> Iterator[SpooledEntry]:
        """Parses a file, and yields its entries with the values ``[paths of further images, raw annotation]``."""
        try:
            document = Document(file, self.format.parse(read_text(self.tree, file, _MAX_BYTES)), self.tree)
            entries = list(self.format.list_images(document))
            names = [clean_image_path(name) for each in entries for name in (each.name, *each.further_images)]
            splits = [find_split_of_file(file) if each.split is None else each.split.lower() for each in entries]
            check_class_names(document.classes.values())
        # The encoding is unknown, which only the user can settle.
        except AmbiguousSourceError:
            raise
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {printable(str(error))[:200]}"
            raise SourceError(
                f"{self.tree.name(file)} is not in the format of {self.format.title} ({reason})"
            ) from None
        document.content = None
        self.documents[file] = document
        paths = self._find_images(file, names, [entry for entry in entries for _ in (0, *entry.further_images)])
        places = zip(paths, find_present(self.tree, paths) if self.absent_reason else repeat(True), strict=False)
        for entry, split in zip(entries, splits, strict=True):
            (image, *further), there = zip(*islice(places, 1 + len(entry.further_images)), strict=True)
            if not all(there):
                document.count_left(self.absent_reason)
                continue
            self.max_further = max(self.max_further, len(further))
            yield SpooledEntry(image, split, file, [further, entry.item])

    def _find_images(self, file: str, names: Sequence[str], entries: Sequence[Listed]) -> Sequence[str]:
        """Returns the path of each image that a file names."""
        folders = list_usual_folders(self.tree, file, {find_split_of_file(file)} - {""})
        paths = self._join_to_folder(names, folders)
        # An image may also be in the folder of its entry's split.
        if any(entry.split for entry in entries):
            deeper = [join(entry.split or "", name) for entry, name in zip(entries, names, strict=True)]
            own = self._join_to_folder(deeper, folders)
            paths = [o if there else p for p, o, there in zip(paths, own, find_present(self.tree, own), strict=True)]
        absent = [n for n, there in enumerate(find_present(self.tree, paths)) if not there]
        if self.absent_reason or not absent:
            return paths
        # Other folders are searched for bare names only, and for names in a folder that does not exist. If the folder
        # exists, a file of that name elsewhere would be another image.
        wanted = {
            n: names[n].rpartition("/")[2]
            for n in absent
            if "/" not in names[n] or not is_folder(self.tree, paths[n].rpartition("/")[0])
        }
        folder_of = find_scattered(self.tree, {*wanted.values()}, file)
        found = {n: join(folder_of[name], name) for n, name in wanted.items() if name in folder_of}
        return [found.get(n, path) for n, path in enumerate(paths)]

    def _join_to_folder(self, names: Sequence[str], folders: Sequence[str]) -> list[str]:
        """Joins names of images to the folder of ``folders`` that has most of them, or else to the top folder."""
        folder = (find_base_folder(self.tree, names, folders) if names else None) or ""
        return [join(folder, name) for name in names]

    def list_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each entry of a split."""
        return self.entry_rows(split)

    def load_annotation(self, value: int) -> tuple[Any, Mapping[Any, str]]:
        """Reads the annotation of entry number ``value`` from the temporary file."""
        return self.read_entry(value)[1], self.documents[self.lister_of(value)].classes

    def describing_files(self) -> Iterable[str]:
        """Returns the files of annotations, and the further files that were read, each once."""
        return dict.fromkeys([*self.documents, *chain(*(each.files for each in self.documents.values()))])

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts values and entries of files of annotations that are left out, by reason."""
        return dict(+sum((each.ignored for each in self.documents.values()), Counter[str]()))


def document(help: str, list_images: ListImages, **options: Any) -> Callable[[ReadParts], Kind]:
    """Decorates the generator of a format with annotations of many images in a file: makes the kind of its name.
    ``list_images`` lists the images of a file, the generator reads the annotation of one image. ``options`` are the
    other attributes of :class:`DocumentFormat`. Recognition is certain of each path with such a file.
    """
    return make_decorator(DocumentFormat, DocumentSource, help=help, list_images=list_images, **options)
