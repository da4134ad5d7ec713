"""Exports: write stores in foreign formats, a file for each kind; here the options, which import nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packstore.core.errors import UsageError
from packstore.core.options import (
    check_options,
    convert_size,
    option,
    overwrite_option,
    restart_option,
    whole_number,
    workers_option,
)
from packstore.core.registry import EXPORTS


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of :func:`packstore.export`.

    Raises :class:`UsageError` for an unknown kind or encoding, and for numbers out of range. Raises it also for
    ``quality`` without ``encode="jpeg"``.
    """

    to: str | None = option(
        None,
        "The kind, such as ``webdataset``; None takes the destination's suffix.",
        "Kind of export, whatever the suffix of DEST: imagefolder, webdataset, parquet …",
        metavar="KIND",
    )
    encode: Literal["jpeg", "png"] | None = option(
        None, "Re-encode images as files: ``png`` keeps every pixel, ``jpeg`` does not.", none="images as stored"
    )
    quality: int | None = option(
        None, "JPEG quality of ``encode`` ``jpeg``.", none="90", metavar="Q", least=1, most=100
    )
    shard_size: int | str | None = option(
        None,
        "Approximate bytes of images in a shard: a number, or a text such as ``500MB``.",
        "Approximate size of shards, e.g. 1GiB.",
        none="that of the kind",
    )
    bare: bool = option(
        False,
        "Leave out ``packstore.json`` and ``packstore.rows.jsonl``. Data that the format cannot hold are then lost. "
        "``overwrite`` cannot replace a bare export, since nothing marks it as packstore's.",
        "Leave out packstore.json. Data that the format cannot hold are then lost.",
    )
    overwrite: bool = overwrite_option("export")
    restart: bool = restart_option()
    workers: int | None = workers_option("Threads for ``encode``.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.to is not None:
            EXPORTS.check(self.to)
        if self.quality is not None and (
            self.encode != "jpeg" or not 1 <= whole_number("quality", self.quality) <= 100
        ):
            raise UsageError(f"quality is a number from 1 to 100 for encode='jpeg', got {self.quality!r}")
        if self.shard_bytes is not None:
            whole_number("shard_size", self.shard_bytes)

    @property
    def shard_bytes(self) -> int | None:
        """:attr:`shard_size` in bytes; None if it is None. Raises :class:`UsageError` for a text that is no size."""
        return convert_size(self.shard_size)
