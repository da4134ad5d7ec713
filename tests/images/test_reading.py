"""Image files as pixels of a mode: all bits, channels and alpha, and every kind of PNG, against other readers."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.images.decoders import get_decoder
from tests.internals import (
    MAX_PIXELS,
    DecodeError,
    ManifestError,
    Reading,
    UsageError,
    check_header,
    convert_pixels,
    decode_png,
    find_losses,
    image_files,
    mode_of,
    parse_mode,
)
from tests.makers.images import encode
from tests.makers.torchvision import import_image_io

cv2 = pytest.importorskip("cv2")
tifffile = pytest.importorskip("tifffile")

RNG = np.random.default_rng(5)
GRAY = RNG.integers(0, 1 << 16, (23, 31), np.uint16)
COLOUR = RNG.integers(0, 1 << 16, (23, 31, 3), np.uint16)
GRAY_ALPHA = RNG.integers(0, 256, (23, 31, 2), np.uint8)
WITH_ALPHA = RNG.integers(0, 1 << 16, (23, 31, 4), np.uint16)


def pillow(array: NDArray[Any], kind: str, **options: Any) -> bytes:
    return encode(Image.fromarray(array), kind, **options)


def opencv(array: NDArray[Any], suffix: str = ".png") -> bytes:
    """A file of OpenCV's, which has blue first."""
    order = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}
    ordered = array if array.ndim == 2 else cv2.cvtColor(array, order[array.shape[2]])
    done, data = cv2.imencode(suffix, ordered)
    assert done
    return data.tobytes()


def tiff(array: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


def as_hwc(array: NDArray[Any]) -> NDArray[Any]:
    return array[..., None] if array.ndim == 2 else array


MINISBLACK: dict[str, Any] = {"photometric": "minisblack"}
FIVE = RNG.integers(0, 1 << 16, (23, 31, 5), np.uint16)
BYTES = RNG.integers(0, 256, (23, 31, 3), np.uint8)
MAP = RNG.integers(0, 1 << 16, (3, 1 << 16), np.uint16)
FILES: dict[str, tuple[bytes, NDArray[Any], str]] = {
    "gray png": (pillow(GRAY.astype(np.uint8), "png"), GRAY.astype(np.uint8), "L"),
    "gray png of 16 bits": (pillow(GRAY, "png"), GRAY, "I;16"),
    "png of 16 bits": (opencv(COLOUR), COLOUR, "RGB;16"),
    "png of 16 bits with alpha": (opencv(WITH_ALPHA), WITH_ALPHA, "RGBA;16"),
    "png with alpha": (pillow(WITH_ALPHA.astype(np.uint8), "png"), WITH_ALPHA.astype(np.uint8), "RGBA"),
    "gray png with alpha": (pillow(GRAY_ALPHA, "png"), GRAY_ALPHA, "LA"),
    "pgm of 16 bits": (b"P5 31 23 4095\n" + GRAY.astype(">u2").tobytes(), GRAY, "I;16"),
    "ppm of 16 bits": (opencv(COLOUR, ".ppm"), COLOUR, "RGB;16"),
    "tiff of 16 bits": (pillow(GRAY, "tiff"), GRAY, "I;16"),
    "tiff of 16 bits in colour": (tiff(COLOUR), COLOUR, "RGB;16"),
    "tiff of whole numbers": (tiff(GRAY.astype(np.int32) - 30_000), GRAY.astype(np.int32) - 30_000, "I"),
    "tiff of signed 16 bits": (tiff(GRAY.view(np.int16)), GRAY.view(np.int16), "I;16S"),
    "tiff of floats": (tiff(GRAY.astype(np.float32) / 7), GRAY.astype(np.float32) / 7, "F"),
    "tiff of half floats": (tiff(GRAY.astype(np.float16)), GRAY.astype(np.float16).astype(np.float32), "F"),
    "tiff of five channels": (tiff(FIVE, planarconfig="contig", **MINISBLACK), FIVE, "multi:5:uint16"),
    "tiff in planes": (tiff(FIVE.transpose(2, 0, 1), planarconfig="separate", **MINISBLACK), FIVE, "multi:5:uint16"),
    "tiff in tiles": (tiff(FIVE, tile=(16, 16), planarconfig="contig", **MINISBLACK), FIVE, "multi:5:uint16"),
    "tiff by LZW": (tiff(COLOUR, compression="lzw", predictor=2), COLOUR, "RGB;16"),
    "tiff by Deflate": (tiff(COLOUR, compression="zlib"), COLOUR, "RGB;16"),
    "tiff by WebP": (tiff(BYTES, compression="webp", compressionargs={"lossless": True}), BYTES, "RGB"),
    "tiff of Lab in 16 bits": (tiff(COLOUR, photometric="cielab"), COLOUR, "multi:3:uint16"),
    "tiff of ICC Lab": (tiff(BYTES, photometric="icclab"), BYTES, "multi:3:uint8"),
    "tiff of Lab and alpha": (
        tiff(WITH_ALPHA, photometric="cielab", planarconfig="contig", extrasamples=["unassalpha"]), WITH_ALPHA,
        "multi:4:uint16",
    ),
    "tiff of YCbCr in 16 bits": (tiff(COLOUR, photometric="ycbcr"), COLOUR, "multi:3:uint16"),
    "tiff of inks in 16 bits": (tiff(WITH_ALPHA, photometric="separated"), WITH_ALPHA, "multi:4:uint16"),
    "tiff of gray, white is 0": (tiff(GRAY, photometric="miniswhite"), GRAY, "I;16"),
    "tiff of a palette of 16 bits": (tiff(GRAY, photometric="palette", colormap=MAP), MAP.T[GRAY], "RGB;16"),
    "tiff by Zstandard": (tiff(COLOUR, compression="zstd"), COLOUR, "RGB;16"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_whole(name: str) -> None:
    data, wanted, mode = FILES[name]
    pixels, found = image_files.decode(memoryview(data), MAX_PIXELS)
    assert found.name == mode
    assert pixels.dtype == wanted.dtype
    assert np.array_equal(pixels, as_hwc(wanted))
    described = image_files.describe_image(memoryview(data), check_header(data))
    assert described is not None
    assert described.mode == found
    decoder = get_decoder(reading=Reading(mode))
    assert np.array_equal(decoder.decode(data), as_hwc(wanted))
    assert np.array_equal(decoder.decode_crop(data, (3, 4, 10, 12)), as_hwc(wanted)[3:13, 4:16])


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_of_16_bits_is_what_opencv_reads(channels: int, interlaced: bool) -> None:
    """Interlaced by hand: no library at hand writes such files of 16 bits."""
    array = WITH_ALPHA[..., :channels]
    data = _interlaced(array) if interlaced else _png(array)
    assert np.array_equal(decode_png(memoryview(data)), array)
    if channels != 2:  # which OpenCV makes BGRA
        read = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        colours = {1: None, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}[channels]
        assert np.array_equal(as_hwc(read if colours is None else cv2.cvtColor(read, colours)), array)


def _chunk(name: bytes, content: bytes) -> bytes:
    import zlib

    return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")


def _png(array: NDArray[Any], interlaced: bool = False, passes: list[NDArray[Any]] | None = None) -> bytes:
    import struct
    import zlib

    height, width, channels = array.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, int(interlaced))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for part in (passes or [array]) for row in part if part.size)
    packed = zlib.compress(rows)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _interlaced(array: NDArray[Any]) -> bytes:
    starts = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    return _png(array, True, [array[top::down, left::across] for top, left, down, across in starts])


@pytest.mark.parametrize("cut", [30, 60, 200])
def test_damaged_png_of_16_bits(cut: int) -> None:
    data = _png(WITH_ALPHA)
    with pytest.raises(DecodeError):
        decode_png(memoryview(data[:cut]))
    flipped = bytearray(data)
    flipped[cut] ^= 1
    with pytest.raises(DecodeError):
        decode_png(memoryview(bytes(flipped)))


@pytest.mark.parametrize("colour", [False, True])
def test_luma_of_a_jpeg_is_libjpegs(colour: bool) -> None:
    array = RNG.integers(0, 256, (40, 50, 3) if colour else (40, 50), np.uint8)
    data = pillow(array, "jpeg", quality=80)
    found = get_decoder(reading=Reading("L")).decode(data)
    wanted = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert np.array_equal(found[..., 0], wanted)


def test_what_becomes_of_more_bits() -> None:
    deep = np.array([[[0], [255], [256], [4095], [65535]]], np.uint16)
    mode = parse_mode("I;16")

    def read(depth: str) -> list[int]:
        values: list[int] = convert_pixels(deep, mode, Reading("L", depth))[0, :, 0].tolist()
        return values

    assert read("clip") == [0, 255, 255, 255, 255]
    assert read("scale") == [0, 1, 1, 16, 255]
    assert read("window:0,4095") == [0, 16, 16, 255, 255]
    floats = np.array([[[-1.0], [0.0], [0.5], [1.0], [np.nan]]], np.float32)
    assert convert_pixels(floats, parse_mode("F"), Reading("L", "scale"))[0, :, 0].tolist() == [0, 0, 128, 255, 0]
    with pytest.raises(DecodeError, match="depth says how"):
        convert_pixels(deep, mode, Reading("L"))


def test_what_becomes_of_alpha() -> None:
    half = np.array([[[200, 100, 0, 128], [200, 100, 0, 0]]], np.uint8)
    mode = parse_mode("RGBA")
    assert convert_pixels(half, mode, Reading("RGB")).tolist() == [[[200, 100, 0], [200, 100, 0]]]
    assert convert_pixels(half, mode, Reading("RGB", alpha="over:white")).tolist() == [
        [[227, 177, 127], [255, 255, 255]]
    ]
    assert convert_pixels(half, mode, Reading("RGB", alpha="over:#0a141e")).tolist() == [[[105, 60, 15], [10, 20, 30]]]
    composed = Image.new("RGBA", (1, 1), (255, 255, 255, 255))
    composed.alpha_composite(Image.fromarray(half[:, :1]))
    difference = (
        np.asarray(composed)[..., :3].astype(int)
        - convert_pixels(half, mode, Reading("RGB", alpha="over:white"))[:, :1]
    )
    assert np.abs(difference).max() <= 1  # Pillow rounds in whole numbers


def test_channels_become_those_of_the_mode() -> None:
    colour = RNG.integers(0, 256, (5, 6, 3), np.uint8)
    gray = convert_pixels(colour, parse_mode("RGB"), Reading("L"))
    assert np.array_equal(gray[..., 0], np.asarray(Image.fromarray(colour).convert("L")))
    assert np.array_equal(convert_pixels(gray, parse_mode("L"), Reading("RGB")), np.repeat(gray, 3, 2))
    assert convert_pixels(gray, parse_mode("L"), Reading("LA"))[..., 1].min() == 255
    assert convert_pixels(colour, parse_mode("RGB"), Reading("RGBA")).shape == (5, 6, 4)
    for dtype, depth in (("float32", "scale"), ("int16", "clip"), ("int32", "clip")):  # of which RGB has no name
        values = (colour / 255).astype(dtype) if depth == "scale" else colour.astype(dtype)
        assert np.array_equal(convert_pixels(values, mode_of(3, dtype), Reading("L", depth)), gray)
        own = convert_pixels(values, mode_of(3, dtype), Reading(mode_of(1, dtype).name))
        assert np.abs(own * (255 if depth == "scale" else 1) - gray).max() <= 0.51
    five = mode_of(5, "uint8")
    assert np.array_equal(convert_pixels(np.dstack([colour, gray, gray]), five, Reading("RGB")), colour)
    with pytest.raises(DecodeError, match="cannot be made"):
        convert_pixels(colour, parse_mode("RGB"), Reading("multi:5:uint8"))


@given(st.integers(1, 6), st.sampled_from(["uint8", "uint16", "int16", "int32", "float32"]))
def test_a_mode_is_its_name(channels: int, dtype: str) -> None:
    mode = mode_of(channels, dtype)
    assert (mode.channels, mode.dtype) == (channels, dtype)
    assert parse_mode(mode.name) == mode
    array = np.zeros((2, 3, channels), dtype)
    assert convert_pixels(array, mode, Reading(mode.name)) is array


@pytest.mark.parametrize("name", ["", "rgb", "multi:0:uint8", "multi:5000:uint8", "multi:3:uint4", "P"])
def test_unknown_modes(name: str) -> None:
    with pytest.raises(ManifestError, match="unknown mode"):
        parse_mode(name)
    with pytest.raises(UsageError, match="unknown mode"):
        Reading(name)


@pytest.mark.parametrize(
    "wrong", [{"depth": "bits"}, {"depth": "window:5,5"}, {"alpha": "over:red"}, {"frames": "-1"}, {"frames": "all"}]
)
def test_impossible_answers(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Reading(**wrong)  # type: ignore[arg-type]


def test_a_frame_by_its_number() -> None:
    frames = [Image.fromarray(np.full((8, 9), value, np.uint8)) for value in (10, 20, 30)]
    file = io.BytesIO()
    frames[0].save(file, "tiff", save_all=True, append_images=frames[1:])
    for number, value in ((0, 10), (2, 30)):
        found = get_decoder(reading=Reading("L", frames=str(number))).decode(file.getvalue())
        assert (found == value).all()
    with pytest.raises(DecodeError, match="3 frames, but no frame 3"):
        get_decoder(reading=Reading("L", frames="3")).decode(file.getvalue())


def test_a_tiff_without_tifffile_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    with pytest.raises(DecodeError, match=r"packstore\[tiff\]"):
        image_files.decode(memoryview(FILES["tiff of five channels"][0]), MAX_PIXELS)
    pixels, _ = image_files.decode(memoryview(FILES["tiff of 16 bits"][0]), MAX_PIXELS)  # which Pillow reads
    assert np.array_equal(pixels[..., 0], GRAY)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("tiff")])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.99])
def test_truncated_tiff(name: str, at: float) -> None:
    data = FILES[name][0]
    with pytest.raises(DecodeError):
        get_decoder(reading=Reading(FILES[name][2])).decode(data[: int(len(data) * at)])


def test_a_damaged_directory_of_a_tiff_is_a_decode_error() -> None:
    """For some damage tifffile returns an empty array."""
    data = FILES["tiff by Deflate"][0]
    for at in range(30, 48):
        with suppress(DecodeError):
            image_files.decode(memoryview(data[:at] + b"\1" + data[at + 1 :]), MAX_PIXELS)


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
    pixels, found = image_files.decode(memoryview(data), MAX_PIXELS)
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


@pytest.mark.slow
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
