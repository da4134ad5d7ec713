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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Keypoints, Label, Labels
from packstore.images.decoders.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.annotation_formats.objects import NO_CLASS, Annotation, Sides
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER, Certainty, Kind, SourceOptions
from packstore.sources.beside import join, read_whole
from packstore.sources.contents import contents_of
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.rows import FileRow, FileRowSource, InTree, in_packing_order
from packstore.sources.tree import Tree

_MAX_CLASSES = 1 << 16
_MAX_BYTES = 256 << 20
_START, _LOOKED_AT = 1 << 16, 16
_HOSTILE = (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a value of another shape than a format's raises."""


@dataclass(slots=True)
class _Seen:
    """What the annotations of a whole set have."""

    classes: set[str] = field(default_factory=set)
    tag_classes: set[str] = field(default_factory=set)
    unlabelled: bool = False
    boxes: bool = False
    segmentations: bool = False
    points: bool = False
    tags: int = 0
    values: set[str] = field(default_factory=set)
    json: bool = False


class AnnotatedSource(FileRowSource):
    """A source whose rows are images with annotations of one format.

    Columns: ``boxes`` with their ``labels``, and ``segmentations`` (for each box its polygons in pixels or run lengths,
    as COCO has them, or null); ``keypoints`` with ``keypoint_labels``, single points; ``label`` of the whole image, or
    ``tags`` if one has several; further ones of the format; ``json``. A column that no annotation has is left out.

    Attributes:
        title: Name of the format.
        further: Declarations of its further columns.
        per_object: Those of them that have a value for each box; -1 for none, or null in JSON.
    """

    left_images = "images without annotations in other folders"
    title: ClassVar[str]
    further: ClassVar[Mapping[str, Field]] = {}
    per_object: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def parse(self, raw: Any, sides: Sides) -> Annotation:
        """What is said of an image. May raise anything that reading ``raw`` raises where it has another shape."""

    @abstractmethod
    def raw(self, values: dict[str, Any]) -> Any:
        """Takes the annotation of a row out of its values; None for none."""

    @abstractmethod
    def raws(self) -> Iterator[Any]:
        """The annotations of all rows, those that can be read."""

    def class_order(self) -> Sequence[str]:
        """Classes that the format lists, in their order; further ones follow by name."""
        return ()

    def fields(self) -> Mapping[str, Field]:
        """See :meth:`RowSource.fields`. Reads all annotations."""
        seen, classes = self._seen, self._classes
        found: dict[str, Field] = {"image": Image()}
        if seen.boxes or not (seen.points or seen.tags or seen.values):
            found["boxes"] = Boxes(optional=True)
            if classes:
                found["labels"] = Labels(classes, of="boxes", optional=True)
        if seen.segmentations:
            found["segmentations"] = Json(optional=True)
        if seen.points:
            found["keypoints"] = Keypoints(2, of=False, optional=True)
            if classes:
                found["keypoint_labels"] = Labels(classes, of=False, optional=True)
        if seen.tags == 1:
            found["label"] = Label(self._tag_classes, optional=True)
        elif seen.tags:
            found["tags"] = Labels(self._tag_classes, of=False, optional=True)
        found |= {name: each for name, each in self.further.items() if name in seen.values}
        return found | ({"json": Json(optional=True)} if seen.json else {})

    def values(self, ref: Any) -> Mapping[str, Any]:
        """See :meth:`RowSource.values`."""
        found = dict(super().values(ref))
        raw = self.raw(found)
        if raw is None:
            return found
        columns = self._columns(self._annotation(raw, lambda: _sides(found[self.main])))
        return found | {name: value for name, value in columns.items() if name in self._names}

    def _annotation(self, raw: Any, sides: Sides) -> Annotation:
        try:
            annotation = self.parse(raw, sides)
            labels = [*(each.label for each in annotation.objects), *(point[0] for point in annotation.points)]
            _check_names((*labels, *annotation.tags))
            return annotation
        except HeaderError as error:
            raise ValueError(error.reason) from error
        except _HOSTILE as error:
            found = f"{type(error).__name__}: {printable(str(error))[:80]}"
            raise ValueError(f"its annotation is not as {self.title} has it ({found})") from error

    def _columns(self, annotation: Annotation) -> dict[str, Any]:
        objects = annotation.objects
        single = annotation.tags[0] if annotation.tags else None
        found = {
            "boxes": [each.box for each in objects],
            "labels": [each.label or NO_CLASS for each in objects],
            "segmentations": [each.segmentation for each in objects],
            "keypoints": [point[1:] for point in annotation.points],
            "keypoint_labels": [point[0] or NO_CLASS for point in annotation.points],
            "label": single,
            "tags": annotation.tags,
            "json": annotation.json,
        }
        for name in self.per_object:
            other = None if isinstance(self.further[name], Json) else -1
            found[name] = [each.values.get(name, other) for each in objects]
        return found | annotation.values

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.fields())

    @cached_property
    def _listed_classes(self) -> Mapping[str, None]:
        listed = self.class_order()
        try:
            _check_names(listed)
        except ValueError as error:
            raise SourceError(f"{self.tree.name()}: its list of classes: {error}") from None
        return dict.fromkeys(listed)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Classes of boxes and points: those that the format lists, further ones by name, and that of all others."""
        listed = self._listed_classes
        found = (*listed, *sorted(self._seen.classes - listed.keys()))
        return (*found, NO_CLASS) if found and self._seen.unlabelled and NO_CLASS not in found else found

    @cached_property
    def _tag_classes(self) -> tuple[str, ...]:
        """Classes of whole images; those that the format lists if one of them is among them."""
        listed = self._listed_classes if self._listed_classes.keys() & self._seen.tag_classes else {}
        return (*listed, *sorted(self._seen.tag_classes - listed.keys()))

    @cached_property
    def _seen(self) -> _Seen:
        seen = _Seen()
        for raw in self.raws():
            try:
                found = self._annotation(raw, lambda: (1, 1))
            except ValueError:
                continue  # a bad sample when its turn comes
            labels = [*(each.label for each in found.objects), *(point[0] for point in found.points)]
            seen.classes.update(label for label in labels if label)
            seen.tag_classes.update(found.tags)
            seen.unlabelled |= not all(labels)
            seen.boxes |= bool(found.objects)
            seen.segmentations |= any(each.segmentation is not None for each in found.objects)
            seen.points |= bool(found.points)
            seen.tags = max(seen.tags, len(found.tags))
            seen.values.update(found.values, *(each.values for each in found.objects))
            seen.json |= found.json is not None
            if max(len(seen.classes), len(seen.tag_classes)) > _MAX_CLASSES:
                raise SourceError(f"{self.tree.name()}: its annotations name more than {_MAX_CLASSES} classes")
        return seen


def _check_names(names: Iterable[Any]) -> None:
    """Raises :class:`ValueError` for a name of a class that is no text; None is none."""
    odd = [name for name in names if name is not None and not isinstance(name, str)]
    if odd:
        raise ValueError(f"found {printable(repr(odd[0])[:60])} as the name of a class")


def _sides(image: bytes) -> tuple[int, int]:
    """Width and height of the upright image. Raises :class:`HeaderError`."""
    info = sniff(image)
    turned = swaps_sides(read_orientation(image, info))
    return (info.height, info.width) if turned else (info.width, info.height)


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
        contents = contents_of(tree)
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
                start = tree.start(join(folder, name), _START) if name in there else b""
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
        """See :meth:`RowSource.splits`."""
        return in_packing_order(place.split for place in self._places)

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """See :meth:`FileRowSource.file_rows`."""
        for images, folder, own in sorted(self._places, key=lambda place: place.images):
            if own != split:
                continue
            there = frozenset(self.tree.names(folder).files) if folder is not None else frozenset()
            for image in self.tree.list(images).images:
                names = [name for name in self._annotation_names(image) if name in there]
                file = InTree(join(folder, names[0]), optional=True) if folder is not None and names else None
                yield FileRow(join(images, image), {} if file is None else {"raw": file})

    def described_by(self) -> Iterable[str]:
        """See :meth:`FileRowSource.described_by`."""
        return ()

    def raw(self, values: dict[str, Any]) -> Any:
        """See :meth:`AnnotatedSource.raw`."""
        return values.pop("raw", None)

    def raws(self) -> Iterator[Any]:
        """See :meth:`AnnotatedSource.raws`."""
        for row in chain.from_iterable(map(self.file_rows, self.splits())):
            try:
                yield read_whole(self.tree, row.values["raw"].file, _MAX_BYTES) if "raw" in row.values else b""
            except (SourceError, SampleError):
                continue

    def left_reason(self, folder: str, name: str) -> str | None:
        """See :meth:`Source.left_reason`."""
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
