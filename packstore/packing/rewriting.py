"""Rewrites a store in place with other columns or links; records and shards stay the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback
from packstore.packing.copying import LinkGetter, RecordCopier, create_store_like
from packstore.packing.recorded_options import drop_record_counts, record_counts
from packstore.stores.base import Reader
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.places import place_of


def rewrite_store(
    reader: Reader,
    columns: Sequence[Column],
    stage: str,
    progress: ProgressCallback,
    links: LinkGetter | None = None,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Copies an open store beside itself with other columns or links, and replaces it with the copy.

    If the store is at a URL, uploads the copy as a new version. Returns the new manifest.

    Args:
        reader: The store. Readers that are open keep the old one.
        columns: Columns of the copy.
        stage: Name of the stage in progress reports.
        progress: Called after each batch.
        links: New links of a linked store; None for the old ones.
        options: Changed options of its manifest.

    Raises:
        CorruptRecordError: A record does not match its checksum.
        DestinationError: The disk has no room for the copy.
    """
    if links is None:
        links = partial(read_link_values, folder=relative_link_folder(reader.manifest, reader.path))
    with place_of(reader.path).new_store(overwrite=True) as draft:
        return draft.publish(_write_copy(reader, draft.path, columns, stage, progress, links, options or {}), progress)


def _write_copy(
    reader: Reader,
    path: Path,
    columns: Sequence[Column],
    stage: str,
    progress: ProgressCallback,
    links: LinkGetter,
    options: Mapping[str, Any],
) -> Manifest:
    """Writes the copy to ``path``, with the same shards and splits; returns its manifest. Replaces a store at
    ``path``."""
    manifest = reader.manifest
    starts = [0] if manifest.shards is None else manifest.shards.starts[:-1].tolist()
    splits = [(split.name, split.start, split.stop) for split in manifest.splits] or [("", 0, manifest.records)]
    sharded = manifest.shards is not None
    base = replace(manifest, options=drop_record_counts(manifest) | dict(options))
    with create_store_like(path, base, columns, sharded=sharded, overwrite=True) as builder:
        copier = RecordCopier(builder, manifest.records, progress, links, stage)
        for start, stop in pairwise([*starts, manifest.records]):
            if start:
                builder.cut()
            for name, first, last in splits:
                records = np.arange(max(first, start), min(last, stop))
                if len(records):
                    copier.copy_records(reader, records, name)
        return builder.commit(counted=record_counts(manifest), skipped=manifest.skipped)
