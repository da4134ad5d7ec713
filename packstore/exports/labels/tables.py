"""Tables of labels: one CSV file of all images, and Open Images' files of boxes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from packstore.exports.base import Record
from packstore.exports.labels.base import DocumentExport, Labelled, number_text


class CsvExport(DocumentExport):
    """``annotations.csv``: a row for each object, as TensorFlow's object detection has it; of images without boxes in
    the store, a row each with their class."""

    name = "csv"
    help = "images and annotations.csv, a row for each box or image"
    document = "annotations.csv"
    between = ""
    polygons = False

    def head(self) -> str:
        columns = ["filename", "split"] if self.manifest.splits else ["filename"]
        return _line([*columns, *(_BOX if self.things.boxes else ["label"])])

    def entry(self, image: Labelled) -> str:
        first = [image.file, image.split] if self.manifest.splits else [image.file]
        if not self.things.boxes:
            return _line([*first, image.tag or ""])
        size = [str(image.width), str(image.height)]
        rows = [[*size, self.name_of(each), *map(number_text, each.box)] for each in image.things or ()]
        return "".join(_line([*first, *row]) for row in rows or [[*size, *[""] * 5]])

    def tail(self) -> str:
        return ""


class OpenImagesExport(DocumentExport):
    """``train-annotations-bbox.csv`` and ``class-descriptions-boxable.csv``, with boxes as fractions of the sides.

    Source: https://storage.googleapis.com/openimages/web/download_v7.html. An ``ImageID`` is the path of a file below
    the folder of its split, without suffix.
    """

    name = "open_images"
    help = "Open Images: images, annotations-bbox.csv and class descriptions"
    document = "{split}-annotations-bbox.csv"
    between = ""
    tags = False
    polygons = False

    def image_path(self, record: Record) -> str:
        return self.paths(record) if record.split else super().image_path(record)

    def head(self) -> str:
        return _line(_OPEN_IMAGES)

    def entry(self, image: Labelled) -> str:
        name = image.file.partition("/")[2].rpartition(".")[0]
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        lines = []
        for thing in image.things or ():
            left, top, right, bottom = thing.box
            corners = [left * across, right * across, top * down, bottom * down]
            flags = ["0"] * 5
            lines.append(_line([name, "xclick", _identifier(thing.label), "1", *map(repr, corners), *flags]))
        return "".join(lines)

    def tail(self) -> str:
        return ""

    def further_files(self) -> dict[str, str]:
        lines = (_line([_identifier(number), name]) for number, name in enumerate(self.names))
        return {"class-descriptions-boxable.csv": "".join(lines)}


_BOX = ["width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
_OPEN_IMAGES = [
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
]


def _identifier(number: int) -> str:
    """A class as Open Images calls it, by a name that no human reads."""
    return f"/packstore/{number}"


def _line(cells: Iterable[str] | Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
