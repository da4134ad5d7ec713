"""KITTI's objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` and ``label_2``, a line each.

Of a line only class and box are known; all else has the values of KITTI's own objects that are not to be looked at.
"""

from __future__ import annotations

import re
from functools import cached_property

from packstore.exports.base import Record
from packstore.exports.labels.base import Labelled, SidecarExport
from packstore.exports.objects import Thing
from packstore.exports.paths import distinct


class KittiExport(SidecarExport):
    """``train/image_2`` with ``train/label_2``."""

    name = "kitti"
    help = "KITTI: image_2 and label_2"
    tags = False
    polygons = False

    def losses(self) -> list[str]:
        odd = [name for name, word in zip(self.names, self._words, strict=True) if word != name]
        lost = [f"names of {len(odd):,} classes: in KITTI they are one word"] if odd and self.things.boxes else []
        return [*lost, *super().losses()]

    def image_path(self, record: Record) -> str:
        path = self.paths(record)
        split, _, rest = path.partition("/") if record.split else ("", "", path)
        return f"{split}/image_2/{rest}" if split else f"image_2/{rest}"

    def sidecar(self, image: Labelled) -> tuple[str, str]:
        before, _, rest = f"/{image.file}".partition("/image_2/")
        lines = [
            f"{self._word_of(thing)} -1 -1 -10 {' '.join(map(repr, thing.box))} {_UNKNOWN}\n"
            for thing in image.things or ()
        ]
        return f"{before}/label_2/{rest.rpartition('.')[0]}.txt"[1:], "".join(lines)

    def _word_of(self, thing: Thing) -> str:
        return self._words[thing.label] if 0 <= thing.label < len(self._words) else f"_{thing.label}"

    @cached_property
    def _words(self) -> list[str]:
        """Names of the classes as words that begin with a letter, no two the same."""
        words = (re.sub(r"\s", "_", name) for name in self.names)
        return distinct([word if re.match("[A-Za-z_]", word) else f"_{word}" for word in words])


_UNKNOWN = "-1 -1 -1 -1000 -1000 -1000 -10"
"""Sizes, place and angle in 3D."""
