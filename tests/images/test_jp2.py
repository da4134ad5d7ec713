"""JPEG 2000: files of any bits and channels, against the arrays that they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packstore.images.decoders import get_decoder
from tests.internals import DecodeError, HeaderError, Reading, check_header, native, sniff

imagecodecs = pytest.importorskip("imagecodecs")


def pixels_of(channels: int, dtype: str = "uint8", bits: int | None = None) -> NDArray[Any]:
    info = np.iinfo(dtype)
    high = info.max if bits is None else (1 << bits) - 1
    return np.random.default_rng(channels).integers(info.min, high, (11, 14, channels), dtype, endpoint=True)


def encoded(pixels: NDArray[Any], form: str = "jp2", **options: Any) -> bytes:
    given = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return bytes(imagecodecs.jpeg2k_encode(given, level=0, reversible=True, codecformat=form, **options))


@pytest.mark.parametrize("form", ["jp2", "j2k"])
@pytest.mark.parametrize(
    ("channels", "dtype", "bits", "mode"),
    [(1, "uint8", None, "L"), (3, "uint8", None, "RGB"), (1, "uint16", 12, "I;16"), (1, "uint16", None, "I;16"),
     (3, "uint16", None, "RGB;16"), (5, "uint8", None, "multi:5:uint8"), (13, "uint16", 12, "multi:13:uint16"),
     (1, "int16", None, "I;16S"), (1, "int8", None, "I;16S")],
)  # fmt: skip
def test_pixels_and_mode(channels: int, dtype: str, bits: int | None, mode: str, form: str) -> None:
    pixels = pixels_of(channels, dtype, bits)
    data = encoded(pixels, form, **({} if bits is None else {"bitspersample": bits}))
    info = check_header(data)
    assert (info.kind, info.width, info.height, info.components) == ("jp2", 14, 11, channels)
    assert info.precision == (bits or 8 * pixels.itemsize)
    described = native.describe_image(memoryview(data), info)
    assert described is not None
    assert described.mode.name == mode
    found, found_mode = native.decode(memoryview(data), 10**6)
    assert found_mode.name == mode
    np.testing.assert_array_equal(found, pixels)
    np.testing.assert_array_equal(get_decoder(reading=Reading(mode)).decode(data), pixels)


def test_hostile_headers() -> None:
    data = encoded(pixels_of(3), "j2k")
    large = data[:8] + (60000).to_bytes(4) * 2 + data[16:]
    assert sniff(large).width == 60000
    with pytest.raises(DecodeError, match="max_pixels"):
        native.decode(memoryview(large), 10**6)
    for wrong in (data[:8] + bytes(8) + data[16:], data[:40] + bytes(2) + data[42:]):
        with pytest.raises(HeaderError, match="no pixels"):
            sniff(wrong)
    with pytest.raises(HeaderError, match="128 bits"):
        sniff(data[:42] + b"\x7f" + data[43:])
    box = b"\0\0\0\x0cjP  \r\n\x87\n"
    for wrong in (box + bytes(40), box + b"\0\0\0\x01jp2h" + bytes(40), box + b"\0\0\0\x08jp2c" + bytes(40)):
        with pytest.raises(HeaderError):
            sniff(wrong)
