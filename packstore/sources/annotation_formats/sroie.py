"""SROIE (https://rrc.cvc.uab.es/?ch=13): ``img``, words in ``box`` in ICDAR's format, ``entities`` or ``key``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import printable
from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.icdar import IcdarSource
from packstore.sources.annotation_formats.objects import Annotation, SizeReader, parse_json
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind
from packstore.sources.base import Certainty, Source, SourceOptions
from packstore.sources.beside import join
from packstore.sources.contents import stem_of
from packstore.sources.file_rows import FileRow, InTree

_ENTITIES = (("entities", ".txt"), ("key", ".json"), ("entities", ".json"))


class SroieSource(IcdarSource):
    """Source of receipts with words; ``entities`` has company, date, address and total."""

    kind = "sroie"
    title = "SROIE"
    folder_pairs = (("img", "box"), ("images", "box"))
    patterns = ("{stem}.txt", "{stem}.csv")

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns of the words, and ``entities``."""
        return {**super().fields(), "entities": Json(optional=True)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, with the file of entities of each image that has one. Prefers ``entities/*.txt``,
        then ``key/*.json``, then ``entities/*.json``."""
        there: dict[str, frozenset[str]] = {}
        for row in super().file_rows(split):
            folder, _, name = row.file.rpartition("/")
            above = folder.rpartition("/")[0]
            for beside, suffix in _ENTITIES:
                place = join(above, beside)
                if place not in there:
                    there[place] = frozenset(self.tree.names(place).files)
                if stem_of(name) + suffix in there[place]:
                    entities = InTree(join(place, stem_of(name) + suffix), optional=True)
                    row = row._replace(values={**row.values, "entities": entities})
                    break
            yield row

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its words. Parses the image's file of entities, if it exists. Raises :class:`ValueError`
        for invalid words or entities."""
        values = dict(super().read_values(ref))
        if isinstance(values.get("entities"), bytes):
            values["entities"] = _parse_entities(values["entities"])
        return values

    def raw_annotations(self) -> Iterator[Any]:
        """Yields the raw annotations of images with words; skips others."""
        return (raw for raw in super().raw_annotations() if raw)


class EntitiesSource(SidecarSource):
    """Source of receipts with ``entities`` and without words, as in the third task of SROIE."""

    kind = "sroie"
    title = "SROIE"
    folder_pairs = tuple((images, texts) for images in ("img", "images") for texts in ("entities", "key", "truth"))
    patterns = ("{stem}.txt", "{stem}.json")
    signature = re.compile(rb'\A\s*\{\s*"(company|date|address|total)"\s*:')
    further_fields: ClassVar[Mapping[str, Field]] = {"entities": Json(optional=True)}

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Parses the entities to the column ``entities``; there are no objects, and no ``json``. Raises
        :class:`ValueError` for invalid entities."""
        return Annotation(values={"entities": _parse_entities(raw)})


def _parse_entities(raw: bytes) -> dict[str, Any]:
    """Parses a JSON object whose values are texts, numbers, booleans or null. Raises :class:`ValueError` for any other
    JSON."""
    entities = parse_json(raw)
    if not isinstance(entities, dict) or any(isinstance(value, dict | list) for value in entities.values()):
        raise ValueError(f"its entities should be texts by name, got {printable(repr(entities))[:80]}")
    return entities


_WORDS = make_sidecar_kind(SroieSource, "SROIE: img with words in box, or entities alone")
_ALONE = make_sidecar_kind(EntitiesSource, _WORDS.help)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Returns the higher certainty of the two layouts."""
    return max(_WORDS.recognise(path, options), _ALONE.recognise(path, options))


def _open_layout(path: Path, options: SourceOptions) -> Source:
    """Opens the layout that is recognised with more certainty. Of two equal layouts, opens the layout with words.
    Raises the errors of opening it."""
    worded = _WORDS.recognise(path, options) >= _ALONE.recognise(path, options)
    return (_WORDS if worded else _ALONE).open(path, options)


KIND = replace(_WORDS, recognise=_recognise, open=_open_layout)
