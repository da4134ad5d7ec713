"""The libraries that decode JPEG files, a line each in :data:`LIBRARIES`, loaded on first use.

Each gives a function ``data -> uint8 (H, W, 3) RGB`` for a whole JPEG of 8-bit samples and 1 or 3 components. As Pillow
does, it uses the accurate DCT and fancy upsampling. It is thread-safe, and raises for any flaw: the caller then decodes
with Pillow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.images.engine import engine_problem
from packstore.images.kinds.jpeg import is_complete_jpeg
from packstore.images.turbojpeg import library_from_environment

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
