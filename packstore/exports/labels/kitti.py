"""KITTI's objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` and ``label_2``, a line each.

Of a line only class and box are known; all else has the values of KITTI's own objects that are not to be looked at.
"""

from __future__ import annotations

import re

from packstore.exports.base import Record
from packstore.exports.labels.base import Labelled, SidecarExport


class KittiExport(SidecarExport):
    """``train/image_2`` with ``train/label_2``."""

    name = "kitti"
    help = "KITTI: image_2 and label_2"
    tags = False
    polygons = False

    def losses(self) -> list[str]:
        """See :meth:`Export.losses`."""
        odd = [name for name in self.names if self._word(name) != name] if self.things.boxes else []
        lost = [f"names of {len(odd):,} classes: a line of KITTI has no blanks in them"] if odd else []
        return [*lost, *super().losses()]

    def image_path(self, record: Record) -> str:
        """See :meth:`ObjectsExport.image_path`."""
        path = self.paths(record)
        split, _, rest = path.partition("/") if record.split else ("", "", path)
        return f"{split}/image_2/{rest}" if split else f"image_2/{rest}"

    def sidecar(self, image: Labelled) -> tuple[str, str]:
        """See :meth:`SidecarExport.sidecar`."""
        before, _, rest = f"/{image.file}".partition("/image_2/")
        lines = [
            f"{self._word(self.name_of(thing))} -1 -1 -10 {' '.join(map(repr, thing.box))} {_UNKNOWN}\n"
            for thing in image.things or ()
        ]
        return f"{before}/label_2/{rest.rpartition('.')[0]}.txt"[1:], "".join(lines)

    @staticmethod
    def _word(name: str) -> str:
        """A name as one word that begins with a letter."""
        word = re.sub(r"\s", "_", name)
        return word if re.match("[A-Za-z_]", word) else f"_{word}"


_UNKNOWN = "-1 -1 -1 -1000 -1000 -1000 -10"
"""Sizes, place and angle in 3D."""
