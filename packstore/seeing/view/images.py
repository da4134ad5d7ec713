"""Images for the page: thumbnails, cached in bounded memory, and full images. Imports torch, which takes a second, only
to draw over a thumbnail."""

from __future__ import annotations

import io
import math
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packstore.core.columns import Buffer
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, printable
from packstore.core.manifest import Column
from packstore.core.modes import parse_mode
from packstore.core.proof import Proof
from packstore.images.decoders import Decoder, get_decoder
from packstore.images.masks import class_color, decode_mask, read_mask_header
from packstore.images.orientation import read_orientation, readers_transpose
from packstore.images.reading import Reading, Window, denormalize, find_window, to_display
from packstore.images.sniff import HeaderError, image_suffix
from packstore.seeing.facts import parse_header
from packstore.stores import Reader

SIDES = (96, 192, 384)
"""Longest sides of thumbnails, in pixels."""

_NAMED_SIDE = 384
"""Thumbnails of this side show class names at boxes; on smaller ones names would cover the image."""
_CACHE_BYTES = 64 << 20
_ENTRY_BYTES = 200
"""Memory of a cache entry besides the image's bytes."""
_QUALITY = 82
_SMALL = 64
"""Images up to this side are sent as PNG: JPEG would blur them and is no smaller."""


class WebFile(NamedTuple):
    """A file for the browser.

    Attributes:
        data: Its bytes.
        type: Its media type.
    """

    data: bytes
    type: str


class BrowserImages:
    """Decodes and encodes images of a store for a browser. Thread-safe.

    Compares an image with its checksum before it makes a thumbnail. Caches up to 64 MiB of thumbnails, and the errors
    of damaged ones.
    """

    def __init__(self, reader: Reader, window: Window | None = None) -> None:
        """
        Args:
            reader: The store.
            window: For images of more than 8 bits: the value shown as black, and the value shown as white. None for
                the 1st and 99th percentile of each image.
        """
        self._reader = reader
        self._window = window
        manifest = reader.manifest
        self._decoder = get_decoder(reading=Reading.restore(manifest.image.mode, manifest.options))
        self._turned = readers_transpose(reader.manifest)
        self._cache: OrderedDict[tuple[int, int, bool], WebFile | PackstoreError] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        """Estimated bytes of the cached thumbnails and errors; at most 64 MiB."""
        return self._cached_bytes

    def get_thumbnail(self, record: int, side: int, drawn: bool = False) -> WebFile:
        """Returns a thumbnail of a record, at most ``side`` pixels wide and high. Caches it.

        With ``drawn``, masks, boxes and keypoints are drawn over it. It is PNG for images up to 64 pixels, else JPEG.
        Errors of damaged images are cached, too.

        Raises:
            CorruptRecordError: The image does not match its checksum.
            PackstoreError: The image cannot be read or decoded.
        """
        with self._lock:
            known = self._cache.get((record, side, drawn))
            if known is not None:
                self._cache.move_to_end((record, side, drawn))
        if known is None:
            try:
                known = self._make_thumbnail(record, side, drawn)
            except (CorruptRecordError, DecodeError) as error:  # other errors may be temporary: not cached
                known = error.with_traceback(None)
            self._add_to_cache((record, side, drawn), known)
        if isinstance(known, PackstoreError):
            raise known
        return known

    def get_full_image(self, record: int, column: Column, number: int = 0) -> WebFile:
        """Returns an image of a record in full size; image ``number`` of a list. Does not compare checksums.

        Returns the stored JPEG file if a browser shows it like the loader. Otherwise returns the decoded pixels as PNG:
        a browser would blend transparent pixels, play animations and apply colour profiles.

        Raises :class:`PackstoreError` if the image cannot be read or decoded.
        """
        if column.layout is None:
            data = _stored_bytes(self._reader, column, record, number)
            try:
                info = parse_header(memoryview(data).cast("B"))
            except HeaderError as error:
                raise DecodeError(f"record {record} {error.reason}") from None
            as_stored = column.mode is None or (column.mode == "L" and info.components == 1)
            plain = info.kind == "jpeg" and info.components in (1, 3) and read_orientation(data, info) == 1
            if plain and as_stored:
                file = bytes(data)
                if b"ICC_PROFILE\0" not in file:
                    return WebFile(file, "image/jpeg")
            return encode_png(self.decode_for_display(record, column, data))
        return encode_png(self.decode_for_display(record, column))

    def read_file(self, record: int) -> tuple[bytes, str]:
        """Returns the stored image of a record, and a file suffix without a dot: ``bin`` for pixels and unknown files.
        Raises :class:`StoreError` if it cannot be read."""
        data = bytes(self._reader.read(record))
        return data, "bin" if self._reader.manifest.image.layout is not None else image_suffix(data)

    def choose_window(self, record: int, column: Column) -> Window | None:
        """Returns the display window of a record's image: the values shown as black and as white. Returns None for 8
        bits. Decodes the image, unless one window was given for all."""
        mode = column.pixels
        if mode.dtype == "uint8":
            return None
        return self._window or find_window(self._decode_in_mode(record, column), mode)

    def decode_for_display(
        self, record: int, column: Column, data: Buffer | None = None, side: int | None = None
    ) -> NDArray[Any]:
        """Decodes a record's image for display: uint8 ``(h, w, 3)``, RGB, without normalisation. Turns it upright if
        loaders do.

        ``data``: the stored bytes if they are known. With ``side``, decodes a large JPEG smaller; its longer side keeps
        at least ``side`` pixels.
        """
        return to_display(self._decode_in_mode(record, column, data, side), column.pixels, self._window)

    def _decode_in_mode(
        self, record: int, column: Column, data: Buffer | None = None, side: int | None = None
    ) -> NDArray[Any]:
        """Decodes a record's image in the dtype and channels of its mode, ``(h, w, C)``, without normalisation."""
        # ``data`` and ``side`` are those of :meth:`decode_for_display`.
        reader = self._reader
        if column.layout is None:
            data = _stored_bytes(reader, column, record) if data is None else data
            try:
                decoder = self._decoder_of(column)
                if side is None:
                    return decoder.decode(data, exif_transpose=self._turned)
                return decoder.decode_small(data, _scaled_shorter_side(data, side), exif_transpose=self._turned)
            except DecodeError as error:
                raise DecodeError(f"record {record} ({printable_key(reader, record)}): {error}") from None
        array: NDArray[Any] = reader.array(record) if column.name == "image" else reader.item(column.name, record)
        return array if column.layout == "HWC" else denormalize(array, column, self._reader.manifest.normalization)

    def _decoder_of(self, column: Column) -> Decoder:
        """Returns the decoder of a column's images."""
        if column.name == "image":
            return self._decoder
        return get_decoder(reading=Reading.of_column(column, self._reader.manifest.options))

    def _make_thumbnail(self, record: int, side: int, drawn: bool) -> WebFile:
        """Decodes, checks and encodes a thumbnail."""
        reader = self._reader
        data = reader.view(record)
        Proof(reader.manifest.columns, reader.value).check_image(record, data)
        image = Image.fromarray(self.decode_for_display(record, reader.manifest.image, data, side))
        small = max(image.size) <= _SMALL
        image.thumbnail((side, side), reducing_gap=2.0)
        if drawn:
            from packstore.seeing.drawing import draw_record  # loads torch

            image = Image.fromarray(
                draw_record(np.asarray(image), reader, record, self._turned, names=side >= _NAMED_SIDE)
            )
        out = io.BytesIO()
        if small:
            image.save(out, "PNG", compress_level=1)
        else:
            image.save(out, "JPEG", quality=_QUALITY)
        return WebFile(out.getvalue(), "image/png" if small else "image/jpeg")

    def _add_to_cache(self, name: tuple[int, int, bool], value: WebFile | PackstoreError) -> None:
        """Adds a thumbnail or an error to the cache, and evicts the least recently used beyond 64 MiB."""
        with self._lock:
            self._cached_bytes += _entry_nbytes(value) - (
                _entry_nbytes(self._cache[name]) if name in self._cache else 0
            )
            self._cache[name] = value
            while self._cached_bytes > _CACHE_BYTES:
                self._cached_bytes -= _entry_nbytes(self._cache.popitem(last=False)[1])


def encode_png(pixels: NDArray[Any]) -> WebFile:
    """Encodes pixels, uint8 ``(h, w, 3)`` or ``(h, w, 4)``, as PNG."""
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG", compress_level=1)
    return WebFile(out.getvalue(), "image/png")


def printable_key(reader: Reader, record: int) -> str:
    """Returns the key of a record for a message. If the key is damaged, returns a note that says this."""
    try:
        return printable(reader.key(record))
    except (PackstoreError, IndexError):
        return "its key is damaged, too"


def _stored_bytes(reader: Reader, column: Column, record: int, number: int = 0) -> Buffer:
    """Returns the stored bytes of an image; in a list, of image ``number``."""
    if column.name == "image":
        return reader.view(record)
    files = column.traits.files(column, reader.value(column.name, record))
    if not 0 <= number < len(files):
        raise DecodeError(f"record {record} ({printable_key(reader, record)}) has no image {number} in {column.name!r}")
    return files[number]


def _scaled_shorter_side(data: Buffer, side: int) -> int:
    """Returns the shorter side after scaling the longer one to ``side`` pixels; ``side`` without a valid header."""
    try:
        info = parse_header(memoryview(data).cast("B"))
    except HeaderError:
        return side
    return max(1, -(-side * min(info.width, info.height) // max(info.width, info.height)))


def _entry_nbytes(value: WebFile | PackstoreError) -> int:
    """Estimates the memory of a cache entry."""
    return _ENTRY_BYTES + (len(value.data) if isinstance(value, WebFile) else len(str(value)))


_MOST_LISTED = 256
_MOST_PIXELS = 1 << 24
"""Most pixels of a mask's picture; of a larger mask every second, third … row and column is taken."""


def read_mask(reader: Reader, column: Column, record: int) -> NDArray[Any]:
    """Reads a record's mask, ``(H, W)``.

    Raises :class:`DecodeError` if it is missing or cannot be decoded, :class:`StoreError` if it is damaged."""
    if not reader.has_value(column.name, record):
        raise DecodeError(f"record {record} has no {column.name}")
    if column.layout is not None:
        return np.asarray(reader.item(column.name, record))
    data = reader.value(column.name, record)
    return decode_mask(data, read_mask_header(data))


def color_mask(values: NDArray[Any]) -> WebFile:
    """Converts a mask ``(H, W)`` to an RGBA picture. The value 0, usually the background, is transparent.

    Floating point values, such as depth, become an opaque gray picture. Its black and white are the 1st and the 99th
    percentile. Leaves out rows and columns of a mask with more than 2**24 pixels.
    """
    step = 1 + math.isqrt(max(0, values.size - 1) // _MOST_PIXELS)
    values = values[::step, ::step]
    if values.dtype.kind == "f":
        return encode_png(to_display(values[..., None].astype(np.float32), parse_mode("F")))
    numbers, places = np.unique(values, return_inverse=True)
    palette = np.array([(0, 0, 0, 0) if n == 0 else (*class_color(int(n)), 255) for n in numbers.tolist()], np.uint8)
    return encode_png(palette[places.reshape(values.shape)])


def list_values(values: NDArray[Any]) -> list[int]:
    """Returns the values that occur in a mask, ascending; at most the smallest 256. Returns none for floating point."""
    if values.dtype.kind == "f":
        return []
    return [int(n) for n in np.unique(values)[:_MOST_LISTED]]
