"""EuroSAT in RGB (https://github.com/phelber/eurosat): the folder ``2750/`` of ten classes, as torchvision puts it.

The folder ``2750`` alone, and the archive, are read as image folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packstore.core.fields import Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind

_CLASSES = (
    *("AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial"),
    *("Pasture", "PermanentCrop", "Residential", "River", "SeaLake"),
)


class EuroSat(NamedSource):
    """Source of EuroSAT's images, class by class."""

    kind = "eurosat"
    title = "EuroSAT"
    markers = ("|".join(f"2750/{name}" for name in _CLASSES),)
    required = tuple(f"2750/{name}" for name in _CLASSES)

    def splits(self) -> tuple[str, ...]:
        """Returns ``("",)``: the set has no splits."""
        return ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label."""
        return {"image": Image(), "label": Label(_CLASSES)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each image, class by class."""
        for number, name in enumerate(_CLASSES):
            for image in self.list_images(f"2750/{name}"):
                yield FileRow(image, {"label": number})


KIND = make_named_kind(EuroSat)
