"""TIFF: pages and modes. tifffile reads what Pillow has no mode for. Tags are those of TIFF 6.0."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Container, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import MAX_CHANNELS, Mode, mode_of, parse_mode
from packstore.images.header import HeaderError, ImageInfo, check_size, no_such_frame
from packstore.images.kinds.base import (
    EXACT,
    Frames,
    ImageDescription,
    ImageFile,
    damaged_image,
    find_mode_dtype,
    import_extra,
    to_mode_dtype,
)
from packstore.images.orientation import upright

READABLE_TIFF_BITS = (1, 2, 4, 8, 16, 32, 64)
"""Bits per sample of TIFF files that packstore reads."""
PIXEL_TAGS = frozenset((
    *(254, 255, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 292, 293, 317, 320, 322, 323, 324, 325),
    *(332, 333, 334, 336, 338, 339, 340, 341, 347, *range(512, 522), *range(529, 533), 32995, 32996, 32997, 32998),
    *(34016, 34017, 34018, *range(34022, 34030), 42113, 50674),
))  # fmt: skip
"""Tags on which the pixels depend; others are metadata."""
_MAX_SAMPLES = 16
_ORIENTATION = 274
_SUBFILE, _REDUCED = 254, 1
_LAYOUT = (258, 262, 277, 284, 338, 339)  # bits, colours, samples, planes, extra samples, sample format
_MOST_PAGES, _MOST_STRIPPED = 1 << 20, 1 << 16
_XMP = 700
_SHORT = 3
_TAGS = frozenset((256, 257, 258, 273, _ORIENTATION, 277, 279, 324, 325))
_MAX_TAGS = 0xFFFF  # the maximum of a TIFF; a BigTIFF could claim more
_LAYOUT_WIDTHS = {1: 1, 3: 2, 4: 4, 16: 8}
_WIDTHS = {**dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), 1)), 16: 8, 17: 8, 18: 8}  # bytes a value
Entry = tuple[int, int, int, int]
"""Tag, type, number of values and their offset in the file."""
_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # unsigned integers, for struct and numpy alike


class Layout(NamedTuple):
    """Sizes in a TIFF or BigTIFF, in the format of :mod:`struct` or in bytes.

    Attributes:
        order: Byte order.
        offset: An offset in the file.
        entries: Number of entries of a directory.
        entry: Tag, type and number of values of an entry.
        entry_bytes: Bytes of an entry.
        inline: Bytes of values within an entry, at its end.
        first: Place of the offset of the first directory.
    """

    order: str
    offset: str
    entries: str
    entry: str
    entry_bytes: int
    inline: int
    first: int


def read_layout(data: bytes | memoryview) -> Layout:
    """Returns the layout of a TIFF."""
    order = "<" if data[:2] == b"II" else ">"
    if 43 in data[2:4]:
        return Layout(order, order + "Q", order + "Q", order + "HHQ", 20, 8, 8)
    return Layout(order, order + "I", order + "H", order + "HHI", 12, 4, 4)


def parse_tiff_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the first directory. With ``whole``, also checks that strips, tiles and other values on which pixels
    depend lie within the file.

    The size is that of the upright image, as decoders return it.

    Raises :class:`HeaderError`, and :class:`struct.error` for a truncated header."""
    layout = read_layout(data)
    at = struct.unpack_from(layout.offset, data, layout.first)[0]
    tags: dict[int, tuple[str, int, int]] = {}  # format, number of values, offset of the values
    entries = list(_read_entries(data, at, PIXEL_TAGS if whole else _TAGS))
    for tag, kind, length, value in entries:
        if tag in _TAGS and kind in _NUMBERS:
            tags.setdefault(tag, (layout.order + _NUMBERS[kind], length, value))

    def first(tag: int, default: int | None = None) -> int:
        """Returns the first value of a tag, or ``default`` if it is missing. Raises :class:`HeaderError` without a
        default."""
        if tag in tags:
            letter, _, value = tags[tag]
            number: int = struct.unpack_from(letter, data, value)[0]
            return number
        if default is None:
            raise HeaderError("is damaged: a TIFF without width and height")
        return default

    bits = [1]
    if 258 in tags:
        letter, length, value = tags[258]
        bits = list(struct.unpack_from(f"{letter[0]}{min(length, _MAX_SAMPLES)}{letter[1]}", data, value))
    precision = next((each for each in bits if each not in READABLE_TIFF_BITS), bits[0])
    sides, orientation = (first(256), first(257)), _find_orientation(data, at, entries)
    width, height = sides[::-1] if orientation >= 5 else sides
    info = ImageInfo("tiff", width, height, first(277, 1), precision, tiff_orientation=orientation)
    if whole:
        for offsets, counts in ((273, 279), (324, 325)):  # strips, tiles
            if offsets in tags and counts in tags:
                _check_pixels(data, tags[offsets], tags[counts])
        if 273 not in tags and 324 not in tags:
            raise HeaderError("is damaged: a TIFF without pixels")
    return info


def read_tiff_orientation(data: bytes | memoryview, at: int) -> int:
    """Reads the orientation of the page whose directory begins at byte ``at``, 1 … 8, as Pillow applies it.

    Returns 1 if it is missing or invalid. Raises :class:`HeaderError` for a truncated directory."""
    return _find_orientation(data, at, list(_read_entries(data, at, (_ORIENTATION,))))


def _find_orientation(data: bytes | memoryview, at: int, entries: list[Entry]) -> int:
    """Finds the orientation among the entries of the directory at byte ``at``, else in its XMP."""
    found = [entry[1:] for entry in entries if entry[0] == _ORIENTATION]
    if [entry[:2] for entry in found] == [(_SHORT, 1)]:
        orientation: int = struct.unpack_from(read_layout(data).order + "H", data, found[0][2])[0]
        return orientation if 1 <= orientation <= 8 else 1
    texts = []
    with suppress(HeaderError):  # XMP beyond the end of the file is no reason to refuse its pixels
        texts = [] if found else [data[value : value + size] for _, _, size, value in _read_entries(data, at, (_XMP,))]
    if not found and not any(b"tiff:Orientation" in bytes(text) for text in texts):
        return 1
    # Versions of Pillow differ about other types, two entries, and XMP.
    for _ in _read_entries(data, at, None):  # Pillow gives up at values that a part of the file lacks; this raises
        pass
    from packstore.images.pillow import read_tiff_orientation as ask_pillow

    return ask_pillow(memoryview(data), at)


def _read_entries(data: bytes | memoryview, at: int, wanted: Container[int] | None) -> Iterator[Entry]:
    """Yields entries of the directory at byte ``at``: those of tags in ``wanted``, or all."""
    layout = read_layout(data)
    count_format, size, inline = layout.entries, layout.entry_bytes, layout.inline
    if at + struct.calcsize(count_format) > len(data):
        raise HeaderError(f"is truncated: TIFF directory at byte {at}, the file has {len(data)}")
    count = struct.unpack_from(count_format, data, at)[0]
    at += struct.calcsize(count_format)
    if at + count * size > len(data):
        raise HeaderError(f"is truncated: TIFF directory of {count} entries at byte {at}, the file has {len(data)}")
    if count > _MAX_TAGS:
        raise HeaderError(f"is damaged: a TIFF directory of {count} entries")
    for entry in range(at, at + count * size, size):
        tag, kind, length = struct.unpack_from(layout.entry, data, entry)
        if kind not in _WIDTHS or not length or not (wanted is None or tag in wanted):
            continue
        value = entry + size - inline
        width = _WIDTHS[kind]
        if length * width > inline:
            value = struct.unpack_from(layout.offset, data, value)[0]
            if value + length * width > len(data):  # of any tag: a decoder may need the values, such as JPEG tables
                end = value + length * width
                raise HeaderError(f"is truncated: TIFF values end at byte {end}, the file has {len(data)}")
        yield tag, kind, length, value


def _check_pixels(data: bytes, offsets: tuple[str, int, int], counts: tuple[str, int, int]) -> None:
    """Raises :class:`HeaderError` if strips or tiles lie beyond the end of the file."""
    length, size = min(offsets[1], counts[1]), np.uint64(len(data))
    # Offsets and counts are each the format, number and place of the values.
    starts, sizes = (_read_numbers(data, letter, length, value) for letter, _, value in (offsets, counts))
    # There may be millions of values: numpy compares them, in uint64 without overflow.
    beyond = np.flatnonzero((starts > size) | (sizes > size - np.minimum(starts, size)))
    if len(beyond):
        end = int(starts[beyond[-1]]) + int(sizes[beyond[-1]])
        raise HeaderError(f"is truncated: TIFF pixels end at byte {end}, the file has {len(data)}")


def _read_numbers(data: bytes, letter: str, length: int, at: int) -> NDArray[np.uint64]:
    """Reads ``length`` numbers of a tag as uint64."""
    return np.frombuffer(data, letter, length, at).astype(np.uint64)


def list_tiff_pages(data: bytes | memoryview) -> list[tuple[int, tuple[bytes, ...]]]:
    """Lists the pages of a TIFF: index in the file, and layout. Leaves out reduced-resolution pages.

    A layout is the raw values of six tags: bits, colours, samples and the like. Values are cut to 64 bytes.

    Raises :class:`HeaderError` for a damaged list of pages, :class:`struct.error` for a truncated file."""
    layout = read_layout(data)
    entry = layout.entry_bytes
    (at,) = struct.unpack_from(layout.offset, data, layout.first)
    pages: list[tuple[int, tuple[bytes, ...]]] = []
    seen: set[int] = set()
    while at:
        if at in seen or len(seen) >= _MOST_PAGES:
            raise HeaderError("is damaged: its pages go round in a circle")
        seen.add(at)
        # An offset of 2**63 or more would raise OverflowError.
        (count,) = struct.unpack_from(layout.entries, data, min(at, len(data)))
        at += struct.calcsize(layout.entries)
        if at + count * entry > len(data):
            raise HeaderError(f"is truncated: TIFF directory of {count} entries at byte {at}")
        values = {}
        for place in range(at, at + count * entry, entry):
            tag, kind, length = struct.unpack_from(layout.entry, data, place)
            if tag in _LAYOUT or tag == _SUBFILE:
                size, value = length * _LAYOUT_WIDTHS.get(kind, 1), place + entry - layout.inline
                if size > layout.inline:
                    (value,) = struct.unpack_from(layout.offset, data, value)
                values[tag] = bytes(data[value : value + min(size, 64)])
        if not int.from_bytes(values.get(_SUBFILE, b""), "little" if layout.order == "<" else "big") & _REDUCED:
            pages.append((len(seen) - 1, tuple(values.get(tag, b"") for tag in _LAYOUT)))
        (at,) = struct.unpack_from(layout.offset, data, at + count * entry)
    return pages


def strip_tiff(data: memoryview) -> bytearray | memoryview:
    """Removes entries from the directories of all pages. Nothing else moves."""
    layout = read_layout(data)
    entry, width = layout.entry_bytes, struct.calcsize(layout.offset)
    stripped = bytearray(data)
    (at,) = struct.unpack_from(layout.offset, data, layout.first)
    seen: set[int] = set()
    while at and at not in seen and len(seen) < _MOST_STRIPPED and at < len(data):
        seen.add(at)
        (count,) = struct.unpack_from(layout.entries, data, at)
        first = at + struct.calcsize(layout.entries)
        end = first + count * entry
        if end + width > len(data):
            raise struct.error
        places = range(first, end, entry)
        kept = [
            data[place : place + entry]
            for place in places
            if (tag := struct.unpack_from(layout.order + "H", data, place)[0]) in PIXEL_TAGS
            or (tag == _XMP and _names_orientation(data, place, layout))  # Pillow applies it
        ]
        rest = b"".join((*kept, data[end : end + width]))
        struct.pack_into(layout.entries, stripped, at, len(kept))
        stripped[first : first + len(rest)] = rest
        (at,) = struct.unpack_from(layout.offset, data, end)
    return data if stripped == data else stripped


def _names_orientation(data: memoryview, place: int, layout: Layout) -> bool:
    """Tells if the XMP of an entry lies in the file and names an orientation."""
    length, at = struct.unpack_from(layout.order + 2 * layout.offset[-1], data, place + 4)
    return at + length <= len(data) and b"tiff:Orientation" in bytes(data[at : at + length])


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
