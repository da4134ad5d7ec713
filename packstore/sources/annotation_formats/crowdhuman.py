"""CrowdHuman (https://www.crowdhuman.org): ``annotation_train.odgt``, a line of JSON for each image.

``boxes`` are those of whole persons (``fbox``); visible parts and heads (``vbox``, ``hbox``) are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    from_corner,
    load_json,
    of_box,
    text_or_none,
)


class CrowdHumanSource(DocumentSource):
    """Images that an ``.odgt`` file names; ``mask`` is the class of regions to ignore."""

    kind = "crowdhuman"
    title = "CrowdHuman"
    names = re.compile(r".*\.odgt", re.I)
    signature = re.compile(rb'^\s*\{(?=[^\n]*"ID"\s*:)[^\n]*"gtboxes"\s*:')

    def load(self, data: bytes) -> Any:
        return [load_json(line) for line in data.splitlines() if line.strip()]

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for image in document:
            yield Entry(f"{image['ID']}.jpg", image)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        boxes = raw["gtboxes"]
        return Annotation([of_box(text_or_none(e["tag"]), from_corner(*e["fbox"])) for e in boxes], json=raw)


KIND = document_kind(CrowdHumanSource, "CrowdHuman: annotation_train.odgt with images")
