"""Loads the fast JPEG libraries on first use, as functions ``data -> uint8 (H, W, 3) RGB``.

Each function decodes a whole JPEG of 8-bit samples and 1 or 3 components. As Pillow does, it uses the accurate DCT and
fancy upsampling. It is thread-safe, and raises for any flaw: the caller then decodes with Pillow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.images.engine import engine_problem
from packstore.images.jpeg import is_complete_jpeg
from packstore.images.turbojpeg_library import library_from_environment


class Decode(Protocol):
    """Function that decodes a whole image."""

    def __call__(self, data: memoryview, /) -> NDArray[np.uint8]: ...


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
    """Loads the library of any decoder but Pillow. Raises :class:`UnavailableError` with the remedy if that fails."""
    try:
        return _LOADERS[name]()
    except ImportError as error:
        raise UnavailableError(f"{error} (pip install {_PACKAGES[name]})") from error
    # ctypes and cffi raise these for a missing library or symbol; UnicodeDecodeError for a file not named in UTF-8.
    except (OSError, RuntimeError, AttributeError, UnicodeDecodeError) as error:
        raise UnavailableError(f"{' '.join(str(error).split())} ({_SYSTEM_LIBRARY})") from error


def _load_turbojpeg() -> DecoderLibrary:
    """Loads PyTurboJPEG, with an error for damaged data instead of a warning.

    Raises :class:`UnavailableError` for a version that cannot do that, and for another module of that name. The
    environment may name the library."""
    module = importlib.import_module("turbojpeg")
    base: Any = getattr(module, "TurboJPEG", None)
    if base is None:
        raise UnavailableError("the module 'turbojpeg' is not PyTurboJPEG's (pip uninstall turbojpeg)")
    if not hasattr(base, "_TurboJPEG__report_error"):
        # Without this hook, damaged files would give a Python warning and wrong pixels.
        raise UnavailableError(
            f"PyTurboJPEG {module.__version__} is not one that packstore knows (pip install 'PyTurboJPEG<2')"
        )

    def report_error(self: Any, handle: Any) -> None:
        """Raises :class:`OSError` with libjpeg's message."""
        # PyTurboJPEG turns libjpeg's "corrupt data" into warnings.warn and returns the pixels, right or wrong.
        raise OSError(self._TurboJPEG__get_error_string(handle))

    strict = type("_StrictTurboJPEG", (base,), {"_TurboJPEG__report_error": report_error})
    # Without a path it finds the system's library. Each call makes its own handle, so threads can share it.
    library = strict(library_from_environment() or None)
    rgb = module.TJPF_RGB

    def decode(data: memoryview, /) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB."""
        image: NDArray[np.uint8] = library.decode(data, rgb)
        return image

    return DecoderLibrary(decode, f"PyTurboJPEG {module.__version__}")


def _load_simplejpeg() -> DecoderLibrary:
    """Loads simplejpeg in its strict mode, which refuses damaged data."""
    module = importlib.import_module("simplejpeg")

    def decode(data: memoryview, /) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB."""
        image: NDArray[np.uint8] = module.decode_jpeg(data, "RGB", strict=True)
        return image

    return DecoderLibrary(decode, f"simplejpeg {module.__version__}")


def decode_luma(data: memoryview) -> NDArray[np.uint8] | None:
    """Decodes the luma of a JPEG with simplejpeg: uint8 ``(H, W, 1)``. Returns None if that fails or simplejpeg is
    missing."""
    try:
        image: NDArray[np.uint8] = importlib.import_module("simplejpeg").decode_jpeg(data, "GRAY", strict=True)
    except MemoryError:
        raise
    except Exception:  # the caller tries another decoder, which reports the flaw
        return None
    return image


def _load_jpeg4py() -> DecoderLibrary:
    """Loads jpeg4py and its TurboJPEG library."""
    module = importlib.import_module("jpeg4py")
    importlib.import_module("jpeg4py._cffi").initialize()

    def decode(data: memoryview, /) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB."""
        jpeg = module.JPEG(np.frombuffer(data, np.uint8))
        jpeg.parse_header()
        image = np.empty((jpeg.height, jpeg.width, 3), np.uint8)
        jpeg.decode(image)
        return image

    return DecoderLibrary(decode, f"jpeg4py {version('jpeg4py')}")


def _load_opencv() -> DecoderLibrary:
    """Loads OpenCV. Its function raises :class:`ValueError` for a JPEG file that is not complete, or that OpenCV
    refuses."""
    cv2 = importlib.import_module("cv2")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(data: memoryview, /) -> NDArray[np.uint8]:
        """Decodes a JPEG to RGB. Raises :class:`ValueError` for an incomplete file, or one that OpenCV refuses."""
        if not is_complete_jpeg(data):
            raise ValueError("the JPEG is irregular")  # OpenCV would return a part of the image without an error
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if bgr is None:
            raise ValueError("OpenCV cannot decode the JPEG")
        image: NDArray[np.uint8] = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
        return image

    return DecoderLibrary(decode, f"OpenCV {cv2.__version__}")


def _load_engine_fallback() -> DecoderLibrary:
    """Loads the library that decodes files that the engine refuses: the first of four that is available.

    If none is, its ``decode`` is None: Pillow decodes. Raises :class:`UnavailableError` if the engine is missing."""
    problem = engine_problem()
    if problem is not None:
        raise UnavailableError(problem)
    for name in _BESIDE_ENGINE:
        try:
            beside = load_decoder_library(name)
        except UnavailableError:
            continue
        return beside._replace(version=f"packstore's engine; for other files {beside.version}")
    return DecoderLibrary(None, "packstore's engine; for other files Pillow")


_BESIDE_ENGINE = ("turbojpeg", "simplejpeg", "jpeg4py", "opencv")
_SYSTEM_LIBRARY = "on Debian and Ubuntu: apt install libturbojpeg0"
_PACKAGES = {
    "engine": "packstore",
    "turbojpeg": "'PyTurboJPEG<2'",
    "simplejpeg": "simplejpeg",
    "jpeg4py": "jpeg4py",
    "opencv": "opencv-python-headless",
}
_LOADERS: dict[str, Callable[[], DecoderLibrary]] = {
    "engine": _load_engine_fallback,
    "turbojpeg": _load_turbojpeg,
    "simplejpeg": _load_simplejpeg,
    "jpeg4py": _load_jpeg4py,
    "opencv": _load_opencv,
}
