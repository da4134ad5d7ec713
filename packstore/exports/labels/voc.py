"""Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC/): ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``.

Boxes count pixels from 1, and both corners belong to the object, see :mod:`packstore.sources.annotation_formats.voc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packstore.core.files import open_file
from packstore.exports.labels.base import LabelledImage, SidecarExport, escape_xml, format_number
from packstore.stores.export_manifest import ExportManifest, RecordLines


class VocExport(SidecarExport):
    """An XML file for each image, and lists of images by split. Polygons and classes of images are not written."""

    name = "voc"
    help = "Pascal VOC: JPEGImages, Annotations and ImageSets"
    images = "JPEGImages"
    tags = False
    polygons = False

    def visible_columns(self) -> Sequence[str]:
        """Adds the column of difficult objects to those of the base."""
        difficult = self.object_columns.difficult
        return [*super().visible_columns(), *([] if difficult is None else [difficult])]

    def format_sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns the path ``Annotations/NAME.xml`` and its XML, with boxes that count pixels from 1."""
        stem = image.file.partition("/")[2].rpartition(".")[0]
        size = f"<width>{image.width}</width><height>{image.height}</height><depth>3</depth>"
        lines = ["<annotation>", "<folder>JPEGImages</folder>"]
        lines += [f"<filename>{escape_xml(image.file.partition('/')[2])}</filename>", f"<size>{size}</size>"]
        lines.append("<segmented>0</segmented>")
        for obj in image.objects or ():
            left, top, right, bottom = obj.box
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (left + 1, top + 1, right, bottom), strict=True)
            box = "".join(f"<{name}>{format_number(value)}</{name}>" for name, value in corners)
            lines.append(
                f"<object><name>{escape_xml(self.class_name(obj))}</name><pose>Unspecified</pose><truncated>0</truncated>"
                f"<difficult>{obj.difficult}</difficult><bndbox>{box}</bndbox></object>"
            )
        return f"Annotations/{stem}.xml", "\n".join([*lines, "</annotation>", ""])

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes ``ImageSets/Main/train.txt`` …, the names of each split's images. Adds these files to the export
        manifest. Writes the export manifest unless the export is bare."""
        assert lines is not None
        rows, files = RecordLines.map_file(lines), []
        (self.path / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
        for _, folder, start, stop in self.split_ranges:
            files.append(f"ImageSets/Main/{folder or 'train'}.txt")
            with open_file(self.path / files[-1], "wb") as out:
                for number in range(start, stop):
                    stem = rows[number]["file"].partition("/")[2].rpartition(".")[0]
                    out.write(f"{stem}\n".encode("utf-8", "surrogateescape"))
        return super().finish(replace(export_manifest, files=tuple(files)), lines)
