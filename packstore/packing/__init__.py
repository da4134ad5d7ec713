"""Packing: plan a conversion, run it, go on after an interrupt. Imports core, images, stores and sources.

Here are the options, which import nothing heavy: the help of the commands reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from packstore.core.errors import UsageError
from packstore.core.findings import DEFAULT_DROP
from packstore.core.modes import parse_mode
from packstore.core.options import (
    check_numbers,
    check_options,
    convert_size,
    format_option,
    option,
    overwrite_option,
    restart_option,
    show_value,
    whole_number,
    workers_option,
)
from packstore.core.registry import ENCODINGS
from packstore.packing.source_arguments import (
    KEEP,
    Answers,
    SourceArguments,
    annotation_frame_option,
    check_mode_options,
    decoder_option,
    source_option,
)

if TYPE_CHECKING:
    from packstore.core.manifest import Normalization
    from packstore.images.reading import MeanAndStd


OnDuplicate = Literal["raise", "skip", "unchecked"]
_CLUSTER = re.compile(r"processes:0*[1-9][0-9]{0,3}|ray(:.+)?")
_pixel_option = partial(option, group="Channels, depth and frames")
_image_option = partial(option, group="Images")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options for reading samples and making their shards. ``convert``, ``append`` and ``Writer`` have them."""

    depth: str | None = _pixel_option(
        None,
        "Conversion of values of more than 8 bits: ``keep`` (the mode of the first image), ``scale`` (from the range "
        "of their dtype; floating point from 0 … 1), ``clip`` (above 255 to 255) or ``window:LO,HI``.",
        "More than 8 bits: keep, scale, clip or window:LO,HI (black to white).",
        metavar="HOW",
    )
    alpha: str | None = _pixel_option(
        None, "Transparency: ``keep``, ``drop`` or ``over:COLOUR`` (``black``, ``white``, ``#rrggbb``).", metavar="HOW"
    )
    pixels: Literal["pillow"] | None = _pixel_option(
        None,
        "``pillow``: read every image as Pillow's ``convert('RGB')`` does. Images that lose bits, alpha, frames or "
        "channels by it are counted. Instead of ``mode``, ``depth``, ``alpha`` and ``frames``.",
        "pillow: read every image as Pillow's convert('RGB') does, and count those that lose bits, alpha, frames or "
        "channels. Instead of --mode, --depth, --alpha and --frames.",
    )
    frames: int | str | None = _pixel_option(
        None,
        "Frames of files that have several. ``first``, or the number of a frame from 0. ``all``: each frame becomes a "
        "record of pixels, with the key ``name#number``. ``clips``: each file, or each folder of numbered frames, "
        "becomes a record with the column ``clip``, an array of its frames.",
        "Files with several frames or pages: first, or the number of a frame from 0; all: each frame is a record; "
        "clips: each file, or folder of numbered frames, is a record with an array of its frames.",
        metavar="N",
    )
    annotation_frame: Literal["stored", "upright"] | None = annotation_frame_option(
        "Frame of boxes, points, masks and polygons of images with an EXIF orientation: ``stored`` if they count in "
        "the pixels as files store them, ``upright`` if they count in the upright image. Only used for images whose "
        "annotations do not tell it, by the size that they state or by the convention of their format. None asks. "
        "Annotations are moved to the frame of the images, which follows from ``exif_transpose``.",
        "For turned photos whose annotations do not tell: do boxes and masks count in the stored pixels, or in the "
        "upright image?",
    )
    check: Literal["header", "decode", "none"] = source_option(
        "header",
        "Check of each file. ``header``: its kind, header and end. ``decode``: every pixel, too. ``none``: nothing.",
        "Check each file. header: its kind, header and end; decode: every pixel.",
    )
    on_error: Literal["raise", "skip"] = source_option(
        "raise",
        "``raise`` stops at a bad sample, ``skip`` leaves it out and notes it in the manifest.",
        "At a bad file, raise stops; skip leaves it out, lists it, and exits with 3 in the end.",
    )
    shard_size: int | str | None = option(
        None,
        "Approximate bytes of images in a shard, as a number or as text (``2MB``). Shards are cut before packing, by "
        "the sizes in the source, see :class:`packstore.packing.plan.ShardRule`. None for a store of one file; "
        "at a URL, for 256 MiB.",
        "Approximate size of shards, e.g. 1GiB, measured by the images' bytes in SOURCE.",
        group="Store",
    )
    workers: int | None = workers_option(none="one per core; 32 for a URL")
    decoder: str = decoder_option()

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes; None if it is not set."""
        return convert_size(self.shard_size)


@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """Options for encoding images. ``convert`` and ``Writer`` have them."""

    encoding: str | None = _image_option(
        None,
        "``original``, ``jpeg``, ``uint8``, ``float16``, ``bfloat16``, ``float32``, or the name of a plug-in. None "
        "keeps the encoding of a source that is a store; else takes ``original`` for LMDB and HDF5, ``float16`` for "
        "``.pth``.",
        "Form of the images.  [default: original; .pth: float16]",
    )
    size: int | tuple[int, int] | None = _image_option(
        None,
        "``S`` or ``(height, width)`` of tensor encodings.",
        "Bring all images to one size: 224, or 32x48 (height x width).",
        metavar="S|HxW",
    )
    fit: Literal["crop", "pad", "squash"] | None = _image_option(
        None, "How ``size`` treats other aspect ratios.", none="crop"
    )
    resize: int | None = _image_option(
        None,
        "Shorter side to which ``jpeg`` and ragged ``uint8`` shrink images; None does not.",
        "jpeg, uint8: shrink the shorter side.",
        metavar="PX",
        least=1,
    )
    max_side: int | None = _image_option(
        None,
        "Maximum of the longer side, for ``jpeg`` and ragged ``uint8``; None for no limit.",
        "jpeg, uint8: shrink the longer side.",
        metavar="PX",
        least=1,
    )
    quality: int | None = _image_option(
        None,
        "JPEG quality. None for 90, and to keep the records of a ``jpeg`` store unchanged.",
        "jpeg: quality.  [default: 90]",
        metavar="Q",
        least=1,
        most=100,
    )
    normalize: str | Normalization | MeanAndStd | None = option(
        None,
        "``imagenet``, ``cifar10``, ``cifar100``, ``auto`` (computed from the training split), ``none``, or "
        "``M,M,M/S,S,S``. Or means and standard deviations of pixels scaled to 0 … 1: ``([m, m, m], [s, s, s])``. "
        "None takes ``cifar10`` and ``cifar100`` for these datasets, else ``imagenet``.",
        "Floating point: imagenet, cifar10, cifar100, auto (computed from the training split), none, or M,M,M/S,S,S "
        "(mean/std of 0…1).  [default: cifar10 and cifar100 for these, else imagenet]",
        metavar="HOW",
        group="Images",
    )
    exif_transpose: bool = _image_option(
        False,
        "Apply the EXIF orientation. Pixels are rotated now; files that ``original`` keeps are rotated when they are "
        "loaded. Boxes, points, masks and polygons are turned with them. A store whose files are transposed at loading "
        "stays such a store.",
        "Turn images upright by their EXIF orientation, and their boxes and masks with them; files that stay unchanged "
        "are turned when loaded.",
    )
    index: bool | None = _image_option(
        None,
        "Add a seek index to each baseline JPEG file of ``original``. With it loaders decode little more than the "
        "crop. It takes 0.8% of the bytes, 2.9% in mode ``L``. None adds it if packstore's JPEG engine is available.",
        "original: add a seek index to JPEG files, so that crops decode faster; 0.8% more bytes.  [default: --index]",
    )
    mode: str | None = _pixel_option(
        None,
        "Mode of all images, such as ``RGB``, ``L`` (gray) or ``I;16``, see :class:`packstore.core.modes.Mode`; "
        "``keep`` for the mode of the first image, which all others must share. None reads image files as 8-bit RGB, "
        "and keeps arrays unchanged. A file that exceeds the mode ends the run with a :class:`UsageError`, unless "
        "``depth``, ``alpha`` or ``frames`` says how to convert it. The same call with one of these resumes the run.",
        "Channels and depth: RGB, L (gray), RGBA, I;16 …; keep: those of the first image.  "
        "[default: RGB; arrays as they are]",
        metavar="MODE",
    )
    format: str | None = format_option()
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ReadingOptions, SourceArguments, EncodingOptions):
    """Options of :func:`packstore.convert`.

    Raises :class:`UsageError` for invalid values, and for arguments that contradict each other for every source.
    Planning checks ``format``, the options of the encoder, such as ``size``, ``quality`` and ``check``, and those of
    the source.
    """

    split: str | None = source_option(
        None,
        "Pack only this split; for a single dataset, the name of its split.",
        "Pack only this split.",
        metavar="NAME",
    )
    progressive: Literal["baseline"] | None = _image_option(
        None,
        "``baseline`` rewrites progressive JPEG files of ``original`` as baseline files with the same pixels and "
        "metadata: their crops decode many times faster. Each file is decoded before and after. None keeps the files.",
        "original: convert progressive JPEG files to baseline without loss, so that they decode faster.",
    )
    link: bool | Literal["relative"] = option(
        False,
        "Leave the images in their files. The store keeps file, offset and length of each image, and reads the images "
        "from there; with ``relative``, by paths relative to the destination's folder. For sources whose images are "
        "bytes of uncompressed files on this machine. An interrupted run cannot be resumed.",
        None,  # two flags of the command line
    )
    workers: int | None = workers_option(
        "Threads; None for one per core, or 32 if the source is a URL. For a map-style dataset also the number of "
        "processes that read it, if it is 2 or more; None for one per core from 1,024 samples on.",
        "Threads.  [default: one per core; 32 for a URL]",
        none="",
    )
    restart: bool = restart_option()
    cluster: str | None = option(
        None,
        "Workers that pack shards, if the destination is a URL: ``processes:N`` on this machine, ``ray`` on it, or "
        "``ray:ADDRESS``, a cluster whose machines see ``source`` under this path. ``workers`` is then the number of "
        "threads of each worker. None for this process. The store is the same to the byte.",
        "If DEST is a URL: pack by processes:N of this machine, ray, or ray:ADDRESS.",
        metavar="WHERE",
        group="Run",
    )

    def __post_init__(self) -> None:
        from packstore.images.reading import OF_SOURCES, parse_normalization

        super().__post_init__()
        if self.encoding is not None and self.encoding not in ENCODINGS:
            raise UsageError(f"unknown encoding {self.encoding!r}; encodings: {', '.join(ENCODINGS)}")
        if self.shard_size is not None:
            whole_number("shard_size", self.shard_bytes)
        one = None if self.frames in (None, *OF_SOURCES) else str(self.frames)
        check_mode_options(self.mode, self.depth, self.alpha, one)
        others = self.depth, self.alpha, self.frames, None if self.mode == "RGB" else self.mode
        if self.pixels is not None and any(each is not None for each in others):
            raise UsageError("pixels=pillow makes 8-bit RGB of every image: leave mode, depth, alpha and frames out")
        if self.frames in OF_SOURCES and (self.exif_transpose or self.link):
            raise UsageError(
                f"frames={self.frames} packs pixels, so neither exif_transpose nor link can apply; leave them out"
            )
        if self.fit is not None and self.size is None:
            raise UsageError("fit needs a size: give a size too")
        if self.normalize is not None and self.normalize != "auto":
            parse_normalization(self.normalize, parse_mode("F"))  # only a check: the mode is not known yet
        if self.cluster is not None and _CLUSTER.fullmatch(self.cluster) is None:
            raise UsageError(
                f"cluster should be 'processes:N' with N from 1 on, 'ray' or 'ray:ADDRESS', got {self.cluster!r}"
            )

    def answers_for(self, column: str) -> Answers:
        """Returns mode, depth, alpha and frames for a column beside the main image.

        The column's own options come first. Of the options for all columns:
        - ``depth`` applies. But if the column's own mode is ``keep``, only a ``depth`` of ``keep`` applies.
        - ``alpha`` applies.
        - ``mode`` applies only if its value is ``keep``, and the column's own ``depth`` is not given or ``keep``.
        - ``frames`` never applies.
        """
        own = self.column_answers.get(column, {})
        mode = KEEP if self.mode == KEEP and own.get("depth") in (None, KEEP) else None
        depth = None if own.get("mode") == KEEP and self.depth != KEEP else self.depth
        return Answers(mode, depth, self.alpha)._replace(**own)


@dataclass(frozen=True, kw_only=True)
class AppendOptions(ReadingOptions, SourceArguments):
    """Options of :func:`packstore.append`.

    Raises :class:`UsageError` for an invalid ``columns``, ``split``, ``on_duplicate``, ``key_prefix``,
    ``no_new_classes`` or ``restart``. Planning checks the others, some of them only if samples are converted.
    """

    split: str | None = source_option(
        None,
        "Only this split of ``source``. If the source has no splits: the store's split for its records.",
        "Take only this split of SOURCE. If SOURCE has no splits, add to this split of STORE.",
        metavar="NAME",
    )
    key_prefix: str = source_option(
        "",
        "Prefix for each key of the source, such as ``week-48/``.",
        "Put PREFIX before the keys of SOURCE.",
        metavar="PREFIX",
    )
    no_new_classes: bool = source_option(
        False, "Refuse a source with a class that the store lacks.", "Stop if SOURCE has a class that STORE lacks."
    )
    on_duplicate: OnDuplicate = option(
        "raise",
        "What to do with a key that the store has: ``raise``, or ``skip`` the sample. ``unchecked`` reads no keys; the "
        "caller knows that all differ.",
        "For a key that STORE has already: stop, or skip the sample. unchecked: do not compare keys.",
        group="Store",
    )
    shard_size: int | str | None = option(
        None,
        "Approximate bytes of images in a new shard, as for :func:`packstore.convert`. None for the size of the "
        "store's largest shard; for a store of one file, one shard per split.",
        "Approximate size of new shards.  [default: as in STORE]",
        group="Store",
    )
    restart: bool = restart_option()


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options of :func:`packstore.merge`. Raises :class:`UsageError` for invalid values; planning checks ``format``."""

    format: str | None = format_option()
    on_duplicate: Literal["raise", "skip", "unchecked"] = option(
        "raise",
        "What to do with a key that an earlier store has: ``raise``, or ``skip`` the record. ``unchecked`` reads no "
        "keys; the caller knows that all differ.",
        "For a key that an earlier store has: stop, or skip the record. unchecked: do not compare keys.",
    )
    classes: Sequence[str] | None = option(
        None,
        "All class names of the column ``label``, in the order of their numbers.",
        "All classes in the order of their numbers: cat,dog, or a file with one a line.",
        none="those of the first store, then new ones of the others",
        metavar="NAMES",
    )
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Options of :func:`packstore.select`.

    Raises :class:`UsageError` for invalid values, and in these cases:

    - ``whole_shards`` with options other than ``where``, ``splits``, ``seed``, ``format`` and ``overwrite``.
    - ``stratify`` without ``splits`` or ``sample``.
    - ``drop_kinds`` other than the default without ``drop``.

    Planning checks ``where``, ``drop``, ``drop_columns``, ``relabel``, ``shard_size`` and ``format``.
    """

    where: str | None = option(
        None,
        "Condition on the records, see :mod:`packstore.packing.where`: ``label in (cat, dog) and split == train``.",
        "Records to take, e.g. 'label in (cat, dog) and split == train'.",
        metavar="CONDITION",
    )
    per_class: int | None = option(
        None,
        "Maximum per class, drawn at random before ``sample``. Records without a label are one class.",
        "At most N records of each class, at random.",
        metavar="N",
        least=1,
    )
    sample: int | None = option(
        None, "Number of records to draw at random.", "N records at random.", metavar="N", least=1
    )
    splits: Mapping[str, float] | None = option(
        None,
        'New splits and their shares, ``{"train": 0.9, "val": 0.1}``, drawn at random from all chosen records. The '
        "report counts in ``moved`` the records that change their split. None keeps the splits.",
        "New splits at random: train=0.9,val=0.1.",
        flag="--split",
        metavar="SHARES",
    )
    stratify: bool = option(
        False,
        "The sample, and each new split, has the same share of every class.",
        "Give sample and splits the same share of every class.",
    )
    seed: int = option(
        0,
        "Seed of all draws. The same seed draws the same records from equal stores.",
        "Seed of all random choices.",
        metavar="N",
        least=0,
    )
    whole_shards: bool = option(
        False,
        "Draw whole shards: nothing is copied, and no shard is opened.",
        "Choose whole shards instead of records, so nothing is copied.",
    )
    drop: str | os.PathLike[str] | None = option(
        None,
        "Report of :func:`packstore.audit` as JSON. The records that its findings name are left out before anything is "
        "drawn.",
        "Leave out the findings of packstore audit --json JSON.",
        metavar="JSON",
    )
    drop_kinds: Sequence[str] = option(
        DEFAULT_DROP, "Kinds of findings whose records ``drop`` leaves out.", metavar="KINDS"
    )
    drop_columns: Sequence[str] = option(
        (), "Columns to leave out.", "Leave out a column. Repeatable.", flag="--drop-column", metavar="NAME"
    )
    relabel: str | os.PathLike[str] | Mapping[str, str] | None = option(
        None,
        "New names of classes: a mapping, or a CSV file with the columns ``old,new``. Two classes with one new name "
        "are joined; an empty name leaves the records out.",
        "Rename or merge classes: columns old,new.",
        metavar="CSV",
    )
    format: str | None = format_option()
    shard_size: int | str | None = option(
        None,
        "Approximate bytes of images in a shard.",
        "Approximate size of shards.",
        none="as in the store",
        group="Store",
    )
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        check_options(self)
        if self.drop is None and tuple(self.drop_kinds) != DEFAULT_DROP:
            raise UsageError("drop_kinds chooses findings of an audit: give its report, too, as drop")
        if self.splits is not None:
            if not isinstance(self.splits, Mapping):
                shown = show_value(self.splits)
                raise UsageError(f"splits should give the share of each split by its name, got {shown}")
            shares = list(self.splits.values())
            check_numbers("splits", shares, texts=False)
            shown = show_value(dict(self.splits))
            if "" in self.splits:
                raise UsageError(f"each split needs a name, got {shown}")
            if shares and min(shares) <= 0:
                raise UsageError(f"each share of a split should be above 0, got {shown}")
            if abs(sum(shares) - 1) > 1e-6:
                raise UsageError(f"the shares of the splits should add up to 1, got {shown}")
        if self.stratify and self.splits is None and self.sample is None:
            raise UsageError("stratify says how splits or a sample are drawn: give one of them")
        if self.whole_shards:
            others = (self.sample, self.per_class, self.relabel, self.shard_size, self.stratify, *self.drop_columns)
            if self.drop is not None or any(other not in (None, False) for other in others):
                raise UsageError("whole_shards takes shards as they are: only where, splits and seed go with it")

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes; None if it is not set. Raises :class:`UsageError` if it is no size."""
        return convert_size(self.shard_size)
