"""CVAT for images (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): ``annotations.xml``."""

from __future__ import annotations

from packstore.exports.labels.base import (
    DocumentExport,
    LabelledImage,
    escape_xml,
    find_single_polygon,
    format_number,
    pair_coordinates,
)
from packstore.exports.objects import LabelledObject


class CvatExport(DocumentExport):
    """Boxes, polygons and tags (classes of images) in one XML file; splits become subsets."""

    name = "cvat"
    help = "CVAT for images: images and annotations.xml"
    document = "annotations.xml"
    separator = "\n"

    def format_head(self) -> str:
        """Returns the start of the XML with the class names of objects and images."""
        classes = dict.fromkeys([*(self.object_classes if self.object_columns.boxes else ()), *self.image_classes])
        labels = "".join(f"<label><name>{escape_xml(name)}</name><attributes></attributes></label>" for name in classes)
        return (
            '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
            f"<meta><task><name>packstore</name><size>{self.manifest.records}</size><labels>{labels}</labels></task>"
            "</meta>\n"
        )

    def format_entry(self, image: LabelledImage) -> str:
        """Returns the element ``<image>`` with its tag, boxes and polygons."""
        name = escape_xml(image.file.removeprefix("images/"))
        subset = f' subset="{escape_xml(image.split)}"' if image.split else ""
        lines = [f'<image id="{image.number}" name="{name}"{subset} width="{image.width}" height="{image.height}">']
        if image.tag is not None:
            lines.append(f'<tag label="{escape_xml(image.tag)}" source="manual"></tag>')
        lines += map(self._format_shape, image.objects or ())
        return "\n".join([*lines, "</image>"])

    def _format_shape(self, obj: LabelledObject) -> str:
        """Returns the XML element of an object: its polygon if it has exactly one, else its box."""
        known = f'label="{escape_xml(self.class_name(obj))}" source="manual" occluded="0"'
        polygon = find_single_polygon(obj)
        if polygon is not None:
            points = ";".join(f"{format_number(x)},{format_number(y)}" for x, y in pair_coordinates(polygon))
            return f'<polygon {known} points="{points}" z_order="0"></polygon>'
        corners = zip(("xtl", "ytl", "xbr", "ybr"), map(format_number, obj.box), strict=True)
        box = " ".join(f'{name}="{value}"' for name, value in corners)
        return f'<box {known} {box} z_order="0"></box>'

    def format_tail(self) -> str:
        """Returns the end of the XML."""
        return "\n</annotations>\n"
