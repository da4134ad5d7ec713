"""``audit``: shows where to look in a dataset: leaks between splits, conflicting labels, odd images, wrong boxes.

Checksums, labels and boxes first, which takes seconds; images only if asked.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.checking.audit.images import Inspection, Limits, Looked, batches
from packstore.checking.audit.report import AuditReport, Collector, Finding
from packstore.checking.audit.same import Hashes, nearest_before, report_groups, report_near
from packstore.checking.audit.tables import Columns, report_boxes, report_classes
from packstore.core.arguments import true_or_false, whole_number
from packstore.core.errors import UsageError
from packstore.core.files import refuse_empty
from packstore.core.findings import KINDS
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.images.decoders import get_decoder
from packstore.images.sniff import MAX_PIXELS
from packstore.stores import open_store
from packstore.stores.base import Reader
from packstore.stores.checked import CheckedReader

__all__ = ["KINDS", "AuditOptions", "AuditReport", "Finding", "audit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditOptions:
    """The keyword arguments of :func:`packstore.audit`, which describes them; validated."""

    pixels: bool = False
    near: bool = True
    mirrored: bool = False
    mask_classes: int | None = None
    min_side: int = 16
    max_aspect: float = 5.0
    imbalance: float = 10.0
    workers: int | None = None
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        true_or_false(pixels=self.pixels, near=self.near, mirrored=self.mirrored)
        whole_number("min_side", self.min_side)
        whole_number("max_pixels", self.max_pixels)
        for name in ("mask_classes", "workers"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        for name in ("max_aspect", "imbalance"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 1:
                raise UsageError(f"{name} should be a number of at least 1, got {value!r}")
        needing = [name for name in ("mirrored", "mask_classes") if getattr(self, name)]
        if needing and not self.pixels:
            raise UsageError(f"{needing[0]} is about images, which only pixels=True (--pixels) reads")


def audit(
    store: str | os.PathLike[str],
    *,
    pixels: bool = False,
    near: bool = True,
    mirrored: bool = False,
    mask_classes: int | None = None,
    min_side: int = 16,
    max_aspect: float = 5.0,
    imbalance: float = 10.0,
    workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: bool | ProgressCallback = False,
) -> AuditReport:
    """Looks for what spoils training: the same image in two splits or under two labels, odd images, wrong boxes.

    Reads checksums, keys, labels, splits and boxes. Memory: about 80 bytes a record, 8 more for each column of
    class numbers beside ``label``, and 200 with ``pixels``, which also takes a temporary file of 288 bytes a record.

    Args:
        store: The store. It stays as it is.
        pixels: Also decode every image: for the same pixels in other bytes, nearly the same pictures, and all that is
            odd about an image or a mask.
        near: With ``pixels``, also look for nearly the same pictures: compressed again, resized, cropped by 5%.
        mirrored: Of these, mirrored ones too.
        mask_classes: Number of classes of the masks; a value beyond them, other than 255, is reported.
        min_side: Images whose shorter side has fewer pixels are tiny.
        max_aspect: Images whose longer side is more than so many times the shorter one are extreme.
        imbalance: Ratio of the largest class of a split to its smallest from which on it is reported.
        workers: Threads; None for one a core.
        max_pixels: An image whose header says more pixels is not decoded.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        The report. What is damaged is in it too, and ends nothing.

    Raises:
        StoreError: ``store`` does not open; a :class:`MissingStoreError` where nothing is; a
            :class:`~packstore.core.errors.UnreachableError` where a shard of it cannot be fetched now.
        UsageError: Options that do not go together.
    """
    options = AuditOptions(
        pixels=pixels,
        near=near,
        mirrored=mirrored,
        mask_classes=mask_classes,
        min_side=min_side,
        max_aspect=max_aspect,
        imbalance=imbalance,
        workers=workers,
        max_pixels=max_pixels,
    )
    refuse_empty(store)
    with open_store(store) as reader, progress_callback(progress) as report:
        return _Audit(reader, options, report).run()


class _Audit:
    def __init__(self, reader: Reader, options: AuditOptions, progress: ProgressCallback) -> None:
        self.reader = reader
        self.options = options
        self.progress = progress
        self.found = Collector()

    def run(self) -> AuditReport:
        reader, options, found = self.reader, self.options, self.found
        manifest = reader.manifest
        columns = Columns(reader, found)
        checks = [
            "checksums of images, within and across splits",
            "labels and classes",
            "double keys",
        ]
        sizes = _known_sizes(reader)
        report_classes(found, manifest, columns.rows, options.imbalance)
        if options.pixels:
            checks += ["images decoded: files, headers, pixels" + (", masks" if self._has("mask") else "")]
            sizes = self.pixels(columns)
        else:
            report_groups(found, manifest, columns.rows, columns.checksums, columns.there, "same bytes")
        if self._has("boxes"):
            report_boxes(found, reader, sizes)
            checks.append("boxes" if sizes is not None else "boxes (not their right and lower ends: no image was read)")
        if options.pixels and options.near:
            checks.append("nearly the same pictures" + (", mirrored too" if options.mirrored else ""))
        return found.report(reader, options.pixels, checks)

    def _has(self, type: str) -> bool:
        return any(column.type == type for column in self.reader.manifest.columns)

    def pixels(self, columns: Columns) -> NDArray[np.int32]:
        """Looks at all images; returns their sizes."""
        options, found, manifest = self.options, self.found, self.reader.manifest
        count = len(self.reader)
        limits = Limits(
            min_side=options.min_side,
            max_aspect=options.max_aspect,
            mask_classes=options.mask_classes,
            mirrored=options.mirrored,
        )
        decoder = get_decoder(max_pixels=options.max_pixels)
        inspection = Inspection(CheckedReader(self.reader), decoder, limits)
        pixels, decoded = np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        greys, sizes = np.zeros(count, np.bool_), np.zeros((count, 2), np.int32)
        done_bytes = 0
        self.progress(Progress("look", 0, count, 0))
        with closing(Hashes(count if options.near else 0, limits.windows)) as hashes:
            for seen in ordered_map(inspection.look, batches(manifest), options.workers or default_workers()):
                rows = slice(seen.start, seen.start + len(seen.decoded))
                pixels[rows], decoded[rows], greys[rows], sizes[rows] = (
                    seen.pixels,
                    seen.decoded,
                    seen.greys,
                    seen.sizes,
                )
                if options.near:
                    hashes.put(seen.start, seen.detailed, seen.hashes)
                self._note(seen)
                done_bytes += seen.nbytes
                self.progress(Progress("look", rows.stop, count, done_bytes))
            if 0 < int(greys.sum()) < int(decoded.sum()) / 2:
                for record in np.flatnonzero(greys).tolist():
                    found.add("grey", "grey", [record])
            # Records that cannot be decoded are still compared by their bytes.
            lost = columns.there & ~decoded
            report_groups(found, manifest, columns.rows, columns.checksums, lost, "same bytes")
            report_groups(found, manifest, columns.rows, pixels, decoded, "same pixels")
            if options.near:
                within, across = nearest_before(hashes, columns.rows.splits, pixels, self.progress)
                report_near(found, manifest, columns.rows, within, across)
        return sizes

    def _note(self, seen: Looked) -> None:
        for kind, record, what in seen.findings:
            self.found.add(kind, what, [record])


def _known_sizes(reader: Reader) -> NDArray[np.int32] | None:
    """Height and width of all images of one shape, where no image has to be read for it."""
    column = reader.manifest.image
    if column.layout is None or column.kind != "fixed":
        return None
    size = column.shape[:2] if column.layout == "HWC" else column.shape[1:]
    return np.broadcast_to(np.array(size, np.int32), (len(reader), 2))
