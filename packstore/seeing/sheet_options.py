"""Options of a contact sheet. Imports nothing heavy: ``packstore sheet --help`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packstore.core.options import check_options, option


@dataclass(frozen=True, kw_only=True)
class SheetOptions:
    """Options of a contact sheet. Raises :class:`UsageError` for numbers out of range."""

    split: str | None = option(None, "The split.", "Draw only this split.", metavar="NAME")
    per_class: int = option(
        5,
        "Number of records of each class. If records have no class: number of rows, and of records in a row.",
        "Records of each class.",
        metavar="N",
        least=1,
        most=100,
    )
    columns: Sequence[str] | None = option(
        None,
        "Names of columns to show: masks, boxes and keypoints over the images, lists of images below them. None for "
        "all boxes and lists.",
        "Columns to draw over the images (masks, boxes, keypoints) or to show below (lists of images); none for plain "
        "images.  [default: boxes and lists]",
        metavar="NAMES",
    )
    augment: str | None = option(
        None,
        "Augmentations as text, see :func:`packstore.seeing.loaded.parse_augment`. Shows images as the loader "
        "returns them. None shows thumbnails of the stored images.",
        "Show images as the loader augments them: 'RandomResizedCrop(224), RandomHorizontalFlip()'.",
        metavar="OPERATIONS",
    )
    seed: int = option(
        0,
        "Seed of the choice of records, and of the loader.",
        "Seed that chooses the records; with --augment also the loader's seed.",
        metavar="N",
        least=0,
    )
    epoch: int = option(0, "The loader's epoch.", metavar="N", least=0)
    side: int = option(
        128, "Longest side of a thumbnail in pixels.", "Size of the images.", metavar="PX", least=8, most=4096
    )
    window: tuple[float, float] | None = option(
        None,
        "For images of more than 8 bits: the value shown as black, and the value shown as white.",
        "More than 8 bits: values shown as black and as white.",
        none="1st and 99th percentile of each image",
        metavar="LO HI",
    )

    def __post_init__(self) -> None:
        from packstore.images.reading import check_window

        check_options(self)
        check_window(self.window)
