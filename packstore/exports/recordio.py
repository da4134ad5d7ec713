"""RecordIO of MXNet: ``train-000000.rec`` with ``.idx`` and ``.lst`` beside it, see
:mod:`packstore.sources.records.recordio`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from packstore.core.errors import SampleError
from packstore.core.files import sync_tree
from packstore.exports.base import Export, Record, name_shard
from packstore.sources.records.recordio import HEADER, frame_record
from packstore.stores.export_manifest import ExportManifest

_EXACT = 1 << 24
"""Largest label: RecordIO's labels are float32, which is exact for integers up to here."""


class RecordioExport(Export):
    """A ``.rec`` file for each shard, with its index and its list of keys.

    If a label may be missing, is negative or above 2^24, all labels are written as 0. Float32 does not hold larger
    numbers exactly.
    """

    name = "recordio"
    help = "RecordIO files of MXNet"
    suffixes = (".recordio",)
    source = "recordio"
    image_forms: ClassVar[frozenset[str]] = frozenset({"files"})

    def exact_columns(self) -> Sequence[str]:
        """Returns ``label`` if no label may be missing and all are 0 … 2^24. Returns none otherwise. Reads all
        labels."""
        return ["label"] if self._holds_label else []

    def losses(self) -> Sequence[str]:
        """Returns a text on escaped characters of keys. Adds one on class names if the store has them."""
        lost = ["tabs and line breaks in keys: .lst has %09, %0A and %0D for them"]
        if self.manifest.classes is not None:
            lost.append("names of classes: labels are numbers")
        return lost

    @cached_property
    def _holds_label(self) -> bool:
        """Tells if every record has a label that float32 holds exactly."""
        if not self.manifest.has_label or self.manifest.column("label").nullable:
            return False
        values = np.asarray(self.reader.column("label"))
        return bool(np.all((values >= 0) & (values <= _EXACT)))  # up to 2^24

    def overhead(self) -> int:
        """Returns estimated bytes of a record's header, and of its lines in the index and the list."""
        return 60 + self.mean_key_bytes

    def write_shard(self, number: int, split: str, records: Iterable[Record]) -> str:
        """Writes the images with their labels, their places to the index, and their keys to the list.

        A label is 0 if labels are not held. Raises :class:`SampleError` for an image too large for a record.
        """
        file = name_shard(split, number, "rec")
        with self.open_files(file, *_companion_files(file)) as (out, index, listed):
            for count, record in enumerate(records):
                assert isinstance(record.image, bytes)
                label = int(record["label"]) if self._holds_label else 0
                try:
                    data = frame_record(HEADER.pack(0, label, count, 0) + record.image)
                except ValueError as error:
                    raise SampleError(record.key, str(error)) from None
                index.write(b"%d\t%d\n" % (count, out.tell()))
                out.write(data)
                name = record.key.translate({9: "%09", 10: "%0A", 13: "%0D"}).encode("utf-8", "surrogateescape")
                listed.write(b"%d\t%d\t%s\n" % (count, label, name))
        return file

    def sync(self, file: str | None) -> None:
        """Makes the shard's three files durable."""
        assert file is not None
        for each in (file, *_companion_files(file)):
            sync_tree(self.path / each)

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Adds the index and the list of each shard to the export manifest. Writes the export manifest unless the
        export is bare."""
        files = tuple(file for shard in export_manifest.shards for file in _companion_files(shard.file))
        return super().finish(replace(export_manifest, files=files), lines)


def _companion_files(file: str) -> tuple[str, str]:
    """Returns the paths of the index and the list of a ``.rec`` file."""
    stem = file.removesuffix(".rec")
    return f"{stem}.idx", f"{stem}.lst"
