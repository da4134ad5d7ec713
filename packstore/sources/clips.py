"""Packs image files of several frames, or folders of numbered frames, as records with an array of frames:
``--frames clips``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from packstore.core.columns import ImageData
from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Array, column_of
from packstore.core.modes import RGB, Mode
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.reading import CLIPS, FILE_CLIPS, Reading
from packstore.images.sniff import too_many_values
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size
from packstore.sources.frames import FrameFilesSource, to_record_layout
from packstore.sources.listing import key_size

_NUMBERED = re.compile(r"(.*?)(\d+)\.[^.]+", re.S)
_COLUMN = "clip"


class _FrameFolder(NamedTuple):
    """Files of a folder, as far as they decide if the folder is a clip.

    Attributes:
        file: Its first file.
        suffixes: Suffixes of its files of one frame.
        files: Number of its files.
        several: Some file has several frames.
    """

    file: str
    suffixes: frozenset[str] = frozenset()
    files: int = 0
    several: bool = False


class ClipsSource(FrameFilesSource):
    """Wraps a source of image files. Each clip is a sample.

    The column ``clip`` has the frames, ``(frames, channels, height, width)``. The image is the middle frame. One pass
    over the files finds the mode that holds all frames.

    - If any file has several frames, each file is a clip, with its key, labels and other values.
    - Else, in an image folder, each folder of numbered frames is a clip, and its path is the key. All frames have one
      size. A folder of clips is a class.

    ``options.frames`` becomes ``clips:files`` when the first case is found. The survey, not the constructor, refuses a
    store, a column ``clip``, and a source in neither case.
    """

    def __init__(self, source: Source, frames: str = CLIPS) -> None:
        super().__init__(source, frames)
        self._reading: Reading | None = None
        self._sizes: dict[tuple[int, int], str] = {}
        self._depths: dict[bool, str] = {}
        self._folders: dict[str, _FrameFolder] = {}
        self._unnumbered = self._animated = ""
        self._animated_suffixes: set[str] = set()
        self._is_decided = frames == FILE_CLIPS

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts clips; reads all files of all splits first. Raises the errors of :meth:`_are_files`. Raises
        :class:`UsageError`

        - for a store, and a source without image files;
        - for a source that has a column ``clip``;
        - if each folder is a clip, and the source has values of single files.
        """
        survey = self.survey_files(split)
        if survey.store is not None:
            raise UsageError(
                f"{printable(str(self.path))} is a store, which frames=clips does not read: pack the files that it was "
                "packed from"
            )
        if any(column.name == _COLUMN for column in survey.columns):
            raise UsageError(f"{printable(str(self.path))} has a column {_COLUMN} already; leave frames=clips out")
        self.scan_files(progress, survey.records)
        mode, by_file = self._target.pixels, self._are_files()
        companions = {companion.name for column in survey.columns for companion in column.companions}
        if not by_file and (named := survey.sampled - companions):
            raise UsageError(
                f"{printable(str(self.path))}: each folder is a clip, and {', '.join(sorted(named))} is of each file; "
                "leave it out (--column keep=geo)"
            )
        splits = dict.fromkeys(survey.splits, 0)
        size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        for entry, frames, pixels in self._list_clips(split):
            nbytes = pixels * mode.pixel_bytes
            splits[entry.split] += 1
            size_bytes += nbytes
            value_bytes += nbytes * frames
            size_counts[round_up_size(nbytes)] += 1
            key_bytes += key_size(entry.key)
        clip = column_of(_COLUMN, Array(mode.dtype, spatial="DCHW", smooth=True))
        others = survey.columns if by_file or self._has_classes else ()
        records = sum(splits.values())
        progress(Progress("scan", records, records, size_bytes))
        return replace(
            survey, splits=splits, columns=(*others, clip, *clip.companions), encoding=mode.dtype,
            mode=None if mode == RGB else mode.name, shape=None, size_bytes=size_bytes,
            size_counts=size_counts, key_bytes=key_bytes, value_bytes=survey.value_bytes + value_bytes,
            sampled=survey.sampled | {each.name for each in (clip, *clip.companions)},
        )  # fmt: skip

    def read_as(self, reading: Reading) -> bool:
        """Sets the reading of all frames, which replaces the mode that holds all frames. Returns True."""
        self._reading = reading
        return True

    @property
    def _target(self) -> Reading:
        """Reading of frames: the choice of :meth:`read_as`, else the mode that holds all frames. Without a choice, the
        first use scans all files."""
        return self._reading or Reading(self.scan_files().name)

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each clip. Before the first entry, reads all files once, and raises the errors of
        :meth:`_are_files`. Raises :class:`NotInSourceError` at once for an unknown split."""
        clips = self._list_clips(split)  # raises for an unknown split at once
        return (entry for entry, *_ in clips)

    def read(self, entry: Entry) -> ImageData | Sample:
        """Decodes all frames of a clip, and returns the middle frame as its image. A clip that is a file also has the
        other values of the file. Raises :class:`SampleError` for a bad frame, frames of different sizes, and too large
        a clip."""
        counts, files = entry.ref
        reading, clip, at = self._target, np.empty(0), 0
        size = None if self._are_files() else next(iter(self._sizes))
        sample: ImageData | Sample = b""
        for count, file in zip(counts, (Entry(*each) for each in files), strict=True):
            sample, reader = self.read_file(file.key, file)
            if not count:
                self.raise_damage(file.key, reader)
            for frame in range(count):
                pixels = self.read_frame(file.key, reader, frame, reading)
                size = size or pixels.shape[:2]
                if pixels.shape[:2] != size:
                    raise SampleError(
                        file.key, f"frame {frame} has {pixels.shape[0]} x {pixels.shape[1]} pixels, other frames "
                        f"{size[0]} x {size[1]}; all frames of a clip have one size"
                    )  # fmt: skip
                if not at:
                    clip = self._allocate_clip(file.key, sum(counts), pixels)
                clip[at] = pixels.transpose(2, 0, 1)
                at += 1
        image = to_record_layout(clip[at // 2].transpose(1, 2, 0))
        if isinstance(sample, Sample) and self._are_files():
            return sample._replace(image=image, values={**sample.values, _COLUMN: clip})
        return Sample(image, {_COLUMN: clip})

    def _allocate_clip(self, key: str, frames: int, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Allocates an array for ``frames`` frames like ``pixels``. Raises :class:`SampleError` if it would be too
        large."""
        height, width, channels = pixels.shape
        shown = f"a clip of {frames:,} frames of {width} x {height} pixels"
        reason = too_many_values(shown, frames * pixels.size, self.options.max_pixels)
        if reason is not None:
            raise SampleError(key, f"{reason}, or take --frames all")
        return np.empty((frames, channels, height, width), pixels.dtype)

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Yields every clip at a step of ``records // count``, ready for :meth:`read`. These are ``count`` clips or
        more; fewer if the source has fewer."""
        step = max(1, records // count)
        return self.fetch(entry for number, entry in enumerate(self.entries(split)) if not number % step)

    def _list_clips(self, split: str | None) -> Iterator[tuple[Entry, int, int]]:
        """Yields the entry of each clip, its number of frames, and the pixels of one frame."""
        files = self.list_files(split)
        return self._group_clips(files)

    def _group_clips(self, files: Iterator[tuple[Entry, int]]) -> Iterator[tuple[Entry, int, int]]:
        """Makes a clip of each file, or of each folder of frames. Frames of a folder are in the order of their numbers.
        Yields the entry of each clip, its number of frames, and the pixels of one frame."""
        if self._are_files():
            for file, at in files:
                count = self._counts[at]
                yield file._replace(ref=((count,), (tuple(file),))), count, self._pixels[at]
            return
        height, width = next(iter(self._sizes))
        for (folder, split), group in groupby((file for file, _ in files), _folder_and_split):
            frames = sorted(group, key=_frame_number)
            first = frames[0]
            yield first._replace(
                key=folder, split=split, labels=first.labels if self._has_classes else (),
                size_bytes=sum(frame.size_bytes for frame in frames),
                ref=((1,) * len(frames), tuple(map(tuple, frames))),
                modified_ns=max(frame.modified_ns for frame in frames),
                changed_ns=max(frame.changed_ns for frame in frames),
            ), len(frames), height * width  # fmt: skip

    def scan_file(self, entry: Entry) -> tuple[int, tuple[int, int], set[Mode]]:
        """Scans a file, and returns the same as the base. Records the facts that decide if files or folders are
        clips."""
        facts = super().scan_file(entry)
        count, size, _ = facts
        name, suffix = entry.key.rpartition("/")[0], entry.key.rpartition(".")[2].lower()
        folder = self._folders.get(name, _FrameFolder(entry.key))
        suffixes = folder.suffixes if count > 1 else folder.suffixes | {suffix}
        self._folders[name] = _FrameFolder(folder.file, suffixes, folder.files + 1, folder.several or count > 1)
        if count > 1:
            self._animated = self._animated or entry.key
            self._animated_suffixes.add(suffix)
        if count:
            self._sizes.setdefault(size, entry.key)
        if _NUMBERED.fullmatch(entry.key.rpartition("/")[2]) is None:
            self._unnumbered = self._unnumbered or entry.key
        self._depths.setdefault(_count_folders(entry) > 1, entry.key)
        return facts

    @property
    def _has_classes(self) -> bool:
        """True if folders of clips are in folders of classes. Valid only after a scan of all files."""
        return next(iter(self._depths))

    def _are_files(self) -> bool:
        """Tells if each file is a clip; if not, each folder is. Unless the user has chosen ``clips:files``, the first
        call scans all files, and sets ``options.frames``. Raises :class:`SourceError` if neither is clear. Raises
        :class:`UsageError` if there are neither files of several frames nor folders of frames."""
        if not self._is_decided:
            self.scan_files()
            if self._animated:
                self._refuse_folders_of_frames()
                self.options = replace(self.options, frames=FILE_CLIPS)
            else:
                self._refuse_other_folders()
            self._is_decided = True
        return self.options.frames == FILE_CLIPS

    def _refuse_folders_of_frames(self) -> None:
        """Raises :class:`SourceError` if a folder also seems to be a clip of numbered frames. Tests only image
        folders."""
        for folder in self._folders.values() if self.kind == "imagefolder" else ():
            is_numbered = _NUMBERED.fullmatch(folder.file.rpartition("/")[2]) is not None
            if folder.files > 1 and is_numbered and not folder.several and folder.suffixes - self._animated_suffixes:
                raise SourceError(
                    f"{printable(self._animated)} has several frames, and {printable(folder.file)} seems to be a frame "
                    "of a folder of frames: leave one kind out with --ignore, or take --frames clips:files, which "
                    "makes each file a clip"
                )

    def _refuse_other_folders(self) -> None:
        """Raises :class:`SourceError` if no file can be read, or if folders are not clips. Clips are folders of
        numbered frames, all of one size and at one depth. Raises :class:`UsageError` for a source that is no image
        folder."""
        path = printable(str(self.path))
        if not self._sizes:
            raise SourceError(f"{path}: no file can be read")
        if self.kind != "imagefolder":
            raise UsageError(
                f"{path} ({self.kind}) has no file of several frames, and is not a folder of folders of frames: leave "
                "frames=clips out, or take frames=clips:files, which makes each file a clip of one frame"
            )
        if self._unnumbered:
            raise SourceError(
                f"{printable(self._unnumbered)} is not a numbered frame (frame_0001.jpg), and no file has several "
                "frames: leave it out with --ignore, or take --frames clips:files, which makes each file a clip"
            )
        differing: Iterable[tuple[str, dict[Any, str]]] = (
            ("sizes", self._sizes),
            ("depths of folders", self._depths),
        )
        for what, several in differing:
            if len(several) > 1:
                one, other = list(several.values())[:2]
                raise SourceError(
                    f"{path}: all clips need one size, and folders of classes, or none; {printable(one)} and "
                    f"{printable(other)} have different {what}"
                )


def _folder_and_split(entry: Entry) -> tuple[str, str]:
    """Returns the folder of a frame, and its split."""
    return entry.key.rpartition("/")[0], entry.split


def _count_folders(entry: Entry) -> int:
    """Counts the folders above a frame, without the folder of its split."""
    folders = entry.key.split("/")[:-1]
    return len(folders) - bool(entry.split)


def _frame_number(entry: Entry) -> int:
    """Returns the last number in the name of a frame; 0 without one."""
    match = _NUMBERED.fullmatch(entry.key.rpartition("/")[2])
    return int(match[2]) if match is not None else 0
