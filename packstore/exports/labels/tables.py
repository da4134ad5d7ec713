"""Tables of labels: one CSV file of all images, and Open Images' files of boxes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from packstore.exports.base import Record
from packstore.exports.labels.base import DocumentExport, LabelledImage, format_number


class CsvExport(DocumentExport):
    """``annotations.csv`` in the form that TensorFlow's object detection reads: a row for each object.

    If the store has no boxes, a row for each image with its class.
    """

    name = "csv"
    help = "images and annotations.csv, a row for each box or image"
    document = "annotations.csv"
    separator = ""
    polygons = False

    @property
    def _tag_column(self) -> str | None:
        """None if the store has boxes: a row then has the class of a box."""
        return None if self.object_columns.boxes else super()._tag_column

    def format_head(self) -> str:
        """Returns the line with the names of the columns."""
        columns = ["filename", "split"] if self.manifest.splits else ["filename"]
        return _format_line([*columns, *(_BOX if self.object_columns.boxes else ["label"])])

    def format_entry(self, image: LabelledImage) -> str:
        """Returns a line for each object; for an image without objects, a line with empty cells.

        If the store has no boxes, returns one line with the image's class.
        """
        first = [image.file, image.split] if self.manifest.splits else [image.file]
        if not self.object_columns.boxes:
            return _format_line([*first, image.tag or ""])
        size = [str(image.width), str(image.height)]
        rows = [[*size, self.class_name(each), *map(format_number, each.box)] for each in image.objects or ()]
        return "".join(_format_line([*first, *row]) for row in rows or [[*size, *[""] * 5]])

    def format_tail(self) -> str:
        """Returns nothing: a CSV file has no end."""
        return ""


class OpenImagesExport(DocumentExport):
    """``train-annotations-bbox.csv`` and ``class-descriptions-boxable.csv``, with boxes as fractions of the sides.

    Source: https://storage.googleapis.com/openimages/web/download_v7.html. An ``ImageID`` is the path of an image below
    its split's folder, without suffix.
    """

    name = "open_images"
    help = "Open Images: images, annotations-bbox.csv and class descriptions"
    document = "{split}-annotations-bbox.csv"
    crowds = True
    separator = ""
    tags = False
    polygons = False

    def image_path(self, record: Record) -> str:
        """Returns a path in the folder of the split; in ``images`` if the store has no splits."""
        return self.record_paths(record) if record.split else super().image_path(record)

    def format_head(self) -> str:
        """Returns the line with the names of the columns."""
        return _format_line(_OPEN_IMAGES)

    def format_entry(self, image: LabelledImage) -> str:
        """Returns a line for each box; ``IsGroupOf`` is 1 for a crowd region. An image without boxes has no line."""
        name = image.file.partition("/")[2].rpartition(".")[0]
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        lines = []
        for obj in image.objects or ():
            left, top, right, bottom = obj.box
            corners = [left * across, right * across, top * down, bottom * down]
            flags = ["0", "0", str(int(obj.crowd)), "0", "0"]
            lines.append(_format_line([name, "xclick", _class_identifier(obj.label), "1", *map(repr, corners), *flags]))
        return "".join(lines)

    def format_tail(self) -> str:
        """Returns nothing: a CSV file has no end."""
        return ""

    def format_extra_files(self) -> dict[str, str]:
        """Returns the text of ``class-descriptions-boxable.csv``, which maps class identifiers to names."""
        lines = (_format_line([_class_identifier(number), name]) for number, name in enumerate(self.object_classes))
        return {"class-descriptions-boxable.csv": "".join(lines)}


_BOX = ["width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
_OPEN_IMAGES = [
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
]


def _class_identifier(number: int) -> str:
    """Returns the machine-readable identifier of a class, like ``/m/01g317`` in Open Images."""
    return f"/packstore/{number}"


def _format_line(cells: Iterable[str] | Sequence[str]) -> str:
    """Formats cells as a line of CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
