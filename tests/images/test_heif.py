"""HEIF, AVIF and JPEG 2000: sizes by headers, pixels of any bits and channels, and damage with a reason."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore import convert
from packstore.images.decoders import get_decoder
from tests.internals import DecodeError, HeaderError, Reading, SampleError, UsageError, check_header, image_files, sniff
from tests.makers.annotated import fill
from tests.makers.images import avif, heic, tiny
from tests.makers.sources import not_packed

pillow_heif = pytest.importorskip("pillow_heif")

HEIC, AVIF = heic(36, 23), avif(36, 23)


@pytest.mark.parametrize("make", [heic, avif])
@pytest.mark.parametrize(("width", "height"), [(64, 48), (65, 47), (1, 1), (17, 160)])
def test_the_header_has_the_size_of_the_pixels(make: object, width: int, height: int) -> None:
    assert callable(make)
    data = make(width, height)
    info = check_header(data)
    assert (info.kind, info.width, info.height) == ("heif" if make is heic else "avif", width, height)
    assert get_decoder().decode(data).shape == (height, width, 3)


@pytest.mark.parametrize("make", [heic, avif])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(make: object, orientation: int) -> None:
    """As packstore gives it with ``exif_transpose``, each of the eight stands upright; the header fits the pixels."""
    assert callable(make)
    data = make(48, 32, orientation)
    plain, upright = get_decoder().decode(data), get_decoder().decode(data, exif_transpose=True)
    info = check_header(data)
    assert plain.shape == (info.height, info.width, 3)
    with Image.open(io.BytesIO(data)) if make is avif else pillow_heif.open_heif(data).to_pillow() as image:
        assert plain.shape == (image.height, image.width, 3)
    turned = make is avif and orientation >= 5
    assert upright.shape == (plain.shape[1::-1] if turned else plain.shape[:2]) + (3,)


def test_pixels_are_pillows() -> None:
    with Image.open(io.BytesIO(AVIF)) as image:
        assert np.array_equal(get_decoder().decode(AVIF), np.array(image.convert("RGB")))


@pytest.mark.parametrize("data", [HEIC, AVIF])
def test_truncated_at_any_byte(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(HeaderError) as caught:
            check_header(data[:length])
        assert not length or caught.value.reason.startswith(("is truncated", "is damaged", "is not an image"))


@given(st.sampled_from([HEIC, AVIF]), st.integers(0, 2**32), st.integers(1, 8))
def test_damaged_boxes_are_header_errors(data: bytes, seed: int, changes: int) -> None:
    rng, damaged = random.Random(seed), bytearray(data)
    for _ in range(changes):
        damaged[rng.randrange(min(len(data), 600))] = rng.randrange(256)
    for look in (sniff, check_header):
        try:
            info = look(bytes(damaged))
        except HeaderError:
            continue
        assert min(info.width, info.height) >= 1


def test_many_boxes_take_no_time() -> None:
    with pytest.raises(HeaderError, match="damaged"):
        sniff(HEIC[:24] + b"\0\0\0\x08free" * 100_000)


def test_more_pixels_than_allowed_are_refused_before_decoding() -> None:
    with pytest.raises(DecodeError, match="max-pixels"):
        get_decoder(max_pixels=800).decode(HEIC)


def test_without_the_library_they_are_bad_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"photos/a.heic": HEIC, "photos/b.png": tiny(1)})
    assert convert(tmp_path / "photos", tmp_path / "x.h5").manifest.records == 2
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif.as_plugin", None)
    not_packed(SampleError, tmp_path / "photos", tmp_path / "y.h5", r"a\.heic.*pip install pillow-heif")
    manifest = convert(tmp_path / "photos", tmp_path / "y.h5", on_error="skip").manifest
    assert [skipped.key for skipped in manifest.skipped] == ["a.heic"]
    assert convert(tmp_path / "photos", tmp_path / "z.h5", check="none").manifest.records == 2


def deep_avif(bits: int, channels: int) -> tuple[bytes, NDArray[np.uint16]]:
    imagecodecs = pytest.importorskip("imagecodecs")
    values = np.random.default_rng(channels).integers(0, 1 << bits, (16, 20, channels), np.uint16)
    options = {} if channels == 1 else {"pixelformat": "444", "matrix": 0}
    given = values[..., 0] if channels == 1 else values
    return bytes(imagecodecs.avif_encode(given, level=100, bitspersample=bits, **options)), values


def deep_heic(mode: str) -> tuple[bytes, NDArray[np.uint16]]:
    channels = {"I;16": 1, "RGB;16": 3, "RGBA;16": 4}[mode]
    values = np.random.default_rng(channels).integers(0, 1 << 16, (32, 32, channels), np.uint16)
    stream = io.BytesIO()
    pillow_heif.from_bytes(mode=mode, size=(32, 32), data=values.tobytes()).save(stream, quality=-1)
    opened = pillow_heif.open_heif(io.BytesIO(stream.getvalue()), convert_hdr_to_8bit=False)
    return stream.getvalue(), np.asarray(opened).reshape(32, 32, channels) >> 6


def decoded(data: bytes) -> tuple[NDArray[Any], str]:
    pixels, mode = image_files.decode(memoryview(data), 10**6)
    described = image_files.describe_image(memoryview(data), check_header(data))
    assert described is not None
    assert described.mode == mode
    return pixels, mode.name


@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize(("channels", "mode"), [(1, "I;16"), (3, "RGB;16"), (4, "RGBA;16")])
def test_avif_of_many_bits_keeps_them(channels: int, mode: str, bits: int) -> None:
    data, values = deep_avif(bits, channels)
    assert check_header(data).precision == bits
    pixels, name = decoded(data)
    assert name == mode
    most = (1 << bits) - 1  # beside alpha, of which 65,535 is opaque, values have 16 bits
    np.testing.assert_array_equal(
        pixels, (values.astype(np.int64) * 65535 + most // 2) // most if channels == 4 else values
    )


@pytest.mark.parametrize("mode", ["I;16", "RGB;16", "RGBA;16"])
def test_heic_of_many_bits_keeps_them(mode: str) -> None:
    data, values = deep_heic(mode)
    assert check_header(data).precision == 10
    pixels, name = decoded(data)
    assert name == mode
    wanted = (values.astype(np.int64) * 65535 + 511) // 1023 if mode == "RGBA;16" else values
    np.testing.assert_array_equal(pixels, wanted)


@pytest.mark.parametrize("make", [heic, avif])
def test_alpha_of_8_bits_is_asked_about(make: Any, tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 4), np.uint8))
    (tmp_path / "images" / "a").mkdir(parents=True)
    path = tmp_path / "images" / "a" / ("0.avif" if make is avif else "0.heic")
    if make is avif:
        image.save(path)
    else:
        pillow_heif.from_pillow(image).save(path)
    not_packed(UsageError, tmp_path / "images", tmp_path / "s.lmdb", "--alpha")
    assert convert(tmp_path / "images", tmp_path / "s.lmdb", alpha="keep").manifest.image.mode == "RGBA"


def pixels_of(channels: int, dtype: str = "uint8", bits: int | None = None) -> NDArray[Any]:
    info = np.iinfo(dtype)
    high = info.max if bits is None else (1 << bits) - 1
    return np.random.default_rng(channels).integers(info.min, high, (11, 14, channels), dtype, endpoint=True)


def encoded(pixels: NDArray[Any], form: str = "jp2", **options: Any) -> bytes:
    imagecodecs = pytest.importorskip("imagecodecs")
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
    described = image_files.describe_image(memoryview(data), info)
    assert described is not None
    assert described.mode.name == mode
    found, found_mode = image_files.decode(memoryview(data), 10**6)
    assert found_mode.name == mode
    np.testing.assert_array_equal(found, pixels)
    np.testing.assert_array_equal(get_decoder(reading=Reading(mode)).decode(data), pixels)


def test_hostile_headers() -> None:
    data = encoded(pixels_of(3), "j2k")
    large = data[:8] + (60000).to_bytes(4) * 2 + data[16:]
    assert sniff(large).width == 60000
    with pytest.raises(DecodeError, match="max_pixels"):
        image_files.decode(memoryview(large), 10**6)
    for wrong in (data[:8] + bytes(8) + data[16:], data[:40] + bytes(2) + data[42:]):
        with pytest.raises(HeaderError, match="no pixels"):
            sniff(wrong)
    with pytest.raises(HeaderError, match="128 bits"):
        sniff(data[:42] + b"\x7f" + data[43:])
    box = b"\0\0\0\x0cjP  \r\n\x87\n"
    for wrong in (box + bytes(40), box + b"\0\0\0\x01jp2h" + bytes(40), box + b"\0\0\0\x08jp2c" + bytes(40)):
        with pytest.raises(HeaderError):
            sniff(wrong)
