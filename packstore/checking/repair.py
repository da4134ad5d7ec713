"""``repair``: restores a damaged store, with records from its source or from another store.

Everything from the source is proven: each record must have its checksum in the store, and in the end every column its
digest in the manifest. Another image of the same name cannot slip in. At a URL, damaged shards are replaced in place: a
shard is named by its SHA-256, so only the bytes that it had can replace it, and readers of the store never see anything
else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.checking import RepairOptions
from packstore.checking.mending import FoundRecord, RecordWriter, repair_files
from packstore.checking.reports import RepairReport, ShardCounts
from packstore.checking.source_records import Donor, LostRecordError
from packstore.core.errors import DestinationError, MissingStoreError, PackstoreError, StoreError, UsageError
from packstore.core.files import writing
from packstore.core.manifest import Manifest
from packstore.core.options import argument, option, progress_option, takes
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import ShardPlace, UrlPath, check_paths, location
from packstore.objects import MissingObjectError, ObjectStore, open_objects
from packstore.packing.encoding import drop_record_counts
from packstore.sources.base import Entry
from packstore.stores import Problem
from packstore.stores.assembly import list_shards
from packstore.stores.format import Format
from packstore.stores.keys import KeyIndex, hash_keys
from packstore.stores.opening import open_reader
from packstore.stores.places import place_of
from packstore.stores.places.remote import open_shard_file, upload_shard
from packstore.stores.records import Records
from packstore.stores.remote_objects import hash_object, read_head, shard_object_name
from packstore.stores.remote_shards import reopen_remote


@dataclass(frozen=True)
class RepairArguments(RepairOptions):
    """Arguments of :func:`packstore.repair`."""

    damaged: str | os.PathLike[str] = field(metadata=argument("The store; it must still open."))
    source: str | os.PathLike[str] = field(
        metadata=argument("The source that it was packed from, or another store of the same images.")
    )
    destination: str | os.PathLike[str] | None = option(None, "Path of the new store; None if ``damaged`` is a URL.")
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(RepairArguments)
def repair(arguments: RepairArguments) -> RepairReport:
    """Writes an undamaged store from a damaged one and its source. ``damaged`` is only read, unless it is a URL.

    The new store has the same format, encoding, splits and shards. If everything could be replaced, it has the records
    that the damaged store had before it was damaged, and their digests prove it. It also has the same bytes if one
    conversion wrote the damaged store, with the same versions of the libraries that write the format.

    At a URL, damaged and missing shards are replaced in place, and must get exactly the bytes that they had. If
    ``source`` is a store with the same shard, the shard is copied. Other shards are rebuilt from their undamaged
    records and ``source``. A shard that is missing or does not open is packed again from the samples of ``source`` that
    no other shard has.

    ``image_key``, ``label_key``, ``layout``, ``ignore``, ``splits`` and ``columns`` that are not given are those with
    which the store was packed.

    Returns:
        The report. Nothing is written if nothing is damaged. Without ``partial``, nothing is written if a record is
        lost. At a URL, shards are replaced even if others are lost.

    Raises:
        StoreError: The damaged store does not open, or a shard of it does not.
        SourceError: The source cannot be read, or the records cannot be made from it.
        UsageError: ``destination`` is missing, or is given for a URL. Or an argument is wrong, such as ``partial`` for
            a URL.
        DestinationError: The destination may not be written.
    """
    damaged, source = location(arguments.damaged), location(arguments.source)
    with progress_callback(arguments.progress) as report:
        if place_of(damaged).remote:
            if arguments.destination is not None or arguments.partial:
                raise UsageError("a store at a URL is repaired in place: omit destination and partial")
            return _repair_at_url(UrlPath(damaged), source, arguments, report)
        if arguments.destination is None:
            raise UsageError("give a destination (--out) for the repaired store: the damaged one is not changed")
        check_paths(damaged, arguments.destination, arguments.labels)
        return repair_files(damaged, source, Path(arguments.destination), arguments, report)


def _repair_at_url(url: UrlPath, source: Path, options: RepairOptions, progress: ProgressCallback) -> RepairReport:
    """Reads all shards of the store at ``url``, and uploads replacements for damaged and missing ones."""
    objects = open_objects(url)
    if not objects.can_write:
        raise DestinationError(f"{objects.url} is read only: repair the store at a URL that can be written")
    try:
        head = read_head(objects)
    except MissingStoreError:
        raise DestinationError(
            f"{objects.url} holds no store that packstore published there: repair the local store that it is a copy of"
        ) from None
    table = head.manifest.shards
    assert table is not None
    damaged, done_bytes = [], 0
    for number, shard in enumerate(table):
        digest = None
        # A missing shard has no digest, and counts as damaged.
        with suppress(MissingObjectError):
            digest = hash_object(objects, shard_object_name(shard))
        if digest != shard.digest:
            damaged.append(number)
        done_bytes += shard.nbytes
        progress(Progress("verify", number + 1, len(table), done_bytes))
    with tempfile.TemporaryDirectory(prefix="packstore-") as folder:
        format = FORMATS[head.manifest.format]
        shards = _ShardRepairs(objects, format, table, source, options, Path(folder), progress)
        gone = shards.rebuild(damaged)
        if gone:
            with Records(reopen_remote(url, head)) as reader:
                shards.repack(gone, reader)
    lost_records = sum(table[number].records for number in shards.lost)
    identical = bool(damaged) and not shards.lost
    return RepairReport(
        url,
        url if identical else None,
        len(damaged),
        head.manifest.records - sum(table[number].records for number in damaged),
        tuple(shards.replaced),
        tuple(shards.lost.values()),
        identical,
        ShardCounts(len(damaged) - len(shards.lost), len(shards.lost), lost_records),
    )


@dataclass
class _ShardRepairs:
    """Replaces shards of a store at a URL, and notes what was replaced and what was lost.

    Attributes:
        lost_keys: By number, keys of lost shards that still have them.
        replaced: Replaced records of rebuilt shards, and whole shards.
        lost: By number, why a shard could not be replaced.
    """

    objects: ObjectStore
    format: Format
    table: ShardTable
    source: Path
    options: RepairOptions
    folder: Path
    progress: ProgressCallback
    lost_keys: dict[int, NDArray[np.uint64]] = field(default_factory=dict)
    replaced: list[Problem] = field(default_factory=list)
    lost: dict[int, Problem] = field(default_factory=dict)

    def rebuild(self, damaged: Sequence[int]) -> list[int]:
        """Replaces the damaged shards that the source has, rebuilds those that open, and returns the numbers of the
        others.
        """
        gone, known = [], _locate_shards(self.source)
        for number in damaged:
            shard = self.table[number]
            with self._noting_loss([number]), ExitStack() as stack:
                if shard.digest in known:
                    file = stack.enter_context(open_shard_file(known[shard.digest], shard, self.format.name))
                    self._upload(number, file, [Problem("taken whole from another store", shard=shard.name)])
                    continue
                own = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
                copy = self._download(shard, own)
                if copy is None:
                    gone.append(number)
                    continue
                # If its keys are damaged, too, repack names it as the shard that cannot be read.
                with suppress(StoreError), open_reader(copy) as reader:
                    self.lost_keys[number] = hash_keys([reader])
                whole = copy.with_name(f"whole-{shard.name}")
                report = repair_files(copy, self.source, whole, self.options, self.progress)
                if report.lost:
                    raise StoreError(f"{len(report.lost):,} of its records are lost, the first: {report.lost[0].what}")
                made = None if report.destination is None else self.format.data_file(whole)
                first = int(self.table.starts[number])
                fixed = [replace(p, record=first + (p.record or 0), shard=shard.name) for p in report.replaced]
                self._upload(number, _require_same_bytes(made, shard, "rebuilt"), fixed)
                self.lost_keys.pop(number, None)
        return gone

    def repack(self, gone: Sequence[int], reader: Records) -> None:
        """Packs the shards ``gone`` again, from the samples of the source that no other shard has, and uploads them."""
        options, manifest = self.options, reader.manifest
        with self._noting_loss(gone), closing(options.open_packed(self.source, manifest, self.progress)) as opened:
            donor = Donor(opened, manifest, options)
            undamaged = [n for n in range(len(self.table)) if n not in gone and n not in self.lost_keys]
            known = [*self.lost_keys.values(), *(hash_keys([reader.part(number)]) for number in undamaged)]
            index = KeyIndex(np.concatenate([np.empty(0, np.uint64), *known]))
            entries = [entry for entry in donor.report_entries(self.progress) if entry.key not in index]
            wanted = sum(self.table[number].records for number in gone)
            if len(entries) != wanted:
                raise StoreError(
                    f"the source has {len(entries):,} samples that are in no other shard, expected {wanted:,}: those "
                    f"of the {len(gone):,} missing shards"
                )
            first = 0
            for done, number in enumerate(gone):
                self.progress(Progress("repack", done, len(gone), 0))
                shard = self.table[number]
                path, stop = self.folder / shard.name, first + shard.records
                # The nearest undamaged shard has the same origin, options and classes.
                nearest = min(undamaged, key=lambda other: abs(other - number), default=None)
                counted = replace(manifest, options=drop_record_counts(manifest))
                template = counted if nearest is None else reader.part(nearest).manifest
                _pack_shard(donor, template, entries[first:stop], path)
                first = stop
                with self._noting_loss([number]):
                    file = _require_same_bytes(self.format.data_file(path), shard, "packed again from the source")
                    self._upload(number, file, [Problem("packed again from the source", shard=shard.name)])

    def _upload(self, number: int, file: Path, replaced: Iterable[Problem]) -> None:
        """Uploads a shard, and notes what was replaced."""
        upload_shard(self.objects, self.table[number], file)
        self.replaced += replaced

    @contextmanager
    def _noting_loss(self, numbers: Iterable[int]) -> Iterator[None]:
        """Notes the shards ``numbers`` as lost if the block raises a :class:`PackstoreError`, except uploaded ones."""
        try:
            yield
        except PackstoreError as error:
            done = {problem.shard for problem in self.replaced}
            for number in numbers:
                shard = self.table[number]
                if shard.name not in done:
                    self.lost.setdefault(number, Problem(f"{shard.records:,} records: {error}", shard=shard.name))

    def _download(self, shard: Shard, folder: Path) -> Path | None:
        """Downloads a damaged shard into ``folder``; returns its path, or None if it is missing or damaged."""
        copy = folder / shard.name
        file = self.format.data_file(copy)
        with writing(file):
            file.parent.mkdir(exist_ok=True)
            try:
                with file.open("wb") as target:
                    target.writelines(self.objects.stream(shard_object_name(shard)))
            except MissingObjectError:
                return None
        try:
            open_reader(copy).close()
        except StoreError:
            return None
        return copy


def _locate_shards(source: Path) -> dict[str, ShardPlace]:
    """Returns the paths or URLs of a store's shards by digest; empty without a readable store."""
    try:
        with open_reader(source) as reader:
            table = reader.manifest.shards
            places = [] if table is None else list_shards(source, reader.manifest, reader.table.places()).places
            return {shard.digest: place for shard, place in zip(table or (), places, strict=True)}
    except StoreError:
        return {}


def _require_same_bytes(made: Path | None, shard: Shard, how: str) -> Path:
    """Returns the file of a rebuilt shard, or raises :class:`StoreError` if its bytes differ."""
    if made is None or file_digest(made) != (shard.nbytes, shard.digest):
        raise StoreError(
            f"it was {how}, but not with the same bytes: the source has changed, or libraries have other versions"
        )
    return made


def _pack_shard(donor: Donor, template: Manifest, entries: Sequence[Entry], path: Path) -> None:
    """Packs samples as a store of one file at ``path``, with columns and facts of ``template``."""
    writer = RecordWriter(path, replace(template, skipped=()), None)
    with writer.builder:
        for entry in entries:
            try:
                image, fields = donor.make_record(entry)
            except LostRecordError as error:
                raise StoreError(str(error)) from error
            found = FoundRecord(0, entry.key, fields, image=image)
            writer.add(found, entry.split if template.splits else "")
        writer.commit()
