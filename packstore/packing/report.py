"""``ConvertReport``: the result of a conversion."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from packstore.core.manifest import Manifest, Skipped
from packstore.core.tally import Tally
from packstore.images.encode.options import readers_transpose
from packstore.images.losses import UNIFIED
from packstore.packing.frames import OTHER_SIZE
from packstore.packing.plan import Plan
from packstore.packing.recorded_options import EXIF_ORIENTED
from packstore.sources.ledger import Ledger
from packstore.stores.base import disk_bytes
from packstore.stores.opening import open_reader


@dataclass(frozen=True, slots=True, repr=False)
class ConvertReport:
    """Result of a conversion.

    Attributes:
        destination: The store.
        manifest: Its manifest.
        tally: Counts of the samples, including those of an interrupted run.
        disk_bytes: Bytes that the store takes on disk.
        seconds: From the survey to the published store.
        ledger: Every file of the source with its role; empty if the source has no files of its own.
        resumed: Number of records that an interrupted run had packed.
        palette: Classes whose images are all PNG files with a palette, which may be masks; ``""`` stands for a whole
            dataset without classes.
        notes: Remarks of the source for the user, see :class:`packstore.sources.base.Survey`.
    """

    destination: Path
    manifest: Manifest
    tally: Tally
    disk_bytes: int
    seconds: float
    ledger: Ledger
    resumed: int = 0
    palette: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source_bytes(self) -> int:
        """Bytes of the images that were read."""
        return self.tally.source_bytes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Samples left out by policy."""
        return tuple(self.tally.skipped)

    @property
    def kept(self) -> Mapping[str, int]:
        """Number of progressive files that could not be made baseline and were kept unchanged, by reason."""
        return self.tally.kept

    @property
    def oriented(self) -> int:
        """Number of images whose EXIF orientation asks for a rotation or flip. :attr:`orientation` says if it was
        applied."""
        return int(self.manifest.options.get(EXIF_ORIENTED) or 0)

    @property
    def unified(self) -> Mapping[str, int]:
        """Number of images of other modes converted to the store's without loss, by kind of conversion
        (:data:`packstore.images.losses.UNIFIED`)."""
        return read_conversion_counts(self.manifest)

    @property
    def orientation(self) -> Literal["not applied", "applied", "applied when loading"]:
        """Says if the EXIF orientation is applied: not at all, at packing, or at loading."""
        if not self.manifest.options.get("exif_transpose"):
            return "not applied"
        return "applied when loading" if readers_transpose(self.manifest) else "applied"

    def __repr__(self) -> str:
        more = f", {len(self.skipped):,} skipped" if self.skipped else ""
        if self.oriented and self.orientation == "not applied":
            more += f", {self.oriented:,} with an EXIF orientation that is not applied"
        return (
            f"<ConvertReport of {str(self.destination)!r}: {self.manifest.records:,} records, "
            f"{self.disk_bytes / 1e6:,.1f} MB, {self.seconds:.1f} s{more}>"
        )


def read_conversion_counts(manifest: Manifest) -> dict[str, int]:
    """Reads from the manifest how many images were converted without loss, by kind of conversion (:data:`UNIFIED`).

    Leaves out kinds without a count.
    """
    return {name: count for name in UNIFIED if isinstance(count := manifest.options.get(name), int)}


def _describe_rounding(manifest: Manifest) -> list[str]:
    """Describes the rounding of images of more than 8 bits by a floating point encoding of 16 bits, in one line.

    Empty for other encodings, and for images of 8 bits.
    """
    bits, mode = {"float16": 11, "bfloat16": 8}.get(manifest.encoding), manifest.image.pixels
    if bits is None or mode.dtype == "uint8":
        return []
    return [f"{manifest.encoding} rounds values of {mode.dtype} to {bits} bits; --encoding float32 keeps 24"]


def make_report(
    plan: Plan,
    manifest: Manifest,
    tally: Tally,
    started: float,
    resumed: int,
    *,
    other_size: str = "",
    nbytes: int | None = None,
    labels: Counter[str] | None = None,
) -> ConvertReport:
    """Builds the report of a finished conversion.

    Args:
        plan: The conversion.
        manifest: Manifest of the published store.
        tally: Counts of its samples.
        started: ``time.monotonic`` at the start.
        resumed: Number of records that an interrupted run had packed.
        other_size: See :func:`list_notes`.
        nbytes: Bytes of the store; None measures them on disk.
        labels: See :func:`_find_palette_classes`.
    """
    return ConvertReport(
        destination=plan.destination,
        manifest=manifest,
        tally=tally,
        disk_bytes=disk_bytes(plan.destination) if nbytes is None else nbytes,
        seconds=time.monotonic() - started,
        ledger=plan.survey.ledger,
        resumed=resumed,
        palette=_find_palette_classes(plan, manifest, tally.palette, labels),
        notes=list_notes(plan, manifest, other_size),
    )


def list_notes(plan: Plan, manifest: Manifest, other_size: str = "") -> tuple[str, ...]:
    """Lists the remarks on a finished conversion for the user. ``other_size``: :attr:`FrameAligner.other_size`."""
    return (
        *plan.survey.notes,
        *_describe_rounding(manifest),
        *_describe_convention(plan, manifest),
        *describe_other_sizes(manifest, other_size),
    )


def describe_other_sizes(manifest: Manifest, first: str = "") -> list[str]:
    """Describes the records whose annotations state another size than their image has, in one line. ``first``: the
    first of them, in words. Empty if there are none."""
    if not (count := manifest.options.get(OTHER_SIZE)):
        return []
    example = f" ({first})" if first else ""
    return [
        f"annotations of {count:,} of {manifest.records:,} images state another size than the image has{example}: they "
        "may have been made for other copies of the images; compare both before you train (packstore view)"
    ]


def _describe_convention(plan: Plan, manifest: Manifest) -> list[str]:
    """Describes the convention of the source's format by which annotations of turned photos were understood. Empty
    if it was not needed."""
    frame = plan.source.annotation_frame("jpeg")
    moved = manifest.options.get("exif_oriented") and any(column.frame is not None for column in manifest.columns)
    if frame is None or not moved or plan.options.annotation_frame is not None:
        return []
    other = {"upright": "stored", "stored": "upright"}[frame]
    return [
        f"annotations of turned photos are taken to count in the {frame} image, as in tools of "
        f"{manifest.origin.kind}; if not: --annotation-frame {other}"
    ]


def _find_palette_classes(
    plan: Plan, manifest: Manifest, palette: Counter[str], labels: Counter[str] | None
) -> tuple[str, ...]:
    """Returns the classes whose records are all PNG files with a palette.

    For a store without classes, returns ``("",)`` if all records are such files. Empty if the samples bring labels.

    ``palette``: number of palette files by class number. ``labels``: number of records by class number; None reads it
    from the store if it is needed.
    """
    if not palette:
        return ()
    if manifest.classes is None:
        return ("",) if palette.total() == manifest.records else ()
    if "label" in plan.survey.sampled:
        return ()
    if labels is None:
        with open_reader(plan.destination) as reader:
            numbers = reader.fixed_column("label")
            labels = Counter({str(label): int(count) for label, count in enumerate(np.bincount(numbers))})
    return tuple(name for label, name in enumerate(manifest.classes) if 0 < labels[str(label)] == palette[str(label)])
