"""Packs all frames of a clip as an array (``--frames clips``): a file of several, or a folder of numbered ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from packstore.core.columns import ImageData
from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.fields import Array, column_of
from packstore.core.modes import Mode
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.reading import CLIPS, FILE_CLIPS, Reading
from packstore.images.sniff import too_many_values
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.sources.frames import FrameFilesSource, to_record_layout

_NUMBERED = re.compile(r".*?(\d+)\.[^.]+", re.S)
_COLUMN = "clip"


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
        # The first file of each kind:
        self._sizes: dict[tuple[int, int], str] = {}
        self._depths: dict[bool, str] = {}
        self._animated: dict[str, str] = {}
        self._numbered: dict[str, str] = {}
        self._unnumbered = ""
        self._is_decided = frames == FILE_CLIPS

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts clips; reads all files of all splits first. Raises the errors of :meth:`_are_files`. Raises
        :class:`UsageError`

        - for a store, and a source without image files;
        - for a source that has a column ``clip``;
        - if each folder is a clip, and the source has values of single files.
        """
        survey = self.survey_files(split)
        taken = any(column.name == _COLUMN for column in survey.columns)
        if survey.store is not None or taken:
            why = f"has a column {_COLUMN} already" if taken else "is a store: pack the files that it was packed from"
            raise UsageError(f"{printable(str(self.path))} {why}; leave frames=clips out")
        self.scan_files(progress, survey.records)
        mode, by_file = self._target.pixels, self._are_files()
        companions = {companion.name for column in survey.columns for companion in column.companions}
        if not by_file and (named := survey.sampled - companions):
            raise UsageError(
                f"{printable(str(self.path))}: each folder is a clip, and {', '.join(sorted(named))} is of each file; "
                "leave it out (--column keep=geo)"
            )
        clip = column_of(_COLUMN, Array(mode.dtype, spatial="DCHW", smooth=True))
        others = survey.columns if by_file or self._has_classes else ()
        return replace(
            self.count_samples(survey, split, mode, progress),
            columns=(*others, clip, *clip.companions),
            sampled=survey.sampled | {each.name for each in (clip, *clip.companions)},
        )

    def read_as(self, reading: Reading) -> bool:
        """Sets the reading of all frames, which replaces the mode that holds all frames. Returns True."""
        self._reading = reading
        return True

    @property
    def _target(self) -> Reading:
        """Reading of frames: the choice of :meth:`read_as`, else the mode that holds all frames. Without a choice, the
        first use scans all files."""
        return self._reading or Reading(self.scan_files().name)

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

    def make_samples(self, files: Iterator[tuple[Entry, int]]) -> Iterator[tuple[Entry, int, int]]:
        """Makes a clip of each file, or of each folder of frames. Frames of a folder are in the order of their numbers.
        Yields the entry of each clip, its number of frames, and the pixels of one frame."""
        if self._are_files():
            for file, at in files:
                count = self._counts[at]
                yield file._replace(ref=((count,), (tuple(file),))), count, self._pixels[at]
            return
        height, width = next(iter(self._sizes))
        for (folder, split), group in groupby(
            (file for file, _ in files), lambda file: (file.key.rpartition("/")[0], file.split)
        ):
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
        suffix, is_numbered = entry.key.rpartition(".")[2].lower(), _match_number(entry) is not None
        if count > 1:
            self._animated.setdefault(suffix, entry.key)
        elif is_numbered:
            self._numbered.setdefault(suffix, entry.key)
        if count:
            self._sizes.setdefault(size, entry.key)
        self._unnumbered = self._unnumbered or ("" if is_numbered else entry.key)
        # The folder of its split does not count.
        self._depths.setdefault(entry.key.count("/") - bool(entry.split) > 1, entry.key)
        return facts

    @property
    def _has_classes(self) -> bool:
        """True if folders of clips are in folders of classes. Valid only after a scan of all files."""
        return next(iter(self._depths))

    def _are_files(self) -> bool:
        """Tells if each file is a clip; if not, each folder is. Unless the user has chosen ``clips:files``, the first
        call scans all files, and sets ``options.frames``. Raises :class:`SourceError` if neither is clear."""
        if not self._is_decided:
            self.scan_files()
            if problem := self._find_problem():
                raise SourceError(
                    f"{problem}: leave what is no frame out with --ignore, or take --frames clips:files, which makes "
                    "each file a clip"
                )
            if self._animated:
                self.options = replace(self.options, frames=FILE_CLIPS)
            self._is_decided = True
        return self.options.frames == FILE_CLIPS

    def _find_problem(self) -> str:
        """Returns the reason why neither files nor folders are certainly clips; empty if one is.

        Files are clips if some have several frames, and none of another suffix seems to be a frame of a folder. Folders
        are clips if all files are numbered frames, of one size and at one depth.
        """
        path, folders = printable(str(self.path)), self.kind == "imagefolder"
        if self._animated:
            single = next((key for suffix, key in self._numbered.items() if suffix not in self._animated), "")
            several = printable(next(iter(self._animated.values())))
            return f"{several} has several frames, and {printable(single)} is numbered" if single and folders else ""
        if not self._sizes:
            return f"{path}: no file can be read"
        if not folders:
            return f"{path} ({self.kind}) has no file of several frames, and is not a folder of folders of frames"
        if self._unnumbered:
            return f"{printable(self._unnumbered)} is not a numbered frame (frame_0001.jpg)"
        for what, files in {"size": self._sizes.values(), "depth of folders": self._depths.values()}.items():
            if len(files) > 1:
                one, other = map(printable, list(files)[:2])
                return f"{path}: all clips have one {what}, and {one} and {other} differ"
        return ""


def _match_number(entry: Entry) -> re.Match[str] | None:
    """Matches the last number in the name of a frame."""
    return _NUMBERED.fullmatch(entry.key.rpartition("/")[2])


def _frame_number(entry: Entry) -> int:
    """Returns the last number in the name of a frame; 0 without one."""
    match = _match_number(entry)
    return int(match[1]) if match is not None else 0
