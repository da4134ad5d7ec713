"""Supervisely (https://docs.supervisely.com/data-organization/00_ann_format_navi): ``img`` and ``ann`` in a folder
for each data set, and ``meta.json`` with the classes in their order. Bitmaps stay in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    box_around,
    flatten,
    load_json,
    of_box,
    of_polygon,
    text_or_none,
)
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind
from packstore.sources.beside import is_file, read_text


class SuperviselySource(SidecarSource):
    """Images of a project of Supervisely; tags of an image that have no value are ``label`` or ``tags``."""

    kind = "supervisely"
    title = "Supervisely"
    folders = (("img", "ann"),)
    patterns = ("{name}.json", "{stem}.json")
    signature = re.compile(rb'\A(?=.*"objects"\s*:\s*\[)(?=.*"size"\s*:\s*\{)', re.S)

    def describing_files(self) -> Iterable[str]:
        return ["meta.json"] if is_file(self.tree, "meta.json") else []

    def class_order(self) -> Sequence[str]:
        return self._listed

    @cached_property
    def _listed(self) -> list[str]:
        if not is_file(self.tree, "meta.json"):
            return []
        try:
            return [each["title"] for each in load_json(read_text(self.tree, "meta.json"))["classes"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceError(f"{self.tree.name('meta.json')} is not as Supervisely has it ({error!r:.100})") from None

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        document = load_json(raw)
        found = Annotation(json=document)
        for each in document["objects"]:
            label, kind = text_or_none(each["classTitle"]), each.get("geometryType", "polygon")
            if kind == "rectangle":
                found.objects.append(of_box(label, box_around(flatten(each["points"]["exterior"]))))
            elif kind == "polygon":
                outer, *holes = (flatten(each["points"]["exterior"]), *map(flatten, each["points"].get("interior", ())))
                found.objects.append(of_polygon(label, outer) if not holes else of_box(label, box_around(outer)))
            elif kind in ("point", "line"):
                flat = flatten(each["points"]["exterior"])
                found.points += [(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)]
            elif kind == "bitmap":
                left, top = each["bitmap"]["origin"]
                found.objects.append(of_box(label, _bitmap_box(each["bitmap"]["data"], left, top)))
        found.tags = [each["name"] for each in document.get("tags", ()) if each.get("value") is None]
        return found


def _bitmap_box(data: str, left: float, top: float) -> list[float]:
    """The box of a bitmap: a PNG file, compressed and as base64, whose header says its size."""
    import base64
    import binascii
    import zlib

    try:
        png = zlib.decompressobj().decompress(base64.b64decode(data, validate=True), 33)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a bitmap of its annotation cannot be read: {error}") from None
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    return [left, top, left + width, top + height]


KIND = annotated_kind(SuperviselySource, "Supervisely: img and ann with meta.json")
