"""Lists with an image and its boxes on each line: ``a.jpg 12,34,56,78,0 …``, as in keras-yolo3 and Roboflow's exports.

A box is left, top, right, bottom and the number of its class. The lines of ``_classes.txt`` or ``classes.txt``, beside
the lists or one level above, name the classes; without such a file, the numbers are the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import Annotation, SizeReader, object_from_box, split_lines, to_floats
from packstore.sources.beside import is_file, join, read_lines
from packstore.sources.listing import IMAGE_SUFFIXES

_SUFFIXES = "|".join(map(re.escape, IMAGE_SUFFIXES))
_LINE = re.compile(rf"(.+?(?:{_SUFFIXES}))((?:\s+[-\d.,e]+)*)\s*", re.I)
_CLASSES = ("_classes.txt", "classes.txt")


class LineBoxesSource(DocumentSource):
    """Source of images with boxes in lists, one for each split. An image without boxes has 0 boxes. Without a file of
    class names, the numbers of classes are their names."""

    kind = "line_boxes"
    title = "keras-yolo3"
    name_pattern = re.compile(r".*\.txt", re.I)
    signature = re.compile(
        rf"^[^\n]+?(?:{_SUFFIXES})(?:[ \t]+-?[\d.]+(?:,-?[\d.]+){{3}},\d+)+[ \t]*\r?$".encode(), re.I | re.M
    )
    parse_document = staticmethod(split_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each line that is not blank. Raises :class:`ValueError` for a line without an image, and
        for a box that does not have 5 numbers."""
        names = self._read_class_names(file)
        for number, line in enumerate(document, 1):
            match = _LINE.fullmatch(line.strip())
            boxes = [to_floats(box.split(","), 5) for box in match[2].split()] if match else []
            if line.strip() and match is None:
                raise ValueError(f"line {number} is {line[:60]!r}; expected an image and boxes x1,y1,x2,y2,class")
            if match is not None:
                yield AnnotationEntry(
                    match[1], {"boxes": boxes, "labels": [_class_name(names, box[4]) for box in boxes]}
                )

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each box of the line to an object with its class; ``json`` has the numbers of all boxes."""
        boxes = zip(raw["labels"], raw["boxes"], strict=True)
        return Annotation([object_from_box(label, box[:4]) for label, box in boxes], json=raw["boxes"])

    def list_classes(self) -> Sequence[str]:
        """Returns the classes in the files of names. Without such files, returns all numbers of classes, in order."""
        named = [name for file in self._files for name in self._read_class_names(file)]
        numbers = {number for raw in self.raw_annotations() for *_, number in raw["boxes"]}
        return list(dict.fromkeys([*named, *(f"{number:g}" for number in sorted(numbers) if not named)]))

    def describing_files(self) -> Iterable[str]:
        """Returns the lists, and the files of class names, each once."""
        return dict.fromkeys([*self._files, *filter(None, map(self._find_class_file, self._files))])

    def _read_class_names(self, file: str) -> list[str]:
        """Reads the names of the classes of a list; ``[]`` without a file of names."""
        path = self._find_class_file(file)
        return [] if path is None else [line for _, line in read_lines(self.tree, path)]

    def _find_class_file(self, file: str) -> str | None:
        """Finds the file of class names in the folder of a list, or one level above; None if there is none."""
        folder = file.rpartition("/")[0]
        places = (
            join(place, name) for place in dict.fromkeys((folder, folder.rpartition("/")[0])) for name in _CLASSES
        )
        return next((path for path in places if is_file(self.tree, path)), None)


def _class_name(names: Sequence[str], number: float) -> str:
    """Returns the name of a class. If the class has no name, returns its number as text."""
    return names[int(number)] if number.is_integer() and 0 <= number < len(names) else f"{number:g}"


KIND = make_document_kind(LineBoxesSource, "keras-yolo3: lists of lines with an image and its boxes")
