"""Shapes and sizes before anything is packed: encodes a few samples to learn them, and decides where shards begin.

A cut does not depend on records: not on their size, and not on whether a bad sample was skipped. So any machine can
make any shard of a plan, and makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.modes import RGB, parse_mode
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodedImage, EncodeOptions, Encoder
from packstore.sources.base import Entry, Source, Survey

_SAMPLED = 24
"""Maximum number of samples that are encoded."""


def make_encoder(
    encode: EncodeOptions, survey: Survey, shape: tuple[int, ...] | None, *, reencode: bool = False
) -> Encoder:
    """Makes the encoder for the images of a source.

    ``shape`` is the shape of all records, None if they differ. ``reencode`` decodes and encodes files even if they
    could stay as they are.
    """
    store = survey.store
    files = ENCODINGS[survey.encoding].layout is None
    mode = survey.mode if store is None else store.image.mode
    return Encoder(
        encode,
        "original" if reencode and files else survey.encoding,
        shape,
        store.normalization if store else None,
        parse_mode(mode or RGB.name),
    )


def encode_samples(
    encoder: Encoder, source: Source, survey: Survey, split: str | None
) -> Iterator[tuple[Entry, EncodedImage]]:
    """Encodes 8 to 24 samples, spread over the source, to learn sizes and shapes. Skips bad samples."""
    # Fewer in a small source, for which they would take a large part of the conversion's time.
    count = max(8, min(_SAMPLED, survey.records // 100))
    for entry in source.pick_entries(split, survey.records, count):
        try:
            encoded = encoder(entry.key, source.image(entry))
        except SampleError:
            continue
        yield entry, encoded


def measure_sizes(encoder: Encoder, source: Source, survey: Survey, split: str | None) -> list[tuple[int, int]]:
    """Encodes a few samples; returns (bytes in the source, bytes as a record) of each.

    If files stay unchanged, or all records have one size, reads nothing and returns an empty list.
    """
    if encoder.passes_through or encoder.columns()[0].kind == "fixed":
        return []
    samples = encode_samples(encoder, source, survey, split)
    return [(entry.size_bytes, memoryview(encoded.record).nbytes) for entry, encoded in samples]


def resolve_uniform_shape(
    encode: EncodeOptions, source: Source, survey: Survey, split: str | None
) -> tuple[int, ...] | None:
    """Returns the shape ``(H, W, C)`` of all records, or None if they may differ.

    If only the images can tell, decodes a few samples and assumes that all have their shape. Returns None if all of
    these are bad. Raises :class:`UsageError` if the encoding needs one shape and the samples' shapes differ.
    """
    layout = ENCODINGS[encode.encoding].layout
    if layout is None:
        return None
    if ENCODINGS[survey.encoding].layout == "CHW" and survey.shape is not None:
        return (*survey.shape[1:], survey.shape[0])
    if encode.size is not None:
        height, width = (encode.size, encode.size) if isinstance(encode.size, int) else encode.size
        return (height, width, encode.reading.pixels.channels)
    if survey.shape is not None:
        return survey.shape
    if layout == "HWC":
        return None
    pixels = replace(encode, encoding=encode.reading.pixels.dtype, size=None, normalization=None)
    shapes: dict[tuple[int, ...], str] = {}
    for entry, encoded in encode_samples(make_encoder(pixels, survey, None), source, survey, split):
        if encoded.shape is not None:
            shapes.setdefault(tuple(encoded.shape), entry.key)
    if len(shapes) > 1:
        some = ", ".join(f"{h}x{w} ({printable(key)})" for (h, w, _), key in islice(shapes.items(), 3))
        proposal = 224 if min(min(shape[:2]) for shape in shapes) >= 64 else 32
        answer = f"give --size, for example --size {proposal}, or keep the files with --encoding original"
        if any(column.traits.moves for column in survey.columns):  # which belong to the pixels, so --size is refused
            answer = f"keep their sizes with --encoding {encode.reading.pixels.dtype} or in another format"
        raise UsageError(
            f"{encode.encoding} needs images of one size, and these differ (height x width): {some}; {answer}"
        )
    return next(iter(shapes), None)


@dataclass(frozen=True, slots=True)
class ShardRule:
    """Limit on the samples of a shard. A shard contains samples of one split.

    Attributes:
        by: Unit of the limit: ``samples``, or ``bytes`` of samples in the source.
        limit: Maximum per shard. A single sample that is larger gets a shard of its own.
    """

    by: Literal["samples", "bytes"]
    limit: int

    @classmethod
    def for_size(cls, shard_size: int, record_nbytes: int | None, sampled: Sequence[tuple[int, int]]) -> ShardRule:
        """Returns the rule that gives shards about ``shard_size`` bytes of images.

        It limits samples if all records have the same size, else bytes in the source.

        Args:
            shard_size: Bytes.
            record_nbytes: Bytes of each record if all have the same size, else None.
            sampled: (bytes in the source, bytes as a record) of some samples; empty if records are the source's bytes.
        """
        if record_nbytes is not None:
            return cls("samples", max(1, shard_size // max(1, record_nbytes)))
        before, after = (sum(sizes) for sizes in zip(*sampled, strict=True)) if sampled else (1, 1)
        return cls("bytes", max(1, shard_size * max(1, before) // max(1, after)))

    def split_entries(self, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
        """Splits the entries of a source, in order, into one list per shard."""
        cuts = ShardCuts(self)
        shard: list[Entry] = []
        for entry in entries:
            if cuts.begins_shard(entry) and shard:
                yield shard
                shard = []
            shard.append(entry)
        if shard:
            yield shard


class ShardCuts:
    """Tells which entries of a source begin a shard. Takes the entries in order."""

    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule
        self._split: str | None = None
        self._filled = 0

    def begins_shard(self, entry: Entry) -> bool:
        """Counts ``entry``, and tells if it begins a shard. Call it once for each entry, in order."""
        weight = entry.size_bytes if self._rule.by == "bytes" else 1
        begins = entry.split != self._split or self._filled + weight > self._rule.limit
        self._filled = weight + (0 if begins else self._filled)
        self._split = entry.split
        return begins
