"""DICOM: a folder of studies. Each frame is a record; series are sets of records, in the order of their planes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import SourceError, UsageError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Json
from packstore.core.modes import RGB, Mode, mode_of
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions, Survey
from packstore.sources.column_options import parse_columns
from packstore.sources.contents import list_contents
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.medical.dicom_files import (
    KEPT,
    MAGIC,
    MAGIC_AT,
    Header,
    NoPixelsError,
    frame_columns,
    library,
    parse,
    read_frame,
    read_header,
)
from packstore.sources.rows import Row, TreeRowSource
from packstore.sources.tree import Tree
from packstore.stores.link_files import Location

_SUFFIXES = (".dcm", ".dicom", ".dic", ".ima")
_DIRECTORY = "dicomdir"
_IMAGES = ("stored", "rescaled", "window")
_DTYPES = ("uint8", "uint16", "int16", "int32")
_EVERY = 500
_NO_PIXELS = "DICOM without pixels (reports, plans, directories)"
_WHOLE = "the column 'file' holds whole DICOM files, which name whom they show"
_NO_KEYWORD = "not a DICOM keyword, such as PatientAge"


class _File(NamedTuple):
    """An image file: where it lies, and what its rows have beside pixels. ``header`` is None for a damaged one."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    header: Header | None
    error: str
    numbers: tuple[int, int, int] = (-1, -1, -1)


class DicomSource(TreeRowSource):
    """Frames of DICOM files, in 16 bits as they are stored, unless ``--column image=`` says otherwise.

    All headers are read once, before anything is packed: the mode must hold all pixels, and the planes of a series are
    put in order. Elements that may identify a person are left out unless ``--column keep=`` names them.
    ``keep=file`` adds a column of the files themselves; of a file of several frames the first one has it.
    """

    kind = "dicom"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        self._image = given.pop("image", ["stored"])[0]
        kept = given.pop("keep", [])
        if self._image not in _IMAGES or given:
            raise UsageError(
                f"{printable(str(path))}: of DICOM, --column takes image={'|'.join(_IMAGES)}, keep=KEYWORD,…, keep=file"
            )
        self._keeps_file = "file" in kept
        kept = [name for name in kept if name != "file"]
        unknown = next((name for name in kept if library().datadict.tag_for_keyword(name) is None), None)
        if unknown is not None:
            raise UsageError(f"--column keep={printable(unknown)}: {_NO_KEYWORD}")
        self._kept = tuple(dict.fromkeys((*KEPT, *kept)))
        self._last = threading.local()
        self._progress: ProgressCallback = no_progress
        self.evidence = "files that are DICOM"

    def splits(self) -> Sequence[str]:
        return ("",)

    def describing_files(self) -> Iterable[str]:
        return ()

    def fields(self) -> Mapping[str, Field]:
        mode = self._mode
        return {
            "image": Image(mode.dtype, mode=None if mode == RGB else mode.name),
            **{name: Array("int64") for name in ("patient", "study", "series", "instance", "frame")},
            **{name: Array("float64", optional=True) for name in ("position", "slope", "intercept")},
            "window": Array("float64", (2,), ragged=True),
            "dicom": Json(),
            **({"file": Bytes(optional=True)} if self._keeps_file else {}),
        }

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        self._chosen(split)
        self._progress = progress
        files = len(self._files)
        survey = super().survey(split, lambda report: progress(report) if report.done >= files else None)
        return replace(survey, notes=(_WHOLE,)) if self._keeps_file else survey

    def rows(self, split: str) -> Iterator[Row]:
        for file in self._files:
            times = file.modified_ns, file.changed_ns
            if file.header is None:
                yield Row(file.path, (file.path, -1, 0, file.error), 0, 0, *times)
                continue
            header = file.header
            nbytes = header.height * header.width * self._mode.channels * np.dtype(self._mode.dtype).itemsize
            for frame in range(header.frames):
                key = file.path if header.frames == 1 else f"{file.path}#{frame}"
                rest = (frame, header.instance, *file.numbers)
                yield Row(key, (file.path, file.size, file.modified_ns, rest), nbytes, 512, *times)

    def values(self, ref: Any) -> Mapping[str, Any]:
        file, size, modified, rest = ref
        if size < 0:
            raise ValueError(rest)
        frame, instance, patient, study, series = rest
        dataset = self._dataset(file, size, modified)
        kept = {"file": self.tree.read(file, size, modified, self._max_bytes)} if self._keeps_file and not frame else {}
        return {
            **kept,
            "image": read_frame(dataset, frame, self._image, self._mode, self.options.max_pixels),
            "patient": patient,
            "study": study,
            "series": series,
            "instance": instance,
            "frame": frame,
            **frame_columns(dataset, frame, self._kept),
        }

    def locate_row(self, ref: Any) -> Location | None:
        return None  # pixels are no range of a file

    def claim_row(self, claims: Claims, row: Row) -> None:
        claims.claim(row.ref[0])

    def claim_files(self, claims: Claims) -> None:
        for file in self._without_pixels:
            if file.rpartition("/")[2].lower() == _DIRECTORY:
                claims.claim(file, Role.EVIDENCE)

    def left_reason(self, folder: str, name: str) -> str | None:
        is_left = (f"{folder}/{name}" if folder else name) in self._without_pixels
        return _NO_PIXELS if is_left else super().left_reason(folder, name)

    def count_left_members(self) -> Mapping[str, int]:
        if self._keeps_file:
            return {}
        left = sum(file.header.left for file in self._files if file.header is not None)
        return {"DICOM elements, those of the patient among them (keep some: --column keep=KEYWORD)": left}

    def stamp(self) -> str:
        return super().stamp() + " ".join(f"{each.size}@{each.modified_ns}" for each in self._files[:1])

    def _dataset(self, file: str, size: int, modified: int) -> Any:
        """The file's elements; those of this thread's last file are kept, for the next frame of it."""
        key = file, size, modified
        if getattr(self._last, "key", None) != key:
            data = self.tree.read(file, size, modified, self._max_bytes)
            self._last.key, self._last.dataset = None, None
            self._last.dataset = parse(data, self._max_bytes)
            self._last.key = key
        return self._last.dataset

    @cached_property
    def _without_pixels(self) -> frozenset[str]:
        return frozenset(self._read_headers[1])

    @cached_property
    def _files(self) -> list[_File]:
        """All image files: series by series, each in the order of its planes, damaged files last."""
        known: list[dict[str, int]] = [{}, {}, {}]
        found = []
        for file in self._read_headers[0]:
            header = file.header
            if header is not None:
                patient, study, series = (
                    numbers.setdefault(name, len(numbers))
                    for numbers, name in zip(known, (header.patient, header.study, header.series), strict=True)
                )
                file = file._replace(numbers=(patient, study, series))
            found.append(file)
        return sorted(found, key=_order)

    @cached_property
    def _read_headers(self) -> tuple[list[_File], list[str]]:
        """Reads all headers: image files, and other DICOM files."""
        files: list[_File] = []
        others: list[str] = []
        for path in sorted(_dicom_files(self.tree)):
            found = self._found(path)
            header, error = None, ""
            try:
                if found.size < 0:
                    raise ValueError("is no file that can be read")
                header = read_header(partial(self.tree.start, path), found.size, self._max_bytes, self._kept)
            except NoPixelsError:
                others.append(path)
                continue
            except ValueError as problem:
                error = str(problem)
            files.append(_File(path, found.size, found.modified_ns, found.changed_ns, header, error))
            if len(files) % _EVERY == 0:
                self._progress(Progress("scan", len(files), None, 0))
        if not files:
            raise SourceError(f"{printable(str(self.path))} holds no DICOM images")
        return files, others

    @cached_property
    def _mode(self) -> Mode:
        """The mode that holds all images. Raises :class:`SourceError` if gray of many bits and colours are mixed."""
        headers = [file.header for file in self._files if file.header is not None]
        kinds = Counter(self._kind_of(header) for header in headers)
        channels = max((each for each, *_ in kinds), default=1)
        floating = any(is_float for _, _, _, is_float in kinds)
        low, high = (chosen(kind[at] for kind in kinds) if kinds else 0 for chosen, at in ((min, 1), (max, 2)))
        fitting = (name for name in _DTYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
        dtype = "float32" if floating else next(fitting, "int32")  # a larger value is a bad sample
        if len({each for each, *_ in kinds}) > 1 and dtype != "uint8":
            gray, colour = (
                next(f.path for f in self._files if f.header is not None and f.header.channels == count)
                for count in (1, channels)
            )
            raise SourceError(
                f"{printable(str(self.path))}: {printable(gray)} is gray of many bits and {printable(colour)} has "
                "colours, and a store has one mode; leave one kind out with --ignore, or take 8 bits with --column "
                "image=window"
            )
        return mode_of(channels, dtype)

    def _kind_of(self, header: Header) -> tuple[int, int, int, bool]:
        """Channels, least and greatest value, and whether pixels are floating point."""
        if self._image == "window" and header.channels == 1:
            return 1, 0, 255, False
        if self._image == "rescaled" and header.channels == 1:
            return (1, 0, 0, True) if header.rescaled is None else (1, *header.rescaled, False)
        return header.channels, header.low, header.high, header.is_float


def _order(file: _File) -> tuple[Any, ...]:
    if file.header is None:
        return 1, 0, 0.0, 0, file.path
    return 0, file.numbers[2], file.header.position, file.header.instance, file.path


def _dicom_files(tree: Tree) -> Iterator[str]:
    """Yields the paths of all DICOM files, by their suffix or else by their first bytes."""
    for folder, names in tree.folders(is_passed_over):
        prefix = f"{folder}/" if folder else ""
        for name in names.files:
            path = prefix + name
            if not is_passed_over(name) and (name.lower().endswith(_SUFFIXES) or _is_dicom(tree, path)):
                yield path


def _is_dicom(tree: Tree, path: str) -> bool:
    if path.lower().endswith(IMAGE_SUFFIXES):
        return False
    return tree.start(path, MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder with DICOM files; beside images of other kinds it is partial."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    contents = list_contents(tree)
    folders = contents.folders.values()
    found = any(suffix in folder.others for folder in folders for suffix in _SUFFIXES) or any(
        _is_dicom(tree, f"{folder.path}/{name}" if folder.path else name)
        for folder in folders
        for suffix, names in folder.others.items()
        if not suffix or suffix[1:].isdigit()
        for name in names.first
    )
    if not found:
        return Certainty.NO
    return Certainty.PARTIAL if contents.images else Certainty.CERTAIN


KIND = Kind(
    "dicom", "a folder of DICOM files: studies, series, single images", _recognise, DicomSource,
    takes_columns=True, in_objects=True,
)  # fmt: skip
