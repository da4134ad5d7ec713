"""Plans a conversion: resolves its options against the source, estimates the size of the store, and decides where
shards begin.

A cut does not depend on records: not on their size, and not on whether a bad sample was skipped. So any machine can
make any shard of a plan, and makes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import packstore
from packstore.core.errors import UsageError, printable
from packstore.core.files import free_bytes, refuse_nested_paths
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import ENCODINGS, FORMATS
from packstore.core.urls import find_bridge
from packstore.images.encode import EncodeOptions, Encoder
from packstore.images.engine import reads_gray, wants_index
from packstore.images.reading import OF_SOURCES
from packstore.packing import ConvertOptions
from packstore.packing.encoding import (
    GEOMETRY,
    make_encoder,
    measure_sizes,
    read_column_answers,
    resolve_column_modes,
    resolve_encoding,
    resolve_reading,
    resolve_uniform_shape,
)
from packstore.packing.frames import FrameAligner, no_effect_error, state_frames
from packstore.packing.header_survey import find_pixel_question, survey_headers
from packstore.packing.source_arguments import format_answers
from packstore.sources import add_source_to_questions, ask_about_classes, ask_about_left
from packstore.sources.base import Entry, Source, Survey
from packstore.stores import format_of
from packstore.stores.format import Format
from packstore.stores.linked import link_folder
from packstore.stores.places import place_of

REMOTE_SHARD_BYTES = 256 << 20
"""Default shard size of a store at a URL: large against the cost of a request, small enough for a cache to hold
hundreds."""
_LINKED_SHARD_BYTES = 50 * REMOTE_SHARD_BYTES  # of the source: links and a seek index are some 2% of them


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


@dataclass(frozen=True)
class Plan:
    """Plan of a conversion, ready to run.

    Attributes:
        source: The opened source.
        survey: Its survey.
        destination: Path or URL of the store.
        format: Its format.
        encode: Options of the encoder. ``normalization`` is still None if ``auto_normalize`` is set.
        shape: Shape of every record, ``(H, W, 3)`` of its pixels; None if they differ.
        options: Options of the caller, defaults not filled in.
        index: Whether the store gets a seek index.
        estimate_bytes: Estimated size of the store.
        shards: Rule by which shards are cut; None for a store of one file. A store at a URL always has shards.
        relative_link_folder: Base folder of relative links; None without relative links.
        keeps_receipt: See :class:`packstore.stores.StoreBuilder`.
    """

    source: Source
    survey: Survey
    destination: Path
    format: str
    encode: EncodeOptions
    shape: tuple[int, ...] | None
    options: ConvertOptions
    index: bool
    estimate_bytes: int = 0
    shards: ShardRule | None = None
    relative_link_folder: Path | None = None
    keeps_receipt: bool = False

    @property
    def auto_normalize(self) -> bool:
        """Whether mean and standard deviation must be computed before packing."""
        return self.options.normalize == "auto" and self.encode.normalization is None

    @property
    def free_bytes(self) -> int | None:
        """Free space at the destination; None at a URL."""
        return free_bytes(self.destination)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the plan."""
        return make_encoder(self.encode, self.survey, self.shape, reencode=self.options.quality is not None)

    def list_versions(self) -> dict[str, str]:
        """Returns the versions of the software that makes the records."""
        return {"packstore": packstore.__version__} | self.encoder.versions()

    @cached_property
    def aligner(self) -> FrameAligner:
        """Moves annotations to the frame of the images."""
        answer, split = self.options.annotation_frame, self.options.split
        return FrameAligner(self.source, self.survey, self.encode.exif_transpose, answer, split)


def make_plan(
    source: Path, destination: Path, options: ConvertOptions, progress: ProgressCallback = no_progress
) -> Plan:
    """Opens and surveys the source, checks the destination, and fills in all options. Writes nothing.

    The caller closes the plan's source.

    Raises:
        UsageError: Options that contradict each other or the source.
        SourceError: The source cannot be read or contains nothing to pack.
        DestinationError: The destination exists, or lies inside the source.
    """
    if find_bridge(source) is None:  # else only the library knows where its files lie
        if place_of(source).is_empty():
            raise UsageError(f"{printable(str(source))}: no such file or directory")
        refuse_nested_paths(destination, source)
    check_new_store(destination, options)
    opened = options.open_source(
        source,
        columns=options.source_columns,
        frames=str(options.frames) if options.frames in OF_SOURCES else None,
        skip_bad=options.on_error == "skip",
        progress=progress,
    )
    return plan_source(opened, destination, options, progress)


def plan_source(
    opened: Source, destination: Path, options: ConvertOptions, progress: ProgressCallback = no_progress
) -> Plan:
    """Plans the conversion of an opened source: surveys it, and encodes a few samples to estimate sizes.

    Resolves mode, encoding, shape of the records, and the rule by which shards are cut. Closes the source if planning
    fails. Raises the errors of :func:`make_plan`.
    """
    try:
        format = resolve_format(destination, options.format)
        with add_source_to_questions(opened.path, opened.options, options.source_kind):
            survey = opened.survey(options.split, progress)
            ask_about_left(opened, survey)
            ask_about_classes(opened, survey)
        reading = resolve_reading(opened, survey, options)
        if opened.read_as(reading):
            survey = opened.survey(options.split)
        survey = resolve_column_modes(opened, survey, options)
        if options.check != "none":
            headers = survey_headers(opened, survey, reading, options.split)
            question = find_pixel_question(opened, survey, options, headers)
            if question is not None:
                raise question
        encode = resolve_encoding(format, opened.normalization, survey, options, reading)
        if options.exif_transpose and survey.store is None and survey.encoding != "original":
            raise UsageError(
                "exif_transpose turns image files, and this source gives pixels, which have no EXIF: leave it out, and "
                "turn PIL images with PIL.ImageOps.exif_transpose before"
            )
        survey = state_frames(survey, encode.exif_transpose)
        plan = Plan(
            opened,
            survey,
            destination,
            format,
            encode,
            resolve_uniform_shape(encode, opened, survey, options.split),
            options,
            wants_index(options.index, encode.encoding),
            relative_link_folder=link_folder(destination) if options.link == "relative" else None,
        )
        if options.annotation_frame is not None and not plan.aligner.has_effect:
            raise no_effect_error()
        encoder = plan.encoder
        if options.decoder != "auto" and encoder.passes_through and options.check != "decode":
            raise UsageError(
                f"nothing is decoded for the encoding {encode.encoding} of this source, so a decoder cannot apply; "
                "leave it out, or add --check decode"
            )
        _check_geometry(encode, survey)
        if plan.auto_normalize and not survey.counted:
            raise UsageError("normalize='auto' reads all images first, and an iterable can be read once; give numbers")
        if options.link and (encode.encoding != "original" or not encoder.passes_through):
            raise UsageError(
                f"link keeps files as they are, and images of this source would become {encode.encoding}; leave "
                "--link out, or choose --encoding original and nothing that changes files"
            )
        sampled = measure_sizes(encoder, opened, survey, options.split)
        shard_bytes, shards = options.shard_bytes, None
        if shard_bytes is None and place_of(destination).remote:
            shard_bytes = _LINKED_SHARD_BYTES if options.link else REMOTE_SHARD_BYTES
        if shard_bytes is not None:
            image = encoder.columns()[0]
            nbytes = image.record_nbytes if image.kind == "fixed" else None
            shards = ShardRule.for_size(shard_bytes, nbytes, sampled)
        return replace(plan, estimate_bytes=_estimate_bytes(plan, [size for _, size in sampled]), shards=shards)
    except BaseException:
        opened.close()
        raise


def resolve_format(destination: Path, format: str | None) -> str:
    """Returns ``format`` if it is given, else the format that the suffix of ``destination`` names.

    Raises :class:`UsageError` for an unknown format or suffix.
    """
    if format is not None:
        FORMATS.check(format)
    name = format or format_of(destination)
    if name is None:
        *others, last = (suffix for known in FORMATS.values() for suffix in known.suffixes)
        what = f"unknown suffix {printable(destination.suffix)}" if destination.suffix else "no suffix"
        raise UsageError(
            f"{printable(str(destination))}: {what}; use {', '.join(others)} or {last}, or choose with --format"
        )
    return name


def _check_geometry(encode: EncodeOptions, survey: Survey) -> None:
    """Raises :class:`UsageError` if images would be resized, but not their boxes, keypoints, masks or further
    images."""
    names = [column.name for column in survey.columns if column.traits.moves or column.traits.has_images]
    if names and encode.resizes:
        raise UsageError(
            f"size, resize and max_side would change the images and not {', '.join(map(repr, names))}, which belong to "
            "their pixels; leave them out, and crop or resize when loading"
        )


def check_new_store(destination: Path, options: ConvertOptions) -> None:
    """Raises :class:`DestinationError` if no store can be written to a path, see :meth:`Place.check_new_store`.

    A store that a killed run has just published is no obstacle. Accepts every URL: the run itself checks URLs. Raises
    :class:`UsageError` for an unknown suffix, and if a cluster would write to a path.
    """
    resolve_format(destination, options.format)
    place = place_of(destination)
    if place.remote:
        return
    if options.cluster is not None:
        raise UsageError(
            f"{printable(str(destination))}: a cluster writes to an object store, which all machines reach; give a "
            f"URL, such as s3://bucket/…, or for a shared folder {printable(destination.absolute().as_uri())}"
        )
    if options.overwrite or not place.was_killed_after_publishing():
        place.check_new_store(overwrite=options.overwrite)


def options_to_record(plan: Plan) -> dict[str, str | int | float | bool | None]:
    """Returns the options that shaped the records, as the manifest stores them for :func:`restore_encode_options`.

    If the source is a store, options of that store are taken over: those of size if nothing is resized, its split
    unless one is named, and quality and ``progressive`` if the records stay unchanged.
    """
    encode, size, store = plan.encode, plan.encode.size, plan.survey.store
    asked, kept = plan.options.column_answers, {} if store is None else read_column_answers(store)
    options: dict[str, str | int | float | bool | None] = {
        "size": None if size is None else f"{size}" if isinstance(size, int) else f"{size[0]}x{size[1]}",
        "fit": None if size is None else encode.fit,
        "resize": encode.resize,
        "max_side": encode.max_side,
        "exif_transpose": encode.exif_transpose,
        "quality": encode.quality if "quality" in ENCODINGS[encode.encoding].accepts else None,
        "split": plan.options.split,
        **({} if plan.options.annotation_frame is None else {"annotation_frame": plan.options.annotation_frame}),
        **({} if encode.progressive is None else {"progressive": encode.progressive}),
        **({"link": "absolute" if plan.relative_link_folder is None else "relative"} if plan.options.link else {}),
        **encode.reading.answers(),
        **{name: str(value) for name, value in kept.items() if name.partition(".")[0] not in asked},
        **format_answers(asked),
        **({} if plan.source.options.frames is None else {"frames": plan.source.options.frames}),
        **{name: value for name, value in plan.source.options.array_names.items() if value is not None},
    }
    for name in ("ignore", "splits", "columns", "pair", "sidecar", "masks"):
        if given := getattr(plan.source.options, name):
            options[name] = json.dumps(given)
    if store is not None and not encode.resizes:
        # The pixels are unchanged, so the options with which they were made still describe them.
        options.update({name: store.options.get(name) for name in GEOMETRY})
        options["exif_transpose"] = encode.exif_transpose or bool(store.options.get("exif_transpose"))
        options["split"] = options["split"] or store.options.get("split")
        if "annotation_frame" in store.options:
            options.setdefault("annotation_frame", store.options["annotation_frame"])
        if plan.encoder.passes_through:
            options["quality"] = store.options.get("quality")
            if "progressive" in store.options:
                options["progressive"] = store.options["progressive"]
    return options


def _estimate_bytes(plan: Plan, sampled: list[int]) -> int:
    """Estimates the size of the store on disk."""
    survey, records = plan.survey, plan.survey.records
    image = plan.encoder.columns()[0]
    columns = survey.key_bytes + records * (8 + 8 + 8 * len(survey.columns)) + survey.value_bytes
    index_share = _GRAY_INDEX_SHARE if reads_gray([image]) else _INDEX_SHARE
    if plan.options.link:
        return columns + records * _LINK_BYTES + (survey.size_bytes // index_share if plan.index else 0)
    container: Format = FORMATS[plan.format]
    if image.kind == "fixed":
        images = records * container.estimate_disk_bytes(image.record_nbytes)
    elif plan.encoder.passes_through:
        padding = (count * (container.estimate_disk_bytes(size) - size) for size, count in survey.size_counts.items())
        images = survey.size_bytes + sum(padding)
    else:
        # ``sampled``: the sizes of some encoded records, since the encoding does not tell them.
        each = [container.estimate_disk_bytes(size) for size in sampled]
        images = sum(each) * records // max(1, len(each))
    return images + columns + container.overhead_bytes + (images // index_share if plan.index else 0)


_LINK_BYTES = 8 * 4 + 80  # per record: numbers and a path
_INDEX_SHARE = 120  # a seek index takes 1/120 of the bytes of photos
_GRAY_INDEX_SHARE = 35  # with lengths of chroma
