"""Folders of masks: ``images/train/a.jpg`` with ``masks/train/a.png``, whose pixels are class numbers.

Masks of 8 bits get the palette of Pascal VOC, so that any viewer shows classes in colours; values stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packstore.exports.base import BLOCK_BYTES, Record
from packstore.exports.names import safe_name
from packstore.exports.objects import ObjectsExport
from packstore.images.mask_files import make_mask_file


class MasksExport(ObjectsExport):
    """A folder of images, and a folder of PNG masks for each column of masks: ``masks`` for ``mask``."""

    name = "masks"
    help = "images and masks: PNG files with a palette"

    @property
    def _mask_folders(self) -> dict[str, str]:
        """Maps each column of masks to its folder: ``masks`` for ``mask``, else the name with an ``s``."""
        names = [column.name for column in self.columns if column.holds_masks]
        return {name: "masks" if name == "mask" else safe_name(f"{name}s") for name in names}

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of masks."""
        return [*self._mask_folders]

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of one record's masks, each with half a block of padding on disk."""
        sizes = [column.size_of(self.manifest.records) for column in self.columns if column.holds_masks]
        return BLOCK_BYTES // 2 * len(sizes) + sum(sizes) // max(1, self.manifest.records)

    def losses(self) -> Sequence[str]:
        """Returns a text on order and keys. Before it, texts on missing masks, and on masks that PNG cannot hold."""
        lost = [] if self._mask_folders else ["masks: the store has none"]
        dtypes = {self.manifest.column(name).dtype for name in self._mask_folders}
        if "int32" in dtypes:
            lost.append("masks with values below 0 or above 65,535: PNG cannot hold them")
        if "float32" in dtypes:
            lost.append("masks of floating point, such as depth: PNG cannot hold them")
        return [*lost, *super().losses()[-1:]]

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the masks of a record as PNG files. Skips missing masks and those that PNG cannot hold. Ignores
        ``size``.

        Returns:
            The path of each written file. The key of the first is ``beside``; the key of others is ``beside NAME`` with
            the mask's column.
        """
        paths: dict[str, str] = {}
        for name, folder in self._mask_folders.items():
            data = make_mask_file(record[name])
            if data is not None:
                path = f"{folder}/{image.partition('/')[2].rpartition('.')[0]}.png"
                (self.path / path).parent.mkdir(parents=True, exist_ok=True)
                self.write_export_file(path, data)
                paths[f"beside {name}" if paths else "beside"] = path
        return paths
