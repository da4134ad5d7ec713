"""TIFF files of any layout, written tag by tag; and pixels turned by an orientation, as TIFF 6.0 defines it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]
Tag = tuple[int, int, Sequence[Any] | bytes]
"""Number, type, and values."""

TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda pixels: pixels,
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}
"""What shows the stored pixels ``(H, W, …)`` upright, by orientation."""

ORIENTATION, XMP = 274, 700
_LETTERS = {1: "B", 3: "H", 4: "I", 5: "II", 6: "b", 8: "h", 9: "i", 11: "f", 12: "d", 16: "Q"}


SIZE = 20, 34
"""Height and width of :func:`noise`."""


class Page(NamedTuple):
    """A page: its pixels ``(H, W)`` or ``(H, W, C)`` as stored, and further tags, which replace those of its layout.

    bool makes a bilevel page. ``planar``: a plane for each channel. ``tiled``: tiles of 16 x 16.
    """

    pixels: Pixels
    tags: Sequence[Tag] = ()
    planar: bool = False
    tiled: bool = False


def tiff(*pages: Page, order: str = "<", big: bool = False) -> bytes:
    """A TIFF of ``pages``, or a BigTIFF. ``order``: of bytes, as :mod:`struct` has it."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(
        order + ("HHH" if big else "H"), *((43, 8, 0) if big else (42,))
    )
    offset, count, inline = ("Q", "Q", 8) if big else ("I", "H", 4)
    file = bytearray(head) + bytes(inline)
    link = len(head)
    for page in pages:
        parts = _parts(page, order)
        starts = []
        for part in parts:
            starts.append(len(file))
            file += part
        entries = []
        for tag, kind, values in sorted([*_layout(page, starts, parts), *page.tags], key=lambda tag: tag[0]):
            data = values if isinstance(values, bytes) else _pack(order, kind, values)
            width = 1 if kind in (2, 7) else struct.calcsize("<" + _LETTERS[kind])
            entries.append((tag, kind, len(data) // width, data))
        places = []
        for *_, data in entries:
            places.append(len(file))
            file += data if len(data) > inline else b""
        struct.pack_into(order + offset, file, link, len(file))
        file += struct.pack(order + count, len(entries))
        for (tag, kind, number, data), place in zip(entries, places, strict=True):
            value = data.ljust(inline, b"\0") if len(data) <= inline else struct.pack(order + offset, place)
            file += struct.pack(order + "HH" + offset, tag, kind, number) + value
        link = len(file)
        file += bytes(inline)
    return bytes(file)


def oriented(orientation: int) -> Tag:
    """The tag as it is usually written."""
    return ORIENTATION, 3, [orientation]


def _pack(order: str, kind: int, values: Sequence[Any]) -> bytes:
    """Values of a type as bytes; a rational is two of ``values``."""
    return struct.pack(f"{order}{len(values)}{_LETTERS[kind][0]}", *values)


def _parts(page: Page, order: str) -> list[bytes]:
    """The bytes of each strip or tile."""
    pixels = page.pixels
    if pixels.dtype == bool:
        return [np.packbits(pixels, 1).tobytes()]
    pixels = pixels.astype(pixels.dtype.newbyteorder(order))
    planes = [pixels[..., channel] for channel in range(pixels.shape[2])] if page.planar else [pixels]
    if not page.tiled:
        return [plane.tobytes() for plane in planes]
    padding = [(0, -side % 16) for side in pixels.shape[:2]]
    padded = [np.pad(plane, [*padding, (0, 0)][: plane.ndim]) for plane in planes]
    return [
        plane[top : top + 16, left : left + 16].tobytes()
        for plane in padded
        for top in range(0, plane.shape[0], 16)
        for left in range(0, plane.shape[1], 16)
    ]


def _layout(page: Page, starts: Sequence[int], parts: Sequence[bytes]) -> list[Tag]:
    """The tags that say how the pixels of a page are stored, but those that the page has itself."""
    pixels = page.pixels
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    bits = 1 if pixels.dtype == bool else 8 * pixels.itemsize
    offsets, counts = [int(start) for start in starts], [len(part) for part in parts]
    tags: list[Tag] = [
        (256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * channels), (259, 3, [1]),
        (262, 3, [2 if channels in (3, 4) else 1]),
        (277, 3, [channels]), (284, 3, [2 if page.planar else 1]),
        (339, 3, [{"u": 1, "b": 1, "i": 2, "f": 3}[pixels.dtype.kind]] * channels),
    ]  # fmt: skip
    if extra := {4: [2], 5: [0] * 4}.get(channels):
        tags.append((338, 3, extra))
    if page.tiled:
        tags += [(322, 3, [16]), (323, 3, [16]), (324, 4, offsets), (325, 4, counts)]
    else:
        tags += [(273, 4, offsets), (278, 4, [height]), (279, 4, counts)]
    own = {tag[0] for tag in page.tags}
    return [tag for tag in tags if tag[0] not in own]


def noise(channels: int = 0, dtype: str = "uint8", seed: int = 0) -> Pixels:
    """Values ``(20, 34)`` or ``(20, 34, channels)`` over the whole range of a dtype; of floats from 0 to 1."""
    shape = (*SIZE, channels) if channels else SIZE
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return random.random(shape, np.float32)
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype, endpoint=True)


_COLOURS = np.random.default_rng(1).integers(0, 256, (256, 3), np.uint8)
_COLOUR_MAP = [257 * int(colour) for colour in _COLOURS.T.ravel()]


class Layout(NamedTuple):
    """A kind of TIFF: how it is made of ``make(seed)``, the mode in which packstore keeps it, and its pixels in that
    mode."""

    make: Callable[[int], Page]
    mode: str
    show: Callable[[Pixels], Pixels] = lambda pixels: pixels
    order: str = "<"
    big: bool = False

    def write(self, seed: int, *tags: Tag) -> bytes:
        """A file of one page with further tags."""
        page = self.make(seed)
        return tiff(page._replace(tags=[*page.tags, *tags]), order=self.order, big=self.big)

    def pixels(self, seed: int, orientation: int = 1) -> Pixels:
        """What is read of that file if it has the orientation: ``(H, W, C)``."""
        return self.read(self.make(seed).pixels, orientation)

    def read(self, stored: Pixels, orientation: int) -> Pixels:
        """What is read of stored pixels."""
        pixels = TURNS[orientation](self.show(stored))
        return np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])


LAYOUTS = {
    "gray8": Layout(lambda seed: Page(noise(0, seed=seed)), "L"),
    "rgb8": Layout(lambda seed: Page(noise(3, seed=seed)), "RGB"),
    "rgba8": Layout(lambda seed: Page(noise(4, seed=seed)), "RGBA"),
    "palette": Layout(
        lambda seed: Page(noise(seed=seed), [(262, 3, [3]), (320, 3, _COLOUR_MAP)]),
        "RGB",
        lambda pixels: _COLOURS[pixels],
    ),
    "bilevel": Layout(
        lambda seed: Page(noise(seed=seed) > 99), "L", lambda pixels: np.where(pixels, 255, 0).astype(np.uint8)
    ),
    "gray16": Layout(lambda seed: Page(noise(0, "uint16", seed)), "I;16"),
    "int16": Layout(lambda seed: Page(noise(0, "int16", seed)), "I;16S"),
    "rgb16": Layout(lambda seed: Page(noise(3, "uint16", seed)), "RGB;16"),
    "float32": Layout(lambda seed: Page(noise(0, "float32", seed)), "F"),
    "float32 rgb": Layout(lambda seed: Page(noise(3, "float32", seed)), "multi:3:float32"),
    "multi": Layout(lambda seed: Page(noise(5, "uint16", seed)), "multi:5:uint16"),
    "rgb8 planar": Layout(lambda seed: Page(noise(3, seed=seed), planar=True), "RGB"),
    "rgb16 planar": Layout(lambda seed: Page(noise(3, "uint16", seed), planar=True), "RGB;16", order=">"),
    "rgb8 tiled": Layout(lambda seed: Page(noise(3, seed=seed), tiled=True), "RGB", order=">"),
    "rgb16 tiled": Layout(lambda seed: Page(noise(3, "uint16", seed), tiled=True), "RGB;16", big=True),
    "gray8 big": Layout(lambda seed: Page(noise(0, seed=seed)), "L", big=True),
    "gray16 big": Layout(lambda seed: Page(noise(0, "uint16", seed)), "I;16", order=">", big=True),
}
"""Kinds of TIFF, by Pillow and by tifffile."""
