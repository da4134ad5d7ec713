"""Base of the sources of Pascal VOC's XML files: decides from all files if boxes count pixels from 0 or from 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import SourceOptions, Survey
from packstore.sources.boxes import CORNERS, VOC
from packstore.sources.file_rows import FileRowSource
from packstore.sources.voc.objects import AnnotationFacts, parse_annotation, read_facts


class AnnotatedVocSource(FileRowSource):
    """Base of sources whose rows have an XML file as ``json``.

    A box with a corner at 0 proves that the files count from 0, since none can have it that counts from 1. Then all
    boxes are kept as they are written. ``layout`` answers instead: ``voc`` or ``xyxy``. Opening reads all XML files
    without this answer.
    """

    kind = "voc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        """Raises :class:`UsageError` for another layout."""
        if options.layout not in (None, VOC, CORNERS):
            raise UsageError(
                f"layout is {options.layout}, but boxes of Pascal VOC are {VOC}, counted from 1 with both corners, or "
                f"{CORNERS}, counted from 0"
            )
        super().__init__(path, options)
        self._says_layout = options.layout is not None

    def decide_convention(self) -> None:
        """Sets the option ``layout`` if it is not given. Leaves it None if no row has an XML file."""
        if self.options.layout is None and self.facts.files:
            self.options = replace(self.options, layout=CORNERS if self.facts.from_zero else VOC)

    @cached_property
    def facts(self) -> AnnotationFacts:
        """Facts about the XML files of all splits. Reads all of them."""
        rows = (row for split in self.splits() for row in self.file_rows(split))
        return read_facts(self.tree, (row.values["json"].file for row in rows if "json" in row.values))

    def follow_store(self, manifest: Manifest) -> None:
        """Reads boxes as those of the store were read. Does nothing if ``layout`` is given, or if the store is of
        another kind. Raises :class:`AmbiguousSourceError` if a box proves that the files count from 0, and those of the
        store were read as from 1."""
        recorded = CORNERS if manifest.options.get("layout") == CORNERS else VOC
        decided = not self._says_layout and self.options.layout not in (None, recorded)
        if not decided or manifest.origin.kind != self.kind:
            return
        if self.facts.from_zero:
            raise AmbiguousSourceError(
                f"{self.tree.name(self.facts.from_zero)} has a box at 0, so it counts pixels from 0, but the boxes of "
                f"the store were read as counted from 1. If they count from 0, too, convert them again with --layout "
                f"{CORNERS}; else say how this source counts",
                [Answer(("--layout", each)) for each in (CORNERS, VOC)],
                self.path,
            )
        self.options = replace(self.options, layout=recorded)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Adds a note if the boxes were found to count from 0."""
        survey = super().survey(split, progress)
        if self._says_layout or self.options.layout != CORNERS or not self.facts.from_zero:
            return survey
        note = (
            f"{printable(self.facts.from_zero)} has a box at 0, so all boxes count pixels from 0 and are kept as they "
            f"are written; --layout {VOC} reads them as counted from 1"
        )
        return replace(survey, notes=(*survey.notes, note))

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image and the files of its row, and parses its annotation if there is one. Raises
        :class:`ValueError` for an invalid annotation."""
        values = super().read_values(ref)
        document = values.get("json")
        with self.name_annotation_file(ref):
            return values if document is None else {**values, **parse_annotation(document, self.options.layout or VOC)}
