"""CVAT for images (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): ``annotations.xml``."""

from __future__ import annotations

from packstore.exports.labels.base import DocumentExport, Labelled, number_text, pairs_of, polygon_of, xml_text
from packstore.exports.objects import Thing


class CvatExport(DocumentExport):
    """Boxes, polygons and tags; splits are subsets."""

    name = "cvat"
    help = "CVAT for images: images and annotations.xml"
    document = "annotations.xml"
    between = "\n"

    def head(self) -> str:
        classes = dict.fromkeys([*(self.names if self.things.boxes else ()), *self.tag_names])
        labels = "".join(f"<label><name>{xml_text(name)}</name><attributes></attributes></label>" for name in classes)
        return (
            '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
            f"<meta><task><name>packstore</name><size>{self.manifest.records}</size><labels>{labels}</labels></task>"
            "</meta>\n"
        )

    def entry(self, image: Labelled) -> str:
        name = xml_text(image.file.removeprefix("images/"))
        subset = f' subset="{xml_text(image.split)}"' if image.split else ""
        lines = [f'<image id="{image.number}" name="{name}"{subset} width="{image.width}" height="{image.height}">']
        if image.tag is not None:
            lines.append(f'<tag label="{xml_text(image.tag)}" source="manual"></tag>')
        lines += map(self._shape, image.things or ())
        return "\n".join([*lines, "</image>"])

    def _shape(self, thing: Thing) -> str:
        known = f'label="{xml_text(self.name_of(thing))}" source="manual" occluded="0"'
        polygon = polygon_of(thing)
        if polygon is not None:
            points = ";".join(f"{number_text(x)},{number_text(y)}" for x, y in pairs_of(polygon))
            return f'<polygon {known} points="{points}" z_order="0"></polygon>'
        corners = zip(("xtl", "ytl", "xbr", "ybr"), map(number_text, thing.box), strict=True)
        box = " ".join(f'{name}="{value}"' for name, value in corners)
        return f'<box {known} {box} z_order="0"></box>'

    def tail(self) -> str:
        return "\n</annotations>\n"
