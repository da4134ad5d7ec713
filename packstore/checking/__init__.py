"""Checks stores: verify, compare with a source, repair, salvage, audit. Imports packing and the rooms that it may
import.

Here are the options, which import nothing heavy: the help of the commands reads them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from packstore.core.errors import UsageError
from packstore.core.options import check_options, option, workers_option
from packstore.packing.source_arguments import (
    SourceArguments,
    annotation_frame_option,
    decoder_option,
    max_pixels_option,
)


@dataclass(frozen=True, kw_only=True)
class PackedSourceOptions(SourceArguments):
    """Options of functions that read the source of a store. Raises :class:`UsageError` for a value out of range."""

    annotation_frame: Literal["stored", "upright"] | None = annotation_frame_option(
        "Frame of annotations of the source's turned photos that do not tell it, as for :func:`packstore.convert`. "
        "None for the answer that the store records.",
        "For turned photos of SOURCE that do not tell: frame of their boxes and masks.  [default: as in the store]",
    )
    workers: int | None = workers_option()
    decoder: str = decoder_option()

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(PackedSourceOptions):
    """Options of :func:`packstore.verify`.

    Raises :class:`UsageError` for a value out of range, and for ``quick`` with ``decode`` or ``against``. ``decoder``
    and the other options of the source are checked when they are used.
    """

    quick: bool = option(
        False,
        "Check structure, sizes, labels and keys only, and read no image. The time does not depend on the images' "
        "size. A changed byte in an image is not noticed. At a URL, check only the head, the table and the sizes of "
        "the objects.",
        "Check only structure, sizes, labels and keys. Reads no images, so it misses changed bytes in them.",
    )
    decode: bool = option(
        False,
        "Also decode every image in full, and compute seek indexes again and compare them.",
        "Also decode every image in full.",
    )
    against: str | os.PathLike[str] | None = option(
        None,
        "A source or another store to compare with, or its URL. None compares nothing.",
        "Also compare images, labels, keys and splits with the source, or with another store.",
        metavar="SOURCE",
    )
    max_pixels: int = max_pixels_option(
        "An image whose header claims more pixels is not decoded and counts as damaged. This bounds the memory, as in "
        ":func:`packstore.convert`.",
        "Report images that",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quick and (self.decode or self.against is not None):
            raise UsageError("quick reads no images, so it can neither decode nor compare them: leave one out")


@dataclass(frozen=True, kw_only=True)
class RepairOptions(PackedSourceOptions):
    """Options of :func:`packstore.repair`.

    Raises :class:`UsageError` for a value out of range. ``decoder`` and the other options of the source are checked
    when they are used.
    """

    partial: bool = option(
        False,
        "If some records are lost, write the store without them.",
        "If records are lost, write FIXED without them, and exit with 3.",
    )
    max_pixels: int = max_pixels_option(
        "An image of the source whose header says more pixels is refused.", "Refuse images of SOURCE that"
    )


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of :func:`packstore.audit`.

    Raises :class:`UsageError` for values out of range, and for ``mirrored`` or ``mask_classes`` without ``pixels``.
    """

    pixels: bool = option(
        False,
        "Also decode every image, to find equal pixels in different files, near duplicates, and oddities of images and "
        "masks.",
        "Also decode all images, to find equal, nearly equal and odd ones.",
    )
    near: bool = option(
        True,
        "With ``pixels``, also find near duplicates: recompressed, resized, or cropped by 5%.",
        "With --pixels: find nearly equal images too.",
    )
    mirrored: bool = option(
        False,
        "With ``pixels``, find mirrored near duplicates too.",
        "With --pixels: mirror images count as nearly equal.",
    )
    mask_classes: int | None = option(
        None,
        "With ``pixels``: number of classes of the masks. Values from this number on are reported, except 255.",
        "With --pixels: report mask values of N or more, except 255.",
        metavar="N",
        least=1,
    )
    min_side: int = option(
        16,
        "Images whose shorter side has fewer pixels are reported.",
        "Report shorter sides below PX.",
        metavar="PX",
        least=1,
    )
    max_aspect: float = option(
        5.0,
        "Images whose longer side is more than this many times their shorter side are reported.",
        "Report images whose longer side is over X times the shorter.",
        metavar="X",
        least=1,
    )
    imbalance: float = option(
        10.0,
        "A split is reported if its largest class has at least this many times the records of its smallest.",
        "Report a class that has X times the records of another.",
        metavar="X",
        least=1,
    )
    max_pixels: int = max_pixels_option(
        "An image whose header claims more pixels is not decoded.", "Report images that"
    )
    workers: int | None = workers_option()

    def __post_init__(self) -> None:
        check_options(self)
        needing = [name for name in ("mirrored", "mask_classes") if getattr(self, name)]
        if needing and not self.pixels:
            raise UsageError(f"{needing[0]} needs pixels=True (--pixels), which reads images")
