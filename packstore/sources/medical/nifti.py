"""NIfTI: a folder of volumes, ``.nii`` and ``.nii.gz``. Slices or whole volumes are records, as the user chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.fields import Array, Field, Mask, Text
from packstore.core.modes import Mode, mode_of
from packstore.core.progress import ProgressCallback, no_progress
from packstore.images.sniff import excess_pixels_message
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.contents import list_contents
from packstore.sources.encodings import parse_columns
from packstore.sources.ledger import Claims, Role
from packstore.sources.medical.header_scan import HeaderScanSource, declare_image_field
from packstore.sources.medical.nifti_files import (
    HEAD_BYTES,
    PACKED_DTYPES,
    NiftiHeader,
    cast_to_mode,
    check_file_size,
    load_nibabel,
    read_header,
    read_volume,
)
from packstore.sources.medical.recent import RecentCache
from packstore.sources.rows import Row, in_packing_order
from packstore.sources.splits import find_split_in_path

_SUFFIXES = (".nii", ".nii.gz")
_AS = ("slices", "volumes")
_IMAGE_FOLDERS = ("images", "image", "imgs", "img")
_MASK_FOLDERS = ("labels", "label", "masks", "mask", "segmentations", "segmentation", "segs", "seg")
_FOLDER = re.compile(rf"({'|'.join((*_IMAGE_FOLDERS, *_MASK_FOLDERS))})(tr|ts|val)?", re.I)
_SPLITS = {"tr": "train", "ts": "test", "val": "val"}
_CHANNEL = re.compile(r"_[0-9]{4}(?=[.]nii)")
_DECATHLON = "dataset.json"
"""List of classes and volumes in the Medical Segmentation Decathlon."""


class _Volume(NamedTuple):
    """NIfTI file with its size and times, and fields of its header, see :class:`NiftiHeader`.

    Attributes:
        mask: Path of its mask; ``""`` for none.
        left: Number of texts and extensions in its header.
        error: Reason why it cannot be read; ``""`` for a good header.
    """

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    dtype: str = "uint8"
    channels: int = 1
    mask: str = ""
    left: int = 0
    error: str = ""

    @property
    def ref(self) -> tuple[str, int, int]:
        """Reference for reading the file: path, size and time of modification."""
        return self.path, self.size, self.modified_ns


class NiftiSource(HeaderScanSource):
    """Source of the slices or volumes in NIfTI files, in their stored values. Masks come from the folder of labels
    beside them.

    An image has the second axis of its volume as height and the first as width, as ``data[:, :, k].T``. A mask of
    another shape, or with values that are no whole numbers, makes a bad sample.

    Opening raises :class:`AmbiguousSourceError` unless ``--column image=`` chooses slices or volumes. It raises
    :class:`UsageError` for any other ``--column``. :meth:`fields` raises :class:`SourceError` if the volumes' channels
    differ, unless they are gray and RGB of 8 bits.
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
        self._recent = RecentCache()
        self.evidence = f"NIfTI files, taken as {self._record_unit}"

    def scan_headers(self) -> int:
        """Reads all headers on the first call. Returns the number of volumes, damaged ones included, masks excluded."""
        return len(self._volumes)

    def splits(self) -> Sequence[str]:
        """Returns the splits in the paths of volumes. Returns only the split ``""`` if some path names none."""
        names = {_find_split(volume.path) for volume in self._volumes}
        return in_packing_order(names) if "" not in names else ("",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image and its columns. Masks are among them if the source has any.

        - Slices: ``slice``, the number of the slice, and ``mask``.
        - Volumes: ``volume`` and ``volume_mask``.
        - Both: ``number`` of the volume, ``time`` step, and ``slope``, ``intercept``, ``affine`` and ``orientation``.
        """
        mode, masks = self._mode, {self._masks[volume.mask].dtype for volume in self._volumes if volume.mask}
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
        for number, volume in enumerate(self._volumes):
            if split and _find_split(volume.path) != split:
                continue
            mask = self._masks.get(volume.mask)
            both = (volume,) if mask is None else (volume, mask)
            times = max(each.modified_ns for each in both), max(each.changed_ns for each in both)
            if volume.error:
                yield Row(volume.path, (volume.path, -1, 0, volume.error), 0, 0, *times)
                continue
            width, height, depth, steps = volume.shape
            plane = height * width * self._mode.channels * np.dtype(self._mode.dtype).itemsize
            slices = [*range(depth)] if self._record_unit == "slices" else [depth // 2]
            several = len(slices) * steps > 1
            for at in range(len(slices) * steps):
                rest = number, at // len(slices), slices[at % len(slices)], mask and mask.ref
                key = f"{volume.path}#{at}" if several else volume.path
                values = plane * depth if self._record_unit == "volumes" else plane if mask else 0
                yield Row(key, (*volume.ref, rest), plane, 256 + values, *times)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads a slice as ``image``, with the header's columns. For volumes, reads ``volume``, and its middle slice as
        ``image``.

        Values are as stored. Leaves out the mask if there is none. Raises :class:`ValueError` for a damaged file, and
        for values that the mode does not hold. Raises it also for a mask that does not fit.
        """
        *file, rest = ref
        if file[1] < 0:
            raise ValueError(rest)
        number, time, place, mask_file = rest
        header, data = self._read_volume(*file)
        planes = cast_to_mode(data[..., time, :], self._mode)
        values = {
            "image": np.ascontiguousarray(planes[:, :, place].transpose(1, 0, 2)),
            "number": number,
            "time": time,
            "slope": header.slope,
            "intercept": header.intercept,
            "affine": header.affine,
            "orientation": "".join(code or "?" for code in load_nibabel().aff2axcodes(header.affine)),
        }
        mask = None if mask_file is None else self._read_mask(mask_file, planes.shape[:3])
        if self._record_unit == "slices":
            return {**values, "slice": place, **({} if mask is None else {"mask": mask[:, :, place].T})}
        values["volume"] = np.ascontiguousarray(planes.transpose(2, 3, 1, 0))
        if mask is not None:
            values["volume_mask"] = np.ascontiguousarray(mask.transpose(2, 1, 0)[:, None])
        return values

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims a volume and its mask. Claims a damaged volume without its mask."""
        file, size, _, rest = row.ref
        claims.claim(file)
        if size >= 0 and rest[3] is not None:
            claims.claim(rest[3][0])

    def claim_files(self, claims: Claims) -> None:
        """Claims the Decathlon's ``dataset.json`` as evidence."""
        if _DECATHLON in self.tree.names("").files:
            claims.claim(_DECATHLON, Role.EVIDENCE)

    def count_left_parts(self) -> Mapping[str, int]:
        """Counts texts and extensions in headers, which no column keeps."""
        left = sum(volume.left for volume in self._all_files.values())
        return {"texts and extensions in headers": left} if left else {}

    def reason_to_leave_out(self, folder: str, name: str) -> str | None:
        """Returns the reason for NIfTI files that are left out: masks without a volume. For other files, returns the
        base's reason."""
        if name.lower().endswith(_SUFFIXES):
            return "segmentations without a volume"
        return super().reason_to_leave_out(folder, name)

    def _read_volume(self, file: str, size: int, modified: int) -> tuple[NiftiHeader, NDArray[Any]]:
        """Reads the header of a file and its stored values, ``(I, J, K, T, C)``. Keeps those of the last three files in
        memory.

        Raises :class:`SampleError` for a file that has changed, and :class:`ValueError` for a damaged one.
        """

        def read() -> tuple[NiftiHeader, NDArray[Any]]:
            return read_volume(self.tree.read(file, size, modified, self._max_bytes), self._max_bytes)

        volume: tuple[NiftiHeader, NDArray[Any]] = self._recent.get_or_make((file, size, modified), read)
        return volume

    def _read_mask(self, ref: tuple[str, int, int], shape: tuple[int, ...]) -> NDArray[Any]:
        """Reads the mask of a volume, as uint8 if it is stored as such, else as int32.

        Raises :class:`ValueError` if the mask is damaged, has several channels or times, or has another shape than
        ``shape``. Raises it also for values that are no whole numbers.
        """
        file = ref[0]
        try:
            values = self._read_volume(*ref)[1]
        except ValueError as error:
            raise ValueError(f"its mask {printable(file)} {error}") from None
        if values.shape[:3] != shape or values.shape[3:] != (1, 1):
            raise ValueError(f"its mask {printable(file)} has the shape {values.shape}, expected {shape}")
        whole = values[..., 0, 0].astype(np.int32)
        if not np.array_equal(whole, values[..., 0, 0]):
            raise ValueError(f"its mask {printable(file)} has values that are no whole numbers")
        return whole.astype(np.uint8) if values.dtype == np.uint8 else whole

    @cached_property
    def _mode(self) -> Mode:
        """Mode that holds the stored values of all volumes. If no mode holds them all, larger values make bad samples.

        Raises :class:`SourceError` if the volumes' channels differ, unless they are gray and RGB, all uint8.
        """
        volumes = [volume for volume in self._volumes if not volume.error]
        channels = {volume.channels for volume in volumes} or {1}
        dtypes = {PACKED_DTYPES[volume.dtype] for volume in volumes} or {"uint8"}
        if len(channels) > 1 and (dtypes != {"uint8"} or 4 in channels):
            shown = " and ".join(f"{each} channel{'s' * (each > 1)}" for each in sorted(channels))
            raise SourceError(
                f"{printable(str(self.path))}: its volumes have {shown}, and a store has one mode; leave one kind out "
                "with --ignore"
            )
        dtype = np.result_type(*dtypes).name
        known = dtype in PACKED_DTYPES.values()
        return mode_of(max(channels), dtype if known else "float32" if "float" in dtype else "int32")

    @cached_property
    def _volumes(self) -> list[_Volume]:
        """All files but masks, sorted by path."""
        return [volume for volume in self._all_files.values() if volume.path not in self._masks]

    @cached_property
    def _masks(self) -> Mapping[str, _Volume]:
        """Files in folders of labels that have a folder of images beside them, by path."""
        folders = {path.rpartition("/")[0] for path in self._all_files}
        return {
            path: each
            for path, each in self._all_files.items()
            if not folders.isdisjoint(_sibling_folders(path, _IMAGE_FOLDERS))
        }

    @cached_property
    def _all_files(self) -> Mapping[str, _Volume]:
        """All files with their headers, by path, sorted. A file that cannot be read has an ``error``.

        Raises :class:`SourceError` if there are no files.
        """
        volumes: dict[str, _Volume] = {}
        paths = dict.fromkeys(self.find_files(lambda path: path.lower().endswith(_SUFFIXES)))
        for path in paths:
            stat, error = self.stat_file(path)
            volume = _Volume(path, stat.size, stat.modified_ns, stat.changed_ns, error=error)
            try:
                volumes[path] = volume if error else self._scan_header(volume, paths)
            except ValueError as problem:
                volumes[path] = volume._replace(error=str(problem))
            self.report_scanned(len(volumes))
        if not volumes:
            raise SourceError(f"{printable(str(self.path))} holds no NIfTI files (.nii, .nii.gz)")
        return volumes

    def _scan_header(self, volume: _Volume, paths: Mapping[str, Any]) -> _Volume:
        """Returns the volume with its header, and its mask if that is among ``paths``. Raises :class:`ValueError` for a
        damaged header, too many pixels, and a file that is too small for its values."""
        data = self.tree.first_bytes(volume.path, HEAD_BYTES)
        header = read_header(data, self._max_bytes)
        check_file_size(header, data, volume.size)
        if (reason := excess_pixels_message(*header.shape[:2], self.options.max_pixels)) is not None:
            raise ValueError(reason)
        colours = header.dtype.names
        return volume._replace(
            shape=header.shape,
            dtype="uint8" if colours else header.dtype.name,
            channels=len(colours or "x"),
            left=header.left,
            mask=next((mask for mask in _possible_mask_paths(volume.path) if mask in paths), ""),
        )


def _possible_mask_paths(path: str) -> Iterator[str]:
    """Yields possible paths of the mask of a volume: ``labelsTr/a.nii`` for ``imagesTr/a.nii`` and
    ``imagesTr/a_0000.nii``."""
    name = path.rpartition("/")[2]
    for folder in _sibling_folders(path, _MASK_FOLDERS):
        yield join(folder, name)
        yield join(folder, _CHANNEL.sub("", name))


def _sibling_folders(path: str, words: Sequence[str]) -> list[str]:
    """Lists folders that may lie beside the folder of a file: ``labelsTr`` beside ``imagesTr`` for the word ``labels``.

    Returns none if one of ``words`` already names the file's folder. Returns none also if that is no folder of images
    or labels.
    """
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


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises a folder or archive with NIfTI files: ``CERTAIN``; ``PARTIAL`` if it also has images of other formats.

    Of the ``.gz`` files of a folder, looks only at the first 64.
    """
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    contents = list_contents(tree)
    has_nifti = any(
        suffix == ".nii" or (suffix == ".gz" and any(name.lower().endswith(".nii.gz") for name in names.first))
        for folder in contents.folders.values()
        for suffix, names in folder.others.items()
    )
    if not has_nifti:
        return Certainty.NO
    return Certainty.PARTIAL if contents.image_count else Certainty.CERTAIN


KIND = Kind(
    "nifti", "a folder of NIfTI files: slices or volumes", _recognise, NiftiSource, takes_columns=True, in_objects=True
)
