"""``audit``: points out what to inspect in a dataset: leaks between splits, conflicting labels, odd images, wrong
boxes.

Checks checksums, labels and boxes, which takes seconds; images only on request.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.checking.audit.images import ImageInspector, InspectionResults, Limits, batch_images
from packstore.checking.audit.report import AuditReport, Finding, FindingCollector
from packstore.checking.audit.same import RecordHashes, find_nearest_before, report_duplicates, report_near
from packstore.checking.audit.tables import RecordTable, report_classes, report_faulty_rows
from packstore.core.arguments import check_bools, take_options, whole_number
from packstore.core.errors import UsageError
from packstore.core.files import refuse_empty
from packstore.core.findings import list_kinds
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.images.decoders import get_decoder
from packstore.images.reading import Reading
from packstore.images.sniff import MAX_PIXELS
from packstore.stores import open_store
from packstore.stores.base import Reader
from packstore.stores.checked import CheckedReader

__all__ = ["AuditOptions", "AuditReport", "Finding", "audit", "list_kinds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditOptions:
    """Validated keyword arguments of :func:`packstore.audit`, which describes them.

    Raises :class:`UsageError` for values out of range, and for ``mirrored`` or ``mask_classes`` without ``pixels``.
    """

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
        check_bools(pixels=self.pixels, near=self.near, mirrored=self.mirrored)
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
            raise UsageError(f"{needing[0]} needs pixels=True (--pixels), which reads images")


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
    """Finds data that spoils training: the same image in two splits or under two labels, odd images, wrong boxes.

    Reads checksums, keys, labels, splits and boxes. Memory is about 80 bytes a record, and 8 more for each column of
    class numbers beside ``label``. With ``pixels`` it is 200 bytes a record, and a temporary file takes 288 bytes a
    record.

    Args:
        store: The store; it is only read.
        pixels: Also decode every image, to find equal pixels in different files, near duplicates, and oddities of
            images and masks.
        near: With ``pixels``, also find near duplicates: recompressed, resized, or cropped by 5%.
        mirrored: Find mirrored near duplicates too.
        mask_classes: Number of classes of the masks; a value beyond them, other than 255, is reported.
        min_side: Images whose shorter side has fewer pixels are tiny.
        max_aspect: Images whose longer side is more than this many times their shorter side are reported.
        imbalance: A split is reported if its largest class has at least this many times the records of its smallest.
        workers: Threads; None for one a core.
        max_pixels: An image whose header claims more pixels is not decoded.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        The report. Damaged records are reported too, and do not end the audit.

    Raises:
        StoreError: ``store`` does not open. A :class:`MissingStoreError` if it does not exist; an
            :class:`~packstore.core.errors.UnreachableError` if a shard cannot be fetched now.
        UsageError: An option is out of range. Or ``mirrored`` or ``mask_classes`` is given without ``pixels``.
    """
    options = take_options(AuditOptions, locals())
    refuse_empty(store)
    with open_store(store) as reader, progress_callback(progress) as report:
        return _Audit(reader, options, report).audit_store()


class _Audit:
    """One run of an audit: collects findings from all checks."""

    def __init__(self, reader: Reader, options: AuditOptions, progress: ProgressCallback) -> None:
        self.reader = reader
        self.options = options
        self.progress = progress
        self.collector = FindingCollector()

    def audit_store(self) -> AuditReport:
        """Makes the checks that the options ask for; returns the report."""
        reader, options, collector = self.reader, self.options, self.collector
        manifest = reader.manifest
        table = RecordTable(reader, collector)
        checks = [
            "checksums of images, within and across splits",
            "labels and classes",
            "double keys",
        ]
        sizes = _read_uniform_sizes(reader)
        report_classes(collector, manifest, table.rows, options.imbalance)
        if options.pixels:
            checks += [
                "images decoded: files, headers, pixels"
                + (", masks" if any(column.holds_masks for column in manifest.columns) else "")
            ]
            sizes = self.inspect_images(table)
        else:
            report_duplicates(collector, manifest, table.rows, table.checksums, table.there, "same bytes")
        checks += report_faulty_rows(collector, reader, sizes)
        if options.pixels and options.near:
            checks.append("nearly the same pictures" + (", mirrored too" if options.mirrored else ""))
        return collector.make_report(reader, options.pixels, checks)

    def inspect_images(self, table: RecordTable) -> NDArray[np.int32]:
        """Decodes and inspects all images; adds findings of odd images and duplicates. Returns height and width of each
        image.

        The size is zero for images that cannot be decoded. They are compared by their bytes, the others by their
        pixels. Grey images are findings only if they are fewer than half. The search for near duplicates writes a
        temporary file. Reports progress.
        """
        options, collector, manifest = self.options, self.collector, self.reader.manifest
        count = len(self.reader)
        limits = Limits(
            min_side=options.min_side,
            max_aspect=options.max_aspect,
            mask_classes=options.mask_classes,
            mirrored=options.mirrored,
        )
        reading = Reading.restore(manifest.image.mode, manifest.options)
        decoder = get_decoder(max_pixels=options.max_pixels, reading=reading)
        inspection = ImageInspector(CheckedReader(self.reader), decoder, limits)
        pixels, decoded = np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        greys, sizes = np.zeros(count, np.bool_), np.zeros((count, 2), np.int32)
        done_bytes = 0
        self.progress(Progress("look", 0, count, 0))
        with closing(RecordHashes(count if options.near else 0, limits.windows)) as hashes:
            for seen in ordered_map(
                inspection.inspect_records, batch_images(manifest), options.workers or default_workers()
            ):
                rows = slice(seen.start, seen.start + len(seen.decoded))
                pixels[rows], decoded[rows], greys[rows], sizes[rows] = (
                    seen.pixels,
                    seen.decoded,
                    seen.greys,
                    seen.sizes,
                )
                if options.near:
                    hashes.store(seen.start, seen.detailed, seen.hashes)
                self._collect_findings(seen)
                done_bytes += seen.nbytes
                self.progress(Progress("look", rows.stop, count, done_bytes))
            if 0 < int(greys.sum()) < int(decoded.sum()) / 2:
                for record in np.flatnonzero(greys).tolist():
                    collector.add("grey", "grey", [record])
            # Records that cannot be decoded are still compared by their bytes.
            lost = table.there & ~decoded
            report_duplicates(collector, manifest, table.rows, table.checksums, lost, "same bytes")
            report_duplicates(collector, manifest, table.rows, pixels, decoded, "same pixels")
            if options.near:
                within, across = find_nearest_before(hashes, table.rows.splits, pixels, self.progress)
                report_near(collector, table.rows, within, across)
        return sizes

    def _collect_findings(self, seen: InspectionResults) -> None:
        """Adds the findings of some records to the collector."""
        for kind, record, what in seen.findings:
            self.collector.add(kind, what, [record])


def _read_uniform_sizes(reader: Reader) -> NDArray[np.int32] | None:
    """Returns height and width of each image, ``(N, 2)``. None if the manifest does not have one shape for all
    images."""
    column = reader.manifest.image
    if column.layout is None or column.kind != "fixed":
        return None
    size = column.shape[:2] if column.layout == "HWC" else column.shape[1:]
    return np.broadcast_to(np.array(size, np.int32), (len(reader), 2))
