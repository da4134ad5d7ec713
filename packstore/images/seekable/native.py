"""Crops by compiled code: one call without the GIL, where ``_native.c`` was compiled when packstore was installed.

Python's share of a crop is 3 µs with it. Without it, splicing takes 20 µs, and as much again goes around decoding and
mirroring, while other threads wait for the GIL. It is only faster: where it is missing or refuses,
:meth:`packstore.images.decoders.Decoder.decode_crop` gives the same pixels, or the error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.seekable.markers import Data
from packstore.images.seekable.splice import NUMBERS, CropPlans
from packstore.images.turbojpeg_library import find_library, wanted_library

_INTERFACE = 2
"""Version of the interface of ``_native.c``: an older one may still be installed."""
_FUNCTIONS = ("tjInitDecompress", "tjDestroy", "tjDecompressHeader3", "tjDecompress2")
_DONE, _NO_ROOM = 0, 2
_MIRRORED, _WHOLE = 1, 2
_FROM_INDEX = [NUMBERS.index(name) for name in ("prefix_bytes", "tables_at", "frame_at", "scan_at")]
_HEIGHT, _WIDTH = NUMBERS.index("height"), NUMBERS.index("width")
_MOST_BYTES = 32 << 20
"""Largest buffer of a thread, in bytes: 11 megapixels."""


class _Crops(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("files", "nbytes", "heads")),
        *((name, ctypes.c_void_p) for name in ("runs_at", "starts", "stops", "ends_at", "ends")),
        *((name, ctypes.c_void_p) for name in ("checked_at", "checked", "markers")),
    ]


class _CropWorker(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("init", "destroy", "header", "decompress")),
        *(("jpeg", ctypes.c_void_p), ("jpeg_bytes", ctypes.c_int64)),
        *(("pixels", ctypes.c_void_p), ("pixels_bytes", ctypes.c_int64)),
    ]


class NativeCrops:
    """Crops of seekable JPEG files as compiled code wants them, for :meth:`CropWorker.crop`; used from many threads.

    Attributes:
        address: Address of the C structure.
        sizes: Height and width of each box.
    """

    def __init__(
        self,
        files: Sequence[Data],
        plans: CropPlans,
        boxes: NDArray[np.int64],
        mirrored: NDArray[np.bool_] | None,
        max_pixels: int,
    ) -> None:
        """
        Args:
            files: ``N`` files, whose memory must stay where it is.
            plans: The plans of :func:`packstore.images.seekable.plan_crops` for ``boxes``.
            boxes: int64 ``(N, 4)``: top, left, height and width.
            mirrored: bool ``(N,)``: which to mirror left to right; None for none.
            max_pixels: Images of more pixels are refused.
        """
        fields, count = plans.fields, len(plans)
        whole = plans.parts[:, 0] == 0
        parts = np.where(
            whole[:, None], np.stack([fields[:, _HEIGHT], fields[:, _WIDTH], *boxes.T[:2]], 1), plans.parts
        )
        parts[fields[:, _HEIGHT] * fields[:, _WIDTH] > max_pixels] = 0
        flags = whole * _WHOLE if mirrored is None else whole * _WHOLE + mirrored * _MIRRORED
        heads = np.concatenate([fields[:, _FROM_INDEX], parts, boxes[:, 2:], flags[:, None]], 1, dtype=np.int64)
        arrays: list[NDArray[Any]] = [
            np.array([_address(file) for file in files], np.uint64),
            np.array([len(file) for file in files], np.int64),
            heads,
            *(plans.runs_at, plans.starts, plans.stops, plans.ends_at, plans.ends),
            *(plans.checked_at, plans.checked, plans.markers),
        ]
        arrays = [np.ascontiguousarray(array) for array in arrays]
        structure = _Crops(count, *(array.ctypes.data for array in arrays))
        self.address = ctypes.addressof(structure)
        self.sizes: list[tuple[int, int]] = list(map(tuple, boxes[:, 2:].tolist()))
        self._plans, self._parts = plans, parts
        self._kept = files, arrays, structure  # the memory behind the addresses

    def needs(self, n: int) -> tuple[int, int]:
        """Bytes that crop ``n`` needs, at most: of the spliced file, and of the decoded pixels."""
        plans = self._plans
        runs = slice(*plans.runs_at[n : n + 2])
        prefix, tables, _, scan = plans.fields[n, _FROM_INDEX].tolist()
        height, width = self._parts[n, :2].tolist()
        jpeg = prefix + scan - tables + int((plans.stops[runs] - plans.starts[runs]).sum())
        return max(jpeg, 3 * width), 3 * height * width


class CropWorker:
    """The buffers of one thread, reused for each crop. Made by :func:`make_crop_worker`."""

    def __init__(self, native: ctypes.CDLL, turbojpeg: ctypes.CDLL) -> None:
        self._crop = native.packstore_crop
        self._libraries = native, turbojpeg
        self._structure = _CropWorker(*(ctypes.cast(turbojpeg[name], ctypes.c_void_p) for name in _FUNCTIONS))
        self._address = ctypes.addressof(self._structure)
        self._make_room(1 << 18, 1 << 20)

    def crop(self, crops: NativeCrops, n: int) -> NDArray[np.uint8] | None:
        """The pixels of box ``n``, bit for bit those of the whole image.

        Returns:
            uint8 ``(h, w, 3)``, RGB, valid until the next call. None for anything that is not flawless: then
            :meth:`packstore.images.decoders.Decoder.decode_crop` gives the pixels, or says what is wrong.
        """
        outcome = self._crop(crops.address, n, self._address)
        if outcome == _NO_ROOM:
            jpeg, pixels = crops.needs(n)
            if max(jpeg, pixels) > _MOST_BYTES:
                return None
            self._make_room(jpeg, pixels)
            outcome = self._crop(crops.address, n, self._address)
        return np.ndarray((*crops.sizes[n], 3), np.uint8, self._pixels) if outcome == _DONE else None

    def _make_room(self, jpeg: int, pixels: int) -> None:
        structure = self._structure
        if jpeg > structure.jpeg_bytes:
            self._jpeg = np.empty(jpeg, np.uint8)
            structure.jpeg, structure.jpeg_bytes = self._jpeg.ctypes.data, jpeg
        if pixels > structure.pixels_bytes:
            self._pixels = np.empty(pixels, np.uint8)
            structure.pixels, structure.pixels_bytes = self._pixels.ctypes.data, pixels


def make_crop_worker() -> CropWorker | None:
    """A worker for the calling thread; None where :func:`native_problem` says why. Raises as
    :func:`packstore.images.turbojpeg_library.find_library`."""
    native, name = _native()[0], find_library(*_FUNCTIONS)
    return None if native is None or name is None else CropWorker(native, ctypes.CDLL(name))


def native_problem() -> str | None:
    """Why nothing is cropped by compiled code here; None where it is. Raises as :func:`make_crop_worker`."""
    if find_library(*_FUNCTIONS) is not None:
        return _native()[1]
    if wanted_library() == "":
        return "PACKSTORE_TURBOJPEG is empty"
    return "TurboJPEG's library is not there (on Debian and Ubuntu: apt install libturbojpeg0)"


@functools.cache
def _native() -> tuple[ctypes.CDLL | None, str | None]:
    """The compiled library; or None, and why there is none."""
    here = Path(__file__)
    path = next((path for suffix in EXTENSION_SUFFIXES if (path := here.with_name("_native" + suffix)).exists()), None)
    if path is None:
        advice = "on Debian and Ubuntu: apt install gcc libc6-dev, and then packstore again"
        return None, f"it was not compiled when packstore was installed, for which it takes a C compiler ({advice})"
    try:
        library = ctypes.CDLL(str(path))
        found = library.packstore_interface()
        library.packstore_crop.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {' '.join(str(error).split())}"
    if found != _INTERFACE:
        return None, f"{path} is of another version of packstore: delete it and install packstore again"
    return library, None


def _address(data: Data) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
