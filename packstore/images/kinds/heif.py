"""Parses headers of HEIF and AVIF files: ISO base media boxes (ISO/IEC 14496-12) with image items (ISO/IEC 23008-12).

The size of the primary item is its ``ispe`` property; ``clap`` crops it and ``irot`` rotates it.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of
from packstore.images.header import Data, HeaderError, ImageInfo, no_such_frame, too_many_values
from packstore.images.kinds.base import ImageDescription, ImageFile, UnusualError, damaged_image, import_extra
from packstore.images.sniff import get_kind

if TYPE_CHECKING:
    from PIL import Image

_AVIF_BRANDS = (b"avif", b"avis")
_EXIF_ITEM = re.compile(rb"infe[\2\3]\0\0.(?:..|....)\0\0(Exif)", re.DOTALL)
"""The entry of an item of EXIF in a HEIF file (ISO 14496-12, 8.11.6)."""
_MAX_BOXES = 4096


def _parse_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the boxes of a file; with ``whole``, also requires image data and the end."""
    kind = ""
    meta: tuple[int, int] | None = None
    has_data, end = False, 0
    for name, start, stop in _iterate_boxes(data, 0, len(data), top=True):
        if name == b"ftyp":
            brands = {data[start : start + 4], *(data[at : at + 4] for at in range(start + 8, min(stop, len(data)), 4))}
            kind = "avif" if brands.intersection(_AVIF_BRANDS) else "heif"
        elif name == b"meta" and meta is None:
            meta = start + 4, stop  # behind version and flags
        has_data |= name == b"mdat"
        end = stop
    if meta is None:
        raise IndexError("no meta box")
    inside = {name: (start, stop) for name, start, stop in _iterate_boxes(data, *meta)}
    if not {b"pitm", b"iprp"} <= inside.keys():
        raise HeaderError("is damaged: HEIF without a primary item")
    start, _ = inside[b"pitm"]
    primary = _read_number(data, start + 4, 2 if data[start] == 0 else 4)
    properties = {name: (start, stop) for name, start, stop in _iterate_boxes(data, *inside[b"iprp"])}
    if not {b"ipco", b"ipma"} <= properties.keys():
        raise HeaderError("is damaged: HEIF without properties of its items")
    kinds = list(_iterate_boxes(data, *properties[b"ipco"]))
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    turns = bits = 0
    for index in _list_property_numbers(data, properties[b"ipma"], primary):
        if not 1 <= index <= len(kinds):
            raise HeaderError(f"is damaged: HEIF property {index} of {len(kinds)}")
        name, start, _ = kinds[index - 1]
        if name == b"ispe":
            size = _read_number(data, start + 4, 4), _read_number(data, start + 8, 4)
        elif name == b"clap":
            width, per_width, height, per_height = (_read_number(data, start + 4 * i, 4) for i in range(4))
            crop = width // max(1, per_width), height // max(1, per_height)
        elif name == b"irot":
            turns = data[start] & 3
        elif name == b"pixi":
            bits = max(data[start + 5 : start + 5 + data[start + 4]], default=0)
    if size is None:
        raise HeaderError("is damaged: HEIF whose primary item has no size")
    # The parts of a grid have the same bits as the image, which need not say them.
    bits = bits or max((_parse_codec_bits(data, name, start) for name, start, _ in kinds), default=0) or 8
    if whole and end > len(data):
        raise HeaderError(f"is truncated: HEIF boxes end at byte {end}, the file has {len(data)}")
    if whole and not has_data and b"idat" not in inside:
        raise HeaderError("is truncated: HEIF without the data of its images")
    if kind == "heif":  # libheif crops and turns by itself; Pillow's AVIF gives the turn as an orientation
        width, height = crop or size
        size = (height, width) if turns % 2 else (width, height)
    return ImageInfo(kind, *size, 3, bits)


def _parse_codec_bits(data: bytes, name: bytes, start: int) -> int:
    """Returns the bits per sample in a decoder's configuration, or 0 for other boxes."""
    if name == b"av1C":  # AV1 in ISOBMFF 2.3.3
        flags = data[start + 2]
        return 8 + 2 * (flags >> 6 & 1) + 2 * (flags >> 5 & flags >> 6 & 1)
    return 8 + (data[start + 17] & 7) if name == b"hvcC" else 0  # ISO/IEC 14496-15 8.3.3


def _iterate_boxes(data: bytes, start: int, stop: int, *, top: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of the content of each box between ``start`` and ``stop``."""
    count = 0
    while start + 8 <= stop:
        size, name, header = _read_number(data, start, 4), data[start + 4 : start + 8], 8
        # A size of 1 means that 64 bits follow, 0 that the box fills the rest.
        if size == 1:
            size, header = _read_number(data, start + 8, 8), 16
        elif size == 0:
            size = stop - start
        count += 1
        # Boxes at the top may end beyond stop: _parse_header checks the end of whole files.
        if size < header or count > _MAX_BOXES or (start + size > stop and not top):
            raise HeaderError(f"is damaged: a HEIF box of {size} bytes at byte {start}")
        yield name, start + header, start + size
        start += size


def _list_property_numbers(data: bytes, place: tuple[int, int], item: int) -> Iterator[int]:
    """Yields the numbers, from 1 on, of an item's properties, from the ``ipma`` box."""
    at, stop = place
    version, wide = data[at], data[at + 3] & 1
    entries = _read_number(data, at + 4, 4)
    at += 8
    id_bytes, index_bytes = (2 if version < 1 else 4), (2 if wide else 1)
    for _ in range(entries):
        if at >= stop:
            raise HeaderError("is damaged: HEIF whose properties are cut off")
        item_id, count = _read_number(data, at, id_bytes), data[at + id_bytes]
        at += id_bytes + 1
        if item_id == item:
            for place_of in range(at, at + count * index_bytes, index_bytes):
                yield _read_number(data, place_of, index_bytes) & (0x7FFF if wide else 0x7F)
        at += count * index_bytes


def _read_number(data: bytes, at: int, size: int) -> int:
    """Reads a big-endian number of ``size`` bytes."""
    if at + size > len(data):
        raise IndexError(at)  # from_bytes would accept fewer bytes
    return int.from_bytes(data[at : at + size], "big")


class Heif(ImageFile):
    """A HEIF file. pillow_heif decodes it, crops it and turns it upright."""

    plugin: ClassVar[tuple[str, str]] = "pillow_heif.as_plugin", "HeifImageFile"
    decodes_at_opening = True
    read_header = staticmethod(_parse_header)

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        try:
            kind = _parse_header(bytes(data), False).kind
        except HeaderError:
            return b"", b""
        if kind == "avif":
            raise UnusualError
        return b"", b""

    @staticmethod
    def strip(data: memoryview) -> bytearray | memoryview:
        # Calls the items of EXIF by another type, which decoders skip. Nothing moves.
        places = [match.start(1) for match in _EXIF_ITEM.finditer(data)]
        stripped = bytearray(data) if places else data
        for place in places:
            stripped[place : place + 4] = b"skip"
        return stripped

    @classmethod
    def import_library(cls) -> Any:
        try:
            return getattr(importlib.import_module(cls.plugin[0]), cls.plugin[1])
        except (ImportError, AttributeError) as error:
            raise DecodeError(f"a HEIF image, which takes pip install pillow-heif ({error})") from None

    @classmethod
    def open_plugin(cls, data: memoryview) -> Image.Image:
        try:
            kind = get_kind(_parse_header(bytes(data), False).kind)
        except HeaderError as error:
            raise DecodeError(error.reason.replace("is damaged", "damaged image")) from None
        image: Image.Image = kind.import_library()(io.BytesIO(data))
        return image

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        bits = self.info.precision
        if bits <= 8:
            return super().read_frame(frame, gray=gray)
        self.import_library()
        with damaged_image():
            opened = importlib.import_module("pillow_heif").open_heif(io.BytesIO(self.data), convert_hdr_to_8bit=False)
            pixels = np.asarray(opened[frame]) >> 16 - bits  # which it shifts to the left
            pixels = pixels.reshape(*pixels.shape[:2], -1)
        self._check_deep_pixels(pixels, any_size=frame > 0)
        return self.scale(np.ascontiguousarray(pixels), mode_of(pixels.shape[2], "uint16"))

    def find_pillow_mode(self, name: str, has_alpha: bool) -> Mode:
        mode = super().find_pillow_mode(name, has_alpha)
        return mode_of(mode.channels, "uint16") if self.info.precision > 8 else mode

    def _check_deep_pixels(self, pixels: NDArray[Any], any_size: bool = False) -> None:
        """Raises :class:`DecodeError` unless pixels are uint16 and have the size in the header."""
        info = self.info
        if pixels.dtype != np.uint16 or not (any_size or pixels.shape[:2] == (info.height, info.width)):
            raise DecodeError(
                f"damaged image: {pixels.shape[0]} x {pixels.shape[1]} pixels of {pixels.dtype}, and its header says "
                f"{info.height} x {info.width} of {info.precision} bits"
            )


class Avif(Heif):
    """An AVIF file. imagecodecs decodes more than 8 bits."""

    plugin = "PIL.AvifImagePlugin", "AvifImageFile"

    @classmethod
    def import_library(cls) -> Any:
        try:
            plugin = getattr(importlib.import_module(cls.plugin[0]), cls.plugin[1])
            if not importlib.import_module("PIL.features").check("avif"):
                raise ImportError("this Pillow was built without AVIF")
        except (ImportError, AttributeError) as error:
            raise DecodeError(f"an AVIF image, which takes Pillow 11.3 or newer, from a wheel ({error})") from None
        return plugin

    def describe(self, frame: int = 0) -> ImageDescription | None:
        if self.info.precision > 8:
            self._import_imagecodecs()
        return super().describe(frame)

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        if self.info.precision <= 8:
            return self.read_pillow_frame(frame, gray)
        if frame >= len(self._deep_frames):
            raise no_such_frame(len(self._deep_frames), frame)
        pixels = self._deep_frames[frame].copy()
        return self.scale(pixels, mode_of(pixels.shape[2], "uint16"))

    @cached_property
    def _deep_frames(self) -> NDArray[Any]:
        """All frames of a file of more than 8 bits, uint16 ``(frames, H, W, C)``."""
        library, description, info = self._import_imagecodecs(), self.pillow.describe(), self.info
        frames = 1 if description is None else description.frames
        shown = f"an AVIF of {frames:,} frames of {info.width} x {info.height} pixels"
        reason = too_many_values(shown, frames * info.width * info.height * info.components, self.max_pixels)
        if reason is not None:
            raise DecodeError(reason)
        with damaged_image():
            pixels = np.asarray(library.avif_decode(bytes(self.data)))
            pixels = pixels.reshape(frames, *pixels.shape[frames > 1 :][:2], -1)
        self._check_deep_pixels(pixels[0])
        return pixels

    def _import_imagecodecs(self) -> Any:
        """Imports imagecodecs. Raises :class:`DecodeError` if it is missing."""
        return import_extra("imagecodecs", "tiff", "an AVIF with more bits than Pillow reads")
