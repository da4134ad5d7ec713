"""Reads the orientation in EXIF data and TIFF directories with Pillow, which is imported on first use."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ORIENTATION = 274
_warnings_lock = threading.Lock()


def read_tiff_orientation(data: memoryview, at: int) -> int:
    """Reads the orientation, 1 … 8, that Pillow applies to the TIFF page whose directory begins at byte ``at``.

    Returns 1 if it is missing or unreadable."""
    from PIL.Image import Image
    from PIL.TiffImagePlugin import XMP, ImageFileDirectory_v2

    try:
        with without_warnings(UserWarning):
            tags = ImageFileDirectory_v2(bytes(data[: 16 if 43 in data[2:4] else 8]))  # of a BigTIFF, or not
            file = io.BytesIO(data)
            file.seek(at)
            tags.load(file)
            if ORIENTATION in tags:
                value = tags[ORIENTATION]
            else:
                image, xmp = Image(), tags.get(XMP)
                image.info["xmp"] = xmp[0] if isinstance(xmp, tuple) else xmp
                value = image.getexif().get(ORIENTATION, 1)  # versions before 11 ignore XMP, as they do in a TIFF
    except MemoryError:
        raise
    except Exception:  # Pillow raises almost anything on damaged files
        return 1
    return as_orientation(value)


def parse_exif_orientation(exif: bytes) -> int | None:
    """Reads the orientation from EXIF data as Pillow does, 1 … 8. Returns None if it is missing.

    Returns 1 for an invalid value or damaged data."""
    from PIL.Image import Exif

    try:
        with without_warnings(UserWarning):
            tags = Exif()
            tags.load(exif)
            if ORIENTATION not in tags:
                return None
            value = tags[ORIENTATION]
    except MemoryError:
        raise
    except Exception:
        return 1
    return as_orientation(value)


def as_orientation(value: Any) -> int:
    """Returns a tag's value if it is an orientation, 1 … 8, else 1."""
    return int(value) if value in range(1, 9) else 1


@contextmanager
def without_warnings(category: type[Warning]) -> Iterator[None]:
    """Ignores warnings of ``category`` in the whole process. Only one thread at a time can be in this context."""
    # catch_warnings changes the process's filters: one thread at a time, and never around ordinary decoding.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield
