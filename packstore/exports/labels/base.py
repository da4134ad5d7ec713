"""What exports of labels share: an image with all that is said of it, files beside images, and documents of many.

A format is a class that turns a :class:`Labelled` into text.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from packstore.core.export_manifest import ExportManifest, RecordLines
from packstore.core.files import open_file
from packstore.exports.base import BLOCK_BYTES, Record
from packstore.exports.names import safe_name
from packstore.exports.objects import ObjectsExport, Thing
from packstore.exports.paths import distinct

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """An image and what is said of it.

    Attributes:
        number: Of its record.
        file: The path of its file in the export.
        width: Of the upright image, in pixels; 0 if it is no image.
        height: Likewise.
        split: Name of its split; ``""`` for none.
        things: Its objects; None if it has no value of boxes.
        tag: The class of the whole image; None for none.
    """

    number: int
    file: str
    width: int
    height: int
    split: str
    things: Sequence[Thing] | None
    tag: str | None


class LabelsExport(ObjectsExport):
    """Images as files, and their boxes, classes and polygons in a format of others.

    Attributes:
        tags: The format has classes of whole images.
        polygons: It has polygons.
    """

    further = "segmentations"
    tags: ClassVar[bool] = True
    polygons: ClassVar[bool] = True

    def shown(self) -> Sequence[str]:
        things = self.things
        further = things.further if self.polygons else None
        return [name for name in (things.boxes, things.labels, further, self._tag) if name is not None]

    def losses(self) -> Sequence[str]:
        lost = [each for each in super().losses() if not (self._tag and each.startswith("objects:"))]
        if self.things.further and self.polygons:
            lost.insert(0, "objects of several polygons, and run lengths: their boxes are there")
        return lost

    @property
    def _tag(self) -> str | None:
        columns = self.columns if self.tags else ()
        return next((each.name for each in columns if (each.name, each.type) == ("label", "label")), None)

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes of objects, by number."""
        return self.things.names(self.most_label)

    @cached_property
    def tag_names(self) -> list[str]:
        """Names of the classes of whole images; empty without names."""
        return list(self.manifest.classes or ()) if self._tag else []

    def labelled(self, number: int, file: str, size: tuple[int, int], split: str, item: Any) -> Labelled:
        """The image of a record, whose values ``item`` gives by name of the column."""
        label = None if self._tag is None else item(self._tag)
        tag = None if label is None else self.tag_names[label] if self.tag_names else str(label)
        return Labelled(number, file, *size, split, self.things.of(item), tag)

    def name_of(self, thing: Thing) -> str:
        """The class of an object."""
        return self.names[thing.label] if 0 <= thing.label < len(self.names) else str(thing.label)

    @property
    def splits(self) -> list[tuple[str, str, int, int]]:
        """Of each split its name, its folder, its first record, and the one behind its last; of none one without a
        name."""
        if not self.manifest.splits:
            return [("", "", 0, self.manifest.records)]
        folders = distinct([safe_name(split.name) for split in self.manifest.splits])
        pairs = zip(self.manifest.splits, folders, strict=True)
        return [(each.name, folder, each.start, each.stop) for each, folder in pairs]


class SidecarExport(LabelsExport):
    """A file beside each image that has labels."""

    @property
    def label_bytes(self) -> int:
        return BLOCK_BYTES if self.shown() else 0

    @abstractmethod
    def sidecar(self, image: Labelled) -> tuple[str, str]:
        """The path of the file that goes with an image, and its text."""

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        found = self.labelled(record.number, image, size, record.split, record.__getitem__)
        if found.things is None and found.tag is None:
            return {}
        path, text = self.sidecar(found)
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        self.write(path, text.encode("utf-8", "replace"))
        return {"beside": path}


class DocumentExport(LabelsExport):
    """A document of all images, or of those of each split.

    Attributes:
        document: The path of the document, with ``{split}`` for one of each split.
        whole: What stands for the split of a store without splits.
        between: What separates images.
    """

    document: ClassVar[str]
    whole: ClassVar[str] = "all"
    between: ClassVar[str] = ",\n"

    @property
    def label_bytes(self) -> int:
        sizes = {column.name: column.size_of(self.manifest.records) for column in self.columns}
        # A box of 16 bytes is some 160 in JSON or XML.
        return 150 + self.key_bytes + 10 * sum(sizes[name] for name in self.shown()) // max(1, self.manifest.records)

    @abstractmethod
    def head(self) -> str:
        """What comes before all images."""

    @abstractmethod
    def entry(self, image: Labelled) -> str:
        """An image."""

    @abstractmethod
    def tail(self) -> str:
        """What comes after all images."""

    def further_files(self) -> Mapping[str, str]:
        """Texts of further files, by path."""
        return {}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        assert lines is not None
        rows = RecordLines.of_file(lines)
        files: dict[str, list[tuple[str, int, int]]] = {}
        for name, folder, start, stop in self.splits:
            files.setdefault(self.document.format(split=folder or self.whole), []).append((name, start, stop))
        for path, parts in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            with open_file(self.path / path, "wb") as out:
                for n, text in enumerate(self._texts(rows, parts)):
                    out.write(text.encode("utf-8", "replace") if n else self.head().encode("utf-8", "replace"))
                out.write(self.tail().encode("utf-8", "replace"))
        further = self.further_files()
        for path, text in further.items():
            self.write(path, text.encode("utf-8", "replace"))
        return super().finish(replace(export_manifest, files=(*files, *further)), lines)

    def _texts(self, rows: RecordLines, parts: Sequence[tuple[str, int, int]]) -> Iterator[str]:
        yield ""
        first = True
        for split, start, stop in parts:
            for number in range(start, stop):
                line = rows[number]
                size = int(line["width"]), int(line["height"])
                item = partial(self._item, number)
                text = self.entry(self.labelled(number, line["file"], size, split, item))
                if text:
                    yield text if first else self.between + text
                    first = False

    def _item(self, number: int, name: str) -> Any:
        return self.reader.item(name, number)


def polygon_of(thing: Thing) -> list[float] | None:
    """The polygon of an object, ``x, y, x, y, …`` in pixels; None if it has none, or several."""
    shapes = thing.further
    if not (isinstance(shapes, list) and len(shapes) == 1 and isinstance(shapes[0], list)):
        return None
    flat = shapes[0]
    real = all(isinstance(n, (int, float)) and math.isfinite(n) for n in flat)
    return [float(n) for n in flat] if real and len(flat) >= 6 and len(flat) % 2 == 0 else None


def pairs_of(flat: Sequence[float]) -> list[tuple[float, float]]:
    """Points of ``x, y, x, y, …``."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def number_text(value: float) -> str:
    """A number as short as it can be written exactly: ``3``, ``2.5``."""
    return str(int(value)) if value == int(value) else repr(value)


def xml_text(text: str) -> str:
    """``text`` between tags or quotation marks; what XML cannot hold becomes U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def json_text(value: Any) -> str:
    """``value`` as JSON on one line, in ASCII."""
    return json.dumps(value, separators=(",", ":"))
