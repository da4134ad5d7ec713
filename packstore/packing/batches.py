"""Packs samples into records, batch by batch, in the threads of a conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from packstore.core.column import Link
from packstore.core.columns import Buffer
from packstore.core.errors import CorruptRecordError, SampleError
from packstore.core.files import FileState
from packstore.core.manifest import Skipped
from packstore.images.encode import Encoder
from packstore.images.seek_index import make_indexes
from packstore.packing.further_images import FileLossError
from packstore.packing.values import UnfitValueError, ValueConverter, count_stored_bytes
from packstore.sources.base import Entry, Sample, Source

if TYPE_CHECKING:
    from packstore.packing.linking import Linker

# A batch is what one thread works on at a time. Files that pass through are cheap each, so a batch holds many; decoded
# images are large (a 1 MB JPEG has 10 MB and more of pixels), so a batch holds few. How large they come out shows only
# when they are decoded (50 KB of PNG can have 100 MB of pixels), so a worker hands over what it has at each
# _PIECE_BYTES, and ordered_flat_map bounds what is in flight.
PASS_RECORDS, PASS_BYTES = 256, 4 << 20
DECODE_RECORDS, DECODE_BYTES = 16, 1 << 20
LINK_BYTES = 16 << 20  # of records that are only linked: nothing keeps them in memory
_PIECE_BYTES = 4 << 20
_PNG, _PALETTE = b"\x89PNG\r\n\x1a\n", 3  # its colour type is byte 25


class PackedBatch(NamedTuple):
    """Packed records of a batch, or of a part of it. ``entries``, ``records``, ``checksums``, ``shapes`` and ``values``
    have an item for each record.

    Attributes:
        entries: The entries that became records.
        records: Bytes of each record; empty bytes if it is linked.
        checksums: XXH3-64 of each record.
        shapes: Shape of each record; None if all records have one shape.
        values: Stored values of each sample, ``key`` among them; an empty list if the source yields only images.
        seen: All entries that were read, in order, the skipped ones included.
        skipped: The skipped entries, with reasons.
        source_bytes: Bytes of all read entries in the source.
        record_bytes: Bytes of the records, without those that are only linked.
        kept: Reasons why progressive files could not be made baseline, one per file.
        palette: Positions in ``seen`` of PNG files with a palette.
        oriented: Positions in ``seen`` of images whose EXIF orientation asks for a rotation or flip.
        unified: Positions in ``seen`` of images of other modes that were converted to the store's. Each has the
            conversion's name, see :data:`packstore.images.losses.UNIFIED`.
        indexes: Seek index of each record; None if the store has no seek index.
        links: Location of each record; None if the store is not linked.
    """

    entries: list[Entry]
    records: list[Buffer]
    checksums: list[int]
    shapes: list[tuple[int, ...] | None]
    values: list[Mapping[str, Any]]
    seen: list[Entry]
    skipped: list[Skipped]
    source_bytes: int
    record_bytes: int
    kept: Sequence[str] = ()
    palette: Sequence[int] = ()
    oriented: Sequence[int] = ()
    unified: Sequence[tuple[int, str]] = ()
    indexes: list[bytes] | None = None
    links: list[Link] | None = None


def pack_batch(
    batch: list[Entry],
    source: Source,
    encoder: Encoder,
    converter: ValueConverter,
    skip: bool,
    index: bool = False,
    linker: Linker | None = None,
) -> Iterator[PackedBatch]:
    """Reads and encodes ``batch``; yields its records in parts of about 4 MiB.

    Adds seek indexes if ``index``. With a ``linker``, adds the records' locations; without ``index``, the records
    themselves are then empty. With ``skip``, lists bad samples in the part instead of raising their errors.

    Raises:
        SampleError, CorruptRecordError: A sample is bad.
        FileLossError: An image file beside the main image would lose something that no option allows.
        SourceError: A linked file changed while it was read.
        UsageError: A sample cannot be linked: it is no plain range of a file's bytes.
    """
    read, checksum = source.read, xxhash.xxh3_64_intdigest
    remaining = zip(batch, source.read_together(batch), strict=True)
    while True:
        entries: list[Entry] = []
        records: list[Buffer] = []
        checksums: list[int] = []
        shapes: list[tuple[int, ...] | None] = []
        seen: list[Entry] = []
        skipped: list[Skipped] = []
        kept: list[str] = []
        palette: list[int] = []
        oriented: list[int] = []
        unified: list[tuple[int, str]] = []
        links: list[Link] = []
        states: dict[str, FileState] = {}
        values: list[Mapping[str, Any]] = []
        source_bytes = record_bytes = 0
        for entry, together in remaining:
            source_bytes += entry.size_bytes
            seen.append(entry)
            number = None
            try:
                place = None if linker is None else linker.locate(entry, states)
                content = read(entry) if together is None else together
                if isinstance(content, Sample):
                    number, listed = content.number, entry
                    # ``ref`` may contain the sample: drop it, to free its memory.
                    entry = seen[-1] = entry._replace(ref=None)
                    key = entry.key if content.key is None else content.key
                    source_bytes += converter.count_further_bytes(content)
                    content = converter.align(key, content)
                    stored_values = converter(key, content)
                    image = content.image
                else:
                    key, image = entry.key, content
                record, shape, reason, turned, how = encoder(key, image)
                if converter.masks and isinstance(content, Sample):
                    converter.check_masks(
                        key, content, encoder.possible_sizes(image, shape), encoder.options.max_pixels
                    )
            except FileLossError as error:
                raise error.with_file(source.further_file_name(listed, error.column.name, error.number)) from None
            except (SampleError, CorruptRecordError) as error:
                bad: SampleError | CorruptRecordError = error
                if isinstance(error, UnfitValueError):
                    bad = error.with_file(source.further_file_name(listed, error.column, 0))
                reason = bad.reason if isinstance(bad, SampleError) else str(bad)
                reason = reason if number is None else f"sample {number}: {reason}"
                if skip:
                    seen[-1] = seen[-1]._replace(ref=None)
                    skipped.append(Skipped(seen[-1].key, reason))
                    continue
                if isinstance(bad, SampleError) and (number is not None or bad is not error):
                    raise SampleError(bad.key, reason) from error
                raise
            entries.append(entry)
            if linker is not None and place is not None:
                links.append(linker.make_link(entry.key, place, record, states))
            checksums.append(checksum(record))
            shapes.append(shape)
            if place is not None and not index:
                record = b""  # it is only linked: reusing its memory is faster than allocating new memory
            records.append(record)
            record_bytes += len(record)
            if isinstance(content, Sample):
                unified += [(len(seen) - 1, name) for name in content.unified]
                values.append(stored_values)
                record_bytes += count_stored_bytes(stored_values)
            if reason is not None:
                kept.append(reason)
            if type(image) is bytes and image.startswith(_PNG) and image[25] == _PALETTE:
                palette.append(len(seen) - 1)
            if turned:
                oriented.append(len(seen) - 1)
            unified += [(len(seen) - 1, name) for name in how]
            if record_bytes >= _PIECE_BYTES:
                break
        if not seen:
            return
        if linker is not None:
            linker.check_files(states)
        yield PackedBatch(
            *(entries, records, checksums, shapes, values, seen, skipped, source_bytes, record_bytes, kept),
            *(
                palette,
                oriented,
                unified,
                make_indexes(records, encoder.columns()) if index else None,
                None if linker is None else links,
            ),
        )


def group_entries(
    entries: Iterable[Entry], max_records: int, max_bytes: int, nbytes: Callable[[Entry], int]
) -> Iterator[list[Entry]]:
    """Yields lists of consecutive entries. A list ends after ``max_records`` entries, or as soon as it has
    ``max_bytes`` bytes by ``nbytes``."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += nbytes(entry)
        if len(batch) >= max_records or size >= max_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
