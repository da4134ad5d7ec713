"""Formats of annotations as tables: a format says which files are its own, and what one of them says of an image.

:class:`SidecarSource` is for formats with a file for each image, :class:`DocumentSource` (in :mod:`.documents`) for
those with a file for many. Both read all annotations once, when columns are declared: classes and columns are those of
the whole set. The column ``json`` has what the files say of an image, as it stands there, so nothing of it is lost.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.errors import AmbiguousSourceError, SampleError, SourceError, printable
from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER, Certainty, Kind, SourceOptions
from packstore.sources.beside import join, read_text
from packstore.sources.contents import list_contents
from packstore.sources.encodings import convert_start
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.tree import Tree

_MAX_CLASSES = 1 << 16
_MAX_BYTES = 256 << 20
_START, _LOOKED_AT = 1 << 16, 16


class AnnotatedSource(AnnotationColumns, FileRowSource):
    """A source whose rows are images with annotations of one format."""

    left_images = "images without annotations in other folders"

    @abstractmethod
    def raw(self, values: dict[str, Any]) -> Any:
        """Takes the annotation of a row out of its values; None for none."""

    def values(self, ref: Any) -> Mapping[str, Any]:
        found = dict(super().values(ref))
        raw = self.raw(found)
        return found if raw is None else found | self.columns_of(raw, found[self.main])


class Place(NamedTuple):
    """A folder of images, the folder of their annotations (None for none there), and their split."""

    images: str
    annotations: str | None
    split: str


class SidecarSource(AnnotatedSource):
    """A source with a file of annotations for each image, beside it or in a folder of its own.

    An image without such a file has no annotation. Splits are folders anywhere in the path (``train``).

    Attributes:
        folders: Pairs of names of folders, of images and of annotations; ``("", "")`` for the same folder.
        patterns: Names of the annotations, with ``{stem}`` and ``{name}`` of the image.
        signature: What the beginning of each annotation has that is not empty.
    """

    folders: ClassVar[Sequence[tuple[str, str]]]
    patterns: ClassVar[Sequence[str]] = ("{stem}.json",)
    signature: ClassVar[re.Pattern[bytes]]

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._places = self.find_places(self.tree)
        if not any(place.annotations is not None for place in self._places):
            raise SourceError(f"{printable(str(path))} has no images with annotations of {self.title}")
        places = dict.fromkeys(place.annotations for place in self._places if place.annotations is not None)
        self.evidence = f"annotations of {self.title} in " + ", ".join(printable(p) or "the folder" for p in places)

    @classmethod
    def find_places(cls, tree: Tree) -> list[Place]:
        """The folders of images that have annotations, and further ones of the same names or of a split."""
        contents = list_contents(tree)
        suffixes = {f".{pattern.rpartition('.')[2].lower()}" for pattern in cls.patterns}
        holding = {path for path, each in contents.folders.items() if suffixes & each.others.keys()}
        if not holding:
            return []
        found, free = [], []
        for path, folder in contents.folders.items():
            if not folder.images.count:
                continue
            pairs = [(pair, place) for pair in cls.folders for place in _counterparts(path, *pair) if place in holding]
            pair = next((pair for pair, place in pairs if cls._annotates(tree, path, place)), None)
            if pair is None:
                free.append(path)
                continue
            place = next(place for each, place in pairs if each == pair and cls._annotates(tree, path, place))
            found.append((Place(path, place, _split_of(path)), pair))
        used = {pair for _, pair in found}
        taken = {place.annotations for place, _ in found}
        alike = [
            path
            for path in free
            if path not in taken
            and any(
                image.lower() in map(str.lower, path.split("/")) if image else path.lower() in SPLIT_ORDER
                for image, _ in used
            )
        ]
        return [*(place for place, _ in found), *(Place(path, None, _split_of(path)) for path in alike)]

    @classmethod
    def _annotates(cls, tree: Tree, images: str, folder: str) -> bool:
        """Whether a folder holds annotations of images in another; the first ones that are not empty say of which
        format."""
        there = set(tree.names(folder).files)
        looked = 0
        for image in tree.names(images).ending(*IMAGE_SUFFIXES):
            for name in cls._annotation_names(image):
                start = convert_start(tree.start(join(folder, name), _START)) if name in there else b""
                if start.strip():
                    if not cls.signature.search(start):
                        return False
                    looked += 1
            if looked == _LOOKED_AT:
                break
        return looked > 0

    @classmethod
    def _annotation_names(cls, image: str) -> list[str]:
        stem = image.rpartition(".")[0]
        return [pattern.replace("{stem}", stem).replace("{name}", image) for pattern in cls.patterns]

    def splits(self) -> Sequence[str]:
        return in_packing_order(place.split for place in self._places)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        for images, folder, own in sorted(self._places, key=lambda place: place.images):
            if own != split:
                continue
            there = frozenset(self.tree.names(folder).files) if folder is not None else frozenset()
            for image in self.tree.list(images).images:
                names = [name for name in self._annotation_names(image) if name in there]
                file = InTree(join(folder, names[0]), optional=True) if folder is not None and names else None
                yield FileRow(join(images, image), {} if file is None else {"raw": file})

    def describing_files(self) -> Iterable[str]:
        return ()

    def raw(self, values: dict[str, Any]) -> Any:
        return values.pop("raw", None)

    def raws(self) -> Iterator[Any]:
        for row in chain.from_iterable(map(self.file_rows, self.splits())):
            try:
                yield read_text(self.tree, row.values["raw"].file, _MAX_BYTES) if "raw" in row.values else b""
            except AmbiguousSourceError:
                raise
            except (SourceError, SampleError):
                continue

    def left_reason(self, folder: str, name: str) -> str | None:
        suffixes = tuple(pattern[pattern.rindex(".") :] for pattern in self.patterns)
        if name.lower().endswith(suffixes) and folder in {place.annotations for place in self._places}:
            return "annotations without an image"
        return super().left_reason(folder, name)


def _counterparts(path: str, images: str, annotations: str) -> Iterator[str]:
    """The folders in which the annotations of a folder of images may lie, by a pair of names."""
    if not images:
        yield join(path, annotations) if annotations else path
        return
    parts = path.split("/")
    for n in reversed(range(len(parts))):
        if parts[n].lower() == images.lower():
            yield "/".join((*parts[:n], *([annotations] if annotations else []), *parts[n + 1 :]))


def _split_of(path: str) -> str:
    """The first part of a path that is called like a split, in lower case; ``""`` for none."""
    return next((part.lower() for part in path.split("/") if part.lower() in SPLIT_ORDER), "")


def annotated_kind(source: type[AnnotatedSource], help: str, recognise: Any = None) -> Kind:
    """The kind of a format, which is certain of a path where it finds annotations; what it leaves is asked about."""

    def recognise_sidecars(path: Path, options: SourceOptions) -> Certainty:
        tree = open_tree(path)
        assert issubclass(source, SidecarSource)
        found = tree is not None and any(p.annotations is not None for p in source.find_places(tree))
        return Certainty.CERTAIN if found else Certainty.NO

    return Kind(source.kind, help, recognise or recognise_sidecars, source, in_objects=True)


def count_unused(document: Mapping[str, Any], used: Iterable[str]) -> Counter[str]:
    """Counts the values of a document that no column has."""
    return Counter(f"values {printable(str(key))!r} of files of annotations" for key in document.keys() - set(used))
