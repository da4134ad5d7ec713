"""COCO (https://cocodataset.org/#format-data): ``images/`` and ``annotations/instances_train.json``, for
``pycocotools`` and torchvision's ``CocoDetection``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from packstore.core.files import open_file
from packstore.exports.names import safe_name
from packstore.exports.objects import LabelledObject, ObjectsExport, find_captions_column
from packstore.exports.paths import make_distinct
from packstore.stores.export_manifest import ExportManifest, RecordLines

_OWN = ("id", "image_id", "bbox", "category_id", "keypoints", "num_keypoints")
"""Keys of an annotation that come from columns; the JSON column cannot override them."""


class CocoExport(ObjectsExport):
    """A folder of images, and a file ``instances_*.json`` for each split. If the store has captions, also
    ``captions_*.json``.

    Images get ids from 1 through the whole store. Ids of objects and captions begin at 1 in each file. Masks, areas and
    ``iscrowd`` come from a column ``json`` in the form of the source ``coco``. Objects whose boxes or keypoints are not
    finite are left out.
    """

    name = "coco"
    help = "COCO: images and annotations/instances_*.json"
    extra = "json"
    crowds = True

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of boxes, labels, keypoints and captions that the store has."""
        captions = find_captions_column(self.columns)
        return [*super().visible_columns(), *([] if captions is None else [captions])]

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column ``json``, says which of its entries are written."""
        if name == self.object_columns.extra:
            return f"{name!r} (but segmentation, area, iscrowd and other entries of its objects are written)"
        return super().describe_hidden(name)

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of JSON for an image: ten times the stored bytes of its labels."""
        sizes = {column.name: column.size_of(self.manifest.records) for column in self.columns}
        shown = sum(sizes[name] for name in (*self.visible_columns(), *filter(None, [self.object_columns.extra])))
        # A box of 16 bytes is some 190 in JSON, and a keypoint grows likewise.
        return 100 + self.mean_key_bytes + 10 * shown // max(1, self.manifest.records)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes an annotation file for each split, and a file of captions if the store has captions. Reads all labels.

        Categories count from 1. Keypoints have numbers as names. Adds the files to the export manifest. Writes the
        export manifest unless the export is bare.
        """
        assert lines is not None
        rows = RecordLines.map_file(lines)
        splits = [(split.name, split.start, split.stop) for split in self.manifest.splits] or [("", 0, len(rows))]
        names = make_distinct([safe_name(name) for name, _, _ in splits]) if self.manifest.splits else [""]
        categories = [{"id": n + 1, "name": name} for n, name in enumerate(self.object_classes)]
        if self.object_columns.shape:
            points = [str(n) for n in range(self.object_columns.shape[0])]
            categories = [category | {"keypoints": points, "skeleton": []} for category in categories]
        (self.path / "annotations").mkdir(exist_ok=True)
        files = []
        captions = find_captions_column(self.columns)
        for name, (_, start, stop) in zip(names, splits, strict=True):
            tail = f"_{name}.json" if name else ".json"
            files.append(f"annotations/instances{tail}")
            objects = self._read_annotations(start, stop) if self.object_columns.boxes else iter(())
            self._write_document(files[-1], rows, range(start, stop), objects, {"categories": categories})
            if captions is not None:
                files.append(f"annotations/captions{tail}")
                self._write_document(
                    files[-1], rows, range(start, stop), self._read_captions(captions, start, stop), {}
                )
        return super().finish(replace(export_manifest, files=tuple(files)), lines)

    def _write_document(
        self,
        path: str,
        rows: RecordLines,
        records: range,
        annotations: Iterator[dict[str, Any]],
        extra: Mapping[str, Any],
    ) -> None:
        """Writes a file of annotations: the images ``records``, their ``annotations``, and the entries of ``extra``.

        ``rows``: the record lines, which have path and size of each image.
        """
        with open_file(self.path / path, "wb") as out:
            out.write(b'{"info":{"description":"exported by packstore"},"licenses":[],"images":[')
            _write_list(out, (self._format_image(rows[number], number) for number in records))
            out.write(b'],"annotations":[')
            _write_list(out, annotations)
            out.write(b"]")
            for name, value in extra.items():
                out.write(b"," + _format_json(name) + b":" + _format_json(value))
            out.write(b"}\n")

    def _format_image(self, line: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Returns the COCO entry of an image, from its record line. ``file_name`` is relative to the folder of its
        split."""
        name = line["file"].removeprefix("images/")
        name = name.partition("/")[2] if self.manifest.splits else name
        return {"id": number + 1, "file_name": name, "width": int(line["width"]), "height": int(line["height"])}

    def _read_annotations(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the annotations of objects in the records ``start`` to ``stop - 1``, numbered from 1.

        Leaves out objects whose boxes or keypoints are not finite.
        """
        number = 0
        for record in range(start, stop):
            for obj in self.read_objects(partial(self.read_value, record)) or ():
                number += 1
                yield {"id": number, "image_id": record + 1, **_format_annotation(obj)}

    def _read_captions(self, name: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the captions in column ``name`` of the records ``start`` to ``stop - 1``, numbered from 1. Skips
        values that are not strings."""
        number = 0
        for record in range(start, stop):
            value = self.read_value(record, name)
            for caption in value if isinstance(value, list) else [value]:
                if isinstance(caption, str):
                    number += 1
                    yield {"id": number, "image_id": record + 1, "caption": caption}


def _format_annotation(obj: LabelledObject) -> dict[str, Any]:
    """Returns the annotation of an object, without ids.

    Category, box, keypoints and ``iscrowd`` come from the store's columns. All other entries come from the object's
    JSON, and ``iscrowd`` of a region to ignore, too. Without the JSON, ``area`` is the area of the box.

    Keypoints without visibility get 2, visible.
    """
    left, top, right, bottom = obj.box
    extra = obj.extra if isinstance(obj.extra, dict) else {}
    kept = {name: value for name, value in extra.items() if name not in _OWN}
    annotation = {"area": (right - left) * (bottom - top), "iscrowd": int(obj.crowd)} | kept
    annotation |= {"category_id": obj.label + 1, "bbox": [left, top, right - left, bottom - top]}
    if obj.keypoints is not None:
        points = [[*point, 2] if len(point) == 2 else point for point in obj.keypoints]
        annotation["keypoints"] = [value for point in points for value in point]
        annotation["num_keypoints"] = sum(point[2] > 0 for point in points)
    return annotation


def _write_list(out: IO[bytes], entries: Iterator[dict[str, Any]]) -> None:
    """Writes ``entries`` as the elements of a JSON array, without brackets."""
    for number, entry in enumerate(entries):
        out.write(b",\n" * (number > 0) + _format_json(entry))


def _format_json(value: Any) -> bytes:
    """Formats a value as compact JSON in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")
