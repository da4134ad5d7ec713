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
    choose_mode,
    count_frames,
    find_value_range,
    group_by_series,
    load_pydicom,
    parse_file,
    raise_as_damaged,
    read_elements,
    read_header,
    read_instance,
    read_plane,
    sort_files,
)
from packstore.sources.medical.dicom_pixels import Slice, read_frame, stack_slices
from packstore.sources.medical.scan import FileRef, HeaderScanSource, ScannedFile, declare_image_field, make_row
from packstore.sources.rows import Row
from packstore.sources.tree import Tree

_SUFFIXES = (".dcm", ".dicom", ".dic", ".ima")
_FORMS = ("stored", "rescaled", "window")
_NO_PIXELS = "DICOM without pixels (reports, plans, directories)"


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
        form, *more = given.pop("image", ["stored"])[0].split(":")
        self._as_volumes = form == "volumes"
        self._allow_gaps = self._as_volumes and "gaps" in more
        if self._as_volumes:
            form, *more = [each for each in more if each != "gaps"] or ["stored"]
        self._value_form = form
        kept = given.pop("keep", [])
        self._keeps_file = "file" in kept
        kept = [name for name in kept if name != "file"]
        unknown = [name for name in kept if load_pydicom().datadict.tag_for_keyword(name) is None]
        if form not in _FORMS or more or given or unknown or (self._keeps_file and self._as_volumes):
            raise UsageError(
                f"{printable(str(path))}: for DICOM, --column takes image={'|'.join(_FORMS)}, image=volumes, "
                "volumes:rescaled, volumes:window or volumes:gaps, keep=KEYWORD (such as PatientAge) and, without "
                f"volumes, keep=file; got {printable(' '.join(options.columns))}"
            )
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
        names = ("patient", "study", "series", *(() if self._as_volumes else ("instance", "frame")))
        numbers = ("slope", "intercept") if self._as_volumes else ("position", "slope", "intercept")
        fields: dict[str, Field] = {"image": declare_image_field(self._mode)}
        if self._as_volumes:
            fields["volume"] = Array(self._mode.dtype, spatial="DCHW", smooth=True)
        fields |= {name: Array("int64") for name in names}
        fields |= {name: Array("float64", optional=True) for name in numbers}
        fields["window"] = Array("float64", (2,), ragged=True)
        if self._as_volumes:
            fields["order"] = Text()
            fields["positions"] = Array("float64", ragged=True)
            fields["spacing"] = Array("float64", (3,), optional=True)
            fields["affine"] = Array("float64", (4, 4), optional=True)
            fields["orientation"] = Text(optional=True)
        fields["dicom"] = Json()
        if self._keeps_file:
            fields["file"] = Bytes(optional=True)
        return fields

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the source. Adds a note if whole files are kept, which identify patients.

        Adds a note about volumes whose slices have no positions.
        """
        survey = super().survey(split, progress)
        notes = ["the column 'file' holds whole DICOM files, which identify patients"] if self._keeps_file else []
        unplaced = [each[0] for each in self._series if any(not np.isfinite(file.header.position) for file in each)]
        if self._as_volumes and unplaced:
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
        for files in self._series:
            first = files[0].header
            plane = first.height * first.width * self._mode.pixel_bytes
            if self._as_volumes:
                slices = sum(file.header.frames for file in files)
                yield make_row(files[0].path, files, (slices, first.numbers), plane, plane * slices + 512)
                continue
            for file in files:
                nbytes = file.header.height * file.header.width * self._mode.pixel_bytes
                for frame in range(file.header.frames):
                    key = _name_frame(file.path, frame, file.header.frames)
                    yield make_row(key, [file], (frame, file.header.numbers), nbytes, 512)
        yield from (file.bad_row for file in self._files if file.error)

    @cached_property
    def _series(self) -> list[list[ScannedFile]]:
        """Readable files by series, in the order of their planes."""
        return group_by_series(self._files)

    def read_files(self, files: Sequence[FileRef], rest: Any) -> Mapping[str, Any]:
        """Reads the columns of a frame: pixels, numbers, scale and elements. For a row of a volume, reads a whole
        series.

        With ``keep=file``, the first frame also has the whole ``file``. Raises :class:`ValueError` for damaged files,
        and for slices that form no volume.
        """
        number, uids = rest
        named = dict(zip(("patient", "study", "series"), uids, strict=True))
        if self._as_volumes:
            return {**named, **self._read_volume(files, number)}
        dataset = self._read_dataset(files[0])
        frame = self._read_slice(dataset, number, files[0][0])
        if self._keeps_file and number == 0:
            named["file"] = self.tree.read(*files[0], self._max_bytes)
        return {
            **named,
            **frame.plane.columns,
            "image": frame.pixels,
            "instance": frame.instance,
            "frame": number,
            "dicom": frame.elements,
        }

    def _read_slice(self, dataset: Any, frame: int, name: str) -> Slice:
        """Reads a frame. Raises :class:`ValueError` for damage."""
        with raise_as_damaged():
            plane, elements = read_plane(dataset, frame), read_elements(dataset, frame, self._kept)
            instance = read_instance(dataset)
        pixels = read_frame(dataset, frame, self._value_form, self._mode, self.options.max_pixels)
        return Slice(name, pixels, plane, instance, elements)

    def _read_volume(self, files: Sequence[FileRef], count: int) -> Mapping[str, Any]:
        """Reads ``count`` slices of a series and stacks them to a volume. Returns the volume's columns:

        - ``image``: the middle slice; ``window`` holds its windows.
        - ``dicom``: the elements that are equal in all slices.
        - ``slope`` and ``intercept``: None if the slices' values differ.

        Raises :class:`ValueError` for damaged slices, slices that form no volume, and too large a volume. Raises it
        also for stored values whose slopes or intercepts differ.
        """
        slices: list[Slice] = []
        for file in files:
            try:
                dataset = self._read_dataset(file)
                frames = count_frames(dataset)
                values = count * int(dataset.Rows) * int(dataset.Columns)
                if reason := too_many_values(f"{count:,} slices", values, self.options.max_pixels):
                    raise ValueError(reason)
                for frame in range(frames):
                    found = self._read_slice(dataset, frame, _name_frame(file[0], frame, frames))
                    slices.append(found._replace(instance=found.instance + frame))
            except (ValueError, OSError) as error:
                raise ValueError(f"is a series with a bad slice: {printable(file[0])}: {error}") from None
        stack = stack_slices(slices, self._allow_gaps)
        scales = {each.plane.scale for each in slices}
        if len(scales) > 1 and self._value_form == "stored":
            raise ValueError(
                "is a series of different slopes or intercepts, so that stored values do not compare; take --column "
                "image=volumes:rescaled"
            )
        middle = stack.slices[len(slices) // 2]
        slope, intercept = scales.pop() if len(scales) == 1 else (None, None)
        common = {
            key: value
            for key, value in slices[0].elements.items()
            if all(each.elements.get(key) == value for each in slices)
        }
        return {
            "image": middle.pixels,
            "volume": np.stack([each.pixels.transpose(2, 0, 1) for each in stack.slices]),
            "slope": slope,
            "intercept": intercept,
            "window": middle.plane.columns["window"],
            "order": stack.by,
            "positions": stack.positions,
            "spacing": stack.spacing,
            "affine": stack.affine,
            "orientation": stack.orientation,
            "dicom": common,
        }

    def claim_files(self, claims: Claims) -> None:
        """Claims the directory files (``DICOMDIR``) as evidence."""
        for file in self._without_pixels:
            if file.rpartition("/")[2].lower() == "dicomdir":
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

    def _read_dataset(self, file: FileRef) -> Any:
        """Reads and parses a file. Each thread keeps its last file, of which it may read further frames.

        Raises :class:`SampleError` for a file that has changed, is unreadable, or is too large. Raises
        :class:`ValueError` for a damaged one.
        """
        known, dataset = getattr(self._last, "read", (None, None))
        if known != file:
            self._last.read = None, None  # frees the memory first
            dataset = parse_file(self.tree.read(*file, self._max_bytes), self._max_bytes)
            self._last.read = file, dataset
        return dataset

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


def _name_frame(path: str, frame: int, frames: int) -> str:
    """Returns the key of a frame: the path of its file, with the number of the frame if the file has several."""
    return path if frames == 1 else f"{path}#{frame}"


KIND = Kind(
    "dicom", "a folder of DICOM files: studies, series, single images", DicomSource.recognise, DicomSource,
    takes_columns=True, in_objects=True,
)  # fmt: skip
