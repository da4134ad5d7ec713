"""CrowdHuman (https://www.crowdhuman.org): ``annotation_train.odgt``, a line of JSON for each image.

``boxes`` enclose whole persons (``fbox``); boxes of visible parts and heads (``vbox``, ``hbox``) are in ``json``.
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
    is_flagged,
    nonempty_text,
    object_from_box,
    parse_json_lines,
)


class CrowdHumanSource(DocumentSource):
    """Source of images of ``.odgt`` files. Boxes enclose whole persons. Boxes of visible parts and heads are in
    ``json`` alone. The class ``mask`` marks regions to ignore."""

    kind = "crowdhuman"
    title = "CrowdHuman"
    name_pattern = re.compile(r".*\.odgt", re.I)
    signature = re.compile(rb'^\s*\{(?=[^\n]*"ID"\s*:)[^\n]*"gtboxes"\s*:')
    parse_document = staticmethod(parse_json_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each line, whose image is ``ID.jpg``."""
        for image in document:
            yield AnnotationEntry(f"{image['ID']}.jpg", image)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts the full box (``fbox``) of each person to an object, whose class is the tag. Objects with the tag
        ``mask`` or the flag ``ignore`` are regions to ignore. ``json`` has the whole line."""
        annotation = Annotation(json=raw)
        for each in raw["gtboxes"]:
            tag = nonempty_text(each["tag"])
            crowd = tag == "mask" or is_flagged(each.get("extra"), "ignore")
            annotation.objects.append(object_from_box(tag, box_from_corner(*each["fbox"]), crowd=crowd))
        return annotation


KIND = make_document_kind(CrowdHumanSource, "CrowdHuman: annotation_train.odgt with images")
