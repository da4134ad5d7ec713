"""Options that several functions have: those for opening a source, and for limiting and decoding its images.

Imports nothing heavy: the help of commands reads these options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packstore.core.options import option
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import MAX_PIXELS

if TYPE_CHECKING:
    from packstore.core.manifest import Manifest
    from packstore.sources.base import Source


def max_pixels_option(meaning: str, images: str = "Refuse images that") -> int:
    """Makes the option ``max_pixels``. ``images``: beginning of its help on the command line."""
    help = f"{images} claim more pixels, e.g. 50M. Each thread needs up to 20 bytes a pixel."
    return option(MAX_PIXELS, meaning, help, metavar="N", least=1, group="Source")


def annotation_frame_option(meaning: str, help: str) -> Literal["stored", "upright"] | None:
    """Makes the option ``annotation_frame``."""
    return option(None, meaning, help, group="Source")


def decoder_option() -> str:
    """Makes the option ``decoder``."""
    return option(
        "auto",
        "Name of the decoder, see :func:`packstore.images.decoders.get_decoder`.",
        "turbojpeg, simplejpeg, jpeg4py, opencv or pillow.",
        metavar="NAME",
        group="Run",
    )


@dataclass(frozen=True, kw_only=True)
class SourceArguments:
    """Base of the options of functions that read a source."""

    labels: str | os.PathLike[str] | None = option(
        None,
        "CSV with the columns ``file,label`` and optionally ``split``.",
        "Labels: columns file,label[,split].",
        metavar="CSV",
        group="Source",
    )
    source_kind: str | None = option(
        None,
        "Kind of the source, such as ``imagefolder``; None recognises it.",
        "Kind of SOURCE, if packstore does not recognise it. packstore guide sources lists the kinds.",
        flag="--source",
        metavar="KIND",
        group="Source",
    )
    image_key: str | None = option(
        None,
        "Name of the array with the images, in a source of named arrays (HDF5, npz …); None finds it.",
        "HDF5, npz …: the array of images.",
        metavar="NAME",
        group="Source",
    )
    label_key: str | None = option(
        None,
        "Name of the array with the class numbers, in such a source.",
        "HDF5, npz …: the array of class numbers.",
        metavar="NAME",
        group="Source",
    )
    columns: str | Sequence[str] = option(
        (),
        "Meanings of a table's columns that their values do not tell: ``["
        '"image=photo", "label=kind", "boxes=x1,y1,x2,y2"]``. Also options of a single column of further image files, '
        '``mode``, ``depth``, ``alpha`` and ``frames``: ``["near.depth=keep", "thermal.depth=scale"]``. For WebDataset '
        "``key=last-dot``: dots belong to the names of samples, but for the last.",
        "Tables: role of a column: image=COL, label=COL, labels=COL, boxes=X1,Y1,X2,Y2, split=COL, keypoints=X,Y,… "
        "Further images: NAME.mode=, NAME.depth=, NAME.alpha=, NAME.frames=. Repeatable.",
        flag="--column",
        metavar="ROLE=COL",
        group="Source",
    )
    layout: str | None = option(
        None,
        "Order of the images' axes in a source of named arrays: ``NHWC``, ``NCHW`` or ``NHW``. For boxes in Parquet "
        "and Arrow: their convention, one of :data:`packstore.sources.boxes.CONVENTIONS` (``xyxy``, ``xywh`` …), or "
        "``json`` to keep them unchanged. For Pascal VOC: ``voc`` if boxes count from 1, ``xyxy`` from 0.",
        "HDF5, npz …: order of the images' axes, e.g. NCHW. Tables: form of boxes, e.g. xywh. Pascal VOC: voc or xyxy.",
        metavar="AXES",
        group="Source",
    )
    ignore: str | Sequence[str] = option(
        (),
        "Patterns of files and folders to leave out, in the syntax of ``.gitignore``: ``*.txt``, ``masks/``.",
        "Leave out files and folders of SOURCE, as .gitignore does: '*.txt', 'masks/'. Repeatable.",
        metavar="PATTERN",
        group="Source",
    )
    splits: str | Sequence[str] = option(
        (),
        'Splits by patterns of their files or folders, in the syntax of ``ignore``: ``["train=images/a", '
        '"val=images/b"]``. The first pattern that matches decides.',
        "Make splits of the files and folders that match: TRAIN=PATTERN,VAL=PATTERN, patterns as for --ignore. "
        "Repeatable.",
        metavar="SPLIT=PATTERN,…",
        group="Source",
    )
    pair: str | Sequence[str] = option(
        (),
        "Further images that belong to the images: ``IMAGES=FILES``, two patterns with ``{s}`` for what their names "
        "share, ``{s}_HR.png={s}_LR.png``. Each becomes an image column, see "
        ":mod:`packstore.sources.companion_patterns`.",
        "Further image for each image, as a column: '{s}_HR.png={s}_LR.png', 'hazy/{s}.png=clear/{s}.png'. Repeatable.",
        metavar="IMAGES=FILES",
        group="Source",
    )
    sidecar: str | Sequence[str] = option(
        (),
        "Files with a value for each image: ``FILES=TYPE``, such as ``{s}.gt.txt=text``, or ``IMAGES=FILES=TYPE``. "
        "Types are ``text``, ``json``, ``label`` (a class), ``numbers`` (lines of numbers), ``npy`` and ``bytes``. "
        "Each becomes a column.",
        "File for each image, as a column: '{s}.gt.txt=text'; or json, label, numbers, npy, bytes. Repeatable.",
        metavar="FILES=TYPE",
        group="Source",
    )
    masks: str | Sequence[str] = option(
        (),
        "Masks of the images: ``{s}_mask.png``, ``masks/{s}.png`` or, if images have several masks, "
        "``{dir}/../masks/{s}*.png``. They become the column ``mask``, or ``masks`` if an image has several.",
        "Masks of the images: '{s}_mask.png', 'masks/{s}.png', '{dir}/../masks/{s}*.png'. Repeatable.",
        metavar="FILES",
        group="Source",
    )
    max_pixels: int = max_pixels_option(
        "Limit of an image's pixels. An image with more is a bad sample. A file is a bad sample, too, if it has more "
        "than 8 bytes per allowed pixel plus 64 MiB. Both are rejected before they are read or decoded. This bounds "
        "the memory: a decoding thread takes up to 20 bytes per allowed pixel (3.6 GB by default)."
    )

    def open_source(
        self, path: Path, *, packed_as: Manifest | None = None, progress: ProgressCallback = no_progress, **more: Any
    ) -> Source:
        """Opens the source at ``path`` with these options, see :func:`packstore.sources.open_source`.

        ``more``: further fields of :class:`packstore.sources.base.SourceOptions`, or others than these options.
        """
        from packstore.sources import SourceOptions, open_source

        given = {each.name: getattr(self, each.name) for each in fields(SourceArguments) if each.name != "source_kind"}
        options = SourceOptions(**given | more)
        return open_source(path, options, kind=self.source_kind, packed_as=packed_as, progress=progress)

    def open_packed(self, path: Path, manifest: Manifest, progress: ProgressCallback) -> Source:
        """Opens the source at ``path`` again, from which the store of ``manifest`` was packed. Skips bad samples if any
        was skipped in packing."""
        return self.open_source(path, packed_as=manifest, skip_bad=bool(manifest.skipped), progress=progress)
