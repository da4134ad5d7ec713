"""Create ML (https://developer.apple.com/documentation/createml): a JSON list of images with boxes, given by centre and
size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_centre,
    nonempty_text,
    object_from_box,
)


class CreateMLSource(DocumentSource):
    """Source of images with boxes in Create ML's lists, one for each split."""

    kind = "createml"
    title = "Create ML"
    signature = re.compile(
        rb'^\s*\[\s*\{(?=[^]]*"(image|imagefilename)"\s*:\s*")[^[]*"annotations?"\s*:\s*'
        rb'\[\s*(\]|\{\s*("(label|coordinates)"\s*:))'
    )

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image of the list."""
        for image in document:
            yield AnnotationEntry(image.get("image", image.get("imagefilename")), image)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each annotation to an object with a box. An empty label gives no class. ``json`` has the entry of
        the image."""
        annotation = Annotation(json=raw)
        for each in raw.get("annotations", raw.get("annotation")):
            box = box_from_centre(*(each["coordinates"][name] for name in ("x", "y", "width", "height")))
            annotation.objects.append(object_from_box(nonempty_text(each["label"]), box))
        return annotation


KIND = make_document_kind(CreateMLSource, "Create ML: _annotations.createml.json beside the images")
