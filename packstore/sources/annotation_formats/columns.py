"""Columns of annotated images: their declarations, from all annotations of a dataset, and the values of each image."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packstore.core.column import CROWD
from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels, Text
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.annotation_formats.shapes import (
    NO_CLASS,
    AnnotatedObject,
    Part,
    Parts,
    Picture,
    Point,
    Tag,
    Value,
)
from packstore.sources.schema import RELATIVE

_MAX_CLASSES = 1 << 16
_PER_OBJECT: Mapping[str, Field] = {
    "difficult": Labels(of="boxes", optional=True),
    "texts": Json(optional=True),
    "track": Array("int64", ragged=True, optional=True),
}
"""Columns with a value for each box. A box without a value has -1, in JSON null."""
_PER_IMAGE: Mapping[str, Field] = {
    "text": Text(optional=True),
    "entities": Json(optional=True),
    "id": Text(optional=True),
    "conversations": Json(optional=True),
    "messages": Json(optional=True),
    "json": Json(optional=True),
}
"""Further columns with a value for each image."""
_MISSING = {CROWD: 0, "difficult": -1, "track": -1}
"""Numbers of objects without a value."""
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error)
"""Errors from reading a value that lacks the structure of the format."""


class Raw(NamedTuple):
    """Annotation of an image before it is parsed.

    Attributes:
        item: What the file has about the image: JSON, or the bytes of its own file.
        classes: Names of classes by number, as the file lists them.
    """

    item: Any
    classes: Mapping[Any, str] = {}


class _Summary(NamedTuple):
    """Facts about all annotations of a dataset, which decide its columns.

    Attributes:
        columns: Names of the columns with a value.
        classes: Classes of objects and points.
        tag_classes: Classes of whole images.
    """

    columns: set[str]
    classes: set[str]
    tag_classes: set[str]


class AnnotationColumns(ABC):
    """Base of annotation formats: converts the annotations of a dataset to these columns.

    - ``boxes`` with their ``labels``, and ``iscrowd``: 1 for crowds and regions to ignore
    - ``segmentations``: for each box, polygons in pixels or run lengths, as in COCO, or null
    - ``keypoints`` with ``keypoint_labels``: single points
    - ``label`` of the whole image, or ``tags`` if an image has several
    - further columns of the format
    - ``json``: the content of the file about the image, unchanged

    All annotations are read once, to find columns and classes; damaged ones do not count. A column without any value is
    left out. Objects without a class have the class ``(none)`` if others have one.

    Attributes:
        path: Path of the dataset, for messages.
        title: Name of the format.
        listed: Classes that the dataset lists, in their order.
        usual: Classes in the publisher's order, if the dataset lists none and has no others.
    """

    path: Path
    title: str
    listed: Sequence[str] = ()
    usual: Sequence[str] = ()

    @abstractmethod
    def parse_parts(self, item: Any, picture: Picture) -> tuple[Any, Parts]:
        """Returns the value of the column ``json`` for an annotation, and its parts. May raise any error of reading a
        value that lacks the structure of the format."""

    @abstractmethod
    def raw_annotations(self) -> Iterator[Raw]:
        """Yields the raw annotations of all rows; skips those that cannot be read."""

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns that any annotation needs, ``image`` first. Declares ``boxes`` as well if there is no
        other column but ``json``. The first call reads all annotations. Raises :class:`SourceError` if annotations name
        more than 65,536 classes."""
        seen, classes = set(self._summary.columns), self._classes
        if not seen - {"json"}:
            seen.add("boxes")
        labels = {"labels": "boxes", "keypoint_labels": "keypoints"}
        seen = seen - labels.keys() | {name for name, of in labels.items() if classes and of in seen}
        seen -= {"label"} if "tags" in seen else set()
        columns: dict[str, Field] = {
            "boxes": Boxes(optional=True),
            "labels": Labels(classes, of="boxes", optional=True),
            CROWD: Labels(of="boxes", optional=True),
            "segmentations": Json(optional=True, shapes=True),
            "keypoints": Keypoints(2, of=False, optional=True),
            "keypoint_labels": Labels(classes, of=False, optional=True),
            "label": Label(self._tag_classes, optional=True),
            "tags": Labels(self._tag_classes, of=False, optional=True),
            **_PER_OBJECT,
            **_PER_IMAGE,
        }
        return {"image": Image(), **{name: each for name, each in columns.items() if name in seen}}

    def make_column_values(self, raw: Raw, image: bytes) -> dict[str, Any]:
        """Converts the raw annotation of an image to values of the declared columns; drops other values. Raises
        :class:`ValueError` for an invalid annotation. Also raises it if the format needs the image's size, and that is
        unknown. Adds :data:`~packstore.sources.schema.RELATIVE` if the format needed the size."""
        picture = Picture(lambda: upright_size(image), raw.classes)
        values = self.parse_columns(raw.item, picture)
        for name, missing in _MISSING.items():
            values[name] = [missing if each is None else each for each in values[name]]
        values[RELATIVE] = picture.is_sized
        return {name: value for name, value in values.items() if name in self._column_names}

    def parse_columns(self, item: Any, picture: Picture) -> dict[str, Any]:
        """Parses an annotation to values by column. A missing value of an object is None. Raises :class:`ValueError`
        for any fault in it, such as a class whose name is no text."""
        try:
            json, parts = self.parse_parts(item, picture)
            return {"json": json, **_to_columns([*parts])}
        except HeaderError as error:
            raise ValueError(error.reason) from error
        except ValueError:
            raise
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {printable(str(error))[:80]}"
            raise ValueError(f"its annotation is not in the format of {self.title} ({reason})") from error

    @cached_property
    def _column_names(self) -> frozenset[str]:
        """Names of the values to keep: those of declared columns, and :data:`RELATIVE`."""
        return frozenset((*self.fields(), RELATIVE))

    @cached_property
    def listed_classes(self) -> Mapping[str, None]:
        """Classes that the dataset or its publisher lists, in their order, as keys."""
        seen = self._summary.classes - {NO_CLASS}
        return dict.fromkeys(self.listed or (self.usual if seen and seen <= {*self.usual} else ()))

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Classes of boxes and points. Listed classes come first, in their order, and others follow sorted; numbers by
        their values. :data:`NO_CLASS` is the last if there are others, and some objects or points have no class."""
        listed, seen = self.listed_classes, self._summary.classes
        further = seen - listed.keys() - {NO_CLASS}
        are_numbers = all(map(str.isdecimal, further))
        classes = (*listed, *sorted(further, key=lambda name: (len(name) if are_numbers else 0, name)))
        return (*classes, NO_CLASS) if classes and NO_CLASS in seen and NO_CLASS not in classes else classes

    @cached_property
    def _tag_classes(self) -> tuple[str, ...]:
        """Classes of whole images, by name. If any tag is a listed class, all listed classes come first, in their
        order."""
        listed = self.listed_classes if self.listed_classes.keys() & self._summary.tag_classes else {}
        return (*listed, *sorted(self._summary.tag_classes - listed.keys()))

    @cached_property
    def _summary(self) -> _Summary:
        """Facts about all annotations. The first use reads all of them, and skips damaged ones. Raises
        :class:`SourceError` for more than 65,536 classes."""
        seen = _Summary(set(), set(), set())
        for raw in self.raw_annotations():
            try:
                values = self.parse_columns(raw.item, Picture(lambda: (1, 1), raw.classes))
            except ValueError:
                continue  # reported as a bad sample when it is read
            seen.classes.update(values["labels"], values["keypoint_labels"])
            seen.tag_classes.update(values["tags"])
            values["tags"] = values["tags"][1:]  # one tag is a label
            seen.columns.update(name for name, value in values.items() if _has_value(value))
            if max(len(seen.classes), len(seen.tag_classes)) > _MAX_CLASSES:
                raise SourceError(
                    f"{printable(str(self.path))}: its annotations name more than {_MAX_CLASSES:,} classes"
                )
        return seen


def _to_columns(parts: Sequence[Part]) -> dict[str, Any]:
    """Converts what a generator yields to values by column. Raises :class:`ValueError` for a class whose name is no
    text."""
    objects = [each for each in parts if isinstance(each, AnnotatedObject)]
    points = [each for each in parts if isinstance(each, Point)]
    tags = [each.name for each in parts if isinstance(each, Tag)]
    check_class_names([*(each.label for each in objects), *(point.label for point in points), *tags])
    return {
        "boxes": [each.box for each in objects],
        "labels": [each.label or NO_CLASS for each in objects],
        CROWD: [int(each.crowd) or None for each in objects],
        "segmentations": [each.segmentation for each in objects],
        "keypoints": [(point.x, point.y) for point in points],
        "keypoint_labels": [point.label or NO_CLASS for point in points],
        "label": tags[0] if tags else None,
        "tags": tags,
        **{name: [each.values.get(name) for each in objects] for name in _PER_OBJECT},
        **{each.column: each.value for each in parts if isinstance(each, Value)},
    }


def _has_value(value: Any) -> bool:
    """Tells if a column has a value for an image, or for one of its objects."""
    return any(each is not None for each in value) if isinstance(value, list) else value is not None


def check_class_names(names: Iterable[Any]) -> None:
    """Raises :class:`ValueError` for the first name of a class that is neither a text nor None."""
    odd = next((name for name in names if name is not None and not isinstance(name, str)), None)
    if odd is not None:
        raise ValueError(f"found {printable(repr(odd)[:60])} as the name of a class, expected a text")
