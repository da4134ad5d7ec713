"""Parses headers of HEIF and AVIF files: ISO base media boxes (ISO/IEC 14496-12) with image items (ISO/IEC 23008-12).

The size of the primary item is its ``ispe`` property; ``clap`` crops it and ``irot`` rotates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from packstore.images.header import AVIF_BRANDS

_MAX_BOXES = 4096


class HeifHeader(NamedTuple):
    """Parsed header of a HEIF or AVIF file.

    Attributes:
        kind: ``avif`` or ``heif``.
        width: Coded width of the primary item, in pixels.
        height: Coded height of the primary item, in pixels.
        shown: Displayed width and height: cropped by ``clap``, rotated by ``irot``.
        has_data: The file has a box for the images' data.
        end: End of the last top-level box, in bytes: a shorter file is truncated.
        bits: Bits per sample.
    """

    kind: str
    width: int
    height: int
    shown: tuple[int, int]
    has_data: bool
    end: int
    bits: int = 8


class BadBoxesError(ValueError):
    """Error for boxes that are truncated or contradict each other; the message follows "is damaged: "."""


def parse_heif_header(data: bytes) -> HeifHeader:
    """Parses the boxes of a whole file.

    Raises :class:`BadBoxesError` for wrong boxes, and if the primary item or its size is missing. Raises
    :class:`IndexError` for a file without metadata, or a box that is truncated within its header."""
    kind = ""
    meta: tuple[int, int] | None = None
    has_data, end = False, 0
    for name, start, stop in _iterate_boxes(data, 0, len(data), top=True):
        if name == b"ftyp":
            brands = {data[start : start + 4], *(data[at : at + 4] for at in range(start + 8, min(stop, len(data)), 4))}
            kind = "avif" if brands.intersection(AVIF_BRANDS) else "heif"
        elif name == b"meta" and meta is None:
            meta = start + 4, stop  # behind version and flags
        has_data |= name == b"mdat"
        end = stop
    if meta is None:
        raise IndexError("no meta box")
    inside = {name: (start, stop) for name, start, stop in _iterate_boxes(data, *meta)}
    if not {b"pitm", b"iprp"} <= inside.keys():
        raise BadBoxesError("HEIF without a primary item")
    start, _ = inside[b"pitm"]
    primary = _read_number(data, start + 4, 2 if data[start] == 0 else 4)
    properties = {name: (start, stop) for name, start, stop in _iterate_boxes(data, *inside[b"iprp"])}
    if not {b"ipco", b"ipma"} <= properties.keys():
        raise BadBoxesError("HEIF without properties of its items")
    kinds = list(_iterate_boxes(data, *properties[b"ipco"]))
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    turns = bits = 0
    for index in _list_property_numbers(data, properties[b"ipma"], primary):
        if not 1 <= index <= len(kinds):
            raise BadBoxesError(f"HEIF property {index} of {len(kinds)}")
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
        raise BadBoxesError("HEIF whose primary item has no size")
    shown = crop or size
    # The parts of a grid have the same bits as the image, which need not say them.
    bits = bits or max((_parse_codec_bits(data, name, start) for name, start, _ in kinds), default=0) or 8
    return HeifHeader(kind, *size, shown if turns % 2 == 0 else shown[::-1], has_data or b"idat" in inside, end, bits)


def _parse_codec_bits(data: bytes, name: bytes, start: int) -> int:
    """Returns the bits per sample in a decoder's configuration (AV1 in ISOBMFF 2.3.3, ISO/IEC 14496-15 8.3.3). Returns
    0 for other boxes."""
    if name == b"av1C":
        flags = data[start + 2]
        return 8 + 2 * (flags >> 6 & 1) + 2 * (flags >> 5 & flags >> 6 & 1)
    return 8 + (data[start + 17] & 7) if name == b"hvcC" else 0


def _iterate_boxes(data: bytes, start: int, stop: int, *, top: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of the content of each box between ``start`` and ``stop``.

    With ``top``, a box may end beyond ``stop``. Raises :class:`BadBoxesError` for a box of an impossible size, and for
    more than 4,096 boxes.
    """
    count = 0
    while start + 8 <= stop:
        size, name, header = _read_number(data, start, 4), data[start + 4 : start + 8], 8
        if size == 1:
            size, header = _read_number(data, start + 8, 8), 16
        elif size == 0:
            size = stop - start
        count += 1
        if size < header or count > _MAX_BOXES or (start + size > stop and not top):
            raise BadBoxesError(f"a HEIF box of {size} bytes at byte {start}")
        yield name, start + header, start + size
        start += size


def _list_property_numbers(data: bytes, place: tuple[int, int], item: int) -> Iterator[int]:
    """Yields the numbers, from 1 on, of an item's properties, from the ``ipma`` box.

    Raises :class:`BadBoxesError` or :class:`IndexError` if the box is truncated."""
    at, stop = place
    version, wide = data[at], data[at + 3] & 1
    entries = _read_number(data, at + 4, 4)
    at += 8
    id_bytes, index_bytes = (2 if version < 1 else 4), (2 if wide else 1)
    for _ in range(entries):
        if at >= stop:
            raise BadBoxesError("HEIF whose properties are cut off")
        item_id, count = _read_number(data, at, id_bytes), data[at + id_bytes]
        at += id_bytes + 1
        if item_id == item:
            for place_of in range(at, at + count * index_bytes, index_bytes):
                yield _read_number(data, place_of, index_bytes) & (0x7FFF if wide else 0x7F)
        at += count * index_bytes


def _read_number(data: bytes, at: int, size: int) -> int:
    """Reads a big-endian number of ``size`` bytes. Raises :class:`IndexError` beyond the end of the data."""
    if at + size > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at : at + size], "big")
