"""Annotation formats as generators; this module has the formats with a file of annotations for each image.

A format is a generator that yields what one annotation has, see :mod:`.shapes`. Its decorator finds the files:
:func:`beside`, or :func:`packstore.sources.annotation_formats.documents.document` for files about many images. All
annotations are read once, when columns are declared, since classes and columns depend on the whole dataset.
"""

from __future__ import annotations

import posixpath
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from packstore.core.errors import AmbiguousSourceError, SampleError, SourceError, printable
from packstore.core.fields import Field
from packstore.sources.annotation_formats.columns import AnnotationColumns, Raw
from packstore.sources.annotation_formats.parsing import parse_json
from packstore.sources.annotation_formats.shapes import Parts, Picture
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, join, raise_suffix, read_text
from packstore.sources.contents import list_contents, stem_of
from packstore.sources.encodings import convert_start
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.splits import find_splits_of_folders, is_split
from packstore.sources.spread import find_spread
from packstore.sources.tree import Tree

_MAX_BYTES = 256 << 20
_START, _LOOKED_AT = 1 << 16, 16
_USUAL = ("JPEGImages", "Images", "images", "img", "imgs")
"""Names of folders of images."""

F = TypeVar("F", bound="Format")
ReadParts = Callable[[Any, Picture], Parts]
"""Yields what one annotation of a format has. May raise any error of reading a value that lacks its structure."""


class FurtherFile(NamedTuple):
    """File of an image that is the value of another column.

    Attributes:
        column: Name of the column.
        patterns: Possible paths of the file, relative to the folder of the image, with ``{stem}`` of the image and
            ``{folder}``, the name of its folder. The first that exists is taken.
        field: Declaration of the column; None for an image or a mask, as the files are.
        parse: Converts the content of the file; None to keep it.
    """

    column: str
    patterns: Sequence[str]
    field: Field | None = None
    parse: Callable[[bytes], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """Annotation format: how its files are found and parsed.

    Attributes:
        kind: Name of its kind of source.
        help: Description of the kind: the name of the format, a colon, and its files.
        signature: Pattern that is searched in the first 64 KiB of a file of annotations.
        read_parts: Yields what one annotation has.
        parse: Parses the bytes of a file, in UTF-8. Raises :class:`ValueError` for an invalid file. The result is the
            value of the column ``json``, if the generator yields no other.
        classes: Classes in the publisher's order, if the dataset lists none and has no others.
        files: Further files of each image.
        upright: Kind of image files that the format's tools turn upright before they count coordinates.
    """

    kind: str
    help: str
    signature: bytes
    read_parts: ReadParts
    parse: Callable[[bytes], Any] = parse_json
    classes: Sequence[str] = ()
    files: Sequence[FurtherFile] = ()
    upright: str = ""

    @property
    def title(self) -> str:
        """Name of the format, for messages."""
        return self.help.partition(":")[0]

    def begins(self, tree: Tree, file: str) -> bool | None:
        """Tells if a file of ``tree`` begins as one of this format; None for an empty file."""
        start = convert_start(tree.first_bytes(file, _START))
        return re.search(self.signature, start) is not None if start.strip() else None


def make_kind(
    format: F,
    find: Callable[[Tree, F], Sequence[Any]],
    open_source: Callable[[Path, SourceOptions, F], AnnotatedSource],
    extensions: frozenset[str] = frozenset(),
) -> Kind:
    """Makes the kind of a format, certain of each tree in which ``find`` finds something. ``extensions`` are those of
    files beside an image of the same name."""

    def recognise(path: Path, _: SourceOptions) -> Certainty:
        tree = open_tree(path)
        return Certainty.CERTAIN if tree is not None and find(tree, format) else Certainty.NO

    def open_format(path: Path, options: SourceOptions) -> AnnotatedSource:
        return open_source(path, options, format)

    return Kind(format.kind, format.help, recognise, open_format, in_objects=True, sidecar_extensions=extensions)


class AnnotatedSource(AnnotationColumns, FileRowSource):
    """Base of annotation formats whose images are files: converts the raw annotation of each row to columns.

    Attributes:
        format: The format.
        expected: Beginnings of paths of further files that belong to the layout, and are left without a question.
    """

    left_images = "images without annotations in other folders"

    def __init__(self, path: Path, options: SourceOptions, format: Format) -> None:
        super().__init__(path, options)
        self.format = format
        self.kind, self.title, self.usual = format.kind, format.title, format.classes
        self.expected: list[str] = []

    @abstractmethod
    def annotated_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split with their annotations, and without the format's further files."""

    @abstractmethod
    def pop_annotation(self, values: dict[str, Any]) -> Raw | None:
        """Removes the raw annotation from the values of a row, and returns it; None if the row has none."""

    def annotation_frame(self, kind: str) -> str | None:
        """Returns ``upright`` for the kind of image files that the format's tools turn, else None."""
        return "upright" if kind == self.format.upright else None

    def expects_left(self, path: str) -> bool:
        """Tells if a left file is one of :attr:`expected`: such files raise no question."""
        return path.startswith(tuple(self.expected))

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns of the annotations, and of further files if any image has them."""
        columns = dict(super().fields())
        for column, _, declared, _ in self.format.files:
            rows = chain.from_iterable(map(self.file_rows, self.splits()))
            files = (row.values[column].file for row in rows if column in row.values)
            first = next(files, None)
            if first is not None:
                columns[column] = declared or infer_mask_field(self.tree, chain([first], files))
        return columns

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, with the format's further files of each image."""
        names: dict[str, frozenset[str]] = {}
        for row in self.annotated_rows(split):
            found = {each.column: self._find_further_file(row, each.patterns, names) for each in self.format.files}
            files = {column: InTree(file, optional=True) for column, file in found.items() if file is not None}
            yield row._replace(values={**row.values, **files}) if files else row

    def _find_further_file(self, row: FileRow, patterns: Sequence[str], names: dict[str, frozenset[str]]) -> str | None:
        """Finds a further file of an image; None if it is missing, or is the annotation itself. ``names`` caches the
        files of each folder."""
        folder, _, image = row.file.rpartition("/")
        for pattern in patterns:
            path = pattern.format(stem=stem_of(image), folder=folder.rpartition("/")[2])
            place, _, name = posixpath.normpath(join(folder, path)).rpartition("/")
            if place not in names:
                outside = place.split("/")[0] == ".."
                names[place] = frozenset(() if outside else self.tree.names(place).files)
            if names[place] & {name, raise_suffix(name)}:
                file = join(place, name)
                return None if InTree(file, optional=True) in row.values.values() else file
        return None

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its further files, and converts its annotation to columns. Raises :class:`ValueError` for
        an invalid annotation or further file."""
        values = dict(super().read_values(ref))
        raw = self.pop_annotation(values)
        for column, _, _, parse in self.format.files:
            if parse is not None and values.get(column) is not None:
                values[column] = parse(values[column])
        with self.name_annotation_file(ref):
            return values if raw is None else values | self.make_column_values(raw, values[self.main])


@dataclass(frozen=True, kw_only=True)
class SidecarFormat(Format):
    """Format with a file of annotations for each image.

    Attributes:
        folders: Pairs of folder names: of images, and of annotations. ``("", "")`` means one folder for both.
        patterns: Names of the files of annotations, with ``{stem}`` or ``{name}`` of the image.
        read_classes: Reads the lists of classes: names by file, for a tree and the folders of images.
    """

    folders: Sequence[tuple[str, str]]
    patterns: Sequence[str] = ("{stem}.json",)
    read_classes: Callable[[Tree, Sequence[str]], Mapping[str, Sequence[str]]] = lambda tree, folders: {}

    @property
    def extensions(self) -> frozenset[str]:
        """Extensions that mark annotations beside an image of the same name. Empty if annotations are never in the
        images' folder."""
        patterns = self.patterns if ("", "") in self.folders else ()
        return frozenset(each.removeprefix("{stem}.") for each in patterns if each.startswith("{stem}."))

    def list_names(self, image: str) -> list[str]:
        """Lists the names that the file of annotations of an image may have."""
        stem = image.rpartition(".")[0]
        return [pattern.replace("{stem}", stem).replace("{name}", image) for pattern in self.patterns]

    def annotates_images(self, tree: Tree, images: str, folder: str) -> bool:
        """Tells if ``folder`` has annotations of this format for images in the folder ``images``. At least one file of
        annotations must not be empty, and half of the first 16 such files must match the signature."""
        there = set(tree.names(folder).files)
        looked = matches = 0
        for image in tree.names(images).ending(*IMAGE_SUFFIXES):
            for name in self.list_names(image):
                begins = self.begins(tree, join(folder, name)) if name in there else None
                looked += begins is not None
                matches += begins is True
            if looked == _LOOKED_AT:
                break
        return 0 < looked <= 2 * matches


class AnnotatedFolder(NamedTuple):
    """Folder of images, folder of their annotations (None if it is missing), and split."""

    images: str
    annotations: str | None
    split: str


def find_folders(tree: Tree, format: SidecarFormat) -> list[AnnotatedFolder]:
    """Finds the folders of images that have annotations, with their splits; ``[]`` if there are none.

    Adds folders of images without annotations, if they have the same name for images. If the images' folders have no
    such name, adds those at the top that are named like a split. The split is a folder in the path with the name of a
    split. If no path has such a folder, it is a word of the folder's name, if each folder has one:
    ``VisDrone2019-DET-train``.
    """
    contents = list_contents(tree)
    suffixes = {f".{pattern.rpartition('.')[2].lower()}" for pattern in format.patterns}
    with_files = {path for path, each in contents.folders.items() if suffixes & each.others.keys()}
    if not with_files:
        return []
    folders, used, unpaired = [], set(), []
    for path, folder in contents.folders.items():
        if not folder.images.count:
            continue
        pairs = [(images, place) for images, other in format.folders for place in _list_places(path, images, other)]
        match = next(
            (each for each in pairs if each[1] in with_files and format.annotates_images(tree, path, each[1])), None
        )
        if match is None:
            unpaired.append(path)
        else:
            folders.append(AnnotatedFolder(path, match[1], ""))
            used.add(match[0].lower())
    taken = {folder.annotations for folder in folders}
    parents = set()
    if ("", "") in format.folders:
        for path, place in _pair_by_stems(tree, unpaired, with_files - taken, suffixes):
            if format.annotates_images(tree, path, place):
                folders.append(AnnotatedFolder(path, place, ""))
                parents.add(path.rpartition("/")[0])
    taken = {place for folder in folders for place in (folder.images, folder.annotations)}
    for path in unpaired:
        words = path.lower().split("/")
        above, _, name = path.rpartition("/")
        known = any(image in words if image else is_split(path) for image in used) or (
            above in parents and is_split(name)
        )
        if path not in taken and known:
            folders.append(AnnotatedFolder(path, None, ""))
    splits = find_splits_of_folders((each.images for each in folders), some=True)
    return [folder._replace(split=splits.get(folder.images, "")) for folder in folders]


def _pair_by_stems(
    tree: Tree, images: Iterable[str], places: Collection[str | None], suffixes: Collection[str]
) -> list[tuple[str, str]]:
    """Pairs folders of images with those of ``places``, without images, whose files have the stems of at least half of
    the images, or of which half have the stem of an image. Of several, takes the folder whose path has most in common.

    Leaves out folders whose images are also in others that belong to the same files. Of several such folders, one with
    a usual name remains; else those that :func:`find_spread` finds.
    """
    folders = list_contents(tree).folders
    notes = {
        path: np.unique(np.concatenate([each.others[suffix].stems for suffix in suffixes & each.others.keys()]))
        for path, each in folders.items()
        if path in places and not each.images.count
    }
    owners: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for path in images:
        own, parts = folders[path].images, {*path.split("/")}
        shared = {place: own.count_shared(stems) for place, stems in notes.items()}
        ranks = [
            (count, len(parts & {*place.split("/")}), place)
            for place, count in shared.items()
            if 0 < min(own.count, len(notes[place])) <= 2 * count
        ]
        if ranks:
            count, _, place = max(ranks)
            owners.setdefault(place, []).append(path)
            counts[place] += count
    for place, paths in owners.items():
        if counts[place] > len(notes[place]):
            stems = [stem_of(name) for name in tree.names(place).ending(*suffixes)]
            usual = [path for name in _USUAL for path in paths if path.rpartition("/")[2] == name]
            kept = usual[:1] or find_spread(tree, stems, place, stems=True, within=paths) or paths[:1]
            owners[place] = [path for path in paths if path in kept]
    return [(path, place) for place, paths in owners.items() for path in paths]


def _list_places(path: str, images: str, annotations: str) -> Iterator[str]:
    """Yields the folders that may have the annotations for the images in the folder ``path``.

    For each folder named ``images`` in the path, from the last on, ``annotations`` replaces this name. If ``images`` is
    empty, yields only the folder ``annotations`` in ``path``, or ``path`` if ``annotations`` is empty as well.
    """
    if not images:
        yield join(path, annotations) if annotations else path
        return
    parts = path.split("/")
    for n in reversed(range(len(parts))):
        if parts[n].lower() == images.lower():
            yield "/".join((*parts[:n], *([annotations] if annotations else []), *parts[n + 1 :]))


class SidecarSource(AnnotatedSource):
    """Source of a format with a file of annotations for each image, in the images' folder or in another.

    An image without such a file has no annotation. Opening raises :class:`SourceError` if there is no annotation at
    all.
    """

    format: SidecarFormat

    def __init__(self, path: Path, options: SourceOptions, format: SidecarFormat) -> None:
        super().__init__(path, options, format)
        self._folders = find_folders(self.tree, format)
        places = dict.fromkeys(each.annotations for each in self._folders if each.annotations is not None)
        if not places:
            raise SourceError(f"{printable(str(path))} has no images with annotations of {self.title}")
        self.evidence = f"annotations of {self.title} in " + ", ".join(printable(p) or "the folder" for p in places)
        self._classes_by_file = format.read_classes(self.tree, [each.images for each in self._folders])
        self.listed = [*chain.from_iterable(self._classes_by_file.values())]

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order; ``""`` for folders without split."""
        return in_packing_order(folder.split for folder in self._folders)

    def annotated_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image of a split, sorted by folder. Its value ``raw`` is the image's file of
        annotations, if that exists."""
        for images, folder, own in sorted(self._folders, key=lambda each: each.images):
            if own != split:
                continue
            there = frozenset(self.tree.names(folder).files) if folder is not None else frozenset()
            for image in self.tree.list(images).images:
                names = [name for name in self.format.list_names(image) if name in there]
                raw = {"raw": InTree(join(folder or "", names[0]), optional=True)} if names else {}
                yield FileRow(join(images, image), raw)

    def describing_files(self) -> Iterable[str]:
        """Returns the lists of classes. Each file of annotations belongs to one image."""
        return self._classes_by_file

    def parse_parts(self, item: Any, picture: Picture) -> tuple[Any, Parts]:
        """Parses the content of a file of annotations."""
        parsed = self.format.parse(item)
        return parsed, self.format.read_parts(parsed, picture)

    def pop_annotation(self, values: dict[str, Any]) -> Raw | None:
        """Removes the content of the file of annotations from the values, and returns it; None without such a file."""
        data = values.pop("raw", None)
        return None if data is None else Raw(data)

    def find_annotation_file(self, ref: Any) -> str:
        """Returns the path of the image's file of annotations; empty without one."""
        raw = ref[-1].get("raw")
        return raw.file if isinstance(raw, InTree) else ""

    def raw_annotations(self) -> Iterator[Raw]:
        """Yields the content of each file of annotations, in UTF-8. Skips files that cannot be read, and files larger
        than 256 MiB. Raises :class:`AmbiguousSourceError` for a file of unknown encoding."""
        for row in chain.from_iterable(map(self.annotated_rows, self.splits())):
            try:
                if "raw" in row.values:
                    yield Raw(read_text(self.tree, row.values["raw"].file, _MAX_BYTES))
            except AmbiguousSourceError:
                raise
            except (SourceError, SampleError):
                continue  # reported as a bad sample when it is read

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for a file of annotations without an image. For other files, returns the usual reason, or
        None."""
        suffixes = tuple(pattern[pattern.rindex(".") :] for pattern in self.format.patterns)
        if name.lower().endswith(suffixes) and folder in {each.annotations for each in self._folders}:
            return "annotations without an image"
        return super().reason_to_leave_out(folder, name)


def beside(help: str, **options: Any) -> Callable[[ReadParts], Kind]:
    """Makes the kind of a format with a file of annotations for each image from its generator, by the generator's name.
    ``options`` are the other attributes of :class:`SidecarFormat`. Recognition is certain of each path with images and
    their annotations."""

    def make(read_parts: ReadParts) -> Kind:
        format = SidecarFormat(help=help, read_parts=read_parts, **{"kind": read_parts.__name__, **options})
        return make_kind(format, find_folders, SidecarSource, format.extensions)

    return make
