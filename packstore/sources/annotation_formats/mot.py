"""MOTChallenge (https://motchallenge.net): sequences of frames in ``img1`` with ``gt/gt.txt``, a line for each object.

A line is frame, track, left, top, width, height, and then confidence, class, visibility or more; all are in ``json``.
Coordinates count from 1 in the files, and from 0 in ``boxes``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from packstore.core.fields import Array, Field
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    object_from_box,
    split_lines,
    to_floats,
)
from packstore.sources.beside import is_file, join, read_text
from packstore.sources.listing import IMAGE_SUFFIXES

_CLASSES = (
    *("pedestrian", "person on vehicle", "car", "bicycle", "motorbike", "non motorized vehicle", "static person"),
    *("distractor", "occluder", "occluder on the ground", "occluder full", "reflection"),
)
"""Classes of MOT16, MOT17 and MOT20, from 1 on."""
_WORDS = (6, 10)


class MotSource(DocumentSource):
    """Source of frames of sequences. ``track`` is the number of the track of each box. Coordinates count from 0, not
    from 1 as in the files.

    A frame without lines has 0 boxes. Lines of a frame without image are left out, and the frame is counted.
    """

    kind = "mot"
    title = "MOTChallenge"
    name_pattern = re.compile(r"gt\.txt")
    signature = re.compile(rb"^\s*\d+,\s*-?\d+(,\s*-?\d+(\.\d+)?){4,8}\s*(\r?\n|$)")
    max_depth = 4
    further_fields: ClassVar[Mapping[str, Field]] = {"track": Array("int64", ragged=True, optional=True)}
    per_object = ("track",)
    parse_document = staticmethod(split_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image of the sequence. Its raw annotation has ``lines``, the numbers of its frame,
        and ``classes``, the names in ``labels.txt``, or None without that file.

        Counts frames without an image as left out. Raises :class:`ValueError` for a line that does not have 6 to 10
        numbers, or whose frame is no whole number. Also raises as :func:`take_frames` does.
        """
        sequence = file.rpartition("/")[0].rpartition("/")[0]
        listed = join(file.rpartition("/")[0], "labels.txt")
        names = self._read_class_names(listed) if is_file(self.tree, listed) else None
        frames: dict[int, list[list[float]]] = {}
        for number, line in enumerate(document, 1):
            if line.strip():
                values = to_floats(line.split(","))
                if not _WORDS[0] <= len(values) <= _WORDS[1]:
                    raise ValueError(f"line {number} has {len(values)} numbers, expected 6 to 10")
                if not values[0].is_integer():
                    raise ValueError(f"line {number} begins with {values[0]:g}, expected the number of a frame")
                frames.setdefault(int(values[0]), []).append(values)
        images = self.tree.names(join(sequence, "img1")).ending(*IMAGE_SUFFIXES)
        for image, lines in take_frames(images, frames):
            yield AnnotationEntry(f"img1/{image}", {"lines": lines, "classes": names})
        if frames:
            self.ignored["frames of a video without an image"] += len(frames)

    def _read_class_names(self, file: str) -> list[str]:
        """Reads the lines of ``labels.txt`` that are not blank."""
        lines = read_text(self.tree, file).decode().split("\n")
        return [line.strip() for line in lines if line.strip()]

    def list_classes(self) -> Sequence[str]:
        """Returns the classes in the first ``labels.txt``. Without such a file, returns MOT16's classes if these and no
        others occur, else ``()``."""
        listed = next((raw["classes"] for raw in self.raw_annotations() if raw["classes"]), None)
        return listed or (_CLASSES if self._summary.classes and self._summary.classes <= set(_CLASSES) else ())

    def describing_files(self) -> Sequence[str]:
        """Returns the files of annotations, and ``labels.txt`` and ``seqinfo.ini`` of each sequence that has them."""
        files = [*self._files]
        for file in self._files:
            folder = file.rpartition("/")[0]
            files += [join(folder, "labels.txt"), join(folder.rpartition("/")[0], "seqinfo.ini")]
        return [file for file in files if is_file(self.tree, file)]

    def expects_left(self, path: str) -> bool:
        """Tells if a left file has detections (``det/det.txt``) of a sequence whose annotations are packed: such files
        raise no question."""
        sequence, _, name = path.rpartition("/det/")
        return name.startswith("det") and join(sequence, "gt/gt.txt") in self._files

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object with its track; coordinates count from 0. An object has no class if its line
        has no class number, or the number has no name. The confidence 0 marks an object to ignore. ``json`` has the
        numbers of all lines."""
        annotation = Annotation(json=raw["lines"])
        for values in raw["lines"]:
            left, top, right, bottom = box_from_corner(*values[2:6])
            number = int(values[7]) if len(values) > 7 else -1
            names = raw["classes"] or _CLASSES
            label = names[number - 1] if 0 < number <= len(names) else None
            box = [left - 1, top - 1, right - 1, bottom - 1]
            ignored = len(values) > 6 and not values[6]
            annotation.objects.append(object_from_box(label, box, crowd=ignored, track=int(values[1])))
        return annotation


def take_frames(images: Sequence[str], frames: dict[int, list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yields each image of a sequence with the lines of its frame, or ``[]``. An image is named by the number of its
    frame: ``000001.jpg``. Removes these frames from ``frames``.

    Raises :class:`ValueError` if there are images and frames, but no frame has an image. Also raises it if a frame has
    two images, such as ``1.jpg`` and ``000001.jpg``.
    """
    stems = [image.rpartition(".")[0] for image in images]
    numbers = [int(stem) if stem.isdecimal() and len(stem) < 12 else -1 for stem in stems]
    if images and frames and not any(number in frames for number in numbers):
        raise ValueError(f"no image is named by the number of a frame ({min(frames):06}.jpg); the first is {images[0]}")
    twice = next((number for number, count in Counter(numbers).items() if count > 1 and number in frames), None)
    if twice is not None:
        raise ValueError(f"two images are named by the number of frame {twice}: remove one")
    for image, number in zip(images, numbers, strict=True):
        yield image, frames.pop(number, [])


KIND = make_document_kind(MotSource, "MOTChallenge: sequences with img1 and gt/gt.txt")
