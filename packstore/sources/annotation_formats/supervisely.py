"""Supervisely (https://docs.supervisely.com/data-organization/00_ann_format_navi): a folder with ``img`` and
``ann`` for each data set, and ``meta.json`` with the classes in their order. Of bitmaps, ``boxes`` has the box alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from packstore.core.errors import SourceError
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    bounding_box,
    flatten_points,
    nonempty_text,
    object_from_box,
    object_from_polygons,
    parse_json,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind
from packstore.sources.beside import is_file, read_text


class SuperviselySource(SidecarSource):
    """Source of images of a Supervisely project. Tags of an image without a value become ``label`` or ``tags``. Points
    and lines become ``keypoints``. Bitmaps and polygons with holes become their boxes. Classes have the order of
    ``meta.json``."""

    kind = "supervisely"
    title = "Supervisely"
    folder_pairs = (("img", "ann"),)
    patterns = ("{name}.json", "{stem}.json")
    signature = re.compile(rb'\A(?=.*"objects"\s*:\s*\[)(?=.*"size"\s*:\s*\{)', re.S)

    def describing_files(self) -> Iterable[str]:
        """Returns ``meta.json`` in a list; ``[]`` if there is none, or several."""
        return [] if self._meta is None else [self._meta]

    def list_classes(self) -> Sequence[str]:
        """Returns the classes in ``meta.json``; ``[]`` if there is none, or several. Raises :class:`SourceError` if the
        file is invalid."""
        if self._meta is None:
            return []
        text = read_text(self.tree, self._meta)
        try:
            return [each["title"] for each in parse_json(text)["classes"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceError(
                f"{self.tree.name(self._meta)} is not in the format of Supervisely ({error!r:.100})"
            ) from None

    @cached_property
    def _meta(self) -> str | None:
        """Path of the only ``meta.json`` above the data sets; None if there is none, or several."""
        above = {parent for place in self._folders for parent in PurePosixPath(place.images).parents}
        files = [file for parent in above if is_file(self.tree, file := (parent / "meta.json").as_posix())]
        return files[0] if len(files) == 1 else None

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts the objects and tags of an image; ``json`` has the whole file.

        - Shapes and bitmaps become objects. A polygon with holes, or a bitmap, becomes its box.
        - Points and lines become points.
        - Tags without a value become tags.
        - Other geometries are in ``json`` alone.
        """
        document = parse_json(raw)
        annotation = Annotation(json=document)
        for each in document["objects"]:
            label, kind = nonempty_text(each["classTitle"]), each.get("geometryType", "polygon")
            if kind == "rectangle":
                annotation.objects.append(
                    object_from_box(label, bounding_box(flatten_points(each["points"]["exterior"])))
                )
            elif kind == "polygon":
                outer, *holes = (
                    flatten_points(each["points"]["exterior"]),
                    *map(flatten_points, each["points"].get("interior", ())),
                )
                annotation.objects.append(
                    object_from_polygons(label, outer) if not holes else object_from_box(label, bounding_box(outer))
                )
            elif kind in ("point", "line"):
                flat = flatten_points(each["points"]["exterior"])
                annotation.add_points(label, flat)
            elif kind == "bitmap":
                left, top = each["bitmap"]["origin"]
                annotation.objects.append(
                    object_from_box(label, _compute_bitmap_box(each["bitmap"]["data"], left, top))
                )
        annotation.tags = [each["name"] for each in document.get("tags", ()) if each.get("value") is None]
        return annotation


def _compute_bitmap_box(data: str, left: float, top: float) -> list[float]:
    """Computes the box of a bitmap from the size in its PNG header. ``data`` is the PNG file, compressed by zlib, in
    base64. Raises :class:`ValueError` if it is no PNG file, or its beginning is damaged. The rest is not
    decompressed."""
    import base64
    import binascii
    import zlib

    try:
        png = zlib.decompressobj().decompress(base64.b64decode(data, validate=True), 33)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a bitmap of its annotation cannot be read: {error}") from None
    if len(png) < 24 or not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("a bitmap of its annotation is no PNG file, or is cut off")
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    return [left, top, left + width, top + height]


KIND = make_sidecar_kind(SuperviselySource, "Supervisely: img and ann with meta.json")
