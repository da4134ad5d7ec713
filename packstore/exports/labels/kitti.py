"""KITTI's objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` and ``label_2``, a line each.

Only class and box of an object are known; other fields have the values of KITTI's own ``DontCare`` objects.
"""

from __future__ import annotations

import re
from functools import cached_property

from packstore.exports.base import Record
from packstore.exports.labels.base import LabelledImage, SidecarExport
from packstore.exports.objects import LabelledObject
from packstore.exports.paths import make_distinct


class KittiExport(SidecarExport):
    """Folders ``train/image_2`` and ``train/label_2``. Only boxes and their classes are written. A crowd region has the
    class ``DontCare``."""

    name = "kitti"
    help = "KITTI: image_2 and label_2"
    tags = False
    polygons = False
    crowds = True

    def losses(self) -> list[str]:
        """Returns the texts of the base. Puts a text first with the number of class names that are not one word, if
        there are any."""
        odd = [name for name, word in zip(self.object_classes, self._class_words, strict=True) if word != name]
        lost = (
            [f"{len(odd):,} class names: KITTI's are one word, so they are changed"]
            if odd and self.object_columns.boxes
            else []
        )
        return [*lost, *super().losses()]

    def image_path(self, record: Record) -> str:
        """Returns a path in ``image_2``, below the folder of the split if there is one."""
        path = self.record_paths(record)
        split, _, rest = path.partition("/") if record.split else ("", "", path)
        return f"{split}/image_2/{rest}" if split else f"image_2/{rest}"

    def format_sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns the path of a text file in ``label_2``, and its text: a line for each object."""
        before, _, rest = f"/{image.file}".partition("/image_2/")
        lines = [
            f"{self._class_word(obj)} -1 -1 -10 {' '.join(map(repr, obj.box))} {_UNKNOWN}\n"
            for obj in image.objects or ()
        ]
        return f"{before}/label_2/{rest.rpartition('.')[0]}.txt"[1:], "".join(lines)

    def _class_word(self, obj: LabelledObject) -> str:
        """Returns the class of an object as one word; ``_`` and its number if it has no name. Returns ``DontCare`` for
        a crowd region."""
        if obj.crowd:
            return DONT_CARE
        return self._class_words[obj.label] if 0 <= obj.label < len(self._class_words) else f"_{obj.label}"

    @cached_property
    def _class_words(self) -> list[str]:
        """Class names as unique words, by number. They begin with a letter or ``_``."""
        words = (re.sub(r"\s", "_", name) for name in self.object_classes)
        return make_distinct([word if re.match("[A-Za-z_]", word) else f"_{word}" for word in words])


DONT_CARE = "DontCare"
"""Class of regions to ignore."""
_UNKNOWN = "-1 -1 -1 -1000 -1000 -1000 -10"
"""Size, location and rotation in 3D, all unknown."""
