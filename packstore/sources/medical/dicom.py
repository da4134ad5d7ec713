"""DICOM: a folder of studies. Each frame is a record, in the order of the planes of its series, or each series is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.fields import Array, Bytes, Field, Json, Text
from packstore.core.modes import Mode
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import too_many_values
from packstore.sources.base import Kind, SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.encodings import parse_columns
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.medical.dicom_files import (
    KEPT,
    MAGIC,
    MAGIC_AT,
    are_placed,
    choose_mode,
    find_value_range,
    group_by_series,
    load_pydicom,
    parse_file,
    read_frame_columns,
    read_header,
    sort_files,
)
from packstore.sources.medical.dicom_pixels import Slice, read_frame, read_slice, stack_slices
from packstore.sources.medical.scan import HeaderScanSource, ScannedFile, declare_image_field
from packstore.sources.rows import Row
from packstore.sources.tree import Tree

_SUFFIXES = (".dcm", ".dicom", ".dic", ".ima")
_DIRECTORY = "dicomdir"
_IMAGES = ("stored", "rescaled", "window")
_VOLUMES, _WITH_GAPS = "volumes", "gaps"
_NO_PIXELS = "DICOM without pixels (reports, plans, directories)"
_FILE_NOTE = "the column 'file' holds whole DICOM files, which identify patients"
_NO_KEYWORD = "not a DICOM keyword, such as PatientAge"


class DicomSource(HeaderScanSource):
    """Source of the frames in DICOM files. Leaves out files without pixels, and sorts the planes of each series.

    The options of ``--column``:

    - ``image=``: the pixels are stored values, rescaled or windowed; stored values by default.
    - ``image=volumes``: each series is a record, a volume and its middle slice. ``volumes:rescaled`` and
      ``volumes:window`` convert its values; ``volumes:gaps`` allows missing slices.
    - ``keep=KEYWORD``: keeps an element that may identify a person. Without this, such elements are left out.
    - ``keep=file``: adds a column with the whole file; only the first frame of a file has it.

    Opening raises :class:`UsageError` for any other value, for an unknown keyword, and for whole files with volumes.
    :meth:`fields` raises :class:`SourceError` if gray images of more than 8 bits lie beside coloured ones.
    """

    kind = "dicom"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        asked = given.pop("image", ["stored"])[0].split(":")
        self._as_volumes = asked[0] == _VOLUMES
        self._allow_gaps = self._as_volumes and _WITH_GAPS in asked
        asked = [each for each in asked if not self._as_volumes or each not in (_VOLUMES, _WITH_GAPS)] or ["stored"]
        self._value_form = asked[0]
        kept = given.pop("keep", [])
        if self._value_form not in _IMAGES or len(asked) > 1 or given:
            raise UsageError(
                f"{printable(str(path))}: for DICOM, --column takes image={'|'.join((*_IMAGES, _VOLUMES))}, "
                "image=volumes:rescaled, volumes:window or volumes:gaps, keep=KEYWORD,… or keep=file"
            )
        self._keeps_file = "file" in kept
        if self._keeps_file and self._as_volumes:
            raise UsageError(
                f"{printable(str(path))}: a volume is made of several files, so keep=file cannot apply; leave it out, "
                "or pack frames"
            )
        kept = [name for name in kept if name != "file"]
        unknown = next((name for name in kept if load_pydicom().datadict.tag_for_keyword(name) is None), None)
        if unknown is not None:
            raise UsageError(f"--column keep={printable(unknown)}: {_NO_KEYWORD}")
        self._kept = tuple(dict.fromkeys((*KEPT, *kept)))
        self._last = threading.local()
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

    def read_header(self, path: str, size: int) -> Any:
        """Reads the header of a file; None for one without pixels."""
        return read_header(partial(self.tree.first_bytes, path), size, self._max_bytes, self._kept)

    def splits(self) -> Sequence[str]:
        """Returns one split without a name: folders of DICOM have none."""
        return ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image and of the columns of its elements.

        - Always: ``patient``, ``study``, ``series``, ``slope``, ``intercept``, ``window``; and kept elements as JSON,
          ``dicom``.
        - Frames: also ``instance``, ``frame`` and ``position``; and ``file`` if whole files are kept.
        - Volumes: also ``volume`` with its order, positions, spacing, affine and orientation.
        """
        volumes: dict[str, Field] = {
            "order": Text(),
            "positions": Array("float64", ragged=True),
            "spacing": Array("float64", (3,), optional=True),
            "affine": Array("float64", (4, 4), optional=True),
            "orientation": Text(optional=True),
        }
        whole = ("patient", "study", "series", *(() if self._as_volumes else ("instance", "frame")))
        numbers = (*(() if self._as_volumes else ("position",)), "slope", "intercept")
        return {
            "image": declare_image_field(self._mode),
            **({"volume": Array(self._mode.dtype, spatial="DCHW", smooth=True)} if self._as_volumes else {}),
            **{name: Array("int64") for name in whole},
            **{name: Array("float64", optional=True) for name in numbers},
            "window": Array("float64", (2,), ragged=True),
            **(volumes if self._as_volumes else {}),
            "dicom": Json(),
            **({"file": Bytes(optional=True)} if self._keeps_file else {}),
        }

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the source. Adds a note if whole files are kept, which identify patients.

        Adds a note about volumes whose slices have no positions.
        """
        survey = super().survey(split, progress)
        notes = [_FILE_NOTE] if self._keeps_file else []
        if self._as_volumes and (unplaced := [each[0] for each in self._series if not are_placed(each)]):
            notes.append(
                f"slices without positions are in the order of InstanceNumber, in {len(unplaced)} series, the first "
                f"with {printable(unplaced[0].path)}"
            )
        value_range = find_value_range(self._files, self._value_form)
        return replace(survey, notes=(*survey.notes, *notes), value_range=value_range)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields one row for each frame or volume, series by series. A damaged file has a row whose reading fails.

        The key is the path. In a file of several frames, it is ``PATH#FRAME``.
        """
        if self._as_volumes:
            yield from (file.bad_row for file in self._files if file.error)
            for files in self._series:
                first = files[0]
                plane = first.header.height * first.header.width * self._mode.pixel_bytes
                slices = sum(file.header.frames for file in files)
                ref = (tuple(file.ref for file in files), slices, first.header.numbers)
                times = max(file.modified_ns for file in files), max(file.changed_ns for file in files)
                yield Row(first.path, ref, plane, plane * slices + 512, *times)
            return
        for file in self._files:
            if (header := file.header) is None:
                yield file.bad_row
                continue
            nbytes = header.height * header.width * self._mode.pixel_bytes
            for frame in range(header.frames):
                key = file.path if header.frames == 1 else f"{file.path}#{frame}"
                rest = (frame, header.instance, *header.numbers)
                yield Row(key, (*file.ref, rest), nbytes, 512, file.modified_ns, file.changed_ns)

    @cached_property
    def _series(self) -> list[list[ScannedFile]]:
        """Readable files by series, in the order of their planes."""
        return group_by_series(self._files)

    def _read_volume(self, ref: Any) -> Mapping[str, Any]:
        """Reads all slices of a series and stacks them to a volume. Returns the volume's columns:

        - ``image``: the middle slice; ``window`` holds its windows.
        - ``dicom``: the elements that are equal in all slices.
        - ``slope`` and ``intercept``: None if the slices' values differ.

        Raises :class:`ValueError` for damaged slices, slices that form no volume, and too large a volume. Raises it
        also for stored values whose slopes or intercepts differ, and for another number of slices than listed.
        """
        files, count, (patient, study, series) = ref
        slices: list[Slice] = []
        columns: list[dict[str, Any]] = []
        volume = np.empty(0, self._mode.dtype)
        for path, size, modified in files:
            try:
                dataset = self._read_dataset(path, size, modified)
                frames = int(dataset.get("NumberOfFrames") or 1)
                for frame in range(frames):
                    pixels = read_frame(dataset, frame, self._value_form, self._mode, self.options.max_pixels)
                    name = path if frames == 1 else f"{path}#{frame}"
                    slices.append(read_slice(dataset, frame, name, pixels.shape))
                    columns.append(read_frame_columns(dataset, frame, self._kept))
                    if len(slices) == 1:
                        shown = f"{count:,} slices of {pixels.shape[1]} x {pixels.shape[0]} pixels"
                        if reason := too_many_values(shown, count * pixels.size, self.options.max_pixels):
                            raise ValueError(reason)
                        volume = np.empty((count, *pixels.shape), self._mode.dtype)
                    if pixels.shape == volume.shape[1:] and len(slices) <= count:
                        volume[len(slices) - 1] = pixels
            except (ValueError, OSError) as error:
                raise ValueError(f"is a series with a bad slice: {printable(path)}: {error}") from None
        if len(slices) != count:
            raise ValueError(f"is a series of {len(slices)} slices, and was listed with {count}; run this again")
        stack = stack_slices(slices, self._allow_gaps)
        scales = {each.scale for each in slices}
        if len(scales) > 1 and self._value_form == "stored":
            raise ValueError(
                "is a series whose slices have different slopes or intercepts, so that their stored values do not "
                "compare; take --column image=volumes:rescaled"
            )
        if stack.order != sorted(stack.order):
            volume = volume[stack.order]
        middle = columns[stack.order[count // 2]]
        slope, intercept = scales.pop() if len(scales) == 1 else (None, None)
        first = columns[0]["dicom"]
        return {
            "image": np.ascontiguousarray(volume[count // 2]),
            "volume": np.ascontiguousarray(volume.transpose(0, 3, 1, 2)),
            "patient": patient,
            "study": study,
            "series": series,
            "slope": slope,
            "intercept": intercept,
            "window": middle["window"],
            "order": stack.by,
            "positions": np.array(stack.positions),
            "spacing": stack.spacing,
            "affine": stack.affine,
            "orientation": stack.orientation,
            "dicom": {key: value for key, value in first.items() if all(c["dicom"].get(key) == value for c in columns)},
        }

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the columns of a frame: pixels, numbers, scale and elements. For a row of a volume, reads a whole
        series.

        With ``keep=file``, the first frame also has the whole ``file``. Raises :class:`ValueError` for damaged files,
        and for slices that form no volume.
        """
        if self._as_volumes and len(ref) == 3:
            return self._read_volume(ref)
        file, size, modified, rest = ref
        if size < 0:
            raise ValueError(rest)
        frame, instance, patient, study, series = rest
        dataset = self._read_dataset(file, size, modified)
        keeps_file = self._keeps_file and frame == 0
        return {
            **({"file": self.tree.read(file, size, modified, self._max_bytes)} if keeps_file else {}),
            "image": read_frame(dataset, frame, self._value_form, self._mode, self.options.max_pixels),
            "patient": patient,
            "study": study,
            "series": series,
            "instance": instance,
            "frame": frame,
            **read_frame_columns(dataset, frame, self._kept),
        }

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims the file of a frame, or all files of a series."""
        if len(row.ref) == 3:
            for path, *_ in row.ref[0]:
                claims.claim(path)
            return
        claims.claim(row.ref[0])

    def claim_files(self, claims: Claims) -> None:
        """Claims the directory files (``DICOMDIR``) as evidence."""
        for file in self._without_pixels:
            if file.rpartition("/")[2].lower() == _DIRECTORY:
                claims.claim(file, Role.EVIDENCE)

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

    def stamp(self) -> str:
        """Adds size and time of the first image file to the base's stamp. Reads all headers if nothing has yet."""
        return super().stamp() + " ".join(f"{each.size}@{each.modified_ns}" for each in self._files[:1])

    def _read_dataset(self, file: str, size: int, modified: int) -> Any:
        """Reads and parses a file. Each thread keeps its last file, of which it may read further frames.

        Raises :class:`SampleError` for a file that has changed, is unreadable, or is too large. Raises
        :class:`ValueError` for a damaged one.
        """
        key = file, size, modified
        if getattr(self._last, "key", None) != key:
            data = self.tree.read(file, size, modified, self._max_bytes)
            self._last.key, self._last.dataset = None, None
            self._last.dataset = parse_file(data, self._max_bytes)
            self._last.key = key
        return self._last.dataset

    @cached_property
    def _without_pixels(self) -> frozenset[str]:
        """Paths of DICOM files that are no images."""
        return frozenset(file.path for file in self.scanned if file.header is None and not file.error)

    @cached_property
    def _files(self) -> list[ScannedFile]:
        """All image files with their numbers, sorted by series and plane; damaged files come last. Raises
        :class:`SourceError` if there are none."""
        files = sort_files([file for file in self.scanned if file.header or file.error])
        if not files:
            raise SourceError(f"{printable(str(self.path))} holds no DICOM images")
        return files

    @cached_property
    def _mode(self) -> Mode:
        """Mode that holds the pixels of all images. Raises :class:`SourceError` if :func:`choose_mode` does."""
        return choose_mode(printable(str(self.path)), self._files, self._value_form)


KIND = Kind(
    "dicom", "a folder of DICOM files: studies, series, single images", DicomSource.recognise, DicomSource,
    takes_columns=True, in_objects=True,
)  # fmt: skip
