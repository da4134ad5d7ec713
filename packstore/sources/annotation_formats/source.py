"""An annotation format, and the source that converts its annotations to columns."""

from __future__ import annotations

import csv
import posixpath
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packstore.core.columns import CROWD
from packstore.core.errors import AmbiguousSourceError, SampleError, SourceError, printable
from packstore.core.fields import Array, Boxes, Field, Image, Json, Keypoints, Label, Labels, Segments, Text
from packstore.images.orientation import upright_size
from packstore.images.sniff import HeaderError
from packstore.sources.annotation_formats.parsing import check_class_names, parse_json
from packstore.sources.annotation_formats.shapes import AnnotatedObject, Part, Parts, Picture, Point, Tag, Value
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.beside import infer_mask_field, is_file, join, read_text
from packstore.sources.contents import stem_of
from packstore.sources.encodings import convert_start
from packstore.sources.rows import FileRow, FileRowSource, InTree
from packstore.sources.schema import RELATIVE
from packstore.sources.tree import Tree

_MAX_CLASSES = 1 << 16
# Columns with a value for each box. A box without a value has -1, in JSON null.
_PER_OBJECT: Mapping[str, Field] = {
    "difficult": Labels(of="boxes", optional=True),
    "texts": Json(optional=True),
    "track": Array("int64", ragged=True, optional=True),
}
# Further columns with a value for each image.
_PER_IMAGE: Mapping[str, Field] = {
    "text": Text(optional=True),
    "entities": Json(optional=True),
    "id": Text(optional=True),
    **dict.fromkeys(("conversations", "messages", "json"), Json(optional=True)),
}
# Numbers of objects without a value.
_MISSING = {CROWD: 0, "difficult": -1, "track": -1}
# Errors from reading a value that lacks the structure of the format.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error, csv.Error)


_START, _MAX_BYTES = 1 << 16, 256 << 20
NO_CLASS = "(none)"
"""Class of objects without a class, in a dataset in which other objects have one."""

# Yields what one annotation of a format has. May raise any error of reading a value that lacks its structure.
ReadParts = Callable[[Any, Picture], Parts]


class FurtherFile(NamedTuple):
    """File of an image that is the value of another column.

    Attributes:
        column: Name of the column.
        patterns: Possible paths of the file, relative to the folder of the image, with ``{stem}`` of the image. A
            dataset has files of the first pattern that any image has.
        field: Declaration of the column; None for an image or a mask, as the files are.
        parse: Converts the content of the file; None to keep it.
    """

    column: str
    patterns: Sequence[str]
    field: Field | None = None
    parse: Callable[[bytes], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
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
        takes_boxes: The format uses a ``layout`` of boxes.
    """

    kind: str
    help: str
    signature: bytes
    read_parts: ReadParts
    parse: Callable[[bytes], Any] = parse_json
    classes: Sequence[str] = ()
    files: Sequence[FurtherFile] = ()
    upright: str = ""
    takes_boxes: bool = False

    @abstractmethod
    def find(self, tree: Tree) -> Sequence[Any]:
        """Finds the folders or files with annotations of this format; ``[]`` if there are none."""

    @property
    def extensions(self) -> frozenset[str]:
        """Extensions that mark annotations beside an image of the same name."""
        return frozenset()

    @property
    def title(self) -> str:
        """Name of the format, for messages."""
        return self.help.partition(":")[0]

    def begins(self, tree: Tree, file: str) -> bool | None:
        """Tells if a file of ``tree`` begins as one of this format; None for an empty file."""
        start = convert_start(tree.first_bytes(file, _START))
        return re.search(self.signature, start) is not None if start.strip() else None


def make_kind(format: Format, source: Callable[[Path, SourceOptions, Any], AnnotatedSource]) -> Kind:
    """Makes the kind of a format, certain of each tree in which the format finds something."""

    def recognise(path: Path, _: SourceOptions) -> Certainty:
        tree = open_tree(path)
        return Certainty.CERTAIN if tree is not None and format.find(tree) else Certainty.NO

    return Kind(
        *(format.kind, format.help, recognise, lambda path, options: source(path, options, format)),
        takes_boxes=format.takes_boxes,
        in_objects=True,
        sidecar_extensions=format.extensions,
    )


def make_decorator(
    form: Callable[..., Format], source: Callable[[Path, SourceOptions, Any], AnnotatedSource], **options: Any
) -> Callable[[ReadParts], Kind]:
    """Returns a decorator that makes the kind of a format from its generator: ``form`` with ``options``, read by
    ``source``, under the generator's name.
    """
    return lambda read_parts: make_kind(form(read_parts=read_parts, **{"kind": read_parts.__name__, **options}), source)


class AnnotatedSource(FileRowSource):
    """Base of annotation formats whose images are files: converts the raw annotation of each row to these columns.

    - ``boxes`` with their ``labels``, and ``iscrowd``: 1 for crowds and regions to ignore
    - ``segments``: for each box, polygons in pixels or run lengths, or None
    - ``keypoints`` with ``keypoint_labels``: single points
    - ``label`` of the whole image, or ``tags`` if an image has several
    - further columns of the format
    - ``json``: the content of the file about the image, unchanged

    All annotations are read once, to find columns and classes; damaged ones do not count. A column without any value is
    left out. Objects without a class have the class ``(none)`` if others have one.

    Attributes:
        format: The format.
        listed: Classes that the dataset lists, in their order.
        expected: Beginnings of paths of further files that belong to the layout, and are left without a question.
        raw: Name of the value of a row with its annotation.
    """

    raw: ClassVar[str] = "raw"
    left_images = "images without annotations in other folders"

    def __init__(self, path: Path, options: SourceOptions, format: Format) -> None:
        super().__init__(path, options)
        self.format, self.kind = format, format.kind
        self.listed: Sequence[str] = ()
        self.expected: list[str] = []

    @abstractmethod
    def list_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split with their annotations, and without the format's further files."""

    def load_annotation(self, value: Any) -> tuple[Any, Mapping[Any, str]]:
        """Returns what the file has about an image, and the names of classes by number. The former is JSON, or the
        bytes of the image's own file. ``value`` is the value :attr:`raw` of its row; in this base, the content of
        its own file.
        """
        return value, {}

    def annotation_frame(self, kind: str) -> str | None:
        """Returns ``upright`` for the kind of image files that the format's tools turn, else None."""
        return "upright" if kind == self.format.upright else None

    def expects_left(self, path: str) -> bool:
        """Tells if a left file is one of :attr:`expected`: such files raise no question."""
        return path.startswith(tuple(self.expected))

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns that some annotation needs, ``image`` first, then those of further files. Adds
        ``boxes`` if there would be no column but ``json``. The first call reads all annotations. Raises
        :class:`SourceError` if annotations name more than 65,536 classes.
        """
        seen, classes = self._summary[0], self._classes
        seen = seen | {"boxes"} if seen == {"json"} else seen
        labels = {"labels": "boxes", "keypoint_labels": "keypoints"}
        seen = seen - labels.keys() | {name for name, of in labels.items() if classes and of in seen}
        seen = seen - {"label"} if "tags" in seen else seen
        columns: dict[str, Field] = {
            "boxes": Boxes(optional=True),
            "labels": Labels(classes, of="boxes", optional=True),
            CROWD: Labels(of="boxes", optional=True),
            "segments": Segments(of="boxes", optional=True),
            "keypoints": Keypoints(2, of=False, optional=True),
            "keypoint_labels": Labels(classes, of=False, optional=True),
            "label": Label(self._tag_classes, optional=True),
            "tags": Labels(self._tag_classes, of=False, optional=True),
            **_PER_OBJECT,
            **_PER_IMAGE,
        }
        columns = {"image": Image(), **{name: each for name, each in columns.items() if name in seen}}
        for name, _, declared, _ in self.format.files:
            if name in self._patterns:
                rows = chain.from_iterable(map(self.file_rows, self.splits()))
                columns[name] = declared or infer_mask_field(self.tree, (row.values[name].file for row in rows))
        return columns

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, with the format's further files of each image."""
        for row in self.list_rows(split):
            files = {name: InTree(_find_beside(row.file, each), True) for name, each in self._patterns.items()}
            yield row._replace(values={**row.values, **files}) if files else row

    @cached_property
    def _patterns(self) -> dict[str, str]:
        """Patterns of the further files, by column: the first of each that any image has."""
        found: dict[str, str] = {}
        for column, patterns, _, _ in self.format.files:
            for pattern in patterns:
                rows = chain.from_iterable(map(self.list_rows, self.splits()))
                if column not in found and any(is_file(self.tree, _find_beside(row.file, pattern)) for row in rows):
                    found[column] = pattern
        return found

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its further files, and converts its annotation to the declared columns. Raises
        :class:`ValueError` for an invalid annotation or further file, and if the format needs the image's size, and
        that is unknown. Adds :data:`~packstore.sources.schema.RELATIVE` if the format needed the size."""
        values = dict(super().read_values(ref))
        item, classes = self.load_annotation(values.pop(self.raw, None))
        for column, _, _, parse in self.format.files:
            if parse is not None and values.get(column) is not None:
                values[column] = parse(values[column])
        if item is None:
            return values
        picture = Picture(lambda: upright_size(values[self.main]), classes)
        with self.name_annotation_file(ref):
            columns = self.parse_columns(item, picture)
        for name, missing in _MISSING.items():
            columns[name] = [missing if each is None else each for each in columns[name]]
        columns[RELATIVE] = picture.is_sized
        return values | {name: value for name, value in columns.items() if name in self._column_names}

    def parse_columns(self, item: Any, picture: Picture) -> dict[str, Any]:
        """Parses an annotation to values by column. A missing value of an object is None. Raises :class:`ValueError`
        for any fault in it, such as a class whose name is no text."""
        try:
            content = self.format.parse(item) if isinstance(item, bytes) else item
            return {"json": content, **_to_columns([*self.format.read_parts(content, picture)])}
        except HeaderError as error:
            raise ValueError(error.reason) from error
        except ValueError:
            raise
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {printable(str(error))[:80]}"
            raise ValueError(f"its annotation is not in the format of {self.format.title} ({reason})") from error

    @cached_property
    def _column_names(self) -> frozenset[str]:
        """Names of the values to keep: those of declared columns, and :data:`RELATIVE`."""
        return frozenset((*self.fields(), RELATIVE))

    @cached_property
    def listed_classes(self) -> Mapping[str, None]:
        """Classes that the dataset or its publisher lists, in their order, as keys."""
        seen, usual = self._summary[1] - {NO_CLASS}, self.format.classes
        return dict.fromkeys(self.listed or (usual if seen and seen <= {*usual} else ()))

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Classes of boxes and points: listed ones in their order, then others sorted, :data:`NO_CLASS` last."""
        listed, seen = self.listed_classes, self._summary[1]
        further = seen - listed.keys() - {NO_CLASS}
        # Numbers sort by value: 2 before 10.
        are_numbers = all(map(str.isdecimal, further))
        classes = (*listed, *sorted(further, key=lambda name: (len(name) if are_numbers else 0, name)))
        return (*classes, NO_CLASS) if classes and NO_CLASS in seen and NO_CLASS not in classes else classes

    @cached_property
    def _tag_classes(self) -> tuple[str, ...]:
        """Classes of whole images, by name."""
        tags = self._summary[2]
        # If any tag is a listed class, all listed ones come first.
        listed = self.listed_classes if self.listed_classes.keys() & tags else {}
        return (*listed, *sorted(tags - listed.keys()))

    @cached_property
    def _summary(self) -> tuple[set[str], set[str], set[str]]:
        """Names of columns with a value, classes of objects and points, and classes of whole images."""
        columns, classes, tag_classes = set[str](), set[str](), set[str]()
        for item, names in self._load_all():
            try:
                values = self.parse_columns(item, Picture(lambda: (1, 1), names))
            except ValueError:
                continue  # reported as a bad sample when it is read
            classes.update(values["labels"], values["keypoint_labels"])
            tag_classes.update(values["tags"])
            values["tags"] = values["tags"][1:]  # one tag is a label
            columns.update(name for name, value in values.items() if _has_value(value))
            if max(len(classes), len(tag_classes)) > _MAX_CLASSES:
                raise SourceError(f"{self.tree.name()}: its annotations name more than {_MAX_CLASSES:,} classes")
        return columns, classes, tag_classes

    def _load_all(self) -> Iterator[tuple[Any, Mapping[Any, str]]]:
        """Yields the annotations of all rows with their classes; skips files that cannot be read."""
        for row in chain.from_iterable(map(self.list_rows, self.splits())):
            value = row.values.get(self.raw)
            try:
                value = read_text(self.tree, value.file, _MAX_BYTES) if isinstance(value, InTree) else value
                item, classes = self.load_annotation(value)
            # Only the user can settle an unknown encoding.
            except AmbiguousSourceError:
                raise
            except (SourceError, SampleError):
                continue  # reported as a bad sample when it is read
            if item is not None:
                yield item, classes


def _to_columns(parts: Sequence[Part]) -> dict[str, Any]:
    """Converts what a generator yields to values by column."""
    objects = [each for each in parts if isinstance(each, AnnotatedObject)]
    points = [each for each in parts if isinstance(each, Point)]
    tags = [each.name for each in parts if isinstance(each, Tag)]
    check_class_names([*(each.label for each in objects), *(point.label for point in points), *tags])
    return {
        "boxes": [each.box for each in objects],
        "labels": [each.label or NO_CLASS for each in objects],
        CROWD: [int(bool(each.values.get("crowd"))) or None for each in objects],
        "segments": [each.segmentation for each in objects],
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


def _find_beside(image: str, pattern: str) -> str:
    """Returns the path of a further file of an image by its pattern."""
    folder, _, name = image.rpartition("/")
    return posixpath.normpath(join(folder, pattern.format(stem=stem_of(name))))
