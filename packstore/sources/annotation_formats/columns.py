"""Columns of annotated images: their declarations, from all annotations of a data set, and the values of each image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.column import CROWD
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Keypoints, Label, Labels
from packstore.images.decoders.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.annotation_formats.objects import NO_CLASS, Annotation, SizeReader
from packstore.sources.schema import RELATIVE

_MAX_CLASSES = 1 << 16
_HOSTILE = (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""Errors from reading a value that lacks the structure of the format."""


@dataclass(slots=True)
class _Summary:
    """Facts about all annotations of a data set, which decide its columns.

    Attributes:
        classes: Classes of objects and points.
        tag_classes: Classes of whole images.
        unlabelled: An object or point has no class.
        boxes: An image has objects.
        segmentations: An object has polygons or a mask.
        points: An image has points.
        tags: Most tags of an image.
        crowds: An object is a crowd or a region to ignore.
        values: Names of the format's further columns with a value.
        json: An image has a value for the column ``json``.
    """

    classes: set[str] = field(default_factory=set)
    tag_classes: set[str] = field(default_factory=set)
    unlabelled: bool = False
    boxes: bool = False
    segmentations: bool = False
    points: bool = False
    tags: int = 0
    crowds: bool = False
    values: set[str] = field(default_factory=set)
    json: bool = False


class AnnotationColumns(ABC):
    """Base of annotation formats: converts the annotations of a data set to these columns.

    - ``boxes`` with their ``labels``, and ``iscrowd``: 1 for crowds and regions to ignore
    - ``segmentations``: for each box, polygons in pixels or run lengths, as in COCO, or null
    - ``keypoints`` with ``keypoint_labels``: single points
    - ``label`` of the whole image, or ``tags`` if an image has several
    - further columns of the format
    - ``json``

    All annotations are read once, to find columns and classes; damaged ones do not count. A column without any value is
    left out. Objects without a class have the class ``(none)`` if others have one.

    Attributes:
        path: Path of the data set, for messages.
        title: Name of the format.
        further_fields: Declarations of the format's further columns.
        per_object: Names of the further columns with a value for each box. A box without value has -1, in JSON null.
    """

    path: Path
    title: ClassVar[str]
    further_fields: ClassVar[Mapping[str, Field]] = {}
    per_object: ClassVar[Sequence[str]] = ()
    _listed: tuple[str, ...] = ()

    @abstractmethod
    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts the raw annotation of an image. ``read_size`` reads the image's width and height if the format needs
        them. May raise any error of reading a value that lacks the structure of the format."""

    @abstractmethod
    def raw_annotations(self) -> Iterator[Any]:
        """Yields the raw annotations of all rows; skips those that cannot be read."""

    def list_classes(self) -> Sequence[str]:
        """Returns the classes that the data set lists, in their order: here those of :meth:`add_listed_classes`."""
        return self._listed

    def add_listed_classes(self, names: Iterable[str]) -> None:
        """Appends names to the classes that :meth:`list_classes` returns."""
        self._listed = (*self._listed, *names)

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns that any annotation needs, ``image`` first. Declares ``boxes`` as well if there are no
        objects, points, tags or further values. The first call reads all annotations. Raises :class:`SourceError` if
        annotations name more than 65,536 classes, and for a listed class whose name is no text."""
        seen, classes = self._summary, self._classes
        columns: dict[str, Field] = {"image": Image()}
        if seen.boxes or not (seen.points or seen.tags or seen.values):
            columns["boxes"] = Boxes(optional=True)
            if classes:
                columns["labels"] = Labels(classes, of="boxes", optional=True)
            if seen.crowds:
                columns[CROWD] = Labels(of="boxes", optional=True)
        if seen.segmentations:
            columns["segmentations"] = Json(optional=True, shapes=True)
        if seen.points:
            columns["keypoints"] = Keypoints(2, of=False, optional=True)
            if classes:
                columns["keypoint_labels"] = Labels(classes, of=False, optional=True)
        if seen.tags == 1:
            columns["label"] = Label(self._tag_classes, optional=True)
        elif seen.tags:
            columns["tags"] = Labels(self._tag_classes, of=False, optional=True)
        columns |= {name: each for name, each in self.further_fields.items() if name in seen.values}
        return columns | ({"json": Json(optional=True)} if seen.json else {})

    def make_column_values(self, raw: Any, image: bytes) -> dict[str, Any]:
        """Converts the raw annotation of an image to values of the declared columns; drops other values. Raises
        :class:`ValueError` for an invalid annotation. Also raises it if the format needs the image's size, and that is
        unknown. Adds :data:`~packstore.sources.schema.RELATIVE` if the format needed the size."""
        sizes: list[tuple[int, int]] = []

        def read_size() -> tuple[int, int]:
            sizes.append(upright_size(image))
            return sizes[0]

        values = self._make_all_values(self._parse_checked(raw, read_size))
        return {name: value for name, value in values.items() if name in self._column_names} | {RELATIVE: bool(sizes)}

    def _parse_checked(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Parses a raw annotation. Raises :class:`ValueError` for any fault in it, such as a class whose name is no
        text."""
        try:
            annotation = self.parse_annotation(raw, read_size)
            labels = [*(each.label for each in annotation.objects), *(point[0] for point in annotation.points)]
            _check_class_names((*labels, *annotation.tags))
            return annotation
        except HeaderError as error:
            raise ValueError(error.reason) from error
        except _HOSTILE as error:
            reason = f"{type(error).__name__}: {printable(str(error))[:80]}"
            raise ValueError(f"its annotation is not in the format of {self.title} ({reason})") from error

    def _make_all_values(self, annotation: Annotation) -> dict[str, Any]:
        """Converts an annotation to values of all possible columns, declared or not. Objects and points without a class
        have :data:`NO_CLASS`. ``label`` is the first tag, or None."""
        objects = annotation.objects
        single = annotation.tags[0] if annotation.tags else None
        values = {
            "boxes": [each.box for each in objects],
            "labels": [each.label or NO_CLASS for each in objects],
            CROWD: [int(each.crowd) for each in objects],
            "segmentations": [each.segmentation for each in objects],
            "keypoints": [point[1:] for point in annotation.points],
            "keypoint_labels": [point[0] or NO_CLASS for point in annotation.points],
            "label": single,
            "tags": annotation.tags,
            "json": annotation.json,
        }
        for name in self.per_object:
            other = None if isinstance(self.further_fields[name], Json) else -1
            values[name] = [each.values.get(name, other) for each in objects]
        return values | annotation.values

    @cached_property
    def _column_names(self) -> frozenset[str]:
        """Names of the declared columns."""
        return frozenset(self.fields())

    @cached_property
    def _listed_classes(self) -> Mapping[str, None]:
        """Classes that the data set lists, in their order, as keys. Raises :class:`SourceError` if one is no text."""
        listed = self.list_classes()
        try:
            _check_class_names(listed)
        except ValueError as error:
            raise SourceError(f"{printable(str(self.path))}: its list of classes: {error}") from None
        return dict.fromkeys(listed)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Classes of boxes and points. Listed classes come first, in their order, and others follow by name.

        :data:`NO_CLASS` is the last if there are others, and some objects or points have no class.
        """
        listed = self._listed_classes
        classes = (*listed, *sorted(self._summary.classes - listed.keys()))
        return (*classes, NO_CLASS) if classes and self._summary.unlabelled and NO_CLASS not in classes else classes

    @cached_property
    def _tag_classes(self) -> tuple[str, ...]:
        """Classes of whole images, by name. If any tag is a listed class, all listed classes come first, in their
        order."""
        listed = self._listed_classes if self._listed_classes.keys() & self._summary.tag_classes else {}
        return (*listed, *sorted(self._summary.tag_classes - listed.keys()))

    @cached_property
    def _summary(self) -> _Summary:
        """Facts about all annotations. The first use reads all of them, and skips damaged ones. Raises
        :class:`SourceError` for more than 65,536 classes."""
        seen = _Summary()
        for raw in self.raw_annotations():
            try:
                annotation = self._parse_checked(raw, lambda: (1, 1))
            except ValueError:
                continue  # reported as a bad sample when it is read
            objects = annotation.objects
            labels = [*(each.label for each in objects), *(point[0] for point in annotation.points)]
            seen.classes.update(label for label in labels if label)
            seen.tag_classes.update(annotation.tags)
            seen.unlabelled |= not all(labels)
            seen.boxes |= bool(objects)
            seen.segmentations |= any(each.segmentation is not None for each in objects)
            seen.crowds |= any(each.crowd for each in objects)
            seen.points |= bool(annotation.points)
            seen.tags = max(seen.tags, len(annotation.tags))
            seen.values.update(annotation.values, *(each.values for each in objects))
            seen.json |= annotation.json is not None
            if max(len(seen.classes), len(seen.tag_classes)) > _MAX_CLASSES:
                raise SourceError(
                    f"{printable(str(self.path))}: its annotations name more than {_MAX_CLASSES:,} classes"
                )
        return seen


def _check_class_names(names: Iterable[Any]) -> None:
    """Raises :class:`ValueError` for the first name of a class that is neither a text nor None."""
    odd = [name for name in names if name is not None and not isinstance(name, str)]
    if odd:
        raise ValueError(f"found {printable(repr(odd[0])[:60])} as the name of a class, expected a text")
