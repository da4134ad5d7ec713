"""Encodes a few samples of a source before it is packed, to learn their shapes and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.modes import RGB, parse_mode
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodeOptions, Encoder
from packstore.packing.options import ConvertOptions
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


class SampleProbe:
    """Encodes a few samples, spread over the source, to learn sizes and shapes. Skips bad samples."""

    def __init__(self, source: Source, options: ConvertOptions) -> None:
        """Stores the source and the split of ``options``; ignores all other options."""
        self._source = source
        self._split = options.split

    def sample_entries(self, records: int) -> Iterator[Entry]:
        """Yields 8 to 24 entries, spread over the source's ``records``, ready to be read.

        Yields fewer if the source has fewer.
        """
        # Fewer in a small source, for which they would take a large part of the conversion's time.
        count = max(8, min(_SAMPLED, records // 100))
        return self._source.pick_entries(self._split, records, count)

    def measure_sizes(self, encoder: Encoder, records: int) -> list[tuple[int, int]]:
        """Encodes the samples; returns (bytes in the source, bytes as a record) of each. Skips bad samples.

        If files stay unchanged, or all records have one size, reads nothing and returns an empty list.
        """
        sizes: list[tuple[int, int]] = []
        if encoder.passes_through or encoder.columns()[0].kind == "fixed":
            return sizes
        for entry in self.sample_entries(records):
            try:
                record = encoder(entry.key, self._source.image(entry)).record
                sizes.append((entry.size_bytes, memoryview(record).nbytes))
            except SampleError:
                continue
        return sizes

    def sample_shapes(self, encode: EncodeOptions, survey: Survey) -> dict[tuple[int, ...], str]:
        """Decodes the samples; returns their different shapes, each with the key of its first image. Skips bad
        samples."""
        pixels = replace(encode, encoding=encode.reading.pixels.dtype, size=None, normalization=None)
        encoder = make_encoder(pixels, survey, None)
        shapes: dict[tuple[int, ...], str] = {}
        for entry in self.sample_entries(survey.records):
            try:
                shape = encoder(entry.key, self._source.image(entry)).shape
            except SampleError:
                continue
            if shape is not None:
                shapes.setdefault(tuple(shape), entry.key)
        return shapes


def resolve_uniform_shape(encode: EncodeOptions, survey: Survey, probe: SampleProbe) -> tuple[int, ...] | None:
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
    shapes = probe.sample_shapes(encode, survey)
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
