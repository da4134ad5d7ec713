"""``audit``: points out what to inspect in a dataset: leaks between splits, conflicting labels, odd images, wrong
boxes.

Checks checksums, labels and boxes, which takes seconds; images only on request.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray

from packstore.checking.audit.images import ImageInspector, InspectionResults, Limits, batch_images
from packstore.checking.audit.report import AuditReport, Finding, FindingCollector
from packstore.checking.audit.same import RecordHashes, find_nearest_before, report_duplicates, report_near
from packstore.checking.audit.tables import RecordTable, report_classes, report_faulty_rows
from packstore.checking.options import AuditOptions
from packstore.core.files import refuse_empty
from packstore.core.findings import list_kinds
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.images.decoders import get_decoder
from packstore.images.reading import Reading
from packstore.stores import open_store
from packstore.stores.base import Reader
from packstore.stores.checked import CheckedReader

__all__ = ["AuditOptions", "AuditReport", "Finding", "audit", "list_kinds"]


@dataclass(frozen=True)
class AuditArguments(AuditOptions):
    """Arguments of :func:`packstore.audit`."""

    store: str | os.PathLike[str] = field(metadata=argument("The store; it is only read."))
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(AuditArguments)
def audit(arguments: AuditArguments) -> AuditReport:
    """Finds data that spoils training: the same image in two splits or under two labels, odd images, wrong boxes.

    Reads checksums, keys, labels, splits and boxes; with ``pixels`` also images and masks.

    Needs about 80 bytes of memory a record, and 8 more for each column of class numbers beside ``label``. With
    ``pixels`` the memory is 200 bytes a record. A temporary file then takes 288 bytes a record.

    Returns:
        The report. Damaged records are reported too, and do not end the audit.

    Raises:
        StoreError: ``store`` does not open. A :class:`MissingStoreError` if it does not exist; an
            :class:`~packstore.core.errors.UnreachableError` if a shard cannot be fetched now.
        UsageError: ``store`` is empty, or an option is out of range. Or ``mirrored`` or ``mask_classes`` is given
            without ``pixels``.
    """
    refuse_empty(arguments.store)
    with open_store(arguments.store) as reader, progress_callback(arguments.progress) as report:
        return _Audit(reader, arguments, report).audit_store()


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
