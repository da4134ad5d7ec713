"""Options of a conversion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packstore.core.arguments import check_bools, check_texts, whole_number
from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Normalization
from packstore.core.modes import RGB, parse_mode
from packstore.core.registry import ENCODINGS, FORMATS, SOURCES
from packstore.core.sizes import convert_size
from packstore.images.normalization import MeanAndStd, parse_normalization
from packstore.images.reading import OF_SOURCES, Reading
from packstore.packing.column_answers import KEEP, Answers, split_column_options
from packstore.sources.arguments import SourceArguments
from packstore.sources.column_options import check_columns
from packstore.sources.ignoring import check_patterns

_CLUSTER = re.compile(r"processes:0*[1-9][0-9]{0,3}|ray(:.+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions(SourceArguments):
    """Keyword arguments of :func:`packstore.convert`, which describes them.

    Raises :class:`UsageError` for invalid values, and for arguments that contradict each other for every source.
    Planning checks the options of the encoder, such as ``size``, ``quality`` and ``check``, and those of the source.

    Converts ``shard_size`` to a number of bytes; converts ``ignore`` and ``columns`` to tuples.
    """

    split: str | None = None
    format: str | None = None
    encoding: str | None = None
    size: int | tuple[int, int] | None = None
    fit: Literal["crop", "pad", "squash"] | None = None
    resize: int | None = None
    max_side: int | None = None
    quality: int | None = None
    normalize: str | Normalization | MeanAndStd | None = None
    exif_transpose: bool = False
    check: Literal["header", "decode", "none"] = "header"
    on_error: Literal["raise", "skip"] = "raise"
    overwrite: bool = False
    restart: bool = False
    shard_size: int | str | None = None
    workers: int | None = None
    decoder: str = "auto"
    cluster: str | None = None
    index: bool | None = None
    link: bool | Literal["relative"] = False
    progressive: Literal["baseline"] | None = None
    mode: str | None = None
    depth: str | None = None
    alpha: str | None = None
    frames: int | str | None = None

    def __post_init__(self) -> None:
        check_texts(source_kind=self.source_kind, split=self.split, format=self.format, encoding=self.encoding)
        check_texts(cluster=self.cluster)
        if self.on_error not in ("raise", "skip"):
            raise UsageError(f"on_error should be 'raise' or 'skip', got {self.on_error!r}")
        if self.format is not None:
            FORMATS.check(self.format)
        if self.encoding is not None and self.encoding not in ENCODINGS:
            raise UsageError(f"unknown encoding {self.encoding!r}; encodings: {', '.join(ENCODINGS)}")
        object.__setattr__(self, "shard_size", convert_size(self.shard_size))
        for name in ("workers", "shard_size", "max_pixels"):
            if name == "max_pixels" or getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        object.__setattr__(self, "ignore", check_patterns(self.ignore))
        object.__setattr__(self, "columns", check_column_options(self.columns))
        one = None if self.frames in (None, *OF_SOURCES) else str(self.frames)
        _check_mode_options(self.mode, self.depth, self.alpha, one)
        if self.frames in OF_SOURCES and (self.exif_transpose or self.link):
            raise UsageError(
                f"frames={self.frames} packs pixels, so neither exif_transpose nor link can apply; leave them out"
            )
        check_bools(overwrite=self.overwrite, restart=self.restart)
        if self.link not in (True, False, "relative"):
            raise UsageError(f"link should be True, False or 'relative', got {self.link!r}")
        if self.index is not None:
            check_bools(index=self.index)
        if self.fit is not None and self.size is None:
            raise UsageError("fit needs a size: give a size too")
        if self.normalize is not None and self.normalize != "auto":
            parse_normalization(self.normalize, parse_mode("F"))  # only a check: the mode is not known yet
        if self.source_kind is not None:
            SOURCES.check(self.source_kind)
        if self.cluster is not None and _CLUSTER.fullmatch(self.cluster) is None:
            raise UsageError(
                f"cluster should be 'processes:N' with N from 1 on, 'ray' or 'ray:ADDRESS', got {self.cluster!r}"
            )

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The meanings of a table's columns in :attr:`columns`, without the options of single image columns."""
        return split_column_options(self.columns)[0]

    @property
    def column_answers(self) -> dict[str, dict[str, str]]:
        """The options of single image columns in :attr:`columns`, by column and name."""
        return split_column_options(self.columns)[1]

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

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes; None if it is not set."""
        return convert_size(self.shard_size)


def check_column_options(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the values of ``--column`` as a tuple. A single text becomes one value.

    Raises :class:`UsageError` for invalid values.
    """
    given = (columns,) if isinstance(columns, str) else columns
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        return check_columns(columns)  # says what is wrong
    meanings, answers = split_column_options(given)
    check_columns(meanings)
    for column, own in answers.items():
        try:
            _check_mode_options(*Answers(**own))
        except UsageError as error:
            raise UsageError(f"--column {printable(column)}: {error}") from None
    return tuple(given)


def _check_mode_options(mode: str | None, depth: str | None, alpha: str | None, frames: str | None) -> None:
    """Raises :class:`UsageError` for an invalid mode, depth, alpha or frames, and if depth and mode contradict each
    other."""
    named = RGB.name if mode in (None, KEEP) else mode
    if not isinstance(named, str):
        raise UsageError(f"mode should be the name of a mode or keep, got {mode!r}")
    kept = {name: None if value == KEEP else value for name, value in (("depth", depth), ("alpha", alpha))}
    reading = Reading(named, kept["depth"], kept["alpha"], frames)
    if mode is not None and depth == KEEP and parse_mode(reading.mode).dtype == "uint8" and mode != KEEP:
        raise UsageError(f"mode {mode} has 8 bits, so depth cannot be kept; use --mode keep")
    if mode == KEEP and reading.depth is not None:
        raise UsageError(f"mode keep keeps all bits, so depth {depth} cannot apply; leave one of the two out")
