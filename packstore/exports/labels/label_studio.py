"""Label Studio (https://labelstud.io/guide/export): JSON of tasks, with percentages of the image's sides."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from packstore.exports.labels.base import (
    DocumentExport,
    LabelledImage,
    escape_xml,
    find_single_polygon,
    format_json,
    pair_coordinates,
)
from packstore.exports.objects import LabelledObject


class LabelStudioExport(DocumentExport):
    """Tasks for images that Label Studio serves from the export's folder, and its labelling configuration. Each split
    has a file of tasks."""

    name = "label_studio"
    help = "Label Studio: images, tasks and label_config.xml"
    document = "tasks_{split}.json"

    def format_head(self) -> str:
        """Returns the start of a JSON array."""
        return "["

    def format_entry(self, image: LabelledImage) -> str:
        """Returns the task of an image. Without boxes and class, the task has no annotation."""
        annotated = image.objects is not None or image.tag is not None
        results = [self._format_result(image, obj, n) for n, obj in enumerate(image.objects or ())]
        if image.tag is not None:
            value = {"choices": [image.tag]}
            results.append({"id": "c", "type": "choices", "from_name": "class", "to_name": "image", "value": value})
        number = image.number + 1
        made = [{"id": number, "was_cancelled": False, "ground_truth": False, "result": results}] if annotated else []
        served = f"/data/local-files/?d={quote(image.file, errors='surrogateescape')}"
        return format_json({"id": number, "annotations": made, "data": {"image": served}})

    def _format_result(self, image: LabelledImage, obj: LabelledObject, number: int) -> dict[str, Any]:
        """Returns the result for an object, in percent of the image's sides. It is the polygon if there is exactly one,
        else the box."""
        across, down = 100 / max(1, image.width), 100 / max(1, image.height)
        polygon, label = find_single_polygon(obj), [self.class_name(obj)]
        if polygon is None:
            left, top, right, bottom = obj.box
            kind = "rectanglelabels"
            value: dict[str, Any] = {"x": left * across, "y": top * down}
            value |= {"width": (right - left) * across, "height": (bottom - top) * down, "rotation": 0}
        else:
            kind = "polygonlabels"
            value = {"points": [(x * across, y * down) for x, y in pair_coordinates(polygon)], "closed": True}
        return {
            "id": f"r{number}",
            "type": kind,
            "from_name": "polygon" if polygon else "box",
            "to_name": "image",
            "original_width": image.width,
            "original_height": image.height,
            "image_rotation": 0,
            "value": value | {kind: label},
        }

    def format_tail(self) -> str:
        """Returns the end of a JSON array."""
        return "]\n"

    def format_extra_files(self) -> dict[str, str]:
        """Returns the text of ``label_config.xml``, the labelling configuration with all class names."""
        labels = "".join(f'<Label value="{escape_xml(name)}"/>' for name in self.object_classes)
        boxes = [f'<{kind}Labels name="{name}" toName="image">{labels}</{kind}Labels>'
                 for kind, name in (("Rectangle", "box"), ("Polygon", "polygon"))]  # fmt: skip
        choices = "".join(f'<Choice value="{escape_xml(name)}"/>' for name in self.image_classes)
        lines = ["<View>", '<Image name="image" value="$image"/>', *(boxes if self.object_columns.boxes else ())]
        if choices:
            lines.append(f'<Choices name="class" toName="image">{choices}</Choices>')
        return {"label_config.xml": "\n".join([*lines, "</View>", ""])}
