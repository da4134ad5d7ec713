"""Looks at the headers of some images before anything is packed, and asks everything about their pixels at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from packstore.core.errors import (
    AmbiguousSourceError,
    Answer,
    DecodeError,
    PackstoreError,
    SampleError,
    UsageError,
    printable,
)
from packstore.core.modes import RGB
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodeOptions
from packstore.images.image_files import PixelLossError, examine_losses, exceeds_rgb, losses_error
from packstore.images.orientation import read_orientation
from packstore.images.reading import OF_SOURCES, PLAIN, Reading
from packstore.images.sniff import HeaderError, ImageInfo, sniff
from packstore.packing import ConvertOptions
from packstore.packing.encoding import resolve_column_modes, resolve_reading
from packstore.packing.frames import FrameAligner, state_frames
from packstore.packing.source_arguments import KEEP
from packstore.packing.values import FileChecks, ValueConverter
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.tree import Tree
from packstore.stores.places import place_of

_FEW, _MANY, _SHARE = 128, 2_000, 64
"""Number of images that are looked at: 128, a 64th of a large source, 2,000."""
_READ = 64
"""Number of samples that ``info`` reads with their values."""
_LISTED, _REMOTE = 2_000_000, 16
"""Largest source whose whole listing is walked, and number of images at a URL that are looked at."""
_SUFFIXES, _EACH_SUFFIX = 16, 16
_START = 16 << 10
"""Bytes that nearly always contain the header of an image."""
_EACH = 16
"""Most files of one kind, depth and number of channels that are read whole, since their header does not tell all."""
_PLAIN = ("jpeg", 8, 3)
_EXAMPLES, _MOST_BYTES = 4, 64 << 20
"""Files of each combination of losses on which answers are tried, and their largest size."""
_LOSSES = {
    "depth": ("more than 8 bits", ("--depth", "scale"), "8 bits by the range of each file's bits"),
    "frames": ("several frames", ("--frames", "first"), "the first frame"),
    "channels": ("other channels", ("--mode", "RGB"), "the first three channels"),
    "alpha": ("transparent pixels", ("--alpha", "drop"), "without the alpha"),
}
"""By loss: what an image has that it would lose, the option that accepts the loss, and a note on that option."""


@dataclass
class HeaderSurvey:
    """Facts from the headers of some images of a source.

    Attributes:
        reading: How the images would be read.
        looked_at: Number of images.
        bad: Key and reason of each image that cannot be read.
        lossy: Number of images that would lose something.
        losses: Number of these by loss: ``depth``, ``frames``, ``channels``, ``alpha``.
        first: Key of the first such image, and its losses in words.
        unified: Number of images by conversion, see :data:`packstore.images.image_files.UNIFIED`.
        oriented: Number of images whose EXIF orientation asks for a rotation or flip.
        examples: Some images of each kind, depth, number of channels and losses.
    """

    reading: Reading
    looked_at: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    lossy: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    first: tuple[str, dict[str, str]] | None = None
    unified: Counter[str] = field(default_factory=Counter)
    oriented: int = 0
    examples: list[Entry] = field(default_factory=list)


def survey_headers(source: Source, survey: Survey, reading: Reading, split: str | None = None) -> HeaderSurvey:
    """Looks at the headers of up to 2,000 images, spread over the source and over the suffixes of their names.

    Looks at none if the images are arrays or a store's, and if reading would consume the samples.
    """
    found = HeaderSurvey(reading)
    if survey.store is not None or not (survey.counted and survey.resumable):
        return found
    if ENCODINGS[survey.encoding].layout is not None:
        return found
    whole: Counter[tuple[str, int, int]] = Counter()
    kept: Counter[tuple[object, ...]] = Counter()
    for entry in _choose_entries(source, survey, split):
        found.looked_at += 1
        try:
            data, info = _read_header(source, entry, reading)
            kind = info.kind, info.precision, info.components
            if (
                kind == _PLAIN
                and not (info.app1_at or info.mpf_at)
                and kept[kind] >= _EXAMPLES
                and reading.mode == RGB.name
            ):
                continue  # most images, which are worth no further call
            if len(data) == entry.size_bytes and exceeds_rgb(data, info):
                whole[kind] += 1
                if whole[kind] > _EACH:
                    continue
            found.oriented += read_orientation(data, info) != 1
            report = examine_losses(data, info, reading)
        except (HeaderError, PackstoreError) as error:
            found.bad.append((entry.key, getattr(error, "reason", str(error))))
            continue
        found.unified.update(report.unified)
        if report.losses:
            found.lossy += 1
            found.losses.update(report.losses.keys())
            found.first = found.first or (entry.key, report.losses)
        kept[(*kind, *report.losses)] += 1
        if kept[(*kind, *report.losses)] <= _EXAMPLES and entry.size_bytes <= _MOST_BYTES:
            found.examples.append(entry)
    return found


def _choose_entries(source: Source, survey: Survey, split: str | None) -> Iterator[Entry]:
    """Yields some entries, ready for reading: every n-th, and the first 16 of each suffix."""
    remote = place_of(source.path).remote
    most = _REMOTE if remote else max(_FEW, min(_MANY, survey.records // _SHARE))
    listed = isinstance(getattr(source, "tree", None), Tree) and type(source).fetch is Source.fetch
    if not listed or remote or survey.records > _LISTED:
        most = min(most, _FEW // 4)
        yield from islice(source.pick_entries(split, min(survey.records, most), most), most)
        return
    step = -(-survey.records // most)
    suffixes: dict[str, int] = {}
    for number, entry in enumerate(source.entries(split)):
        dot = entry.key.rfind(".", -6)
        suffix = entry.key[dot:] if dot >= 0 else ""
        count = suffixes.get(suffix, 0 if len(suffixes) < _SUFFIXES else _EACH_SUFFIX)
        if count < _EACH_SUFFIX:
            suffixes[suffix] = count + 1
            yield entry
        elif not number % step:
            yield entry


def _read_header(source: Source, entry: Entry, reading: Reading) -> tuple[bytes, ImageInfo]:
    """Reads the beginning of an image, or all of it if necessary, and returns the bytes with their header."""
    place = source.locate(entry) if (reading.mode, reading.frame) == (RGB.name, 0) else None
    if place is not None and place.within is None:
        with suppress(OSError, ValueError, HeaderError):
            # A named pipe would make a plain open wait; pread fails on it, and reading whole says what it is.
            file = os.open(place.path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                start = os.pread(file, min(_START, entry.size_bytes), place.offset)
            finally:
                os.close(file)
            info = sniff(start)
            if not exceeds_rgb(start, info):  # the beginning tells enough
                return start, info
    data = bytes(source.image(entry))
    return data, sniff(data)


def find_sample_question(
    source: Source, survey: Survey, options: ConvertOptions, found: HeaderSurvey
) -> UsageError | None:
    """Reads and converts up to 64 samples with all of their values. Returns the first question that this raises, and
    adds the samples that cannot be read to ``found``. Reads none if the samples are images with labels alone."""
    if not survey.sampled or survey.store is not None or not (survey.counted and survey.resumable):
        return None
    survey = state_frames(resolve_column_modes(source, survey, options), options.exif_transpose)
    checks = FileChecks(source, survey, EncodeOptions(reading=found.reading), options)
    aligner = FrameAligner(source, survey, options.exif_transpose, options.annotation_frame, options.split)
    converter = ValueConverter(source, survey, checks, aligner)
    for entry in source.pick_entries(options.split, survey.records, _READ):
        try:
            if isinstance(sample := source.read(entry), Sample):
                key = entry.key if sample.key is None else sample.key
                converter(key, converter.align(key, sample), entry)
        except SampleError as error:
            if entry.key not in dict(found.bad):
                found.bad.append((entry.key, error.reason))
        except UsageError as error:
            return error
    return None


def find_pixel_question(
    source: Source, survey: Survey, options: ConvertOptions, found: HeaderSurvey
) -> AmbiguousSourceError | None:
    """Returns the question about images that would lose something, with answers that were tried on such images. None if
    there are no such images, or if the options leave them out and keep others, or ask for no checks."""
    skipped = options.on_error == "skip" and found.lossy + len(found.bad) < found.looked_at
    if found.first is None or skipped or options.check == "none":
        return None
    key, losses = found.first
    counts = ", ".join(f"{count:,} with {_LOSSES[name][0]}" for name, count in found.losses.items())
    bad = ""
    if found.bad:
        bad = f" {len(found.bad):,} cannot be read, such as {printable(found.bad[0][0])}: {printable(found.bad[0][1])}."
    text = f"{losses_error(key, losses, found.reading)}. In a sample of {found.looked_at:,} images: {counts}.{bad}"
    return AmbiguousSourceError(text, [*_try_answers(source, survey, options, found)], source.path)


@contextmanager
def ask_about_lossy_image(source: Source, survey: Survey, options: ConvertOptions, reading: Reading) -> Iterator[None]:
    """Adds tried answers to an error about an image that would lose something, which :func:`survey_headers` did not
    see.
    """
    try:
        yield
    except PixelLossError as error:
        found = HeaderSurvey(reading, survey.records, [], 1, Counter(error.losses.keys()), (error.key, error.losses))
        entries = source.entries(options.split) if survey.resumable else iter(())
        found.examples += [*islice((entry for entry in entries if entry.key == error.key), 1)]
        if not found.examples:
            raise
        raise AmbiguousSourceError(str(error), [*_try_answers(source, survey, options, found)], source.path) from error


def find_unreadable_question(
    source: Source, options: ConvertOptions, found: HeaderSurvey
) -> AmbiguousSourceError | None:
    """Returns the question about images that cannot be read. None if there are none or no
    others, or if they will be left out."""
    if not 0 < len(found.bad) < found.looked_at or options.on_error == "skip" or options.check == "none":
        return None
    key, reason = found.bad[0]
    return AmbiguousSourceError(
        f"{printable(key)}: {printable(reason)}. In a sample of {found.looked_at:,} images, "
        f"{len(found.bad):,} cannot be read: repair or remove them, or leave them out with --on-error skip",
        [Answer(("--on-error", "skip"), None, "leaves out the images that cannot be read, and lists them")],
        source.path,
    )


def _try_answers(source: Source, survey: Survey, options: ConvertOptions, found: HeaderSurvey) -> Iterator[Answer]:
    """Yields the answers that lose nothing unsaid on the examples, each with a note on what it does."""
    examples = [(data, sniff(data)) for data in (bytes(source.image(entry)) for entry in found.examples)]
    skip = ("--on-error", "skip") if found.bad and options.on_error != "skip" else ()
    left = f"; {len(found.bad)} that cannot be read are left out" if found.bad else ""
    for given, note in _propose_options(found):
        words: dict[str, Any] = {
            name.removeprefix("--").replace("-", "_"): value
            for name, value in zip(given[::2], given[1::2], strict=True)
        }
        try:
            reading = _resolve(source, survey, options, words)
        except PackstoreError:
            continue
        if reading is not None and _reads_all(examples, reading):
            yield Answer((*given, *skip), None, f"{note.format(mode=reading.pixels)}{left}")
    if options.mode in (None, RGB.name) and options.depth is options.alpha is options.frames is None:
        refused = sum(not _is_read_by_pillow(data, info, options.max_pixels) for data, info in examples)
        if refused < len(examples):
            also = "; files that Pillow cannot read are left out" if refused else ""
            unread = ("--on-error", "skip") if refused else skip
            note = f"8-bit RGB as Pillow's convert makes it, and counts what loses something{also}{left}"
            yield Answer(("--pixels", "pillow", *unread), None, note)
    if options.on_error != "skip" and 2 * (found.lossy + len(found.bad)) < found.looked_at:  # else it may be all
        yield Answer(("--on-error", "skip"), None, f"leaves these images out, and lists them{left}")


def _propose_options(found: HeaderSurvey) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields options that may answer the question, with a note on what each does."""
    kinds = [name for name in _LOSSES if name in found.losses]
    if {*kinds} & {"depth", "channels"}:
        yield ("--mode", KEEP), "all images in the mode of the first, {mode}"
    if kinds == ["alpha"]:
        yield ("--alpha", KEEP), "all images as {mode}"
        yield ("--mode", "RGBA"), "all images as {mode}"
        yield ("--alpha", "over:white"), "blended over white"
    if kinds == ["depth"]:
        yield ("--depth", "clip"), "values above 255 become 255"
    if kinds == ["frames"] and found.reading.alpha is found.reading.depth is None:
        yield ("--frames", "all"), "each frame is a record"
        if found.losses["frames"] == found.looked_at:
            yield ("--frames", "clips"), "each file is a record, with an array of its frames"
    words = {name: _LOSSES[name][1] for name in kinds}
    yield tuple(chain(*words.values())), ", ".join(_LOSSES[name][2] for name in kinds)
    if "channels" in kinds:
        del words["channels"]
        yield ("--mode", "L", *chain(*words.values())), "gray, of the first three channels"


def _resolve(source: Source, survey: Survey, options: ConvertOptions, given: dict[str, Any]) -> Reading | None:
    """Returns how images are read with ``given`` added, or None if that does nothing or does not fit."""
    if any(getattr(options, name) is not None for name in given):
        return None
    reading = resolve_reading(source, survey, replace(options, **given))
    kept = resolve_reading(source, survey, replace(options, alpha=KEEP)) if "RGBA" in given.values() else None
    if kept is not None and kept.pixels.has_alpha:
        return None  # alpha=keep does the same
    if given.get("alpha") == KEEP and not reading.pixels.has_alpha:
        return None
    if given.get("frames") in OF_SOURCES:
        reading = replace(reading, frames="first")  # the other frames become records
    encoding = None if options.encoding is None else ENCODINGS[options.encoding]
    # An encoding of arrays holds one dtype.
    fits = encoding is None or encoding.layout != "HWC" or encoding.dtype == reading.pixels.dtype
    return reading if fits else None


def _reads_all(examples: Sequence[tuple[bytes, ImageInfo]], reading: Reading) -> bool:
    """Tells if no example loses anything by a reading."""
    try:
        return not any(examine_losses(data, info, reading).losses for data, info in examples)
    except (HeaderError, DecodeError):
        return False


def _is_read_by_pillow(data: bytes, info: ImageInfo, max_pixels: int) -> bool:
    """Tells if ``--pixels pillow`` packs a file: Pillow must decode it if it would lose something."""
    try:
        if examine_losses(data, info, PLAIN).losses:
            from packstore.images.image_files import decode_rgb

            decode_rgb(memoryview(data), max_pixels)
    except (HeaderError, DecodeError):
        return False
    return True
