"""WIDER FACE (http://shuoyang1213.me/WIDERFACE): ``wider_face_split/wider_face_train_bbx_gt.txt`` with ``WIDER_train``.

A face is left, top, width, height, and six numbers (blur, expression, illumination, invalid, occlusion, pose), which
are in ``json``. For an image without faces, the file has a line of zeros, which is skipped. Images of the test set have
no annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    object_from_box,
    split_lines,
    to_floats,
)
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over


class WiderFaceSource(DocumentSource):
    """Source of images of WIDER FACE by split. ``label`` is the event that an image shows: the name of its folder.
    Faces have no class.

    Images of the test set have no annotations. Without the folder ``WIDER_test``, they are left out.
    """

    kind = "widerface"
    title = "WIDER FACE"
    expected = re.compile(r"(.*/)?wider_face_(train|val|test)\.mat")
    name_pattern = re.compile(r"wider_face_((train|val)_bbx_gt|test_filelist)\.txt")
    signature = re.compile(rb"^\S[^\n]*/[^\n]+\.\w+\s*(\n\s*\d+\s*\n|\n\S[^\n]*/|$)")
    parse_document = staticmethod(split_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image with its faces; an image of the test set has no annotation. Without the folder
        ``WIDER_test``, counts the images of the test set as left out. Raises :class:`ValueError` for a line out of
        place."""
        split = next(each for each in ("train", "val", "test") if f"_{each}_" in file)
        if split == "test":
            names = [line.strip() for line in document if line.strip()]
            if any(place.rpartition("/")[2] == "WIDER_test" for place, _ in self.tree.folders(is_passed_over)):
                yield from (AnnotationEntry(f"WIDER_test/images/{name}", None, split) for name in names)
            else:
                self.ignored["images of the test set, which is not here"] += len(names)
            return
        lines = iter(enumerate(document, 1))
        for number, line in lines:
            if not line.strip():
                continue
            name = line.strip()
            if not name.lower().endswith(IMAGE_SUFFIXES):
                raise ValueError(f"line {number} is {line[:60]!r}; expected the name of an image")
            count = int(next(lines, (0, "none"))[1])
            faces = [to_floats(next(lines, (0, "no line"))[1].split()) for _ in range(max(1, count))]
            if any(len(face) < 4 for face in faces) or (not count and any(faces[0])):
                raise ValueError(f"{name!r:.80}, line {number}: expected as many faces below it as it says")
            yield AnnotationEntry(
                f"WIDER_{split}/images/{name}", {"event": name.split("/")[0], "faces": faces[:count]}, split
            )

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each face to an object without a class, and the event to a tag. An invalid face is one to ignore.
        ``json`` has the numbers of all faces."""
        objects = [object_from_box(None, box_from_corner(*face[:4]), crowd=any(face[7:8])) for face in raw["faces"]]
        return Annotation(objects, tags=[raw["event"]], json=raw["faces"])


KIND = make_document_kind(WiderFaceSource, "WIDER FACE: wider_face_split with WIDER_train and WIDER_val")
