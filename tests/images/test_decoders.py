"""Image bytes to pixels: every decoder gives what Pillow gives, accepts what it accepts, rejects what it rejects."""

from __future__ import annotations

import io
import pickle
import random
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packstore.images.decoders import DECODERS, TOLERANCE, UNAVAILABLE, Decoder, available_decoders, get_decoder
from tests.conftest import SharedData
from tests.internals import (
    DecodeError,
    UsageError,
    backends,
    check_header,
    decoders,
    is_complete_jpeg,
    without_metadata,
)
from tests.makers.datasets import pixels
from tests.makers.images import encode
from tests.makers.jpegs import jpeg

ORIENTATION = 0x0112
Need = Callable[[str, bool], None]


def save(image: Image.Image | NDArray[np.uint8], format: str, **options: Any) -> bytes:
    return encode(image if isinstance(image, Image.Image) else Image.fromarray(image), format, **options)


def reference(data: bytes) -> NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # palettes with transparency
        return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


PHOTO = pixels(61, 83, seed=1)
SIZES = ((1, 1), (1, 17), (17, 1), (8, 8), (15, 16), (33, 31), (61, 83))


def ordinary_jpegs() -> dict[str, bytes]:
    files = {}
    for height, width in SIZES:
        image = pixels(height, width, seed=height * width)
        for sampling in ("444", "422", "420", "440", "411"):
            files[f"{sampling} {height}x{width}"] = simplejpeg.encode_jpeg(image, 85, "RGB", sampling)
        for sampling in (0, 1, 2):
            name = f"progressive {sampling} {height}x{width}"
            files[name] = save(image, "JPEG", progressive=True, subsampling=sampling)
        files[f"gray {height}x{width}"] = save(image[..., 0], "JPEG")
    files["restarts"] = save(PHOTO, "JPEG", restart_marker_rows=1)
    files["rgb"] = save(PHOTO, "JPEG", keep_rgb=True)
    files["quality 100"] = save(PHOTO, "JPEG", quality=100)
    files["quality 1"] = save(PHOTO, "JPEG", quality=1)
    files["noise"] = save(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8), "JPEG")
    files["metadata"] = save(PHOTO, "JPEG", exif=exif(1), icc_profile=bytes(70_000), comment=b"a comment")
    return files


def other_images() -> dict[str, bytes]:
    rgb = Image.fromarray(PHOTO)
    alpha = Image.fromarray(np.dstack([PHOTO, PHOTO[..., 0]]))
    deep = Image.fromarray(np.arange(0, 65536, 64, np.uint16).reshape(32, 32))
    palette = rgb.quantize(32)
    files = {
        "cmyk jpeg": save(rgb.convert("CMYK"), "JPEG"),
        "cmyk tiff": save(rgb.convert("CMYK"), "TIFF"),
        "ycbcr tiff": save(rgb.convert("YCbCr"), "TIFF"),
        "deflated tiff": save(rgb, "TIFF", compression="tiff_adobe_deflate"),
        "jpeg in tiff": save(rgb, "TIFF", compression="jpeg"),
        "turned tiff": save(rgb, "TIFF", tiffinfo={ORIENTATION: 6}),
        "float tiff": save(rgb.convert("F"), "TIFF"),
        "int tiff": save(rgb.convert("I"), "TIFF"),
        "lab tiff": save(Image.fromarray(PHOTO, "RGB").convert("LAB"), "TIFF"),
        "16-bit png": save(deep, "PNG"),
        "16-bit tiff": save(deep, "TIFF"),
        # Pillow before 10.3 writes none of 16 bits.
        "16-bit pgm": b"P5\n32 32\n65535\n" + np.asarray(deep).astype(">u2").tobytes(),
        "palette png": save(palette, "PNG"),
        "palette with one transparent": save(palette, "PNG", transparency=3),
        "palette with alpha": save(palette, "PNG", transparency=bytes(range(0, 256, 8))),
        "rgb with a transparent color": save(rgb, "PNG", transparency=(1, 2, 3)),
        "gray with a transparent value": save(rgb.convert("L"), "PNG", transparency=7),
        "gray with alpha": save(alpha.convert("LA"), "PNG"),
        "rgba png": save(alpha, "PNG"),
        "1-bit png": save(rgb.convert("1"), "PNG"),
        "1-bit tiff": save(rgb.convert("1"), "TIFF", compression="group4"),
        "turned png": save(rgb, "PNG", exif=exif(6)),
        "bmp": save(rgb, "BMP"),
        "palette bmp": save(palette, "BMP"),
        "webp": save(rgb, "WEBP", quality=80),
        "lossless webp": save(alpha, "WEBP", lossless=True),
        "ppm": save(rgb, "PPM"),
        "pbm": save(rgb.convert("1"), "PPM"),
        "mpo": save(rgb, "MPO", save_all=True, append_images=[ImageOps.invert(rgb)]),
    }
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        name = f"animated {kind.lower()}"
        files[name] = save(rgb, kind, save_all=True, append_images=[ImageOps.invert(rgb)])
    return files


ORDINARY = ordinary_jpegs()
OTHERS = other_images()


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, need: Need) -> Decoder:
    found = available_decoders()[request.param]
    need(request.param, not found.startswith(UNAVAILABLE))
    return get_decoder(request.param)


def all_decoders() -> list[Decoder]:
    return [get_decoder(name) for name, what in available_decoders().items() if not what.startswith(UNAVAILABLE)]


@pytest.mark.parametrize("name", [*ORDINARY, *OTHERS])
def test_pixels_are_those_of_pillow(decoder: Decoder, name: str) -> None:
    data = {**ORDINARY, **OTHERS}[name]
    image = decoder.decode(data)
    expected = reference(data)
    assert image.shape == expected.shape
    assert np.abs(image.astype(np.int16) - expected).max() <= TOLERANCE
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable


def test_a_fast_decoder_is_really_used(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all of these tests would compare Pillow with itself."""

    def fail(*_: object) -> NDArray[np.uint8]:
        raise AssertionError("Pillow was asked")

    expected = {name: reference(data) for name, data in ORDINARY.items()}
    # The system's library knows no 4:4:1, and OpenCV none of what nobody writes; Pillow takes these, rightly.
    names = [
        n for n in ORDINARY if n.startswith(("444", "422", "420", "progressive", "gray", "restarts", "rgb", "noise"))
    ]
    monkeypatch.setattr("packstore.images.image_files.decode_rgb", fail)
    for name in names:
        if decoder.name == "pillow":
            with pytest.raises(AssertionError):
                decoder.decode(ORDINARY[name])
        else:
            np.testing.assert_array_equal(decoder.decode(ORDINARY[name]), expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("count", [120, pytest.param(600, marks=pytest.mark.soak)])
def test_real_images_are_those_of_pillow(count: int, shared_data: SharedData, rng: random.Random) -> None:
    files = [path for path in sorted((shared_data / "imagenet-600").rglob("*")) if path.is_file()]
    found = all_decoders()
    worst = dict.fromkeys((d.name for d in found), 0)
    for path in rng.sample(files, count):
        data = path.read_bytes()
        expected = reference(data).astype(np.int16)
        for each in found:
            worst[each.name] = max(worst[each.name], int(np.abs(each.decode(data) - expected).max()))
    assert len(files) == 600
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: np.frombuffer(d, np.uint8).data])
def test_any_buffer_is_taken(decoder: Decoder, wrap: Callable[[bytes], Any]) -> None:
    for data in (ORDINARY["420 33x31"], OTHERS["rgba png"], OTHERS["cmyk jpeg"]):
        np.testing.assert_array_equal(decoder.decode(wrap(data)), reference(data))


def test_the_result_belongs_to_the_caller(decoder: Decoder) -> None:
    for data in (ORDINARY["420 33x31"], OTHERS["bmp"]):
        first = decoder.decode(data)
        kept = first.copy()
        second = decoder.decode(data)
        second[:] = 0
        np.testing.assert_array_equal(first, kept)


def test_messages_are_text_and_not_python() -> None:
    """Pillow says ``broken PNG file (chunk b'ID\\x00T')``."""
    data = bytearray(save(PHOTO, "PNG"))
    data[data.index(b"IDAT") + 2] = 0
    found = []
    for wrong in (bytes(data), b"no image", b"\x89PNG\r\n\x1a\n" + bytes(30)):
        with pytest.raises(DecodeError) as caught:
            get_decoder("pillow").decode(wrong)
        found.append(str(caught.value))
        assert "b'" not in found[-1]
    assert "'ID\\x00T'" in found[0]
    assert found[1].endswith("8 bytes that begin with 'no image'")


# What is damaged: whatever Pillow says of it, all say.


def outcome(decoder: Decoder, data: bytes) -> NDArray[np.uint8] | None:
    try:
        return decoder.decode(data)
    except DecodeError:
        return None


def assert_agreement(data: bytes) -> bool:
    """Whether all decoders accept ``data``, giving the same pixels; fails when they disagree."""
    results = {decoder.name: outcome(decoder, data) for decoder in all_decoders()}
    expected = results["pillow"]
    for name, result in results.items():
        assert (result is None) == (expected is None), f"{name} and Pillow disagree whether it is an image"
        if result is not None and expected is not None:
            np.testing.assert_array_equal(result, expected, err_msg=name)
    return expected is not None


MUTABLE = (
    *(ORDINARY[f"{kind} 61x83"] for kind in ("444", "420", "progressive 2", "gray")),
    ORDINARY["restarts"],
    ORDINARY["metadata"],
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(MUTABLE)))
    # Half of the damage goes to the headers, which are a small part of the whole.
    where = st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 700) - 1)
    for _ in range(draw(st.integers(1, 3))):
        at = min(draw(where), len(data) - 1)
        match draw(st.sampled_from(("change", "insert", "delete", "cut", "cut and end"))):
            case "change":
                data[at] = draw(st.integers(0, 255))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case "delete":
                del data[at : at + draw(st.integers(1, 20))]
            case "cut":
                del data[at:]
            case _:
                data[at:] = b"\xff\xd9"
        if not data:
            break
    return bytes(data)


@given(damaged())
def test_all_decoders_agree_on_damage(data: bytes) -> None:
    assert_agreement(data)


@pytest.mark.parametrize("data", MUTABLE)
def test_truncated_files_are_rejected(decoder: Decoder, data: bytes) -> None:
    for part in (0.2, 0.5, 0.9, 0.99):
        with pytest.raises(DecodeError):
            decoder.decode(data[: int(len(data) * part)])


def test_progressive_files_that_lack_scans_agree() -> None:
    """libjpeg smooths over missing scans, each version in its own way, and does not call it a warning."""
    data = ORDINARY["progressive 2 61x83"]
    starts = [i for i in range(len(data) - 1) if data[i : i + 2] in (b"\xff\xda", b"\xff\xc4")]
    assert [assert_agreement(data[:start] + b"\xff\xd9") for start in starts[1:]].count(True) > 3


@pytest.mark.parametrize("tail", [b"\0", b"garbage", bytes(5000), b"\xff\xd8\xff\xe0", b"\xff\xd9"])
def test_bytes_after_the_end_are_accepted(decoder: Decoder, tail: bytes) -> None:
    data = ORDINARY["420 61x83"]
    np.testing.assert_array_equal(decoder.decode(data + tail), reference(data))


def test_extraneous_bytes_before_a_marker_are_accepted(decoder: Decoder) -> None:
    for data in (ORDINARY["420 61x83"], ORDINARY["metadata"]):
        assert data.endswith(b"\xff\xd9")
        np.testing.assert_array_equal(decoder.decode(data[:-2] + b"\1\2\3\4\xff\xd9"), reference(data))
        start = data.index(b"\xff\xdb")
        np.testing.assert_array_equal(decoder.decode(data[:start] + b"abc" + data[start:]), reference(data))


SKIPPED_MARKERS = [0xDC, 0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xEF, 0xFE]


@given(
    marker=st.sampled_from(SKIPPED_MARKERS),
    length=st.integers(0, 60),
    content=st.lists(st.sampled_from(b"\x00\x04\x06A\x01\xc0\xd0\xd8\xd9\xda\xe1\xff"), max_size=24).map(bytes),
    first=st.booleans(),
)
@example(0xED, 13, b"Photoshop 3.0\x00\x04\x06", True)  # as photoshop-200dpi-broken.jpg of Pillow's tests
@example(0xE1, 0, b"", True)
@example(0xFE, 1, b"A", False)
@example(0xE2, 4, b"AA\xff\xd9\xff\xd8A", True)  # tables alone, then the image: T.81, B.4
def test_segments_whose_length_lies_agree(marker: int, length: int, content: bytes, first: bool) -> None:
    """Pillow and libjpeg go on at the next marker; what they read passes the header check and comes out the same."""
    at = 2 if first else 20  # behind the start of the image, or behind JFIF
    jpeg = ORDINARY["420 33x31"]
    data = jpeg[:at] + bytes([0xFF, marker]) + length.to_bytes(2, "big") + content + jpeg[at:]
    try:
        expected = reference(data)
    except Exception:  # Pillow raises almost anything
        return
    info = check_header(data)
    assert (info.height, info.width) == expected.shape[:2]
    for name, version in available_decoders().items():
        if not version.startswith(UNAVAILABLE):
            np.testing.assert_array_equal(get_decoder(name).decode(data), expected)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"not an image",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"RIFF\x10\0\0\0WAVEfmt ",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        bytes(1000),
    ],
)
def test_what_is_no_image_is_rejected(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(DecodeError):
        decoder.decode(data)


def test_no_other_plugin_of_pillow_sees_the_bytes(decoder: Decoder) -> None:
    image = Image.fromarray(PHOTO)
    for kind in ("EPS", "ICO", "PCX", "TGA", "SGI"):
        with pytest.raises(DecodeError, match="not an image of a kind"):
            decoder.decode(save(image, kind))


@pytest.mark.parametrize("sof", [0xC3, 0xC9, 0xCA, 0xCB, 0xC5])
def test_unusual_frames_agree(sof: int) -> None:
    data = ORDINARY["444 61x83"]
    at = data.index(b"\xff\xc0")
    assert_agreement(data[:at] + bytes([0xFF, sof]) + data[at + 2 :])
    assert not assert_agreement(data[: at + 4] + b"\x0c" + data[at + 5 :])  # of 12 bits


@pytest.mark.parametrize("options", ["-arithmetic", "-arithmetic -progressive"])
def test_arithmetic_coding(options: str, need: Need) -> None:
    need("cjpeg", shutil.which("cjpeg") is not None)
    assert_agreement(jpeg(61, 83, "420", *options.split()))


# Limits.


def test_the_limit_is_exact(decoder: Decoder) -> None:
    for data in (ORDINARY["420 61x83"], OTHERS["webp"], OTHERS["cmyk jpeg"], OTHERS["animated gif"]):
        assert get_decoder(decoder.name, max_pixels=61 * 83).decode(data).shape == (61, 83, 3)
        with pytest.raises(DecodeError, match="83 x 61 pixels"):
            get_decoder(decoder.name, max_pixels=61 * 83 - 1).decode(data)
    with pytest.raises(UsageError):
        get_decoder(max_pixels=0)


@pytest.mark.parametrize("name", ["webp", "bmp", "palette png", "deflated tiff", "animated gif", "jpeg in tiff", "mpo"])
def test_pillows_own_limit_does_not_warn(name: str, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference(OTHERS[name])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 61 * 83 - 1)
    np.testing.assert_array_equal(decoder.decode(OTHERS[name]), expected)


# EXIF orientation.


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(decoder: Decoder, orientation: int) -> None:
    for data in (
        save(PHOTO, "JPEG", exif=exif(orientation)),
        save(PHOTO, "PNG", exif=exif(orientation)),
        save(PHOTO, "WEBP", exif=exif(orientation)),
        save(PHOTO, "TIFF", tiffinfo={ORIENTATION: orientation}),
    ):
        np.testing.assert_array_equal(decoder.decode(data), reference(data))
        turned = decoder.decode(data, exif_transpose=True)
        image = Image.open(io.BytesIO(data))
        if image.format != "TIFF":  # which Pillow turns when it is loaded; ImageOps before version 10 does it again
            image = ImageOps.exif_transpose(image)
        np.testing.assert_array_equal(turned, np.array(image.convert("RGB")))
        assert turned.flags.c_contiguous


# Choosing one.


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(decoders, "_loaded", {})
    return monkeypatch


def replace_library(patch: pytest.MonkeyPatch, name: str, load: Any) -> None:
    patch.setitem(backends.LIBRARIES, name, backends.LIBRARIES[name]._replace(load=load))


def missing() -> tuple[backends.Decode, str]:
    raise ImportError("No module named 'it'")


def test_auto_takes_the_first_available(fresh: pytest.MonkeyPatch) -> None:
    present = [name for name, what in available_decoders().items() if not what.startswith(UNAVAILABLE)]
    assert get_decoder().name == present[0]
    for gone, following in pairwise(present):
        replace_library(fresh, gone, missing)
        decoders._loaded.clear()
        assert get_decoder("auto").name == following
    assert get_decoder().name == "pillow"


def test_without_any_library_every_attempt_is_listed(fresh: pytest.MonkeyPatch) -> None:
    for name in DECODERS[:-1]:
        replace_library(fresh, name, missing)
    fresh.setattr("packstore.images.pillow.find_version", missing)
    with pytest.raises(UsageError, match=r"turbojpeg: .*simplejpeg: .*jpeg4py: .*opencv: .*pillow: "):
        get_decoder()
    assert list(available_decoders()) == list(DECODERS)


def test_a_forced_decoder_that_is_missing_says_why(fresh: pytest.MonkeyPatch) -> None:
    replace_library(fresh, "simplejpeg", missing)
    with pytest.raises(
        UsageError, match=r"'simplejpeg' is not available: No module named 'it' \(pip install simplejpeg\)"
    ):
        get_decoder("simplejpeg")

    def no_library() -> tuple[backends.Decode, str]:
        raise OSError("Could not load libjpeg-turbo library")

    replace_library(fresh, "jpeg4py", no_library)
    assert "Could not load libjpeg-turbo library (on Debian" in available_decoders()["jpeg4py"]


@pytest.mark.parametrize("content", ["", "class TurboJPEG: pass\n__version__ = '3'"])
def test_another_module_called_turbojpeg_is_not_used(content: str, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "turbojpeg.py").write_text(content)
    fresh.syspath_prepend(str(tmp_path))
    fresh.delitem(sys.modules, "turbojpeg", raising=False)
    with pytest.raises(UsageError, match=r"'turbojpeg' is not available: .*PyTurboJPEG"):
        get_decoder("turbojpeg")
    fresh.delitem(sys.modules, "turbojpeg")


STAND_IN = """
import warnings
TJPF_RGB = 0
__version__ = {version!r}

class TurboJPEG:
    def __init__(self, lib_path=None):
        pass

    def encode(self, image):
        return b"whole file"

    def decode(self, data, pixel_format=1):
        if bytes(data) != b"whole file":
            {report}
        return "pixels"

    def {hook}(self, handle):
        warnings.warn(self.__get_error_string(handle))

    def __get_error_string(self, handle):
        return "premature end"
"""


def stand_in(patch: pytest.MonkeyPatch, folder: Path, **values: str) -> None:
    """Puts a module in place of PyTurboJPEG, with the methods by which its versions report damaged data."""
    (folder / "turbojpeg.py").write_text(STAND_IN.format(**values))
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, "turbojpeg", raising=False)


@pytest.mark.parametrize("version", ["1.8.3", "2.6.1"])
def test_pyturbojpeg_refuses_damaged_files(version: str, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(fresh, tmp_path, version=version, report="self.__report_error(1)", hook="__report_error")
    decode, name = backends.load_decoder_library("turbojpeg")
    assert decode is not None
    assert (name, decode(memoryview(b"whole file"))) == (f"PyTurboJPEG {version}", "pixels")
    with pytest.raises(OSError, match=r"^premature end$"):
        decode(memoryview(b"whole"))
    fresh.delitem(sys.modules, "turbojpeg")


@pytest.mark.parametrize(
    ("report", "hook", "message"),
    [
        ("self.__warn(1)", "__warn", "has another way to report damaged data"),
        ("warnings.warn('premature end')", "__report_error", "decodes a truncated file without an error"),
    ],
)
@pytest.mark.filterwarnings("ignore:premature end")
def test_a_version_of_pyturbojpeg_that_only_warns_is_not_used(
    report: str, hook: str, message: str, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(fresh, tmp_path, version="3.0", report=report, hook=hook)
    with pytest.raises(UsageError, match=rf"PyTurboJPEG 3.0 {message}; packstore knows its versions 1.7.2 to 2.6"):
        get_decoder("turbojpeg")
    fresh.delitem(sys.modules, "turbojpeg")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown decoder 'gd'; decoders: auto, engine, turbojpeg, simplejpeg"):
        get_decoder("gd")


def test_versions_are_named() -> None:
    for name, what in available_decoders().items():
        assert what.startswith(UNAVAILABLE) or any(c.isdigit() for c in what), name
        if not what.startswith(UNAVAILABLE):
            assert get_decoder(name).version == what


# Threads and processes.


def test_pickles_by_name(decoder: Decoder) -> None:
    twin = pickle.loads(pickle.dumps(get_decoder(decoder.name, max_pixels=100_000)))
    assert (twin.name, twin.max_pixels) == (decoder.name, 100_000)
    data = ORDINARY["420 61x83"]
    np.testing.assert_array_equal(twin.decode(data), decoder.decode(data))


@pytest.mark.slow
def test_many_threads_share_one_decoder(decoder: Decoder) -> None:
    """Good and damaged files at once: an error in one thread must not surface in another."""
    good = [ORDINARY["420 61x83"], ORDINARY["progressive 0 33x31"], OTHERS["rgba png"], ORDINARY["gray 15x16"]]
    expected = [reference(data) for data in good]
    truncated = ORDINARY["444 61x83"][:1500]

    def work(i: int) -> bool:
        if i % 5 == 4:
            return outcome(decoder, truncated) is None
        return bool((decoder.decode(good[i % 5]) == expected[i % 5]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


# The structure of JPEG files.


@pytest.mark.parametrize("name", ORDINARY)
def test_whole_files_are_whole(name: str) -> None:
    data = ORDINARY[name]
    assert is_complete_jpeg(memoryview(data))
    assert is_complete_jpeg(memoryview(data + b"tail"))
    assert not is_complete_jpeg(memoryview(data[:-2]))
    assert not is_complete_jpeg(memoryview(data[:-2] + b"\xff\x01\xff\xd9"))


@given(damaged() | st.binary(max_size=200).map(lambda tail: b"\xff\xd8" + tail))
def test_the_walks_survive_anything(data: bytes) -> None:
    assert is_complete_jpeg(memoryview(data)) in (True, False)
    assert len(without_metadata(memoryview(data))) <= len(data)


def test_metadata_is_left_out_and_nothing_else() -> None:
    data = ORDINARY["metadata"]
    bare = bytes(without_metadata(memoryview(data)))
    assert len(data) - len(bare) > 70_000
    assert b"a comment" not in bare
    assert b"Exif" not in bare
    np.testing.assert_array_equal(reference(bare), reference(data))
    view = memoryview(bare)
    assert without_metadata(view) is view
    cmyk = OTHERS["cmyk jpeg"]  # whose Adobe segment says that it is inverted
    np.testing.assert_array_equal(reference(bytes(without_metadata(memoryview(cmyk)))), reference(cmyk))
