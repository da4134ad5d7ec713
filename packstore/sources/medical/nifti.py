"""NIfTI: a folder of volumes, ``.nii`` and ``.nii.gz``. Slices or whole volumes are records, as the user chooses.

Header fields are those of nifti1.h (https://nifti.nimh.nih.gov/nifti-1) and NIfTI-2; nibabel parses them.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, error_line, printable
from packstore.core.fields import Array, Field, Mask, Text
from packstore.core.modes import Mode, mode_of
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import excess_pixels_message
from packstore.sources.base import Kind, SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.encodings import parse_columns
from packstore.sources.ledger import Claims, Role
from packstore.sources.medical.scan import (
    FileRef,
    HeaderScanSource,
    ScannedFile,
    declare_image_field,
    load_library,
    make_row,
)
from packstore.sources.rows import Row, in_packing_order
from packstore.sources.splits import find_split_in_path
from packstore.sources.tree import Tree

_HEAD_BYTES = 8192  # enough of the beginning of a file, compressed or not, for its header
_LONGEST_HEADER = 544
_GZIP_MAGIC = b"\x1f\x8b"
# Largest ratio at which Deflate compresses (https://zlib.net/zlib_tech.html).
_MAX_RATIO = 1032
# Dtype in which values of a stored dtype are packed. A volume with values beyond it is a bad sample.
_PACKED_DTYPES = {
    "uint8": "uint8",
    "uint16": "uint16",
    **dict.fromkeys(("int8", "int16"), "int16"),
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "int32"),
    **dict.fromkeys(("float16", "float32", "float64"), "float32"),
}
_SUFFIXES = (".nii", ".nii.gz")
_AS = ("slices", "volumes")
_IMAGE_FOLDERS = ("images", "image", "imgs", "img")
_MASK_FOLDERS = ("labels", "label", "masks", "mask", "segmentations", "segmentation", "segs", "seg")
_FOLDER = re.compile(rf"({'|'.join((*_IMAGE_FOLDERS, *_MASK_FOLDERS))})(tr|ts|val)?", re.I)
_SPLITS = {"tr": "train", "ts": "test", "val": "val"}
_CHANNEL = re.compile(r"_[0-9]{4}(?=[.]nii)")
# List of classes and volumes in the Medical Segmentation Decathlon.
_DECATHLON = "dataset.json"


class NiftiHeader(NamedTuple):
    """Header of a volume.

    Attributes:
        shape: (I, J, K, T); T is the product of all dimensions after the third.
        dtype: Stored dtype with its byte order.
        offset: Position of the first value, in bytes.
        end: Position after the last value, in bytes.
        affine: Matrix from indices (i, j, k) to millimetres.
        slope: Factor from stored to real values; 1 if the file states none.
        intercept: Number that is added after the factor; 0 if the file states none.
    """

    shape: tuple[int, int, int, int]
    dtype: np.dtype[Any]
    offset: int
    end: int
    affine: NDArray[np.float64]
    slope: float
    intercept: float


def read_header(data: bytes, size: int, max_bytes: int) -> NiftiHeader:
    """Reads the header from the first 8 KiB of a file of ``size`` bytes, compressed or not.

    Raises :class:`ValueError` for a damaged header, a dtype that packstore does not read, and values that exceed
    ``max_bytes`` or the file. Raises :class:`SourceError` if nibabel is not installed.
    """
    library = load_library("nibabel", "nifti")
    try:
        start = _inflate(data[:_HEAD_BYTES], _LONGEST_HEADER)
        kinds = (library.Nifti1Header, library.Nifti2Header)
        kind = next((each for each in kinds if each.may_contain_header(start)), None)
        if kind is None:
            raise ValueError(f"it begins with {start[:4]!r}")
        fields = kind(start[: kind.sizeof_hdr], check=False)
        shape, dtype, offset = fields.get_data_shape(), fields.get_data_dtype(), int(fields.get_data_offset())
        if not shape or min(shape) < 1 or dtype.name not in _PACKED_DTYPES:
            raise ValueError(f"values of {dtype} in the shape {shape}, which packstore does not read")
        width, height, depth, *rest = (*map(int, shape), 1, 1)[: max(3, len(shape))]
        slope, intercept = fields.get_slope_inter()
        header = NiftiHeader(
            (width, height, depth, math.prod(rest)),
            dtype,
            offset,
            offset + math.prod(map(int, shape)) * dtype.itemsize,
            np.array(fields.get_best_affine(), np.float64),
            1.0 if slope is None else float(slope),
            0.0 if intercept is None else float(intercept),
        )
    except MemoryError:
        raise
    except Exception as error:  # nibabel raises almost anything on damaged headers
        raise ValueError(f"is no NIfTI file that packstore reads: {error_line(error)}") from error
    if header.offset < kind.sizeof_hdr or header.end > max_bytes:
        raise ValueError(f"has values to byte {header.end:,}, more than the {max_bytes:,} of a file within max_pixels")
    # A small file could otherwise claim millions of slices, each of them a bad sample.
    most = size * _MAX_RATIO if data[:2] == _GZIP_MAGIC else size
    if header.end > most:
        raise ValueError(f"is truncated: its values end at byte {header.end:,}, and it has at most {most:,}")
    return header


def _inflate(data: bytes, limit: int) -> bytes:
    """Returns the first ``limit`` bytes of the content of gzip ``data``; other data as a whole."""
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            content = file.read(limit)
            file.read(1)  # verifies the checksum at the end
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is damaged: {error}") from None


class NiftiSource(HeaderScanSource):
    """Source of the slices or volumes in NIfTI files, in their stored values. Masks come from the folder of labels
    beside them.

    An image has the second axis of its volume as height and the first as width, as ``data[:, :, k].T``. A mask of
    another shape, or with values that are no whole numbers, makes a bad sample.

    Opening raises :class:`AmbiguousSourceError` unless ``--column image=`` chooses slices or volumes. It raises
    :class:`UsageError` for any other ``--column``.
    """

    kind = "nifti"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        self._record_unit = given.pop("image", [""])[0]
        if given or self._record_unit not in ("", *_AS):
            raise UsageError(f"{printable(str(path))}: for NIfTI, --column takes image=slices or image=volumes")
        if not self._record_unit:
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds volumes (NIfTI): each slice may be a record, --column image=slices; or "
                "each volume, --column image=volumes (a column volume, and the middle slice as the image)",
                [Answer(("--column", f"image={each}")) for each in _AS],
            )
        self._lock = threading.Lock()
        self._recent = lru_cache(3)(self._load_volume)
        self.evidence = f"NIfTI files, taken as {self._record_unit}"

    @classmethod
    def may_have(cls, suffix: str) -> bool:
        """Tells if a suffix is that of NIfTI, or of gzip."""
        return suffix in (".nii", ".gz")

    @classmethod
    def is_wanted(cls, tree: Tree, path: str) -> bool:
        """Tells if a file is NIfTI by its name."""
        return path.lower().endswith(_SUFFIXES)

    def read_header(self, path: str, size: int) -> NiftiHeader:
        """Reads the header of a volume. Raises :class:`ValueError` for a damaged header, too many pixels, and a file
        that is too small for its values."""
        header = read_header(self.tree.first_bytes(path, _HEAD_BYTES), size, self._max_bytes)
        if (reason := excess_pixels_message(*header.shape[:2], self.options.max_pixels)) is not None:
            raise ValueError(reason)
        return header

    def splits(self) -> Sequence[str]:
        """Returns the splits in the paths of volumes. Returns only the split ``""`` if some path names none."""
        names = {_find_split(file.path) for file in self._volumes}
        return in_packing_order(names) if "" not in names else ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image and its columns. Masks are among them if the source has any.

        - Slices: ``slice``, the number of the slice, and ``mask``.
        - Volumes: ``volume`` and ``volume_mask``.
        - Both: ``number`` of the volume, ``time`` step, and ``slope``, ``intercept``, ``affine`` and ``orientation``.
        """
        mode, used = self._mode, [mask for file in self._volumes if file.header and (mask := self._find_mask(file))]
        masks = {mask.header.dtype.name if mask.header else "uint8" for mask in used}
        mask_dtype = "uint8" if masks == {"uint8"} else "int32"
        columns: dict[str, Field] = {"image": declare_image_field(mode)}
        if self._record_unit == "volumes":
            columns["volume"] = Array(mode.dtype, spatial="DCHW", smooth=True)
            if masks:
                columns["volume_mask"] = Array(mask_dtype, spatial="DCHW", optional=True)
        else:
            columns["slice"] = Array("int64")
            if masks:
                columns["mask"] = Mask(mask_dtype, optional=True)
        numbers = {name: Array("int64") for name in ("number", "time")}
        scale = {name: Array("float64") for name in ("slope", "intercept")}
        return {**columns, **numbers, **scale, "affine": Array("float64", (4, 4)), "orientation": Text()}

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the source, see :meth:`Source.survey`. Only volumes of 8 bits count as using all bits."""
        return replace(super().survey(split, progress), uses_all_bits=self._mode.dtype == "uint8")

    def rows(self, split: str) -> Iterator[Row]:
        """Yields one row for each slice or volume, at each time step. If a file has several, the keys are
        ``PATH#NUMBER``. A volume with a bad header is one row whose reading fails."""
        for number, file in enumerate(self._volumes):
            if split and _find_split(file.path) != split:
                continue
            if file.error:
                yield file.bad_row
                continue
            mask = self._find_mask(file)
            both = [file] if mask is None else [file, mask]
            width, height, depth, steps = file.header.shape
            plane = height * width * self._mode.pixel_bytes
            values = plane * depth if self._record_unit == "volumes" else plane if mask else 0
            slices = [*range(depth)] if self._record_unit == "slices" else [depth // 2]
            several = len(slices) * steps > 1
            for at, (time, place) in enumerate(product(range(steps), slices)):
                key = f"{file.path}#{at}" if several else file.path
                yield make_row(key, both, (number, time, place), plane, 256 + values)

    def read_files(self, files: Sequence[FileRef], rest: Any) -> Mapping[str, Any]:
        """Reads a slice as ``image``, or a volume as ``volume`` with its middle slice as ``image``, and the header's
        columns.

        Values are as stored. Leaves out the mask if there is none. Raises :class:`ValueError` for a damaged file, for
        values that the mode does not hold, and for a mask that does not fit.
        """
        number, time, place = rest
        header, data = self._read_volume(files[0])
        stored = data[..., time]
        planes = stored.astype(self._mode.dtype)
        same = np.array_equal(planes.astype(stored.dtype), stored, equal_nan=stored.dtype.kind == "f")
        if not same:
            raise ValueError(f"has values of {stored.dtype.name} that {self._mode.dtype} does not hold")
        values = {
            "image": np.ascontiguousarray(planes[:, :, place].T)[..., None],
            "number": number,
            "time": time,
            "slope": header.slope,
            "intercept": header.intercept,
            "affine": header.affine,
            "orientation": "".join(code or "?" for code in load_library("nibabel", "nifti").aff2axcodes(header.affine)),
        }
        mask = self._read_mask(files[1], planes.shape) if files[1:] else None
        if self._record_unit == "slices":
            return {**values, "slice": place, **({} if mask is None else {"mask": mask[:, :, place].T})}
        values["volume"] = np.ascontiguousarray(planes.transpose(2, 1, 0)[:, None])
        if mask is not None:
            values["volume_mask"] = np.ascontiguousarray(mask.transpose(2, 1, 0)[:, None])
        return values

    def claim_files(self, claims: Claims) -> None:
        """Claims the Decathlon's ``dataset.json`` as evidence."""
        if _DECATHLON in self.tree.names("").files:
            claims.claim(_DECATHLON, Role.EVIDENCE)

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for NIfTI files that are left out: masks without a volume. For other files, returns the
        base's reason."""
        if name.lower().endswith(_SUFFIXES):
            return "segmentations without a volume"
        return super().reason_to_leave_out(folder, name)

    def _read_volume(self, file: FileRef) -> tuple[NiftiHeader, NDArray[Any]]:
        """Reads the header of a file and its stored values, ``(I, J, K, T)``; caches the last three files."""
        with self._lock:  # other threads, which read other slices, wait for the file
            return self._recent(file)

    def _load_volume(self, file: FileRef) -> tuple[NiftiHeader, NDArray[Any]]:
        """Reads a file as :meth:`_read_volume`, without keeping it."""
        data = self.tree.read(*file, self._max_bytes)
        header = read_header(data, len(data), self._max_bytes)
        content = _inflate(data, header.end)
        if len(content) < header.end:
            raise ValueError(f"is truncated: its values end at byte {header.end:,}, and it has {len(content):,}")
        values = np.frombuffer(content, header.dtype, math.prod(header.shape), header.offset)
        return header, values.reshape(header.shape, order="F")

    def _read_mask(self, file: FileRef, shape: tuple[int, ...]) -> NDArray[Any]:
        """Reads the mask of a volume, as uint8 if it is stored as such, else as int32."""
        try:
            values = self._read_volume(file)[1]
            if values.shape != (*shape, 1):
                raise ValueError(f"has the shape {values.shape}, expected {shape}")
            whole = values[..., 0].astype(np.int32)
            if not np.array_equal(whole, values[..., 0]):
                raise ValueError("has values that are no whole numbers")
        except ValueError as error:
            raise ValueError(f"its mask {printable(file[0])} {error}") from None
        return whole.astype(np.uint8) if values.dtype == np.uint8 else whole

    @cached_property
    def _mode(self) -> Mode:
        """Mode that holds the stored values of all volumes."""
        dtypes = {_PACKED_DTYPES[file.header.dtype.name] for file in self._volumes if file.header} or {"uint8"}
        dtype = np.result_type(*dtypes).name
        known = dtype in _PACKED_DTYPES.values()
        # If no mode holds them all, larger values make bad samples.
        return mode_of(1, dtype if known else "float32" if "float" in dtype else "int32")

    @cached_property
    def _volumes(self) -> list[ScannedFile]:
        """All files but masks, sorted by path."""
        if not self.scanned:
            raise SourceError(f"{printable(str(self.path))} holds no NIfTI files (.nii, .nii.gz)")
        return [file for file in self.scanned if file.path not in self._masks]

    @cached_property
    def _masks(self) -> Mapping[str, ScannedFile]:
        """Files in folders of labels that have a folder of images beside them, by path."""
        folders = {file.path.rpartition("/")[0] for file in self.scanned}
        return {
            file.path: file
            for file in self.scanned
            if not folders.isdisjoint(_sibling_folders(file.path, _IMAGE_FOLDERS))
        }

    def _find_mask(self, volume: ScannedFile) -> ScannedFile | None:
        """Finds the mask of a volume: ``labelsTr/a.nii`` for ``imagesTr/a.nii`` and ``imagesTr/a_0000.nii``."""
        name = volume.path.rpartition("/")[2]
        places = (
            join(folder, each)
            for folder in _sibling_folders(volume.path, _MASK_FOLDERS)
            for each in (name, _CHANNEL.sub("", name))
        )
        return next((self._masks[place] for place in places if place in self._masks), None)


def _sibling_folders(path: str, words: Sequence[str]) -> list[str]:
    """Lists possible folders beside that of a file: ``labelsTr`` beside ``imagesTr`` for the word ``labels``."""
    above, _, folder = path.rpartition("/")[0].rpartition("/")
    match = _FOLDER.fullmatch(folder)
    if match is None or match[1].lower() in words:
        return []
    return [join(above, word + (match[2] or "")) for word in words]


def _find_split(path: str) -> str:
    """Finds the split in a path: ``train`` for ``train/a.nii`` and ``imagesTr/a.nii``; ``""`` for none."""
    folders = path.split("/")[:-1]
    named = filter(None, map(_FOLDER.fullmatch, folders))
    return next((_SPLITS[match[2].lower()] for match in named if match[2]), find_split_in_path("/".join(folders)))


KIND = Kind(
    "nifti",
    "a folder of NIfTI files: slices or volumes",
    NiftiSource.recognise,
    NiftiSource,
    takes_columns=True,
    in_objects=True,
)  # fmt: skip
