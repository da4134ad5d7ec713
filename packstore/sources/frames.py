"""Packs each frame of image files with several frames as a record: ``--frames all``."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from packstore.core.columns import ImageData
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.modes import RGB, Mode, mode_of, parse_mode
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.decoders import native, pillow
from packstore.images.frames import count_frames
from packstore.images.kinds import KINDS
from packstore.images.reading import ALL_FRAMES, Reading, convert_pixels
from packstore.images.sniff import HeaderError, check_header
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size
from packstore.sources.listing import key_size
from packstore.sources.wrapped import WrappedSource
from packstore.stores.link_files import Location

_EVERY = 200
_BY_LIBRARY = ("avif", "heif")
"""Image formats whose frames only Pillow counts."""
_BROKEN = 0
"""Number of frames of a file that cannot be read."""


class FramesSource(WrappedSource):
    """Wraps a source of image files so that each frame is a sample of pixels, with the key ``name#number`` from 0.

    One pass over the files counts their frames and finds the mode that holds them all. A file of one frame keeps its
    key. All frames of a file have its labels and other values.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source, replace(source.options, frames=ALL_FRAMES))
        self._mode: Mode | None = None
        self._counts = array("I")
        self._nbytes = array("Q")
        self._starts: dict[str, int] = {}

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        survey = self._source.survey(split)
        if survey.encoding != "original" or not survey.counted:
            raise UsageError(
                f"{printable(str(self.path))} ({self.kind}) has no image files; frames=all is for files "
                "of several frames; leave it out"
            )
        mode = self._find_mode(progress, survey.records)
        splits = dict.fromkeys(survey.splits, 0)
        size_bytes = key_bytes = 0
        size_counts: Counter[int] = Counter()
        for entry in self.entries(split):
            splits[entry.split] += 1
            size_bytes += entry.size_bytes
            size_counts[round_up_size(entry.size_bytes)] += 1
            key_bytes += key_size(entry.key)
        records = sum(splits.values())
        progress(Progress("scan", records, records, size_bytes))
        return replace(
            survey, splits=splits, encoding=mode.dtype, mode=None if mode == RGB else mode.name, shape=None,
            size_bytes=size_bytes, size_counts=size_counts, key_bytes=key_bytes,
        )  # fmt: skip

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        entries = self._source.entries(split)  # raises for an unknown split at once
        return self._yield_frames(entries, split)

    def _yield_frames(self, entries: Iterator[Entry], split: str | None) -> Iterator[Entry]:
        """Yields an entry for each frame of the files. Raises :class:`SourceError` if the source has changed."""
        self._find_mode(no_progress, None)
        number = None if split is None else self._starts.get(split)
        for place, entry in enumerate(entries):
            if number is None:
                number = self._starts[entry.split] if split is not None else 0
            at = number + place
            if at >= len(self._counts):
                raise SourceError(f"{printable(str(self.path))} has changed while it was read; run this again")
            count = self._counts[at]
            for frame in range(max(1, count)):
                key = entry.key if count <= 1 else f"{entry.key}#{frame}"
                yield entry._replace(key=key, size_bytes=self._nbytes[at], ref=(frame, count, tuple(entry)))

    def fetch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        waiting: deque[Entry] = deque()

        def files() -> Iterator[Entry]:
            for entry in entries:
                waiting.append(entry)
                yield Entry(*entry.ref[2])

        for file in self._source.fetch(files()):
            entry = waiting.popleft()
            yield entry._replace(ref=(*entry.ref[:2], tuple(file)))

    def read(self, entry: Entry) -> ImageData | Sample:
        frame, count, file = entry.ref
        mode = self._find_mode(no_progress, None)
        try:
            found = self._source.read(Entry(*file))
        except SampleError as error:
            raise SampleError(entry.key, error.reason) from error
        data = bytes(found.image if isinstance(found, Sample) else found)
        try:
            if count == _BROKEN:
                count_frames(data, check_header(data))
            pixels, own = native.decode(memoryview(data), self.options.max_pixels, frame)
            if own.has_alpha and not mode.has_alpha and pixels[..., -1].min() < own.white:
                raise SampleError(entry.key, f"frame {frame} has transparent pixels, which its header does not tell")
            pixels = convert_pixels(pixels, own, Reading(mode.name))
        except HeaderError as error:
            raise SampleError(entry.key, error.reason) from None
        except DecodeError as error:
            raise SampleError(entry.key, str(error)) from error
        image = np.ascontiguousarray(pixels.transpose(2, 0, 1) if pixels.dtype.kind == "f" else pixels)
        if not isinstance(found, Sample):
            return image
        key = found.key if found.key is None or count <= 1 else f"{found.key}#{frame}"
        return found._replace(image=image, key=key)

    def pick_entries(self, split: str | None, records: int, count: int) -> Iterator[Entry]:
        step = max(1, records // count)
        return self.fetch(islice(self.entries(split), 0, count * step, step))

    def identity(self) -> str:
        return f"{self._source.identity()} frames={ALL_FRAMES}"

    def locate(self, entry: Entry) -> Location | None:
        return None  # pixels are not a range of a file

    def _find_mode(self, progress: ProgressCallback, total: int | None) -> Mode:
        """Returns the mode that holds all frames. The first call reads all files and counts their frames."""
        if self._mode is not None:
            return self._mode
        modes: dict[Mode, str] = {}
        counts, nbytes, starts = array("I"), array("Q"), dict[str, int]()
        for number, entry in enumerate(self._source.fetch(self._source.entries())):
            starts.setdefault(entry.split, number)
            count, pixels, found = self._read_frame_headers(entry)
            counts.append(count)
            nbytes.append(pixels)
            for mode in found:
                modes.setdefault(mode, entry.key)
            if number % _EVERY == 0:
                progress(Progress("scan", number, total, 0))
        mode = find_common_mode(str(self.path), modes)
        itemsize = mode.channels * np.dtype(mode.dtype).itemsize
        self._counts, self._nbytes, self._starts = counts, array("Q", (n * itemsize for n in nbytes)), starts
        self._mode = mode
        return mode

    def _read_frame_headers(self, entry: Entry) -> tuple[int, int, set[Mode]]:
        """Returns the number of frames of a file, the pixels of one, and the modes of all; 0 frames if it cannot be
        read."""
        try:
            data = bytes(self._source.image(entry))
            info = check_header(data)
            frames = count_frames(data, info)
            found = [native.describe(memoryview(data), info, layout) for layout in frames.layouts]
        except (SampleError, HeaderError, DecodeError):
            return _BROKEN, 0, set()
        if info.kind in KINDS and found[0] is not None and found[0].frames > 1:
            raise SourceError(
                f"{printable(entry.key)} has several frames, of which packstore reads the first: take --frames first, "
                "or leave such files out with --ignore"
            )
        modes = {each.mode for each in found if each is not None}
        if frames.transparent and pillow.any_frame_has_alpha(memoryview(data)):
            modes = {mode_of(each.channels + 1, each.dtype) if each.channels in (1, 3) else each for each in modes}
        count = max([frames.total, *(each.frames for each in found if each is not None and info.kind in _BY_LIBRARY)])
        return count, info.width * info.height, modes


def find_common_mode(path: str, modes: Mapping[Mode, str]) -> Mode:
    """Returns the mode that holds all pixels of ``modes``, each with a file. Raises :class:`SourceError` if there is
    none."""
    if len(modes) < 2:
        return next(iter(modes), RGB)
    if {mode.dtype for mode in modes} == {"uint8"} and all(mode.channels <= 4 for mode in modes):
        colour, alpha = (any(getattr(mode, name) for mode in modes) for name in ("has_colour", "has_alpha"))
        return parse_mode({(0, 0): "L", (0, 1): "LA", (1, 0): "RGB", (1, 1): "RGBA"}[int(colour), int(alpha)])
    (one, first), (other, second) = list(modes.items())[:2]
    raise SourceError(
        f"{printable(path)}: {printable(first)} has frames of mode {one}, {printable(second)} of mode {other}, and a "
        "store has one; leave one kind out with --ignore"
    )
