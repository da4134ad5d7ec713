"""Options that several functions have: those for opening a source, and for limiting and decoding its images.

Imports nothing heavy: the help of commands reads these options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packstore.core.errors import UsageError, printable
from packstore.core.modes import RGB, parse_mode
from packstore.core.options import check_options, option
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import MAX_PIXELS

if TYPE_CHECKING:
    from packstore.core.manifest import Manifest
    from packstore.sources.base import Source


KEEP = "keep"
"""Value of ``mode``, ``depth`` and ``alpha``: as in the first image."""


source_option = partial(option, group="Source")
"""Makes an option that the help lists under the heading ``Source``."""


class Answers(NamedTuple):
    """Options ``mode``, ``depth``, ``alpha`` and ``frames`` of one column, see
    :class:`packstore.images.reading.Reading`.

    None means that the option is not given. ``keep`` takes the column's first file as the model. ``in`` tells if
    one of the options has a value.
    """

    mode: str | None = None
    depth: str | None = None
    alpha: str | None = None
    frames: str | None = None

    def __contains__(self, value: object) -> bool:
        return value in tuple(self)


def split_column_options(columns: Sequence[str]) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Splits the values of ``--column`` in two: meanings of table columns, and options of single image columns.

    Meanings (``label=kind``) stay as they are. Options (``near.depth=keep``) are returned by column and name.

    Raises:
        UsageError: An option of a column occurs twice, or belongs to the main image.
    """
    meanings: list[str] = []
    answers: dict[str, dict[str, str]] = {}
    for each in columns:
        left, _, value = each.partition("=")
        column, _, name = left.rpartition(".")
        if not column or name not in Answers._fields:
            meanings.append(each)
            continue
        if column == "image":
            raise UsageError(f"--column {printable(each)!r}: of the main image say --{name} {printable(value)}")
        own = answers.setdefault(column, {})
        if name in own:
            raise UsageError(f"--column {printable(left)} is given twice")
        own[name] = value
    return tuple(meanings), answers


def format_answers(answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns options of single columns in the manifest's form: ``COLUMN.NAME`` to value.

    Leaves out ``keep``. Leaves out modes, which the manifest's columns have.
    """
    from packstore.images.reading import EXPECTED

    return {
        f"{column}.{name}": value
        for column, own in answers.items()
        for name, value in own.items()
        if name in EXPECTED and value != KEEP
    }


def check_column_options(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the values of ``--column`` as a tuple. A single text becomes one value.

    Raises :class:`UsageError` for invalid values.
    """
    from packstore.sources.encodings import check_columns

    given = (columns,) if isinstance(columns, str) else columns
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        return check_columns(columns)  # says what is wrong
    meanings, answers = split_column_options(given)
    check_columns(meanings)
    for column, own in answers.items():
        try:
            check_mode_options(*Answers(**own))
        except UsageError as error:
            raise UsageError(f"--column {printable(column)}: {error}") from None
    return tuple(given)


def check_mode_options(mode: str | None, depth: str | None, alpha: str | None, frames: str | None) -> None:
    """Raises :class:`UsageError` for an invalid mode, depth, alpha or frames, and if depth and mode contradict each
    other."""
    from packstore.images.reading import Reading

    named = RGB.name if mode in (None, KEEP) else mode
    if not isinstance(named, str):
        raise UsageError(f"mode should be the name of a mode or keep, got {mode!r}")
    kept = {name: None if value == KEEP else value for name, value in (("depth", depth), ("alpha", alpha))}
    reading = Reading(named, kept["depth"], kept["alpha"], frames)
    if mode is not None and depth == KEEP and parse_mode(reading.mode).dtype == "uint8" and mode != KEEP:
        raise UsageError(f"mode {mode} has 8 bits, so depth cannot be kept; use --mode keep")
    if mode == KEEP and reading.depth is not None:
        raise UsageError(f"mode keep keeps all bits, so depth {depth} cannot apply; leave one of the two out")


def max_pixels_option(meaning: str, images: str = "Refuse images that") -> int:
    """Makes the option ``max_pixels``. ``images``: beginning of its help on the command line."""
    help = f"{images} claim more pixels, e.g. 50M. Each thread needs up to 20 bytes a pixel."
    return source_option(MAX_PIXELS, meaning, help, metavar="N", least=1)


def annotation_frame_option(meaning: str, help: str) -> Literal["stored", "upright"] | None:
    """Makes the option ``annotation_frame``."""
    return source_option(None, meaning, help)


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
    """Base of the options of functions that read a source. ``columns`` becomes a tuple. :class:`SourceOptions` checks
    the other options of the source, when it is opened."""

    labels: str | os.PathLike[str] | None = option(
        None,
        "CSV with the columns ``file,label`` and optionally ``split``.",
        "Labels: columns file,label[,split].",
        metavar="CSV",
        group="Source",
    )
    source_kind: str | None = source_option(
        None,
        "Kind of the source, such as ``imagefolder``; None recognises it.",
        "Kind of SOURCE, if packstore does not recognise it. packstore guide sources lists the kinds.",
        flag="--source",
        metavar="KIND",
    )
    image_key: str | None = source_option(
        None,
        "Name of the array with the images, in a source of named arrays (HDF5, npz …); None finds it.",
        "HDF5, npz …: the array of images.",
        metavar="NAME",
    )
    label_key: str | None = source_option(
        None,
        "Name of the array with the class numbers, in such a source.",
        "HDF5, npz …: the array of class numbers.",
        metavar="NAME",
    )
    columns: str | Sequence[str] = source_option(
        (),
        "Meanings of a table's columns that their values do not tell: ``["
        '"image=photo", "label=kind", "boxes=x1,y1,x2,y2"]``. Also options of a single column of further image files, '
        '``mode``, ``depth``, ``alpha`` and ``frames``: ``["near.depth=keep", "thermal.depth=scale"]``. For WebDataset '
        "``key=last-dot``: dots belong to the names of samples, but for the last.",
        "Tables: role of a column: image=COL, label=COL, labels=COL, boxes=X1,Y1,X2,Y2, split=COL, keypoints=X,Y,… "
        "Further images: NAME.mode=, NAME.depth=, NAME.alpha=, NAME.frames=. Repeatable.",
        flag="--column",
        metavar="ROLE=COL",
    )
    layout: str | None = source_option(
        None,
        "Order of the images' axes in a source of named arrays: ``NHWC``, ``NCHW`` or ``NHW``. For boxes in Parquet "
        "and Arrow: their convention, one of :data:`packstore.sources.boxes.CONVENTIONS` (``xyxy``, ``xywh`` …), or "
        "``json`` to keep them unchanged. For Pascal VOC: ``voc`` if boxes count from 1, ``xyxy`` from 0.",
        "HDF5, npz …: order of the images' axes, e.g. NCHW. Tables: form of boxes, e.g. xywh. Pascal VOC: voc or xyxy.",
        metavar="AXES",
    )
    ignore: str | Sequence[str] = source_option(
        (),
        "Patterns of files and folders to leave out, in the syntax of ``.gitignore``: ``*.txt``, ``masks/``.",
        "Leave out files and folders of SOURCE, as .gitignore does: '*.txt', 'masks/'. Repeatable.",
        metavar="PATTERN",
    )
    splits: str | Sequence[str] = source_option(
        (),
        'Splits by patterns of their files or folders, in the syntax of ``ignore``: ``["train=images/a", '
        '"val=images/b"]``. The first pattern that matches decides.',
        "Make splits of the files and folders that match: TRAIN=PATTERN,VAL=PATTERN, patterns as for --ignore. "
        "Repeatable.",
        metavar="SPLIT=PATTERN,…",
    )
    pair: str | Sequence[str] = source_option(
        (),
        "Further images that belong to the images: ``IMAGES=FILES``, two patterns with ``{s}`` for what their names "
        "share, ``{s}_HR.png={s}_LR.png``. Each becomes an image column, see "
        ":mod:`packstore.sources.companion_patterns`.",
        "Further image for each image, as a column: '{s}_HR.png={s}_LR.png', 'hazy/{s}.png=clear/{s}.png'. Repeatable.",
        metavar="IMAGES=FILES",
    )
    sidecar: str | Sequence[str] = source_option(
        (),
        "Files with a value for each image: ``FILES=TYPE``, such as ``{s}.gt.txt=text``, or ``IMAGES=FILES=TYPE``. "
        "Types are ``text``, ``json``, ``label`` (a class), ``numbers`` (lines of numbers), ``npy`` and ``bytes``. "
        "Each becomes a column.",
        "File for each image, as a column: '{s}.gt.txt=text'; or json, label, numbers, npy, bytes. Repeatable.",
        metavar="FILES=TYPE",
    )
    masks: str | Sequence[str] = source_option(
        (),
        "Masks of the images: ``{s}_mask.png``, ``masks/{s}.png`` or, if images have several masks, "
        "``{dir}/../masks/{s}*.png``. They become the column ``mask``, or ``masks`` if an image has several.",
        "Masks of the images: '{s}_mask.png', 'masks/{s}.png', '{dir}/../masks/{s}*.png'. Repeatable.",
        metavar="FILES",
    )
    max_pixels: int = max_pixels_option(
        "Limit of an image's pixels. An image with more is a bad sample. A file is a bad sample, too, if it has more "
        "than 8 bytes per allowed pixel plus 64 MiB. Both are rejected before they are read or decoded. This bounds "
        "the memory: a decoding thread takes up to 20 bytes per allowed pixel (3.6 GB by default)."
    )

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "columns", check_column_options(self.columns))

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The meanings of a table's columns in :attr:`columns`, without the options of single image columns."""
        return split_column_options(self.columns)[0]

    @property
    def column_answers(self) -> dict[str, dict[str, str]]:
        """The options of single image columns in :attr:`columns`, by column and name."""
        return split_column_options(self.columns)[1]

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
