"""PNG of every kind against ``decode_image`` of torchvision, whose decoder is libpng."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.internals import MAX_PIXELS, Reading, check_header, convert_pixels, find_losses, native
from tests.makers.torchvision import import_image_io

CHANNELS = {"gray": 1, "rgb": 3, "palette": 1, "gray alpha": 2, "rgb alpha": 4}
COLOURS = {"gray": 0, "rgb": 2, "palette": 3, "gray alpha": 4, "rgb alpha": 6}
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
KINDS = [
    (colour, bits, interlaced, transparent)
    for colour in CHANNELS
    for bits in (1, 2, 4, 8, 16)
    if bits >= 8 or CHANNELS[colour] == 1
    if bits <= 8 or colour != "palette"
    for interlaced in (False, True)
    for transparent in (False, True)
    if not (transparent and "alpha" in colour)
]


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pack_rows(samples: NDArray[Any], bits: int) -> bytes:
    """Rows of samples ``(h, n)``, each behind the number of the filter that changes nothing."""
    rows = []
    for row in samples.astype(np.uint16):
        wide = (row[:, None] >> np.arange(bits - 1, -1, -1) & 1).astype(np.uint8)
        rows.append(b"\0" + np.packbits(wide.reshape(-1)).tobytes())
    return b"".join(rows)


def samples_of(colour: str, bits: int) -> NDArray[Any]:
    samples = np.random.default_rng(bits).integers(0, 1 << bits, (11, 13, CHANNELS[colour]))
    samples[0, 0, 0] = 0  # of a palette, the index of a transparent colour
    return samples


def make_png(colour: str, bits: int, interlaced: bool, transparent: bool) -> bytes:
    pixels = samples_of(colour, bits)
    size = struct.pack(">IIBBBBB", 13, 11, bits, COLOURS[colour], 0, 0, interlaced)
    parts = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", size)]
    if colour == "palette":
        parts.append(chunk(b"PLTE", np.random.default_rng(1).integers(0, 256, 3 << bits, np.uint8).tobytes()))
    if transparent:
        first = pixels[0, 0].astype(">u2").tobytes()
        parts.append(chunk(b"tRNS", bytes([0, 128]) if colour == "palette" else first))
    steps = ADAM7 if interlaced else ((0, 0, 1, 1),)
    passes = [pixels[top::down, left::across] for top, left, down, across in steps]
    packed = b"".join(pack_rows(part.reshape(len(part), -1), bits) for part in passes if part.size)
    return b"".join([*parts, chunk(b"IDAT", zlib.compress(packed)), chunk(b"IEND", b"")])


def decode(data: bytes, mode: str | None = None) -> NDArray[Any]:
    """Pixels ``(C, H, W)`` as packstore reads them: in the file's own mode, or another."""
    pixels, found = native.decode(memoryview(data), MAX_PIXELS)
    return (pixels if mode is None else convert_pixels(pixels, found, Reading(mode))).transpose(2, 0, 1)


def by_torchvision(data: bytes, mode: str) -> NDArray[Any]:
    found: NDArray[Any] = (
        import_image_io().decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode).numpy()
    )
    return found


@pytest.mark.parametrize(("colour", "bits", "interlaced", "transparent"), KINDS)
def test_pixels_are_torchvisions(colour: str, bits: int, interlaced: bool, transparent: bool) -> None:
    data = make_png(colour, bits, interlaced, transparent)
    deep = ";16" if bits == 16 else ""
    if colour == "palette":
        alphas = np.array([0, 128, *[255] * 254] if transparent else [255] * 256)
        np.testing.assert_array_equal(decode(data, "RGBA")[3], alphas[samples_of(colour, bits)[..., 0]])
    elif transparent:  # unchanged, torchvision leaves the transparent colour out
        found = decode(data)
        plain = by_torchvision(data, "UNCHANGED")
        np.testing.assert_array_equal(found[:-1], plain)
        opaque = (plain != plain[:, :1, :1]).any(0)  # of the first pixel
        np.testing.assert_array_equal(found[-1], opaque * np.iinfo(found.dtype).max)
    else:
        found = decode(data)
        np.testing.assert_array_equal(found, by_torchvision(data, "UNCHANGED"))
        assert found.dtype == (np.uint16 if deep else np.uint8)
    if colour != "rgb alpha":
        np.testing.assert_array_equal(decode(data, f"RGB{deep}"), by_torchvision(data, "RGB"))


@pytest.mark.parametrize(("colour", "bits", "interlaced", "transparent"), KINDS)
def test_gray_is_torchvisions(colour: str, bits: int, interlaced: bool, transparent: bool) -> None:
    data = make_png(colour, bits, interlaced, transparent)
    found, wanted = decode(data, "I;16" if bits == 16 else "L"), by_torchvision(data, "GRAY")
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    # Of colours, libpng rounds the sum of the weighted channels otherwise than Pillow, whose gray packstore's is.
    allowed = 0 if "gray" in colour else 12 if bits == 16 else 1
    assert np.abs(found.astype(np.int64) - wanted).max() <= allowed


@pytest.mark.parametrize(("colour", "bits", "interlaced", "transparent"), [kind for kind in KINDS if kind[3]])
def test_a_transparent_colour_is_a_loss(colour: str, bits: int, interlaced: bool, transparent: bool) -> None:
    data = make_png(colour, bits, interlaced, transparent)
    mode = "RGB;16" if bits == 16 else "RGB"
    assert "alpha" in find_losses(data, check_header(data), Reading(mode, chosen=True))
