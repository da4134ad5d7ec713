"""NIfTI: a folder of volumes, ``.nii`` and ``.nii.gz``. Slices or whole volumes are records, as the user says.

Header fields are those of nifti1.h (https://nifti.nimh.nih.gov/nifti-1) and NIfTI-2; nibabel reads them.
"""

from __future__ import annotations

import importlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, UsageError, printable
from packstore.core.fields import Array, Field, Image, Mask, Text
from packstore.core.modes import RGB, Mode, mode_of
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.sniff import too_many_pixels
from packstore.sources.archives import open_tree
from packstore.sources.base import SPLIT_ORDER, Certainty, Kind, SourceOptions, Survey
from packstore.sources.column_options import parse_columns
from packstore.sources.contents import list_contents
from packstore.sources.ledger import Claims, Role
from packstore.sources.listing import is_passed_over
from packstore.sources.medical.recent import Recent
from packstore.sources.rows import Row, TreeRowSource, in_packing_order
from packstore.sources.tree import Tree
from packstore.stores.link_files import Location

_SUFFIXES = (".nii", ".nii.gz")
_HEADERS = {348: "Nifti1Header", 540: "Nifti2Header"}
_START, _GZIP = 8192, 31
_AS = ("slices", "volumes")
_HELD = {
    **dict.fromkeys(("uint8",), "uint8"),
    **dict.fromkeys(("int8", "int16"), "int16"),
    **dict.fromkeys(("uint16",), "uint16"),
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "int32"),
    **dict.fromkeys(("float16", "float32", "float64"), "float32"),
}
"""The dtype in which values are packed; those that it does not hold are bad samples."""
_FOLDER = re.compile(r"(images?|imgs?|labels?|masks?|segmentations?|segs?)(tr|ts|val)?", re.I)
_SPLITS = {"tr": "train", "ts": "test", "val": "val"}
_EVERY = 200
_TEXTS = ("descrip", "aux_file", "intent_name")
_DECATHLON = "dataset.json"
"""Names classes and lists the volumes that lie in the folders."""


class _Volume(NamedTuple):
    """A file, and what its header says, see :class:`Header`; an error in place of a header."""

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


class Header(NamedTuple):
    """Where the values of a volume lie, and what they are.

    Attributes:
        shape: (I, J, K, T); T counts all that has more than three dimensions.
        dtype: As stored, with its byte order.
        offset: Of the first value, in bytes.
        affine: From indices (i, j, k) to millimetres.
        slope: What values are multiplied by, and ``intercept`` what is added then.
        left: How many texts and extensions no column has.
    """

    shape: tuple[int, int, int, int]
    dtype: np.dtype[Any]
    offset: int
    affine: NDArray[np.float64]
    slope: float
    intercept: float
    left: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NiftiSource(TreeRowSource):
    """Slices or volumes of NIfTI files, in their stored values; with masks from the folder of labels beside them.

    An image has the second axis of its volume as height and the first as width, as ``data[:, :, k].T``.
    """

    kind = "nifti"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        given = parse_columns(options.columns)
        self._as = given.pop("image", [""])[0]
        if given or self._as not in ("", *_AS):
            raise UsageError(f"{printable(str(path))}: of NIfTI, --column takes image=slices or image=volumes")
        if not self._as:
            raise AmbiguousSourceError(
                f"{printable(str(path))} holds volumes (NIfTI): each slice may be a record, --column image=slices; or "
                "each volume, --column image=volumes (a column volume, and the middle slice as the image)",
                [Answer(("--column", f"image={each}")) for each in _AS],
            )
        self._recent = Recent()
        self._progress: ProgressCallback = no_progress
        self.evidence = f"NIfTI files, taken as {self._as}"

    def splits(self) -> Sequence[str]:
        found = {_split_of(volume.path) for volume in self._volumes}
        return in_packing_order(found) if "" not in found else ("",)

    def describing_files(self) -> Iterable[str]:
        return ()

    def fields(self) -> Mapping[str, Field]:
        mode, masks = self._mode, [self._masks[volume.mask].dtype for volume in self._volumes if volume.mask]
        mask_dtype = "uint8" if set(masks) == {"uint8"} else "int32"
        found: dict[str, Field] = {"image": Image(mode.dtype, mode=None if mode == RGB else mode.name)}
        if self._as == "volumes":
            found["volume"] = Array(mode.dtype, spatial="DCHW", smooth=True)
            if masks:
                found["volume_mask"] = Array(mask_dtype, spatial="DCHW", optional=True)
        else:
            found["slice"] = Array("int64")
            if masks:
                found["mask"] = Mask(mask_dtype, optional=True)
        numbers = {name: Array("int64") for name in ("number", "time")}
        scale = {name: Array("float64") for name in ("slope", "intercept")}
        return {**found, **numbers, **scale, "affine": Array("float64", (4, 4)), "orientation": Text()}

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        self._progress = progress
        files = len(self._volumes)
        return super().survey(split, lambda report: progress(report) if report.done >= files else None)

    def rows(self, split: str) -> Iterator[Row]:
        for number, volume in enumerate(self._volumes):
            if split and _split_of(volume.path) != split:
                continue
            mask = self._masks.get(volume.mask)
            both = (volume,) if mask is None else (volume, mask)
            times = max(each.modified_ns for each in both), max(each.changed_ns for each in both)
            if volume.error:
                yield Row(volume.path, (volume.path, -1, 0, volume.error), 0, 0, *times)
                continue
            width, height, depth, steps = volume.shape
            plane = height * width * self._mode.channels * np.dtype(self._mode.dtype).itemsize
            beside = None if mask is None else (mask.path, mask.size, mask.modified_ns)
            places = [*range(depth)] if self._as == "slices" else [depth // 2]
            several = len(places) * steps > 1
            for at in range(len(places) * steps):
                time, place = at // len(places), places[at % len(places)]
                rest = number, time, place, beside
                key = f"{volume.path}#{at}" if several else volume.path
                values = plane * depth if self._as == "volumes" else plane if mask else 0
                yield Row(key, (volume.path, volume.size, volume.modified_ns, rest), plane, 256 + values, *times)

    def values(self, ref: Any) -> Mapping[str, Any]:
        file, size, modified, rest = ref
        if size < 0:
            raise ValueError(rest)
        number, time, place, beside = rest
        header, data = self._read(file, size, modified)
        planes = _held(data[..., time, :], self._mode)
        found = {
            "image": _image(planes[:, :, place]),
            "number": number,
            "time": time,
            "slope": header.slope,
            "intercept": header.intercept,
            "affine": header.affine,
            "orientation": "".join(code or "?" for code in _nibabel().aff2axcodes(header.affine)),
        }
        mask = None if beside is None else self._mask(beside, planes.shape[:3])
        if self._as == "slices":
            return {**found, "slice": place, **({} if mask is None else {"mask": mask[:, :, place].T})}
        found["volume"] = np.ascontiguousarray(planes.transpose(2, 3, 1, 0))
        if mask is not None:
            found["volume_mask"] = np.ascontiguousarray(mask.transpose(2, 1, 0)[:, None])
        return found

    def locate_row(self, ref: Any) -> Location | None:
        return None

    def claim_row(self, claims: Claims, row: Row) -> None:
        file, size, _, rest = row.ref
        claims.claim(file)
        if size >= 0 and rest[3] is not None:
            claims.claim(rest[3][0])

    def claim_files(self, claims: Claims) -> None:
        if _DECATHLON in self.tree.names("").files:
            claims.claim(_DECATHLON, Role.EVIDENCE)

    def count_left_members(self) -> Mapping[str, int]:
        left = sum(volume.left for volume in self._all)
        return {"texts and extensions in headers": left} if left else {}

    def left_reason(self, folder: str, name: str) -> str | None:
        if name.lower().endswith(_SUFFIXES):
            return "segmentations that no volume goes with"
        return super().left_reason(folder, name)

    def _read(self, file: str, size: int, modified: int) -> tuple[Header, NDArray[Any]]:
        """The header of a file and its stored values, ``(I, J, K, T, C)``; those of the last few files are kept."""

        def make() -> tuple[Header, NDArray[Any]]:
            data = self.tree.read(file, size, modified, self._max_bytes)
            header = read_header(data, self._max_bytes)
            inflated = inflate(data, header.offset + header.nbytes)
            if len(inflated) < header.offset + header.nbytes:
                raise ValueError(f"is truncated: its values end at byte {header.offset + header.nbytes:,}, and it has "
                                 f"{len(inflated):,}")  # fmt: skip
            values = np.frombuffer(inflated, header.dtype, math.prod(header.shape), header.offset)
            if values.dtype.names:
                values = values.view(np.uint8).reshape(-1, len(values.dtype.names))
            return header, values.reshape(*header.shape, -1, order="F") if values.ndim == 1 else np.stack(
                [values[:, n].reshape(header.shape, order="F") for n in range(values.shape[1])], -1
            )

        found: tuple[Header, NDArray[Any]] = self._recent.get((file, size, modified), make)
        return found

    def _mask(self, ref: tuple[str, int, int], shape: tuple[int, ...]) -> NDArray[Any]:
        """The mask of a volume of this shape: uint8, or int32 if that is not how it is stored."""
        file, size, modified = ref
        try:
            values = self._read(file, size, modified)[1]
        except ValueError as error:
            raise ValueError(f"its mask {printable(file)} {error}") from None
        if values.shape[:3] != shape or values.shape[3:] != (1, 1):
            raise ValueError(f"its mask {printable(file)} has the shape {values.shape}, and it has {shape}")
        whole = values[..., 0, 0].astype(np.int32)
        if not np.array_equal(whole, values[..., 0, 0]):
            raise ValueError(f"its mask {printable(file)} has values that are no whole numbers")
        return whole.astype(np.uint8) if values.dtype == np.uint8 else whole

    @cached_property
    def _mode(self) -> Mode:
        """The mode that holds the stored values of all files."""
        volumes = [volume for volume in self._volumes if not volume.error]
        channels = {volume.channels for volume in volumes} or {1}
        dtypes = {_HELD[volume.dtype] for volume in volumes} or {"uint8"}
        if len(channels) > 1 and dtypes != {"uint8"}:
            raise SourceError(
                f"{printable(str(self.path))}: some volumes are gray, others have colours, and a store has one mode; "
                "leave one kind out with --ignore"
            )
        dtype = np.result_type(*dtypes).name
        return mode_of(max(channels), dtype if dtype in _HELD.values() else "float32" if "float" in dtype else "int32")

    @cached_property
    def _volumes(self) -> list[_Volume]:
        return [volume for volume in self._all if volume.path not in self._masks]

    @cached_property
    def _masks(self) -> Mapping[str, _Volume]:
        """Files of folders of labels beside folders of images, by path."""
        folders = frozenset(volume.path.rpartition("/")[0] for volume in self._all)
        return {volume.path: volume for volume in self._all if _is_mask(volume.path, folders)}

    @cached_property
    def _all(self) -> list[_Volume]:
        """All files by path, with what their headers say; each knows its mask."""
        found = []
        paths = sorted(_nifti_files(self.tree))
        there = frozenset(paths)
        for number, path in enumerate(paths, 1):
            stat = self._found(path)
            volume = _Volume(path, stat.size, stat.modified_ns, stat.changed_ns)
            try:
                if stat.size < 0:
                    raise ValueError("is no file that can be read")
                header = read_header(self.tree.start(path, _START), self._max_bytes)
                if (reason := too_many_pixels(*header.shape[:2], self.options.max_pixels)) is not None:
                    raise ValueError(reason)
                names = header.dtype.names
                volume = volume._replace(
                    shape=header.shape, dtype="uint8" if names else header.dtype.name, channels=len(names or "x"),
                    left=header.left,
                    mask=next((mask for mask in _mask_names(path) if mask in there), ""),
                )  # fmt: skip
            except ValueError as error:
                volume = volume._replace(error=str(error))
            found.append(volume)
            if number % _EVERY == 0:
                self._progress(Progress("scan", number, None, 0))
        if not found:
            raise SourceError(f"{printable(str(self.path))} holds no NIfTI files (.nii, .nii.gz)")
        return found


def read_header(data: bytes, max_bytes: int) -> Header:
    """Reads the header from the first bytes of a file, which may be compressed. Raises :class:`ValueError`."""
    library = _nibabel()
    try:
        start = inflate(data[:_START], 544)
        size = next((size for size in _HEADERS for order in ("little", "big") if _size_of(start, order) == size), 0)
        if not size:
            raise ValueError(f"it begins with {start[:4]!r}")
        header = getattr(library, _HEADERS[size])(start[:size], check=False)
        if bytes(header["magic"]).rstrip(b"\0")[:2] != (b"n+"):
            raise ValueError("a pair of .hdr and .img, or no NIfTI; write it as .nii")
        shape = tuple(map(int, header.get_data_shape()))
        dtype = header.get_data_dtype()
        if (
            not shape
            or min(shape) < 1
            or (dtype.name not in _HELD and dtype.names not in (tuple("RGB"), tuple("RGBA")))
        ):
            raise ValueError(f"values of {dtype} in the shape {shape}, which packstore does not read")
        shape = (*shape, 1, 1, 1)[: max(4, len(shape))]
        slope, intercept = header.get_slope_inter()
        left = sum(bool(bytes(header[name]).rstrip(b"\0 ")) for name in _TEXTS)
        offset = int(header.get_data_offset())
        found = Header(
            (shape[0], shape[1], shape[2], math.prod(shape[3:])), dtype, offset,
            np.array(header.get_best_affine(), np.float64), 1.0 if slope is None else float(slope),
            0.0 if intercept is None else float(intercept), left + (offset > size + 4),
        )  # fmt: skip
    except (MemoryError, SourceError):
        raise
    except Exception as error:  # nibabel raises almost anything on damaged headers
        raise ValueError(f"is no NIfTI file that packstore reads: {' '.join(str(error).split())[:200]}") from error
    if found.offset < size or found.offset + found.nbytes > max_bytes:
        raise ValueError(
            f"has {found.nbytes:,} bytes of values from byte {found.offset:,}, more than the {max_bytes:,} of a file "
            "within max_pixels"
        )
    return found


def _size_of(start: bytes, order: Any) -> int:
    return int.from_bytes(start[:4], order)


def inflate(data: bytes, limit: int) -> bytes:
    """The first ``limit`` bytes of a file's content, and its checksum checked where it ends there."""
    if data[:2] != b"\x1f\x8b":
        return data
    found = b""
    while data[:2] == b"\x1f\x8b" and len(found) < limit:
        inflater = zlib.decompressobj(_GZIP)
        try:
            found += inflater.decompress(data, limit - len(found))
            inflater.decompress(inflater.unconsumed_tail, 1)
        except zlib.error as error:
            raise ValueError(f"is damaged: {error}") from None
        data = inflater.unused_data
    return found


def _held(values: NDArray[Any], mode: Mode) -> NDArray[Any]:
    """Values in the dtype of a mode, with its channels. Raises :class:`ValueError` if it does not hold them all."""
    held = values.astype(mode.dtype)
    if held.dtype != values.dtype.newbyteorder("=") and not np.array_equal(
        held.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"
    ):
        raise ValueError(
            f"values of {values.dtype.name} that {mode.dtype} does not hold; write it as {mode.dtype} first"
        )
    return held if held.shape[-1] == mode.channels else np.repeat(held, mode.channels, -1)


def _image(plane: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(plane.transpose(1, 0, 2))


def _nifti_files(tree: Tree) -> Iterator[str]:
    for folder, names in tree.folders(is_passed_over):
        for name in names.files:
            if name.lower().endswith(_SUFFIXES) and not is_passed_over(name):
                yield f"{folder}/{name}" if folder else name


def _mask_names(path: str) -> Iterator[str]:
    """Where the mask of a volume may lie: ``labelsTr/a.nii.gz`` of ``imagesTr/a.nii.gz`` or ``a_0000.nii.gz``."""
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    match = _FOLDER.fullmatch(last)
    if match is None or not match[1].lower().startswith(("image", "img")):
        return
    for word in ("labels", "label", "masks", "mask", "segmentations", "segmentation", "segs", "seg"):
        beside = f"{above}/{word}{match[2] or ''}" if above else f"{word}{match[2] or ''}"
        yield f"{beside}/{name}"
        yield f"{beside}/{re.sub(r'_[0-9]{4}(?=[.]nii)', '', name)}"


def _is_mask(path: str, folders: frozenset[str]) -> bool:
    """Whether a file lies in a folder of labels that has a folder of images beside it."""
    folder = path.rpartition("/")[0]
    above, _, last = folder.rpartition("/")
    match = _FOLDER.fullmatch(last)
    if match is None or match[1].lower().startswith(("image", "img")):
        return False
    prefix = f"{above}/" if above else ""
    return any(f"{prefix}{word}{match[2] or ''}" in folders for word in ("images", "image", "imgs", "img"))


def _split_of(path: str) -> str:
    """``train`` of ``train/a.nii`` and ``imagesTr/a.nii``; empty for none."""
    for part in path.lower().split("/")[:-1]:
        match = _FOLDER.fullmatch(part)
        if part in SPLIT_ORDER:
            return part
        if match is not None and match[2]:
            return _SPLITS[match[2]]
    return ""


def _nibabel() -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError as error:
        raise SourceError(f"NIfTI is read by nibabel: pip install 'packstore[nifti]' ({error})") from None


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """A folder with NIfTI files; beside images of other kinds it is partial."""
    tree = open_tree(path)
    if tree is None:
        return Certainty.NO
    contents = list_contents(tree)
    found = any(
        suffix == ".nii" or (suffix == ".gz" and any(name.lower().endswith(".nii.gz") for name in names.first))
        for folder in contents.folders.values()
        for suffix, names in folder.others.items()
    )
    if not found:
        return Certainty.NO
    return Certainty.PARTIAL if contents.images else Certainty.CERTAIN


KIND = Kind(
    "nifti", "a folder of NIfTI files: slices or volumes", _recognise, NiftiSource, takes_columns=True, in_objects=True
)
