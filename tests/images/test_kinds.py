"""JPEG XL and 2000, OpenEXR, Radiance HDR and ``.npy`` as image files: modes, pixels, damage, against other readers.

OpenEXR 3.5 wrote the files in ``tests/corpus/exr``: of 11 x 14 pixels, channels last, value n is ``3 n mod 251``.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packstore import PackedDataset, convert, verify
from packstore.images.decoders import get_decoder
from packstore.sources import open_source
from tests.internals import (
    DecodeError,
    HeaderError,
    JpegXl,
    OpenExr,
    Reading,
    SampleError,
    UsageError,
    check_header,
    image_files,
    sniff,
)
from tests.makers.annotated import fill
from tests.makers.images import npy
from tests.makers.sources import not_packed

cv2 = pytest.importorskip("cv2")
imagecodecs = pytest.importorskip("imagecodecs")
EXR = Path(__file__).parents[1] / "corpus" / "exr"
EXR_MODES = {
    **{f"rgb-{name}": "multi:3:float32" for name in ("no", "rle", "zips", "zip", "piz", "pxr24")},
    "tiles": "multi:3:float32",
    "rgba": "multi:4:float32",
    "gray": "F",
    "depth": "F",
    "five": "multi:5:float32",
    "ids": "I",
    "mixed": "multi:2:float32",
}


def noise(channels: int, dtype: str, bits: int | None = None) -> NDArray[Any]:
    rng = np.random.default_rng(channels)
    if dtype.startswith("float"):
        return rng.normal(0, 9, (11, 14, channels)).astype(dtype)
    high = np.iinfo(dtype).max if bits is None else (1 << bits) - 1
    return rng.integers(0, high, (11, 14, channels), dtype, endpoint=True)


def plain(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def to_jxl(pixels: NDArray[Any], **options: Any) -> bytes:
    return bytes(imagecodecs.jpegxl_encode(plain(pixels), **({"lossless": True} | options)))


def to_hdr(pixels: NDArray[np.float32]) -> bytes:
    done, data = cv2.imencode(".hdr", pixels[..., ::-1])
    assert done
    return data.tobytes()


def to_npy(array: NDArray[Any]) -> bytes:
    return npy(array, allow_pickle=False)


def to_jp2(pixels: NDArray[Any]) -> bytes:
    return bytes(imagecodecs.jpeg2k_encode(pixels, level=0, reversible=True, codecformat="jp2"))


def decoded(data: bytes) -> tuple[NDArray[Any], str]:
    """The pixels and mode of a file, after a check that header and description say the same."""
    info = check_header(data)
    found = image_files.describe_image(memoryview(data), info)
    pixels, mode = image_files.decode(memoryview(data), 10**6)
    assert found is not None
    assert found.mode == mode
    assert pixels.shape == (info.height, info.width, info.components)
    assert pixels.dtype == mode.dtype
    return pixels, mode.name


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize(
    ("channels", "dtype", "bits", "mode"),
    [(1, "uint8", None, "L"), (2, "uint8", None, "LA"), (3, "uint8", None, "RGB"), (4, "uint8", None, "RGBA"),
     (1, "uint16", None, "I;16"), (1, "uint16", 12, "I;16"), (3, "uint16", 10, "RGB;16"),
     (4, "uint16", None, "RGBA;16"), (1, "float32", None, "F"), (3, "float32", None, "multi:3:float32"),
     (3, "float16", None, "multi:3:float32")],
)  # fmt: skip
def test_jpeg_xl(channels: int, dtype: str, bits: int | None, mode: str, boxes: bool) -> None:
    pixels = noise(channels, dtype, bits)
    options = {} if bits is None else {"bitspersample": bits}
    data = to_jxl(pixels, usecontainer=boxes or None, **options)
    found, name = decoded(data)
    assert name == mode
    np.testing.assert_array_equal(found, pixels)
    np.testing.assert_array_equal(get_decoder(reading=Reading(mode)).decode(data), pixels)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (300, 400), (256, 256), (1080, 1920), (3, 9000)])
def test_sizes_of_jpeg_xl(size: tuple[int, int]) -> None:
    info = check_header(to_jxl(np.zeros((*size, 1), np.uint8)))
    assert (info.height, info.width) == size


def test_values_beside_alpha_and_scaled_ones_have_the_whole_range() -> None:
    """12 bits would be nearly black and transparent among 16."""
    pixels = noise(4, "uint16", 12)
    found, _ = decoded(to_jxl(pixels, bitspersample=12))
    np.testing.assert_array_equal(found, (pixels.astype(np.int64) * 65535 + 2047) // 4095)
    gray = noise(1, "uint16", 12)
    shown = get_decoder(reading=Reading("L", "scale")).decode(to_jxl(gray, bitspersample=12))
    np.testing.assert_array_equal(shown, np.rint(gray / 4095 * 255).astype(np.uint8))


def test_a_header_of_jpeg_xl_that_is_cut_off_does_not_decode() -> None:
    data = to_jxl(noise(3, "uint8"))
    with pytest.raises(HeaderError, match="truncated"):
        JpegXl(memoryview(data[:3]), check_header(data)).decode(0)


def test_an_animated_jpeg_xl_is_asked_about(tmp_path: Path) -> None:
    frames = np.stack([noise(3, "uint8") + number for number in range(3)])
    fill(tmp_path, {"images/a/0.jxl": imagecodecs.jpegxl_encode(frames, lossless=True, photometric="RGB")})
    not_packed(UsageError, tmp_path / "images", tmp_path / "x.lmdb", "it has 3 frames or pages, and the first is read")
    convert(tmp_path / "images", tmp_path / "x.lmdb", frames="first")
    np.testing.assert_array_equal(PackedDataset(tmp_path / "x.lmdb")[0][0], frames[0].transpose(2, 0, 1))
    dataset = PackedDataset(tmp_path / "x.lmdb", frames="2")
    np.testing.assert_array_equal(dataset[0][0], frames[2].transpose(2, 0, 1))
    with pytest.raises(DecodeError, match="3 frames, but no frame 3"):
        PackedDataset(tmp_path / "x.lmdb", frames="3")[0]


@pytest.mark.parametrize("size", [(11, 14), (5, 5), (40, 300), (1, 9)])
def test_radiance(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    pixels = (rng.random((*size, 3)) * np.exp(rng.normal(0, 4, (*size, 1)))).astype(np.float32)
    pixels[0, : size[1] // 2] = pixels[0, 0]  # a run
    pixels[-1, -1] = 0
    data = to_hdr(pixels)
    found, mode = decoded(data)
    assert mode == "multi:3:float32"
    np.testing.assert_array_equal(found, imagecodecs.rgbe_decode(data))
    np.testing.assert_array_equal(found, cv2.imdecode(np.frombuffer(data, np.uint8), -1)[..., ::-1])


def test_other_ways_to_write_radiance() -> None:
    """Older runs, and scanlines in any direction: other readers give wrong pixels for them, or none."""
    head = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n"
    coded = bytes(range(1, 13)), bytes(range(101, 113))
    rows = np.array([[*coded[0]], [*coded[1]]], np.float32).reshape(2, 3, 4)
    wanted = rows[..., :3] * 2.0 ** (rows[..., 3:] - 136)
    flat = b"".join(coded)
    for size, turned in {
        b"-Y 2 +X 3": wanted,
        b"+Y 2 +X 3": wanted[::-1],
        b"-Y 2 -X 3": wanted[:, ::-1],
        b"+X 2 -Y 3": wanted.transpose(1, 0, 2),
        b"-X 2 +Y 3": wanted[::-1, ::-1].transpose(1, 0, 2),
    }.items():
        np.testing.assert_array_equal(decoded(head + size + b"\n" + flat)[0], turned)
    runs = decoded(head + b"-Y 1 +X 300\n" + coded[0][:4] + b"\1\1\1\x2b" + b"\1\1\1\1")[0]
    assert (runs == wanted[0, 0]).all()
    with pytest.raises(HeaderError, match="xyze"):
        sniff(b"#?RADIANCE\nFORMAT=32-bit_rle_xyze\n\n-Y 2 +X 3\n" + flat)


@pytest.mark.parametrize("name", EXR_MODES)
def test_openexr(name: str) -> None:
    data = (EXR / f"{name}.exr").read_bytes()
    info = check_header(data)
    assert (info.kind, info.height, info.width) == ("exr", 11, 14)
    assert OpenExr(memoryview(data), info).find_mode().name == EXR_MODES[name]
    pytest.importorskip("OpenEXR")
    pixels, _ = decoded(data)
    np.testing.assert_array_equal(pixels, np.arange(pixels.size).reshape(pixels.shape) * 3 % 251)


@pytest.mark.parametrize("name", EXR_MODES)
def test_openexr_that_is_cut_off(name: str) -> None:
    data = (EXR / f"{name}.exr").read_bytes()
    for length in range(4, len(data)):
        with pytest.raises(HeaderError, match=r"truncated|damaged|has no pixels"):
            check_header(data[:length])


def test_openexr_that_is_refused() -> None:
    data = (EXR / "rgb-zip.exr").read_bytes()
    for flags, what in ((0x800, "deep pixels"), (0x1000, "several parts")):
        with pytest.raises(HeaderError, match=what):
            sniff(data[:4] + (2 | flags).to_bytes(4, "little") + data[8:])
    place = data.index(b"channels\0chlist\0") + 16 + 4
    assert data[place : place + 2] == b"B\0"
    with pytest.raises(HeaderError, match="less of 'B'"):
        sniff(data[: place + 10] + b"\2" + data[place + 11 :])
    place = data.index(b"compression\0compression\0") + 24 + 4
    tiled = (EXR / "tiles.exr").read_bytes()
    at = tiled.index(b"tiles\0tiledesc\0") + 15 + 4 + 8
    for levels in (0xF1, 3):  # sides of levels would never come to 1
        with pytest.raises(HeaderError, match="tiles of level mode"):
            sniff(tiled[:at] + bytes([levels]) + tiled[at + 1 :])
    with pytest.raises(HeaderError, match="compression 200"):
        sniff(data[:place] + b"\xc8" + data[place + 1 :])


@pytest.mark.parametrize(
    ("array", "mode"),
    [(plain(noise(1, "uint8")), "L"), (noise(3, "uint8"), "RGB"), (noise(4, "uint8"), "RGBA"),
     (noise(3, "uint8").transpose(2, 0, 1), "RGB"), (plain(noise(1, "uint16")), "I;16"), (noise(5, "uint16"), None),
     (plain(noise(1, "float32")), "F"), (plain(noise(1, "float16")), "F"), (noise(2, "float64").round(), None),
     (plain(noise(1, "int64", 20)), "I"), (plain(noise(1, "int16")), "I;16S"), (noise(7, "float32"), None),
     (np.asfortranarray(noise(3, "uint8")), "RGB"), (plain(noise(1, "uint8")) > 99, "L"),
     (noise(3, "uint16").astype(">u2"), "RGB;16")],
)  # fmt: skip
def test_npy(array: NDArray[Any], mode: str | None) -> None:
    found, name = decoded(to_npy(array))
    assert name == (mode or f"multi:{found.shape[-1]}:{found.dtype}")
    values = array if array.ndim == 3 else array[..., None]
    values = values.transpose(1, 2, 0) if values.shape[0] == 3 else values
    np.testing.assert_array_equal(found, values * 255 if array.dtype == bool else values)


@pytest.mark.parametrize(
    ("array", "why"),
    [(np.zeros(5), "shape"), (np.zeros((2, 3, 4, 5)), "shape"), (np.zeros((3, 9, 3)), "first or the last axis"),
     (np.zeros((0, 4)), "shape"), (np.zeros((4, 4), "c8"), "no type of pixels"), (np.zeros((4, 4), "U3"), "no type"),
     (np.zeros((4, 4), "i4,f4"), "no type")],
)  # fmt: skip
def test_npy_that_is_no_image(array: NDArray[Any], why: str) -> None:
    with pytest.raises(HeaderError, match=why):
        sniff(to_npy(array))


def test_npy_never_unpickles() -> None:
    stream = io.BytesIO()
    np.save(stream, np.full((4, 4), None), allow_pickle=True)
    with pytest.raises(HeaderError, match="packstore runs none"):
        sniff(stream.getvalue())
    with pytest.raises(DecodeError, match="int32 does not hold"):
        image_files.decode(memoryview(to_npy(np.full((4, 4), 1 << 40))), 10**6)


FILES: dict[str, Callable[[], bytes]] = {
    "jxl": lambda: to_jxl(noise(3, "uint8")),
    "exr": lambda: (EXR / "rgb-zip.exr").read_bytes(),
    "hdr": lambda: to_hdr(noise(3, "float32").clip(0)),
    "npy": lambda: to_npy(noise(3, "uint8")),
    "jp2": lambda: to_jp2(noise(3, "uint16")),
    "avif": lambda: bytes(imagecodecs.avif_encode(noise(3, "uint16", 10), level=100, bitspersample=10,
                                                  pixelformat="444", matrix=0)),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_off_is_a_bad_sample(kind: str, tmp_path: Path) -> None:
    if kind == "exr":
        pytest.importorskip("OpenEXR")
    data = FILES[kind]()
    for length in (len(data) - 1, len(data) // 2, 20):
        place = tmp_path / str(length) / "a"
        fill(place, {f"0.{kind}": data[:length]})
        for encoding in ("original", "uint8"):
            with pytest.raises(SampleError, match=r"truncated|damaged"):
                convert(place.parent, tmp_path / "x.lmdb", encoding=encoding, depth="scale")


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_an_error_of_ours_or_unseen(kind: str) -> None:
    rng, data = random.Random(3), FILES[kind]()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(data), 600))] = rng.randrange(256)
        with suppress(DecodeError):
            image_files.decode(memoryview(bytes(damaged)), 10**5)
        with suppress(HeaderError):
            check_header(bytes(damaged))


@pytest.mark.slow
def test_sizes_are_checked_before_memory_is_taken() -> None:
    head = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 60000 +X 60000\n"
    data = (EXR / "rgb-zip.exr").read_bytes()
    place = data.index(b"dataWindow\0box2i\0") + 17 + 4
    large = data[: place + 8] + (60000).to_bytes(4, "little") * 2 + data[place + 16 :]
    array = to_npy(np.zeros((4, 4), np.uint8)).replace(b"(4, 4), }    ", b"(99999, 9999)}")
    for file in (head, large, array, to_jxl(np.zeros((900, 900, 1), np.uint8))):
        with pytest.raises(DecodeError, match="max_pixels"):
            image_files.decode(memoryview(file), 10**5)
    with pytest.raises(DecodeError, match="truncated"):
        image_files.decode(memoryview(head.replace(b"60000", b"9000")), 10**9)
    with pytest.raises(DecodeError, match="channels, more than 16 times"):
        image_files.decode(memoryview(to_npy(np.zeros((400, 5, 40), np.uint8))), 2000)


@pytest.mark.parametrize("kind", FILES)
def test_folders_are_recognised_packed_and_read(kind: str, tmp_path: Path) -> None:
    if kind == "exr":
        pytest.importorskip("OpenEXR")
    for name in ("cat", "dog"):
        fill(tmp_path, {f"images/{name}/0.{kind.upper()}": FILES[kind]()})
    pixels, mode = decoded(FILES[kind]())
    with_depth = {} if pixels.dtype == np.uint8 else {"depth": "keep"}
    if with_depth:
        not_packed(UsageError, tmp_path / "images", tmp_path / "x.lmdb", "--depth")
    report = convert(tmp_path / "images", tmp_path / "x.lmdb", **with_depth)
    assert report.manifest.origin.kind == "imagefolder"
    assert report.manifest.image.mode == (None if mode == "RGB" else mode)
    image, label = PackedDataset(tmp_path / "x.lmdb")[1]
    assert label == 1
    np.testing.assert_array_equal(image, pixels.transpose(2, 0, 1))
    assert verify(tmp_path / "x.lmdb", decode=True, against=tmp_path / "images").ok
    encoding = str(pixels.dtype)
    convert(tmp_path / "images", tmp_path / "y.h5", encoding=encoding, **with_depth)
    assert verify(tmp_path / "y.h5", against=tmp_path / "images").ok
    np.testing.assert_array_equal(PackedDataset(tmp_path / "y.h5")[0][0], pixels.transpose(2, 0, 1))


def test_arrays_beside_images_are_none(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(bytes(cv2.imencode(".png", noise(3, "uint8"))[1]))
        (tmp_path / name / "0.npy").write_bytes(to_npy(noise(1, "float32")))
    with closing(open_source(tmp_path, kind="imagefolder")) as source:
        survey = source.survey()
        assert survey.records == 2
        assert sum(survey.ledger.passed_over.values()) == 2


def test_a_flat_folder_of_arrays_is_one_if_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(3):
        (tmp_path / "images" / f"scan {number}.npy").write_bytes(to_npy(noise(1 + 2 * (number > 0), "uint8")))
    assert convert(tmp_path / "images", tmp_path / "x.lmdb", source_kind="flat").manifest.records == 3


def test_frames_of_jpeg_xl_are_told_by_the_header() -> None:
    data = to_jxl(noise(3, "uint8"))
    assert JpegXl(memoryview(data), check_header(data)).count() == 1
