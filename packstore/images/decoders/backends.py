"""The libraries that decode JPEG files, a line each in :data:`LIBRARIES`, loaded on first use.

Each gives a function ``data -> uint8 (H, W, 3) RGB`` for a whole JPEG of 8-bit samples and 1 or 3 components. As Pillow
does, it uses the accurate DCT and fancy upsampling. It is thread-safe, and raises for any flaw: the caller then decodes
with Pillow.

TurboJPEG's shared library is called by ctypes, too, for functions that Python packages do not offer. The environment
variable ``PACKSTORE_TURBOJPEG`` names its file. If it is empty, packstore uses none, and only PyTurboJPEG finds its
own.

- ``tj3SetCroppingRegion`` decodes a region of any JPEG, in libjpeg-turbo from 3.0 on. The library still entropy-decodes
  everything down to the region's last row, and all of a progressive file. It skips inverse DCT, upsampling and colour
  conversion of other pixels, and everything below.
- ``tjTransform`` rewrites progressive files as baseline files with the same coefficients. All versions have the
  function; from 3.0 on it also makes optimal Huffman tables, which save some 4%.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError, printable
from packstore.images.engine import engine_problem
from packstore.images.kinds.jpeg import is_complete_jpeg

Decode = Callable[[memoryview], NDArray[np.uint8]]
"""Function that decodes a whole image."""


class DecoderLibrary(NamedTuple):
    """A loaded library that decodes JPEG files. For packstore's engine: the library for files that the engine refuses.

    Attributes:
        decode: Decodes whole images; None for Pillow, which has another interface.
        version: Name and version of the library.
    """

    decode: Decode | None
    version: str


class UnavailableError(Exception):
    """Raised if a library cannot be used here; the message says why."""


def load_decoder_library(name: str) -> DecoderLibrary:
    """Loads a decoder's library. Raises :class:`UnavailableError` with the remedy if that fails."""
    load, package = LIBRARIES[name]
    try:
        return load()
    except ImportError as error:
        raise UnavailableError(f"{error} (pip install {package})") from error
    # ctypes and cffi raise these for a missing library or symbol; UnicodeDecodeError for a file not named in UTF-8.
    except (OSError, RuntimeError, AttributeError, UnicodeDecodeError) as error:
        raise UnavailableError(f"{' '.join(str(error).split())} ({_SYSTEM_LIBRARY})") from error


def _load_engine() -> DecoderLibrary:
    """Returns the first available library for the files that the engine refuses."""
    problem = engine_problem()
    if problem is not None:
        raise UnavailableError(problem)
    for name in _BESIDE_ENGINE:
        try:
            beside = load_decoder_library(name)
        except UnavailableError:
            continue
        return beside._replace(version=f"packstore's engine; for other files {beside.version}")
    # Pillow decodes if there is no decode function.
    return DecoderLibrary(None, "packstore's engine; for other files Pillow")


def _load_turbojpeg() -> DecoderLibrary:
    """Loads PyTurboJPEG and makes it raise errors for damaged data."""
    module = importlib.import_module("turbojpeg")
    base: Any = getattr(module, "TurboJPEG", None)
    if base is None:
        raise UnavailableError("the module 'turbojpeg' is not PyTurboJPEG's (pip uninstall turbojpeg)")
    known = f"packstore knows its versions 1.7.2 to 2.6 (pip install {_TURBOJPEG})"
    if not hasattr(base, _REPORT_ERROR):
        raise UnavailableError(f"PyTurboJPEG {module.__version__} has another way to report damaged data; {known}")

    def report_error(self: Any, handle: Any) -> None:
        """Raises :class:`OSError` with libjpeg's message."""
        raise OSError(self._TurboJPEG__get_error_string(handle))

    # PyTurboJPEG turns libjpeg's "corrupt data" into warnings.warn and returns the pixels, right or wrong.
    strict = type("_StrictTurboJPEG", (base,), {_REPORT_ERROR: report_error})
    # Without a path it finds the system's library. Each call makes its own handle, so threads can share it.
    library = strict(library_from_environment() or None)
    cut = library.encode(np.zeros((16, 16, 3), np.uint8))[:-4]
    try:
        library.decode(cut)
    except OSError:
        return DecoderLibrary(lambda data: library.decode(data, module.TJPF_RGB), f"PyTurboJPEG {module.__version__}")
    raise UnavailableError(f"PyTurboJPEG {module.__version__} decodes a truncated file without an error; {known}")


def _load_simplejpeg() -> DecoderLibrary:
    """Loads simplejpeg in its strict mode, which refuses damaged data."""
    module = importlib.import_module("simplejpeg")
    return DecoderLibrary(lambda data: module.decode_jpeg(data, "RGB", strict=True), f"simplejpeg {module.__version__}")


def decode_luma(data: memoryview) -> NDArray[np.uint8]:
    """Decodes the luma of a JPEG with simplejpeg: uint8 ``(H, W, 1)``. Raises its errors, and :class:`ImportError`."""
    image: NDArray[np.uint8] = importlib.import_module("simplejpeg").decode_jpeg(data, "GRAY", strict=True)
    return image


def _load_jpeg4py() -> DecoderLibrary:
    """Loads jpeg4py and its TurboJPEG library."""
    module = importlib.import_module("jpeg4py")
    importlib.import_module("jpeg4py._cffi").initialize()

    def decode(data: memoryview) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB."""
        jpeg = module.JPEG(np.frombuffer(data, np.uint8))
        jpeg.parse_header()
        image = np.empty((jpeg.height, jpeg.width, 3), np.uint8)
        jpeg.decode(image)
        return image

    return DecoderLibrary(decode, f"jpeg4py {version('jpeg4py')}")


def _load_opencv() -> DecoderLibrary:
    """Loads OpenCV."""
    cv2 = importlib.import_module("cv2")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(data: memoryview) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB."""
        if not is_complete_jpeg(data):
            raise ValueError("the JPEG is irregular")  # OpenCV would return a part of the image without an error
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if bgr is None:
            raise ValueError("OpenCV cannot decode the JPEG")
        image: NDArray[np.uint8] = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
        return image

    return DecoderLibrary(decode, f"OpenCV {cv2.__version__}")


def _load_pillow() -> DecoderLibrary:
    """Loads Pillow."""
    from packstore.images import pillow

    return DecoderLibrary(None, pillow.find_version())


class Library(NamedTuple):
    """A library that can be chosen as decoder.

    Attributes:
        load: Loads it. Raises :class:`UnavailableError`, :class:`ImportError`, and what ctypes raises.
        package: What to install with pip if its module is missing.
    """

    load: Callable[[], DecoderLibrary]
    package: str


_TURBOJPEG = "'PyTurboJPEG<3'"
_REPORT_ERROR = "_TurboJPEG__report_error"
_BESIDE_ENGINE = ("turbojpeg", "simplejpeg", "jpeg4py", "opencv")
_SYSTEM_LIBRARY = "on Debian and Ubuntu: apt install libturbojpeg0"
LIBRARIES = {
    "engine": Library(_load_engine, "packstore"),
    "turbojpeg": Library(_load_turbojpeg, _TURBOJPEG),
    "simplejpeg": Library(_load_simplejpeg, "simplejpeg"),
    "jpeg4py": Library(_load_jpeg4py, "jpeg4py"),
    "opencv": Library(_load_opencv, "opencv-python-headless"),
    "pillow": Library(_load_pillow, "Pillow"),
}
"""Libraries by the name of their decoder."""


_VARIABLE = "PACKSTORE_TURBOJPEG"
_NAME = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")
_IN_ALL = "tjInitDecompress"
_ADVICE = "correct it or unset it"


def library_from_environment() -> str | None:
    """Returns the value of ``PACKSTORE_TURBOJPEG``, or None if it is not set. An empty value means: no library."""
    return os.environ.get(_VARIABLE)


def find_library(*symbols: str) -> str | None:
    """Returns name or path, for :mod:`ctypes`, of a library that has all functions ``symbols``. Returns None if there
    is none.

    The library is the one that ``PACKSTORE_TURBOJPEG`` names, else the system's. An empty variable gives None.

    Raises:
        UsageError: ``PACKSTORE_TURBOJPEG`` names a file that cannot be loaded, or is not TurboJPEG's.
    """
    return _find_with_symbols(library_from_environment(), symbols)


@functools.cache
def _find_with_symbols(wanted: str | None, symbols: tuple[str, ...]) -> str | None:
    """Does :func:`find_library` for the library ``wanted``; None means the system's. Caches the result."""
    if wanted == "":
        return None
    name = wanted or _NAME
    try:
        library = ctypes.CDLL(name)
    except (OSError, UnicodeDecodeError) as error:  # the latter for a file not named in UTF-8
        if wanted is None:
            return None
        reason = error if str(error) and isinstance(error, OSError) else wanted  # Python 3.11.2 says nothing
        raise UsageError(
            f"{_VARIABLE} names a library that cannot be loaded: {printable(str(reason))}; {_ADVICE}"
        ) from None
    if not hasattr(library, _IN_ALL):
        if wanted is None:
            return None
        raise UsageError(f"{_VARIABLE} names {printable(wanted)}, which is not TurboJPEG's library; {_ADVICE}")
    return name if all(hasattr(library, symbol) for symbol in symbols) else None


def turbo_version(name: str | None = None) -> str | None:
    """Reads the version of a libturbojpeg, by default the system's. Returns None if it is unknown.

    Loads the library, and searches for the text in its file. If the file is not found, searches the files of any
    libturbojpeg in this process. Raises :class:`OSError` if the library does not load."""
    name = name or ctypes.util.find_library("turbojpeg")
    if name is None:
        return None
    maps = Path("/proc/self/maps")
    ctypes.CDLL(name)
    paths = re.findall(r"(/\S*libturbojpeg\S*)", maps.read_text("utf-8", "surrogateescape")) if maps.exists() else []
    # The named file first; several libraries may be loaded, such as one of a wheel.
    own = [path for path in paths if Path(path).name.startswith(Path(name).name)]
    for path in dict.fromkeys([name, *own, *paths]):
        try:
            match = re.search(rb"libjpeg-turbo version (\d+(?:\.\d+)+)", Path(path).read_bytes())
        except OSError:
            continue
        if match is not None:
            return match[1].decode()
    return None


_REGION_FUNCTIONS = (
    "tj3SetCroppingRegion",
    *("tj3Init", "tj3DecompressHeader", "tj3Get"),
    *("tj3Decompress8", "tj3GetErrorStr", "tj3Destroy"),
)
# From turbojpeg.h.
_DECOMPRESS, _RGB = 1, 0
_SUBSAMPLING, _WIDTH, _HEIGHT = 4, 5, 6
_MCU_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}  # 4:4:4, 4:2:2, 4:2:0, gray, 4:4:0, 4:1:1, 4:4:1
_MARGIN = 2
"""Extra columns that are decoded at both sides of a region: fancy upsampling mixes neighbouring columns of chroma, up
to two pixels wide, and would treat the region's edge as the image's. The library itself handles rows."""


DecodeRegion = Callable[[memoryview, int, int, tuple[int, int, int, int]], NDArray[np.uint8]]
"""Function that decodes ``box`` (top, left, height, width) of a JPEG of ``height`` by ``width`` pixels.

Returns uint8 ``(h, w, 3)``, a view of a wider array. Does not notice flaws below the box. Raises :class:`ValueError`
for any other flaw, another size, and chroma subsampling unknown to TurboJPEG."""


class _Region(ctypes.Structure):
    """``tjregion`` of turbojpeg.h."""

    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


def find_region_library() -> str | None:
    """Returns the library that decodes regions, for :mod:`ctypes`. Returns None if there is none.

    Raises as :func:`find_library`.
    """
    return find_library(*_REGION_FUNCTIONS)


def load_region() -> DecodeRegion | None:
    """Loads the function that decodes regions. Returns None without libjpeg-turbo 3. Raises as
    :func:`find_region_library`."""
    name = find_region_library()
    return None if name is None else _load_function(name)


@functools.cache
def _load_function(name: str) -> DecodeRegion:
    """Loads the library ``name`` once, and returns a function that decodes regions with it."""
    size, handle, data = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
    # Calls of a microsecond keep the GIL: releasing it and waiting for it again takes longer when threads compete.
    brief = ctypes.PyDLL(name)
    brief.tj3Init.argtypes, brief.tj3Init.restype = (ctypes.c_int,), handle
    brief.tj3DecompressHeader.argtypes = (handle, data, size)
    brief.tj3Get.argtypes = (handle, ctypes.c_int)
    brief.tj3SetCroppingRegion.argtypes = (handle, _Region)
    brief.tj3GetErrorStr.argtypes, brief.tj3GetErrorStr.restype = (handle,), ctypes.c_char_p
    brief.tj3Destroy.argtypes, brief.tj3Destroy.restype = (handle,), None
    decompress = ctypes.CDLL(name).tj3Decompress8
    decompress.argtypes = (handle, data, size, data, ctypes.c_int, ctypes.c_int)

    def decode(data: memoryview, height: int, width: int, box: tuple[int, int, int, int], /) -> NDArray[np.uint8]:
        """Decodes a box; raises :class:`ValueError` with libjpeg's message for any flaw."""
        top, left, rows, columns = box
        source = np.frombuffer(data, np.uint8)
        address = source.ctypes.data
        handle = brief.tj3Init(_DECOMPRESS)  # one a call, so that threads share nothing
        if not handle:
            raise MemoryError
        try:
            if brief.tj3DecompressHeader(handle, address, source.size):
                raise ValueError(brief.tj3GetErrorStr(handle))
            if (brief.tj3Get(handle, _HEIGHT), brief.tj3Get(handle, _WIDTH)) != (height, width):
                raise ValueError("the image has another size than its header")
            mcu = _MCU_WIDTHS.get(brief.tj3Get(handle, _SUBSAMPLING))
            if mcu is None:
                raise ValueError("unknown subsampling")
            first = max(0, left - _MARGIN) // mcu * mcu  # as the library demands
            end = min(width, left + columns + _MARGIN)
            region = _Region(first, top, end - first, rows)
            if brief.tj3SetCroppingRegion(handle, region):
                raise ValueError(brief.tj3GetErrorStr(handle))
            image = np.empty((rows, end - first, 3), np.uint8)
            # Fails for mere warnings of libjpeg, too.
            if decompress(handle, address, source.size, image.ctypes.data, 0, _RGB):
                raise ValueError(brief.tj3GetErrorStr(handle))
        finally:
            brief.tj3Destroy(handle)
        return image[:, left - first : left - first + columns]

    return decode


_TRANSFORM_FUNCTIONS = ("tjInitTransform", "tjTransform", "tjGetErrorStr2", "tjFree", "tjDestroy")
_OPTIMIZE = 256  # TJXOPT_OPTIMIZE of turbojpeg.h; older versions know nothing of it


class NotBaselineError(Exception):
    """Raised if a file cannot be rewritten as baseline; the message says why."""


class _Transform(ctypes.Structure):
    """``tjtransform`` of turbojpeg.h; all zeros changes nothing and keeps all markers."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("x", "y", "w", "h", "operation", "options")),
        *((name, ctypes.c_void_p) for name in ("data", "filter")),
    )


def make_baseline(data: bytes) -> bytes:
    """Rewrites the JPEG file ``data`` with one scan: same coefficients and markers.

    Bytes after the image's end are left out.

    Raises:
        NotBaselineError: The library finds the file damaged.
        UsageError: The library is missing.
    """
    library = _load_transform()
    handle = library.tjInitTransform()  # one a call, so that threads share nothing
    if not handle:
        raise MemoryError
    result, size = ctypes.c_void_p(), ctypes.c_ulong()
    try:
        wanted = _Transform(options=_OPTIMIZE)
        # Fails for mere warnings of libjpeg, too.
        if library.tjTransform(
            *(handle, data, len(data), 1),
            *(ctypes.byref(result), ctypes.byref(size), ctypes.byref(wanted), 0),
        ):
            raise NotBaselineError(
                f"is damaged: {printable(library.tjGetErrorStr2(handle).decode('utf-8', 'replace'))}"
            )
        return ctypes.string_at(result, size.value)
    finally:
        library.tjFree(result)
        library.tjDestroy(handle)


def find_baseline_version() -> str:
    """Returns name and version of the library, on which the bytes depend. Raises :class:`UsageError` if it is
    missing."""
    _load_transform()
    return f"libjpeg-turbo {turbo_version(find_library(*_TRANSFORM_FUNCTIONS)) or 'of unknown version'}"


@functools.cache
def _load_transform() -> Any:
    """Loads TurboJPEG's transformation once."""
    name = find_library(*_TRANSFORM_FUNCTIONS)
    if name is None:
        raise UsageError(
            "making progressive files baseline takes TurboJPEG's library, which is not here: on Debian and Ubuntu, "
            "apt install libturbojpeg0; or leave --progressive out, and the files stay as they are"
        )
    library, pointer, size = ctypes.CDLL(name), ctypes.c_void_p, ctypes.c_ulong
    library.tjInitTransform.argtypes, library.tjInitTransform.restype = (), pointer
    library.tjTransform.argtypes = (
        *(pointer, ctypes.c_char_p, size, ctypes.c_int),
        *(ctypes.POINTER(pointer), ctypes.POINTER(size), ctypes.POINTER(_Transform), ctypes.c_int),
    )
    library.tjGetErrorStr2.argtypes, library.tjGetErrorStr2.restype = (pointer,), ctypes.c_char_p
    library.tjFree.argtypes, library.tjFree.restype = (pointer,), None
    library.tjDestroy.argtypes, library.tjDestroy.restype = (pointer,), None
    return library
