"""Create ML (https://developer.apple.com/documentation/createml): a JSON list of images with boxes by their centres."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import Annotation, Sides, from_centre, of_box, text_or_none


class CreateMLSource(DocumentSource):
    """Images that the lists of Create ML name, one list for each split."""

    kind = "createml"
    title = "Create ML"
    signature = re.compile(
        rb'^\s*\[\s*\{(?=[^]]*"(image|imagefilename)"\s*:\s*")[^[]*"annotations?"\s*:\s*'
        rb'\[\s*(\]|\{\s*("(label|coordinates)"\s*:))'
    )

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for image in document:
            yield Entry(image.get("image", image.get("imagefilename")), image)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for each in raw.get("annotations", raw.get("annotation")):
            box = from_centre(*(each["coordinates"][name] for name in ("x", "y", "width", "height")))
            found.objects.append(of_box(text_or_none(each["label"]), box))
        return found


KIND = document_kind(CreateMLSource, "Create ML: _annotations.createml.json beside the images")
