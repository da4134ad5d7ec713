"""Packs shards of a store at a URL again of which nothing is left, from the source of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.donor import CannotReplaceError, Donor, encode_key, gather_values
from packstore.checking.options import RepairOptions
from packstore.core.errors import StoreError
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.packing.recorded_options import drop_record_counts
from packstore.sources.base import Entry
from packstore.stores import StoreBuilder
from packstore.stores.keys import hash_keys
from packstore.stores.sharded import ShardedReader

_BATCH = 64
"""Records that are encoded before they are written."""


def repack_shards(
    reader: ShardedReader,
    gone: Sequence[int],
    lost_keys: Mapping[int, NDArray[np.uint64]],
    source: Path,
    options: RepairOptions,
    folder: Path,
    progress: ProgressCallback,
) -> Iterator[Path]:
    """Packs the shards ``gone`` again, from the samples of the source that no other shard has. Yields the path of each.

    The samples must have the order in which they were packed. The caller compares the shards with the store's table.
    ``lost_keys``: hashes of the keys of further damaged shards, by number. These are not read.

    Raises:
        StoreError: The source has more or fewer such samples than the shards had records, or one cannot be used. Or
            another shard cannot be read.
        SourceError: The source cannot be opened.
        UsageError: The source's images cannot become records of the store.
    """
    table = reader.manifest.shards
    assert table is not None
    with closing(options.open_packed(source, reader.manifest, progress)) as opened:
        donor = Donor(opened, reader.manifest, options.decoder, options.annotation_frame)
        intact = [number for number in range(len(table)) if number not in gone and number not in lost_keys]
        known = [*lost_keys.values(), *(hash_keys([reader.shard(number)]) for number in intact)]
        entries = _list_unknown(known, reader.manifest, donor, progress)
        wanted = sum(table[number].records for number in gone)
        if len(entries) != wanted:
            raise StoreError(
                f"the source has {len(entries):,} samples that are in no other shard, expected {wanted:,}: those of "
                f"the {len(gone):,} missing shards"
            )
        first = 0
        for done, number in enumerate(gone):
            progress(Progress("repack", done, len(gone), 0))
            path, stop = folder / table[number].name, first + table[number].records
            _pack_shard(donor, _make_template(reader, number, intact), entries[first:stop], path)
            yield path
            first = stop


def _list_unknown(
    known: Sequence[NDArray[np.uint64]], manifest: Manifest, donor: Donor, progress: ProgressCallback
) -> list[Entry]:
    """Lists the samples of the source whose keys have no hash in ``known``, without those that packing skipped."""
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *known]))
    skipped = {skipped.key for skipped in manifest.skipped}

    def is_known(entry: Entry) -> bool:
        wanted = np.uint64(xxh3_64_intdigest(encode_key(entry)))
        place = int(np.searchsorted(hashes, wanted))
        return place < len(hashes) and hashes[place] == wanted

    return [entry for entry in donor.list_entries(progress) if entry.key not in skipped and not is_known(entry)]


def _make_template(reader: ShardedReader, number: int, intact: Sequence[int]) -> Manifest:
    """Returns the manifest of the nearest intact shard: it has the same origin, options and classes.

    Without one, returns the store's manifest without the counts that only it has.
    """
    if intact:
        return reader.shard(min(intact, key=lambda other: abs(other - number))).manifest
    return replace(reader.manifest, options=drop_record_counts(reader.manifest))


def _pack_shard(donor: Donor, template: Manifest, entries: Sequence[Entry], path: Path) -> None:
    """Packs samples as a store of one file at ``path``, with columns and facts of ``template``."""
    with StoreBuilder(path, format=template.format, encoding=template.encoding, columns=template.columns) as builder:
        for split, run in groupby(entries, lambda entry: entry.split):
            some = list(run)
            for start in range(0, len(some), _BATCH):
                try:
                    records = [donor.make_record(entry) for entry in some[start : start + _BATCH]]
                except CannotReplaceError as error:
                    raise StoreError(str(error)) from error
                images, rows = zip(*records, strict=True)
                builder.append(images, gather_values(template.columns, images, rows), split if template.splits else "")
        builder.commit(
            origin=template.origin,
            normalization=template.normalization,
            options=template.options,
            versions=template.versions,
        )
