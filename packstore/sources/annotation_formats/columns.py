"""Columns of annotations: of all that a set of images is annotated with, the columns, and the values of each image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Keypoints, Label, Labels
from packstore.images.decoders.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.annotation_formats.objects import NO_CLASS, Annotation, Sides

_MAX_CLASSES = 1 << 16
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


class AnnotationColumns(ABC):
    """Images with annotations of one format.

    Columns: ``boxes`` with their ``labels``, and ``segmentations`` (for each box its polygons in pixels or run lengths,
    as COCO has them, or null); ``keypoints`` with ``keypoint_labels``, single points; ``label`` of the whole image, or
    ``tags`` if one has several; further ones of the format; ``json``. A column that no annotation has is left out.

    Attributes:
        path: Where they come from.
        title: Name of the format.
        further: Declarations of its further columns.
        per_object: Those of them that have a value for each box; -1 for none, or null in JSON.
    """

    path: Path
    title: ClassVar[str]
    further: ClassVar[Mapping[str, Field]] = {}
    per_object: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def parse(self, raw: Any, sides: Sides) -> Annotation:
        """What is said of an image. May raise anything that reading ``raw`` raises where it has another shape."""

    @abstractmethod
    def raws(self) -> Iterator[Any]:
        """The annotations of all rows, those that can be read."""

    def class_order(self) -> Sequence[str]:
        """Classes that the format lists, in their order; further ones follow by name."""
        return ()

    def fields(self) -> Mapping[str, Field]:
        """Declarations of the columns, of which ``image`` is the first. Reads all annotations."""
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

    def columns_of(self, raw: Any, image: bytes) -> dict[str, Any]:
        """The values of an image by column. Raises :class:`ValueError`."""
        found = self._columns(self._annotation(raw, lambda: _sides(image)))
        return {name: value for name, value in found.items() if name in self._names}

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
            raise SourceError(f"{printable(str(self.path))}: its list of classes: {error}") from None
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
                raise SourceError(f"{printable(str(self.path))}: its annotations name more than {_MAX_CLASSES} classes")
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
