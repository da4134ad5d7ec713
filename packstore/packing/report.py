"""``ConvertReport``: what a conversion did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Manifest, Skipped
from packstore.images.encode.options import turned_by_readers
from packstore.images.losses import UNIFIED
from packstore.packing.plan import Plan
from packstore.sources.ledger import Ledger
from packstore.stores import open_store
from packstore.stores.base import disk_bytes

Labels = Counter[int] | NDArray[np.int64]
"""How many records have which label."""


@dataclass(frozen=True, slots=True, repr=False)
class ConvertReport:
    """What a conversion did.

    Attributes:
        destination: The store.
        manifest: Its manifest.
        source_bytes: Bytes of the images that were read.
        disk_bytes: Bytes that the store takes on disk.
        seconds: From the survey to the published store.
        skipped: Samples left out by policy.
        ledger: Every file of the source with its role; empty where it has none of its own.
        resumed: Records that an interrupted run had packed already.
        kept: Progressive files that were to become baseline and that this run kept as they are, by reason.
        palette: Classes whose images are all PNG files with a palette, which may be masks; ``""`` stands for a whole
            dataset without classes.
        oriented: Images with an EXIF orientation by which they are to be turned, also those of an interrupted run. What
            was made of it, :attr:`orientation` says.
        unified: Images of other modes that lost nothing by the store's, also those of an interrupted run: how many, by
            how, one of :data:`packstore.images.losses.UNIFIED`.
        notes: See :class:`packstore.sources.base.Survey`.
    """

    destination: Path
    manifest: Manifest
    source_bytes: int
    disk_bytes: int
    seconds: float
    skipped: tuple[Skipped, ...]
    ledger: Ledger
    resumed: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    palette: tuple[str, ...] = ()
    oriented: int = 0
    unified: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def orientation(self) -> Literal["not applied", "applied", "applied when loading"]:
        """What becomes of the images' EXIF orientation."""
        if not self.manifest.options.get("exif_transpose"):
            return "not applied"
        return "applied when loading" if turned_by_readers(self.manifest) else "applied"

    def __repr__(self) -> str:
        more = f", {len(self.skipped):,} skipped" if self.skipped else ""
        if self.oriented and self.orientation == "not applied":
            more += f", {self.oriented:,} with an EXIF orientation that is not applied"
        return (
            f"<ConvertReport of {str(self.destination)!r}: {self.manifest.records:,} records, "
            f"{self.disk_bytes / 1e6:,.1f} MB, {self.seconds:.1f} s{more}>"
        )


def unified_of(manifest: Manifest) -> dict[str, int]:
    """How many images of other modes became the store's, by how."""
    return {name: count for name in UNIFIED if isinstance(count := manifest.options.get(name), int)}


def report_of(
    plan: Plan, manifest: Manifest, source_bytes: int, started: float, skipped: tuple[Skipped, ...], resumed: int
) -> ConvertReport:
    return ConvertReport(
        destination=plan.destination,
        manifest=manifest,
        source_bytes=source_bytes,
        disk_bytes=disk_bytes(plan.destination),
        seconds=time.monotonic() - started,
        skipped=skipped,
        ledger=plan.survey.ledger,
        resumed=resumed,
        oriented=int(manifest.options.get("exif_oriented") or 0),
        unified=unified_of(manifest),
        notes=plan.survey.notes,
    )


def all_palette(plan: Plan, manifest: Manifest, palette: Counter[int]) -> tuple[str, ...]:
    """The classes all of whose images are among those counted in ``palette``, by label."""

    def counts() -> NDArray[np.int64]:
        with open_store(plan.destination) as reader:
            return np.bincount(reader.fixed("label"), minlength=len(manifest.classes or ()))

    return palette_classes(plan, manifest, palette, counts)


def palette_classes(
    plan: Plan, manifest: Manifest, palette: Counter[int], counts: Callable[[], Labels]
) -> tuple[str, ...]:
    """:func:`all_palette`, where ``counts`` returns the number of records by label."""
    if not palette:
        return ()
    if manifest.classes is None:
        return ("",) if palette.total() == manifest.records else ()
    if "label" in plan.survey.sampled:
        return ()
    labels = counts()
    return tuple(name for label, name in enumerate(manifest.classes) if 0 < labels[label] == palette[label])
