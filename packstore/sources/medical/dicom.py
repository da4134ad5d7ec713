"""DICOM: a folder of studies. Each frame is a record, in the order of the planes of its series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.fields import Array, Bytes, Field, Json
from packstore.core.modes import Mode, mode_of
from packstore.core.progress import ProgressCallback, no_progress
from packstore.sources.base import Kind, SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.encodings import parse_columns
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.medical.dicom_files import (
    FORMS,
    KEPT,
    MAGIC,
    MAGIC_AT,
    DicomHeader,
    load_pydicom,
    parse_file,
    raise_as_damaged,
    read_columns,
    read_frame,
    read_header,
)
from packstore.sources.medical.scan import FileRef, HeaderScanSource, ScannedFile, declare_image_field, make_row
from packstore.sources.rows import Row
from packstore.sources.tree import Tree

_SUFFIXES = (".dcm", ".dicom", ".dic", ".ima")
_DTYPES = ("uint8", "uint16", "int16", "int32")
_NO_PIXELS = "DICOM without pixels (reports, plans, directories)"
_RECENT_FILES = 4


class DicomSource(HeaderScanSource):
    """Source of the frames in DICOM files. Leaves out files without pixels, and sorts the planes of each series.

    The options of ``--column``:

    - ``image=``: the pixels are stored values, rescaled or windowed; stored values by default.
    - ``keep=KEYWORD``: keeps an element that may identify a person. Without this, such elements are left out.
    - ``keep=file``: adds a column with the whole file; only the first frame of a file has it.

    Opening raises :class:`UsageError` for any other value, and for an unknown keyword.
    :meth:`fields` raises :class:`SourceError` if gray images of more than 8 bits lie beside coloured ones.
    """

    kind = "dicom"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        (self._form,) = given.pop("image", ["stored"])
        kept = given.pop("keep", [])
        self._keeps_file = "file" in kept
        kept = [name for name in kept if name != "file"]
        unknown = [name for name in kept if load_pydicom().datadict.tag_for_keyword(name) is None]
        if self._form not in FORMS or given or unknown:
            raise UsageError(
                f"{printable(str(path))}: for DICOM, --column takes image={'|'.join(FORMS)}, keep=KEYWORD (such as "
                f"PatientAge) and keep=file; got {printable(' '.join(options.columns))}; for volumes, convert series "
                "with dcm2niix, and pack the NIfTI files"
            )
        self._kept = tuple(dict.fromkeys((*KEPT, *kept)))
        self._recent = lru_cache(_RECENT_FILES)(self._read_dataset)
        self.evidence = "files that are DICOM"

    @classmethod
    def may_have(cls, suffix: str) -> bool:
        """Tells if a suffix is that of DICOM, or none, or a number."""
        return suffix in _SUFFIXES or not suffix or suffix[1:].isdigit()

    @classmethod
    def is_wanted(cls, tree: Tree, path: str) -> bool:
        """Tells if a file has a suffix such as ``.dcm``, or else DICOM's signature. Returns False, unread, for the
        suffix of another image format."""
        lower = path.lower()
        if lower.endswith(_SUFFIXES) or lower.endswith(IMAGE_SUFFIXES):
            return lower.endswith(_SUFFIXES)
        return tree.first_bytes(path, MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC

    def read_header(self, path: str, size: int) -> DicomHeader | None:
        """Reads the header of a file; None for one without pixels."""
        return read_header(partial(self.tree.first_bytes, path), size, self._max_bytes, self._kept)

    def splits(self) -> Sequence[str]:
        """Returns one split without a name: folders of DICOM have none."""
        return ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image and of its elements; ``dicom`` has kept elements as JSON, ``file`` the
        whole file.
        """
        fields: dict[str, Field] = {"image": declare_image_field(self._mode)}
        fields |= {name: Array("int64") for name in ("patient", "study", "series", "instance", "frame")}
        fields |= {name: Array("float64", optional=True) for name in ("position", "slope", "intercept")}
        fields |= {"window": Array("float64", (2,), ragged=True), "dicom": Json()}
        return fields | ({"file": Bytes(optional=True)} if self._keeps_file else {})

    def notes(self) -> tuple[str, ...]:
        """Returns a note if whole files are kept."""
        return ("the column 'file' holds whole DICOM files, which identify patients",) if self._keeps_file else ()

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the source, and adds the range of its possible values."""
        return replace(super().survey(split, progress), value_range=self._value_range)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields one row for each frame, series by series. A damaged file has a row whose reading fails.

        The key is the path. In a file of several frames, it is ``PATH#FRAME``.
        """
        for file in self._files:
            if file.error:
                yield file.bad_row
                continue
            header = file.header
            numbers = tuple(known[uid] for known, uid in zip(self._numbers, header.uids, strict=True))
            plane = header.height * header.width * self._mode.pixel_bytes
            for frame in range(header.frames):
                key = file.path if header.frames == 1 else f"{file.path}#{frame}"
                yield make_row(key, [file], (numbers, frame, header.instance), plane, 512)

    def read_files(self, files: Sequence[FileRef], rest: Any) -> Mapping[str, Any]:
        """Reads the columns of a frame: pixels, numbers, scale and elements.

        With ``keep=file``, the first frame also has the whole ``file``. Raises :class:`ValueError` for damaged files.
        """
        numbers, frame, instance = rest
        dataset = self._recent(files[0])
        with raise_as_damaged():
            values = read_columns(dataset, frame, self._kept)
        values |= zip(("patient", "study", "series"), numbers, strict=True)
        values |= {"instance": instance, "frame": frame}
        values["image"] = read_frame(dataset, frame, self._form, self._mode, self.options.max_pixels)
        if self._keeps_file and frame == 0:
            values["file"] = self.tree.read(*files[0], self._max_bytes)
        return values

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns a reason for DICOM files without pixels; for other files, the base's reason."""
        is_left = join(folder, name) in self._without_pixels
        return _NO_PIXELS if is_left else super().reason_to_leave_out(folder, name)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts the elements that no column keeps; none if whole files are kept."""
        if self._keeps_file:
            return {}
        left = sum(file.header.left for file in self._files if file.header)
        return {"DICOM elements, patient data included (keep some: --column keep=KEYWORD)": left}

    def _read_dataset(self, file: FileRef) -> Any:
        """Reads and parses a file."""
        return parse_file(self.tree.read(*file, self._max_bytes))[0]

    @cached_property
    def _without_pixels(self) -> frozenset[str]:
        """Paths of DICOM files that are no images."""
        return frozenset(file.path for file in self.scanned if file.header is None and not file.error)

    @cached_property
    def _numbers(self) -> tuple[dict[str, int], ...]:
        """Numbers of the patients, studies and series by their UIDs, from 0, in the order of their paths."""
        headers = [file.header for file in self.scanned if file.header]
        uids = ((header.uids[which] for header in headers) for which in range(3))
        return tuple({uid: number for number, uid in enumerate(dict.fromkeys(each))} for each in uids)

    @cached_property
    def _files(self) -> list[ScannedFile]:
        """All image files, sorted by series, plane, instance number and path; damaged files come last."""

        def sort_key(file: ScannedFile) -> tuple[Any, ...]:
            if file.header is None:
                return 1, 0, 0.0, 0, file.path
            _, _, series = file.header.uids
            position = math.inf if file.header.position is None else file.header.position
            return 0, self._numbers[2][series], position, file.header.instance, file.path

        files = sorted((file for file in self.scanned if file.header or file.error), key=sort_key)
        if not files:
            raise SourceError(f"{printable(str(self.path))} holds no DICOM images")
        return files

    @cached_property
    def _value_range(self) -> tuple[int, int] | None:
        """Least and greatest possible value of the pixels; None for fractions, and without readable files."""
        ranges = [file.header.ranges[self._form] for file in self._files if file.header]
        if not ranges or None in ranges:
            return None
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    @cached_property
    def _mode(self) -> Mode:
        """Mode that holds the pixels of all images."""
        dtype = "float32"  # fractions have no range of whole numbers
        if self._value_range is not None:
            low, high = self._value_range
            fitting = (name for name in _DTYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
            # If no type holds all possible values, reading an image with a larger value fails.
            dtype = next(fitting, "int32")
        examples = {file.header.channels: printable(file.path) for file in self._files if file.header}
        if len(examples) > 1 and dtype != "uint8":
            raise SourceError(
                f"{printable(str(self.path))}: {examples[1]} is gray of many bits and {examples[3]} has colours, and a "
                "store has one mode; leave one kind out with --ignore, or take 8 bits with --column image=window"
            )
        return mode_of(max(examples, default=1), dtype)


KIND = Kind(
    "dicom", "a folder of DICOM files: studies, series, single images", DicomSource.recognise, DicomSource,
    takes_columns=True, in_objects=True,
)  # fmt: skip
