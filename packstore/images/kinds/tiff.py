"""TIFF: pages and modes. tifffile reads what Pillow has no mode for. Tags are those of TIFF 6.0."""

from __future__ import annotations

import io
import math
import struct
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import MAX_CHANNELS, Mode, mode_of, parse_mode
from packstore.images.header import HeaderError, check_size, no_such_frame
from packstore.images.kinds.base import Frames, ImageDescription, ImageFile, damaged_image, import_extra
from packstore.images.kinds.tiff_directory import (
    READABLE_TIFF_BITS,
    list_tiff_pages,
    parse_tiff_header,
    read_tiff_orientation,
    strip_tiff,
)
from packstore.images.mode_dtypes import EXACT, find_mode_dtype, to_mode_dtype
from packstore.images.orientation import upright

_KINDS = {1: "u", 2: "i", 3: "f"}  # SampleFormat
_COMPRESSION, _PHOTOMETRIC, _COLOUR_MAP = 259, 262, 320
_PLANES = 32997  # ImageDepth: planes of a page; Pillow reads the first
_NOT_PILLOWS = (50001,)
"""Compressions that Pillow's libtiff is built without: WebP."""


_COLOURS = {5: "CMYK", 6: "YCbCr", 8: "Lab", 9: "Lab", 10: "Lab", 32845: "LogLuv"}
"""Colours other than RGB, by PhotometricInterpretation."""
_PLAIN = (1, 8, 32946)
"""Compressions that tifffile reads by itself: none, and Deflate."""
_INVERTED = "white_is_zero"
_JPEG = (6, 7)  # tifffile converts YCbCr of these compressions to RGB
_PALETTE = 3


def pillow_reads_all(tags: Any) -> bool:
    """Tells if Pillow keeps every bit and channel of a TIFF. False without ``tags``, for a compression that Pillow
    lacks, and for several planes in a page."""
    if tags is None or tags.get(_COMPRESSION) in _NOT_PILLOWS or tags.get(_PLANES, 1) != 1:
        return False
    bits, samples, kind = tags.get(258, (1,)), int(tags.get(277, 1)), tags.get(339, (1,))
    bits, kind = (each if isinstance(each, tuple) else (each,) for each in (bits, kind))
    if max(bits) <= 8:
        inks, extra = tags.get(262) == 5, tags.get(338, ())
        alpha = samples in (2, 4) and tuple(extra if isinstance(extra, tuple) else (extra,)) in ((1,), (2,))
        return kind[0] == 1 and (samples in (1, 3) or alpha or (inks and samples == 4))
    return samples == 1 and (bits[0], kind[0]) in ((16, 1), (32, 2), (32, 3))


def find_tiff_mode(tags: Any) -> Mode | None:
    """Returns the mode for the channels and dtype of a TIFF, by its tags. Returns None if no mode fits, the page is a
    volume, or the tags are damaged.

    The mode may be narrower than the dtype: then decoding compares the values.
    """
    dtype = find_tiff_dtype(tags)
    if dtype is None or tags.get(_PLANES, 1) != 1:
        return None
    try:
        channels = 3 if _has_deep_palette(tags) else int(tags.get(277, 1))
        return _find_mode_of_channels(channels, find_mode_dtype(dtype) or "", tags)
    except (TypeError, ValueError):
        return None


def find_tiff_colours(tags: Any) -> str | None:
    """Returns the name of colours that tifffile gives as they are stored, such as ``Lab``; None for RGB and gray."""
    photometric = tags.get(_PHOTOMETRIC)
    is_converted = photometric == 6 and tags.get(_COMPRESSION) in _JPEG
    return None if is_converted or tags.get(277, 1) == 1 else _COLOURS.get(photometric)


def is_premultiplied(tags: Any) -> bool:
    """Tells if the colours of a page are multiplied by its alpha. Pillow undoes that for 8 bits."""
    return 1 in np.atleast_1d(tags.get(338, ())).tolist()


def is_stored_inverted(tags: Any) -> bool:
    """Tells if 0 is white in a gray page whose values are not inverted when they are read.

    Pillow inverts values of up to 8 bits.
    """
    return tags.get(_PHOTOMETRIC) == 0 and tags.get(277, 1) == 1 and find_tiff_dtype(tags) != np.uint8


def _has_deep_palette(tags: Any) -> bool:
    """Tells if values of a page are 16-bit indices of a palette of 16-bit colours."""
    return tags.get(_PHOTOMETRIC) == _PALETTE and _COLOUR_MAP in tags and find_tiff_dtype(tags) == np.uint16


def find_tiff_dtype(tags: Any) -> np.dtype[Any] | None:
    """Returns the dtype of a TIFF's samples by its tags, or None for an unknown one."""
    try:
        bits, kind = (np.atleast_1d(tags.get(number, 1)).tolist()[0] for number in (258, 339))
        return np.dtype(f"{_KINDS[kind]}{max(8, bits) // 8}")
    except (KeyError, TypeError, ValueError):
        return None


def _find_mode_of_channels(channels: int, dtype: str, tags: Any) -> Mode | None:
    """Returns the mode for channels and dtype, or None if no mode fits."""
    if not 1 <= channels <= MAX_CHANNELS or dtype not in EXACT.values():
        return None
    alpha = any(number in (1, 2) for number in np.atleast_1d(tags.get(338, ())).tolist())
    usual = mode_of(channels, dtype)
    # Other colours than RGB are multi, as is a last channel that ExtraSamples does not call alpha.
    is_usual = usual.has_alpha <= alpha and find_tiff_colours(tags) is None
    return usual if is_usual else parse_mode(f"multi:{channels}:{dtype}")


def import_tifffile() -> Any:
    """Imports tifffile. If it is missing, raises :class:`DecodeError`, which says what to install."""
    return import_extra("tifffile", "tiff", "a TIFF with more bits or channels than Pillow reads")


class Tiff(ImageFile):
    """A TIFF file. Its frames are its pages; smaller versions of other pages are not counted."""

    plugin = "TiffImagePlugin", "TiffImageFile"
    plugin_reads_all = False
    readable_bits = READABLE_TIFF_BITS
    read_header = staticmethod(parse_tiff_header)
    strip = staticmethod(strip_tiff)

    def count_frames(self) -> Frames:
        seen: dict[tuple[bytes, ...], int] = {}
        pages = list_tiff_pages(self.data)
        for number, (_, layout) in enumerate(pages):
            seen.setdefault(layout, number)
        return Frames(max(1, len(pages)), tuple(seen.values()) or (0,))

    @cached_property
    def _places(self) -> list[int] | None:
        """Pillow's numbers of the pages, or None if they cannot be counted."""
        try:
            # Pillow also counts smaller versions of pages.
            return [place for place, _ in list_tiff_pages(self.data)]
        except (HeaderError, struct.error, IndexError):
            return None

    @cached_property
    def _pages(self) -> list[Any]:
        """The pages in tifffile, without smaller versions of others."""
        # Raises HeaderError for pages that go round in a circle: tifffile would follow them without end.
        with suppress(struct.error):  # the list ends beyond the file; tifffile ends there too
            list_tiff_pages(self.data)
        file = import_tifffile().TiffFile(io.BytesIO(self.strip_metadata(self.data)))
        return [page for page in file.pages if not page.is_reduced]

    def describe(self, frame: int = 0) -> ImageDescription | None:
        from packstore.images.pillow import CONVERTED

        places = self._places or []  # decoding reports the fault of pages that cannot be counted
        found = self.pillow.describe(places[frame] if frame < len(places) else frame)
        frames = max(1, len(places))
        if found is not None and pillow_reads_all(found.tags):
            mode = self.find_pillow_mode(found.mode, found.has_alpha)
            converted = CONVERTED.get(found.mode, _INVERTED if is_stored_inverted(found.tags) else None)
            return ImageDescription(mode, frames, found.transparent, converted=converted)
        tags = found.tags if found is not None else self._read_tags(frame)
        import_tifffile()
        if tags.get(_COMPRESSION, 1) not in _PLAIN:
            import_extra("imagecodecs", "tiff", "a TIFF of this compression")
        wide, dtype = find_tiff_mode(tags), find_tiff_dtype(tags)
        if wide is None or dtype is None:
            return None
        transparent = self.has_transparent_pixels(wide, frame)
        converted = _INVERTED if is_stored_inverted(tags) else None
        if wide.has_alpha and is_premultiplied(tags):
            converted = "premultiplied"
        certain = dtype.name in EXACT
        return ImageDescription(wide, frames, transparent, certain, converted, find_tiff_colours(tags))

    def _read_tags(self, number: int) -> dict[int, Any]:
        """Returns the tags of a page by code; none if it is missing or damaged."""
        import_tifffile()
        try:
            return {tag.code: tag.value for tag in self._pages[number].tags}
        except MemoryError:
            raise
        except Exception:
            return {}  # decoding reports missing pages and damage

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        place, places = frame, self._places
        if frame:
            if places is None:
                raise DecodeError("damaged image: its pages cannot be counted")
            if frame >= len(places):
                raise no_such_frame(len(places), frame)
            place = places[frame]
        if pillow_reads_all(self.pillow.read_tags(place)):
            return self.read_pillow_frame(place, gray)
        return self._decode_page(frame)

    def _decode_page(self, number: int) -> tuple[NDArray[Any], Mode]:
        """Decodes a page by tifffile, turns it upright, and returns pixels and mode."""
        import_tifffile()
        with damaged_image():
            if number >= len(self._pages):
                raise DecodeError(f"the image has {len(self._pages)} pages, but no page {number} (from 0)")
            page = self._pages[number]
            height, width, channels = page.imagelength, page.imagewidth, page.samplesperpixel
            check_size(width, height, self.max_pixels)
            if math.prod(page.shape) != height * width * channels:
                raise DecodeError(
                    f"a TIFF page of shape {page.shape}; expected {height} x {width} x {channels}: write each plane as "
                    "a page of its own"
                )
            array = page.asarray(maxworkers=1)
            if channels > 1 and page.planarconfig == 2:
                array = array.reshape(channels, height, width).transpose(1, 2, 0)
            array = array.reshape(height, width, channels)  # tifffile returns an empty one for some damage
            tags = {tag.code: tag.value for tag in page.tags}
            if _has_deep_palette(tags):
                array = np.asarray(page.colormap).T[array[..., 0]]
            array = upright(array, read_tiff_orientation(self.data, page.offset))
        array = to_mode_dtype(array, "a TIFF")
        mode = _find_mode_of_channels(array.shape[2], str(array.dtype), tags)
        if mode is None:
            raise DecodeError(f"a TIFF of {channels} channels of {array.dtype}, which packstore does not read")
        return np.ascontiguousarray(array), mode
