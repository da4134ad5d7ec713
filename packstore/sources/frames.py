"""Reads the frames of image files with several: each as a record (``--frames all``), or all of a clip as an array
(``--frames clips``), a file of several or a folder of numbered ones."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.fields import Array, column_of
from packstore.core.files import Location
from packstore.core.modes import RGB, Mode, mode_of, parse_mode
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.image_files import any_frame_has_alpha, count_frames, describe_image, open_file
from packstore.images.kinds.base import ImageFile
from packstore.images.reading import ALL_FRAMES, CLIPS, FILE_CLIPS, Reading, convert_pixels
from packstore.images.sniff import HeaderError, check_header, too_many_values
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size
from packstore.sources.listing import key_size
from packstore.sources.wrapped import WrappedSource

_EVERY = 200
# Image formats whose frames only a library counts.
_BY_LIBRARY = ("avif", "heif", "jxl")
_NUMBERED = re.compile(r".*?(\d+)\.[^.]+", re.S)
# Name of the column of clips.
_CLIP = "clip"


class FrameFilesSource(WrappedSource):
    """Base of sources that read single frames of another source's image files.

    The first use, not the constructor, reads all files once: it counts frames, finds the mode that holds all frames,
    and refuses frames that no mode holds. A survey refuses a source without image files. ``Entry.ref`` ends with a
    tuple of the wrapped source's entries.
    """

    def __init__(self, source: Source, frames: str) -> None:
        super().__init__(source, replace(source.options, frames=frames))
        self._mode: Mode | None = None
        self._facts: dict[str, tuple[array[int], array[int]]] = {}  # frames and pixels of each file, by split
        self._last = threading.local()

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        """Returns the name of a further file of the entry's first image file."""
        return self._source.further_file_name(Entry(*entry.ref[-1][0]), column, number)

    def locate(self, entry: Entry) -> Location | None:
        """Returns None: pixels are not a range of a file."""

    def resume_key(self) -> str:
        """Returns the identity of the wrapped source, with the option ``frames``."""
        return f"{self._source.resume_key()} frames={self.options.frames}"

    def survey_files(self, split: str | None) -> Survey:
        """Surveys the wrapped source. Raises :class:`UsageError` for a store, and for a source that has no image files
        or can be read only once."""
        survey = self._source.survey(split)
        if survey.store is not None:
            raise UsageError(f"{printable(str(self.path))} is a store: pack the files that it was packed from")
        if survey.encoding != "original" or not survey.counted:
            raise UsageError(
                f"{printable(str(self.path))} ({self.kind}) has no image files; frames={self.options.frames} is for "
                "files of several frames; leave it out"
            )
        return survey

    @abstractmethod
    def make_samples(self, files: Iterator[tuple[Entry, int, int]]) -> Iterator[tuple[Entry, int, int]]:
        """Yields the entry of each sample, its number of frames, and the pixels of one frame. ``files``: see
        :meth:`list_files`."""

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each sample. Before the first entry, reads all files once. Raises
        :class:`NotInSourceError` at once for an unknown split."""
        files = self.list_files(split)
        return (entry for entry, *_ in self.make_samples(files))

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        """Yields ``count`` samples, ready for :meth:`read`; fewer if the source has fewer."""
        return self.fetch(Source.pick_entries(self, split, records, count))

    def count_samples(self, survey: Survey, split: str | None, mode: Mode, progress: ProgressCallback) -> Survey:
        """Returns the survey of the samples, in place of that of the files. Adds the bytes of all frames to
        :attr:`Survey.value_bytes`."""
        splits = dict.fromkeys(survey.splits, 0)
        size_bytes = key_bytes = value_bytes = 0
        size_counts: Counter[int] = Counter()
        for entry, frames, pixels in self.make_samples(self.list_files(split)):
            nbytes = pixels * mode.pixel_bytes
            splits[entry.split] += 1
            size_bytes += nbytes
            value_bytes += nbytes * frames
            size_counts[round_up_size(nbytes)] += 1
            key_bytes += key_size(entry.key)
        records = sum(splits.values())
        progress(Progress("scan", records, records, size_bytes))
        return replace(
            survey, splits=splits, encoding=mode.dtype, mode=None if mode == RGB else mode.name, shape=None,
            size_bytes=size_bytes, size_counts=size_counts, key_bytes=key_bytes,
            value_bytes=survey.value_bytes + value_bytes,
        )  # fmt: skip

    def list_files(self, split: str | None = None) -> Iterator[tuple[Entry, int, int]]:
        """Yields files, each with its number of frames, and the pixels of one. The call raises
        :class:`NotInSourceError` for an unknown split. The iterator raises :class:`SourceError` if the source has more
        files than were scanned."""
        entries = self._source.entries(split)  # raises for an unknown split at once

        def add_facts() -> Iterator[tuple[Entry, int, int]]:
            self.scan_files()
            listed: Counter[str] = Counter()
            for entry in entries:
                counts, pixels = self._facts.get(entry.split, ((), ()))
                place = listed[entry.split]
                if place >= len(counts):
                    raise SourceError(f"{printable(str(self.path))} has changed while it was read; run this again")
                listed[entry.split] += 1
                yield entry, counts[place], pixels[place]

        return add_facts()

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Yields the entries, with their files prepared by the wrapped source."""
        waiting: deque[Entry] = deque()

        def files() -> Iterator[Entry]:
            for entry in entries:
                waiting.append(entry)
                yield from (Entry(*file) for file in entry.ref[-1])

        fetched = self._source.fetch(files())
        for first in fetched:
            entry = waiting.popleft()
            rest = islice(fetched, len(entry.ref[-1]) - 1)
            yield entry._replace(ref=(*entry.ref[:-1], tuple(map(tuple, (first, *rest)))))

    def read_file(self, key: str, file: Entry, frames: int) -> tuple[ImageData | Sample, ImageFile]:
        """Reads a file with ``frames`` frames, and opens it. Keeps the last file of each thread open, for the next
        frame. Raises :class:`SampleError`, with the key of the sample, for a bad file."""
        kept: tuple[Entry, ImageData | Sample, ImageFile] | None = getattr(self._last, "file", None)
        if kept is not None and kept[0] == file:
            return kept[1:]
        self._last.file = None
        with named_errors(key):
            sample = self._source.read(file)
            data = bytes(sample.image if isinstance(sample, Sample) else sample)
            if not frames:  # counted as broken
                _inspect_frames(data)
                raise SampleError(key, "could not be read when frames were counted; run this again")
            reader = open_file(memoryview(data), self.options.max_pixels)
        self._last.file = file, sample, reader
        return sample, reader

    def read_frame(self, key: str, reader: ImageFile, frame: int, reading: Reading) -> NDArray[Any]:
        """Decodes a frame, and converts it by ``reading`` to ``(H, W, C)``. Raises :class:`SampleError` with ``key``
        for a damaged frame, and for transparent pixels that the mode would lose."""
        with named_errors(key):
            pixels, own = reader.read_frame(frame)
            drops = own.has_alpha and not reading.pixels.has_alpha and reading.alpha is None
            if drops and pixels[..., -1].min() < own.white:
                raise SampleError(key, f"frame {frame} has transparent pixels; say with --alpha what becomes of them")
            return convert_pixels(pixels, own, reading, reader.info.precision if reading.depth == "scale" else None)

    def scan_files(self, progress: ProgressCallback = no_progress, total: int | None = None) -> Mode:
        """Returns the mode that holds all frames. The first call reads all files of all splits, and counts their
        frames. Raises :class:`SourceError` if no mode holds all frames."""
        if self._mode is not None:
            return self._mode
        modes: dict[Mode, str] = {}
        for number, entry in enumerate(self._source.fetch(self._source.entries())):
            count, (height, width), file_modes = self.scan_file(entry)
            counts, pixels = self._facts.setdefault(entry.split, (array("I"), array("Q")))
            counts.append(count)
            pixels.append(height * width)
            for mode in file_modes:
                modes.setdefault(mode, entry.key)
            if number % _EVERY == 0:
                progress(Progress("scan", number, total, 0))
        self._mode = find_common_mode(str(self.path), modes)
        return self._mode

    def scan_file(self, entry: Entry) -> tuple[int, tuple[int, int], set[Mode]]:
        """Reads a file. Returns its number of frames, height and width of the first frame, and the modes of all frames.
        Returns 0 frames for a file that cannot be read."""
        try:
            return _inspect_frames(bytes(self._source.image(entry)))
        except (SampleError, HeaderError, DecodeError):
            return 0, (0, 0), set()


@contextmanager
def named_errors(key: str) -> Iterator[None]:
    """Converts errors about a file to :class:`SampleError` with the key of its sample."""
    try:
        yield
    except (SampleError, HeaderError, DecodeError) as error:
        raise SampleError(key, str(error) if isinstance(error, DecodeError) else error.reason) from error


def _inspect_frames(data: bytes) -> tuple[int, tuple[int, int], set[Mode]]:
    """Returns number of frames, height and width of the first frame, and the modes of all."""
    info = check_header(data)
    frames = count_frames(data, info)
    descriptions = [describe_image(memoryview(data), info, layout) for layout in frames.layouts]
    modes = {each.mode for each in descriptions if each is not None}
    if frames.transparent and any_frame_has_alpha(memoryview(data)):
        modes = {mode_of(each.channels + 1, each.dtype) if each.channels in (1, 3) else each for each in modes}
    by_library = [each.frames for each in descriptions if each is not None and info.kind in _BY_LIBRARY]
    return max(frames.total, *by_library, 0), (info.height, info.width), modes


class FramesSource(FrameFilesSource):
    """Wraps a source of image files. Each frame is a sample of pixels, with the key ``name#number`` from 0.

    A file of one frame keeps its key. All frames of a file have its labels and other values.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source, ALL_FRAMES)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts frames; reads all files of all splits first. Raises :class:`SourceError` if no mode holds all frames.
        Raises :class:`UsageError` for a store, and a source without image files."""
        survey = self.survey_files(split)
        mode = self.scan_files(progress, survey.records)
        return replace(self.count_samples(survey, split, mode, progress), value_bytes=survey.value_bytes)

    def make_samples(self, files: Iterator[tuple[Entry, int, int]]) -> Iterator[tuple[Entry, int, int]]:
        """Yields an entry for each frame of the files, and one for a file that cannot be read."""
        pixel_bytes = self.scan_files().pixel_bytes
        for file, count, pixels in files:
            for frame in range(max(1, count)):
                key = file.key if count <= 1 else f"{file.key}#{frame}"
                ref = (frame, count, (tuple(file),))
                yield file._replace(key=key, size_bytes=pixels * pixel_bytes, ref=ref), 1, pixels

    def read(self, entry: Entry) -> ImageData | Sample:
        """Reads a file, and decodes one of its frames to the common mode. If the file has several frames and its sample
        a key, adds ``#number`` to the key. Raises :class:`SampleError` for a bad file or frame."""
        frame, count, (file,) = entry.ref
        sample, reader = self.read_file(entry.key, Entry(*file), count)
        image = to_record_layout(self.read_frame(entry.key, reader, frame, Reading(self.scan_files().name)))
        if not isinstance(sample, Sample):
            return image
        key = sample.key if sample.key is None or count <= 1 else f"{sample.key}#{frame}"
        return sample._replace(image=image, key=key)


def to_record_layout(pixels: NDArray[Any]) -> NDArray[Any]:
    """Converts pixels ``(H, W, C)`` to the layout in records, as a contiguous array. Floating point becomes
    ``(C, H, W)``; other dtypes keep the layout."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) if pixels.dtype.kind == "f" else pixels)


def find_common_mode(path: str, modes: Mapping[Mode, str]) -> Mode:
    """Returns the mode that holds the pixels of all ``modes``.

    ``path`` and ``modes``: the source, and a file of each mode, for messages.

    - No mode: RGB.
    - A single mode: this mode.
    - Several of L, LA, RGB and RGBA: the one that holds them all.
    - Otherwise raises :class:`SourceError`.
    """
    if len(modes) < 2:
        return next(iter(modes), RGB)
    if all(mode.dtype == "uint8" and (mode.channels == 1 or mode.has_alpha or mode.has_colour) for mode in modes):
        colour, alpha = (any(getattr(mode, name) for mode in modes) for name in ("has_colour", "has_alpha"))
        return parse_mode({(0, 0): "L", (0, 1): "LA", (1, 0): "RGB", (1, 1): "RGBA"}[int(colour), int(alpha)])
    (one, first), (other, second), *_ = modes.items()
    raise SourceError(
        f"{printable(path)}: {printable(first)} has frames of mode {one}, {printable(second)} of mode {other}, and a "
        "store has one; leave one kind out with --ignore"
    )


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
        self._sizes: dict[tuple[int, int], str] = {}  # the first file of each size
        self._depths: dict[bool, str] = {}  # the first file in a folder of a class, and the first in no class
        self._has_several = False
        self._unnumbered = ""

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts clips; reads all files of all splits first. Raises the errors of :meth:`_are_files`. Raises
        :class:`UsageError`

        - for a store, and a source without image files;
        - for a source that has a column ``clip``;
        - if each folder is a clip, and the source has values of single files.
        """
        survey = self.survey_files(split)
        if any(column.name == _CLIP for column in survey.columns):
            raise UsageError(f"{printable(str(self.path))} has a column {_CLIP} already; leave frames=clips out")
        self.scan_files(progress, survey.records)
        mode, by_file = self._target.pixels, self._are_files()
        companions = {companion.name for column in survey.columns for companion in column.companions}
        if not by_file and (named := survey.sampled - companions):
            raise UsageError(
                f"{printable(str(self.path))}: each folder is a clip, and {', '.join(sorted(named))} is of each file; "
                "leave it out (--column keep=geo)"
            )
        clip = column_of(_CLIP, Array(mode.dtype, spatial="DCHW", smooth=True))
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
        """Reading of frames: the choice of :meth:`read_as`, else the mode that holds all frames."""
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
            sample, reader = self.read_file(file.key, file, count)
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
            return sample._replace(image=image, values={**sample.values, _CLIP: clip})
        return Sample(image, {_CLIP: clip})

    def _allocate_clip(self, key: str, frames: int, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Allocates an array for ``frames`` frames like ``pixels``."""
        height, width, channels = pixels.shape
        shown = f"a clip of {frames:,} frames of {width} x {height} pixels"
        reason = too_many_values(shown, frames * pixels.size, self.options.max_pixels)
        if reason is not None:
            raise SampleError(key, f"{reason}, or take --frames all")
        return np.empty((frames, channels, height, width), pixels.dtype)

    def make_samples(self, files: Iterator[tuple[Entry, int, int]]) -> Iterator[tuple[Entry, int, int]]:
        """Makes a clip of each file, or of each folder of frames. Frames of a folder are in the order of their numbers.
        Yields the entry of each clip, its number of frames, and the pixels of one frame."""
        if self._are_files():
            for file, count, pixels in files:
                yield file._replace(ref=((count,), (tuple(file),))), count, pixels
            return
        height, width = next(iter(self._sizes))
        for (folder, split), group in groupby(
            (file for file, *_ in files), lambda file: (file.key.rpartition("/")[0], file.split)
        ):
            frames = sorted(group, key=lambda frame: _find_number(frame) or 0)
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
        self._has_several |= count > 1
        if count:
            self._sizes.setdefault(size, entry.key)
        self._unnumbered = self._unnumbered or (entry.key if _find_number(entry) is None else "")
        # The folder of its split does not count.
        self._depths.setdefault(entry.key.count("/") - bool(entry.split) > 1, entry.key)
        return facts

    @property
    def _has_classes(self) -> bool:
        """True if folders of clips are in folders of classes; needs a scan of all files first."""
        return next(iter(self._depths))

    def _are_files(self) -> bool:
        """Tells if each file is a clip; if not, each folder is."""
        if self.options.frames == FILE_CLIPS:
            return True
        # The first call scans all files, and keeps the answer in ``options.frames``.
        self.scan_files()
        if self._has_several:
            self.options = replace(self.options, frames=FILE_CLIPS)
        elif problem := self._find_problem():
            raise SourceError(
                f"{problem}: leave what is no frame out with --ignore, or take --frames clips:files, which makes each "
                "file a clip"
            )
        return self._has_several

    def _find_problem(self) -> str:
        """Returns why folders are no clips, or ``""``: clips are numbered frames of one size, at one depth."""
        path = printable(str(self.path))
        if not self._sizes:
            return f"{path}: no file can be read"
        if self.kind != "imagefolder":
            return f"{path} ({self.kind}) has no file of several frames, and is not a folder of folders of frames"
        if self._unnumbered:
            return f"{printable(self._unnumbered)} is not a numbered frame (frame_0001.jpg)"
        for what, files in {"size": self._sizes.values(), "depth of folders": self._depths.values()}.items():
            if len(files) > 1:
                one, other = map(printable, list(files)[:2])
                return f"{path}: all clips have one {what}, and {one} and {other} differ"
        return ""


def _find_number(entry: Entry) -> int | None:
    """Finds the last number in the name of a frame."""
    match = _NUMBERED.fullmatch(entry.key.rpartition("/")[2])
    return None if match is None else int(match[1])
