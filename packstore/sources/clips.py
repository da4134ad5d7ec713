"""Packs folders of numbered frames as records, each an array of frames: ``--frames clips``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.fields import Array, column_of
from packstore.core.modes import RGB, Mode
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.decoders import native
from packstore.images.reading import CLIPS, Reading, convert_pixels
from packstore.images.sniff import HeaderError, check_header
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size
from packstore.sources.frames import find_common_mode
from packstore.sources.listing import key_size
from packstore.sources.wrapped import WrappedSource
from packstore.stores.link_files import Location

_NUMBERED = re.compile(r"(.*?)(\d+)\.[^.]+", re.S)
_EVERY = 200


class ClipsSource(WrappedSource):
    """Wraps a folder of images so that each of its folders is a sample, with the folder's path as key.

    The column ``clip`` has the frames in the order of their numbers, ``(frames, channels, height, width)``; the
    image is the middle frame. All frames have one size and one mode that holds all of them; one pass over the files
    finds it. Labels are the classes in whose folders the clips' folders are; without such folders there are none."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, replace(source.options, frames=CLIPS))
        self._form: tuple[Mode, tuple[int, int], bool] | None = None

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        survey = self._source.survey(split)
        if self.kind != "imagefolder" or survey.encoding != "original":
            raise UsageError(
                f"{printable(str(self.path))} ({self.kind}) is not a folder of folders of frames: leave "
                "frames=clips out"
            )
        mode, size, has_classes = self._find_clip_form(progress, survey.records)
        splits = dict.fromkeys(survey.splits, 0)
        size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        frame_bytes = mode.channels * np.dtype(mode.dtype).itemsize * size[0] * size[1]
        for entry in self.entries(split):
            splits[entry.split] += 1
            size_bytes += frame_bytes
            value_bytes += frame_bytes * len(entry.ref)
            size_counts[round_up_size(frame_bytes)] += 1
            key_bytes += key_size(entry.key)
        clip = column_of("clip", Array(mode.dtype, spatial="DCHW", smooth=True))
        others = survey.columns if has_classes else ()
        records = sum(splits.values())
        progress(Progress("scan", records, records, size_bytes))
        return replace(
            survey, splits=splits, columns=(*others, clip, *clip.companions), encoding=mode.dtype,
            mode=None if mode == RGB else mode.name, shape=None, size_bytes=size_bytes,
            size_counts=size_counts, key_bytes=key_bytes, value_bytes=value_bytes,
            sampled=frozenset(each.name for each in (clip, *clip.companions)),
        )  # fmt: skip

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        entries = self._source.entries(split)  # raises for an unknown split at once
        return self._group_clips(entries)

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        return entries

    def read(self, entry: Entry) -> Sample:
        mode, size, _ = self._find_clip_form(no_progress, None)
        frames = np.stack([self._read_frame(Entry(*frame), mode, size) for frame in entry.ref])
        middle = frames[len(frames) // 2]
        image = middle.transpose(2, 0, 1) if middle.dtype.kind == "f" else middle
        clip = np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
        return Sample(np.ascontiguousarray(image), {"clip": clip})

    def image(self, entry: Entry) -> ImageData:
        return self.read(entry).image

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        step = max(1, records // count)
        return (entry for number, entry in enumerate(self.entries(split)) if not number % step)

    def identity(self) -> str:
        return f"{self._source.identity()} frames={CLIPS}"

    def locate(self, entry: Entry) -> Location | None:
        return None  # pixels are not a range of a file

    def _group_clips(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Groups the entries of frames by folder, and yields an entry for each clip."""
        has_classes = self._find_clip_form(no_progress, None)[2]
        for (folder, split), group in groupby(entries, _folder_and_split):
            frames = sorted(group, key=_frame_number)
            first = frames[0]
            yield first._replace(
                key=folder, split=split, labels=first.labels if has_classes else (),
                size_bytes=sum(frame.size_bytes for frame in frames), ref=tuple(map(tuple, frames)),
                modified_ns=max(frame.modified_ns for frame in frames),
                changed_ns=max(frame.changed_ns for frame in frames),
            )  # fmt: skip

    def _read_frame(self, entry: Entry, mode: Mode, size: tuple[int, int]) -> NDArray[Any]:
        """Decodes a frame to the mode of all frames. Raises :class:`SampleError`, also for another size."""
        data = bytes(self._source.image(entry))
        try:
            pixels, found = native.decode(memoryview(data), self.options.max_pixels)
            pixels = convert_pixels(pixels, found, Reading(mode.name))
        except DecodeError as error:
            raise SampleError(entry.key, str(error)) from error
        if pixels.shape[:2] != size:
            raise SampleError(entry.key, f"has {pixels.shape[0]} x {pixels.shape[1]} pixels, other frames {size}")
        return pixels

    def _find_clip_form(self, progress: ProgressCallback, total: int | None) -> tuple[Mode, tuple[int, int], bool]:
        """Returns mode and size of all frames, and whether clips are in folders of classes. The first call reads all
        files.

        Raises :class:`SourceError` for frames that differ, have no number, or are several in one file."""
        if self._form is not None:
            return self._form
        modes: dict[Mode, str] = {}
        sizes: dict[tuple[int, int], str] = {}
        depths: dict[bool, str] = {}
        for number, entry in enumerate(self._source.fetch(self._source.entries())):
            _frame_number(entry)
            depths.setdefault(_count_folders(entry) > 1, entry.key)
            try:
                data = bytes(self._source.image(entry))
                info = check_header(data)
                found = native.describe(memoryview(data), info)
            except (SampleError, HeaderError):
                continue  # reported when it is read
            sizes.setdefault((info.height, info.width), entry.key)
            if found is not None:
                modes.setdefault(found.mode, entry.key)
                if found.frames > 1:
                    raise SourceError(
                        f"{printable(entry.key)} has {found.frames} frames itself: take --frames all, or leave it out "
                        "with --ignore"
                    )
            if number % _EVERY == 0:
                progress(Progress("scan", number, total, 0))
        for what, several in (("sizes", sizes), ("depths of folders", depths)):
            if len(several) > 1:
                one, other = list(several.values())[:2]
                raise SourceError(
                    f"{printable(str(self.path))}: all clips need one size, and folders of classes, or none; "
                    f"{printable(one)} and {printable(other)} have different {what}"
                )
        if not sizes:
            raise SourceError(f"{printable(str(self.path))}: no frame can be read")
        self._form = find_common_mode(str(self.path), modes), next(iter(sizes)), next(iter(depths))
        return self._form


def _folder_and_split(entry: Entry) -> tuple[str, str]:
    return entry.key.rpartition("/")[0], entry.split


def _count_folders(entry: Entry) -> int:
    """Counts the folders above a frame, except that of its split."""
    folders = entry.key.split("/")[:-1]
    return len(folders) - bool(entry.split)


def _frame_number(entry: Entry) -> int:
    """Returns the number in the name of a frame. Raises :class:`SourceError` without one."""
    match = _NUMBERED.fullmatch(entry.key.rpartition("/")[2])
    if match is None:
        raise SourceError(
            f"{printable(entry.key)} is not a numbered frame (frame_0001.jpg): leave it out with --ignore"
        )
    return int(match[2])
