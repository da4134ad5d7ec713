"""EXIF orientation: our reader beside Pillow's, and boxes of the upright image in the stored one."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packstore.testing.encodings import picture
from tests.internals import check_header, map_to_stored_box, read_orientation, swaps_sides, upright
from tests.internals import orientation as ours
from tests.makers.images import avif, heic

KINDS: dict[str, dict[str, Any]] = {
    "baseline": {"format": "JPEG"},
    "progressive": {"format": "JPEG", "progressive": True},
    "dpi": {"format": "JPEG", "dpi": (300, 300), "comment": b"said"},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "lossless webp": {"format": "WEBP", "lossless": True},
}


def exif(orientation: int | None, endian: str = "<") -> Image.Exif:
    tags = Image.Exif()
    tags.endian = endian
    tags[0x010F] = "a maker of cameras"
    tags[0x9003] = "2026:11:22 06:00:00"
    if orientation is not None:
        tags[0x0112] = orientation
    return tags


def file(mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(20, 31)).convert(mode).save(out, **options)
    return out.getvalue()


def pillows(data: bytes) -> int:
    """What Pillow's ``getexif`` says; 1 for what is no orientation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = Image.open(io.BytesIO(data)).getexif().get(0x0112, 1)
        except (SyntaxError, struct.error):  # no TIFF header
            return 1
    return int(value) if value in range(1, 9) else 1


@pytest.fixture
def no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary files have to do without it."""

    def asked(*_: object) -> int:
        raise AssertionError("Pillow was asked")

    monkeypatch.setattr(ours, "_read_with_pillow", asked)
    monkeypatch.setattr(ours, "parse_exif_orientation", asked)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("endian", "<>")
@pytest.mark.usefixtures("no_pillow")
def test_ordinary_files_are_read_as_pillow_does_and_without_it(kind: str, mode: str, endian: str) -> None:
    assert read_orientation(file(mode, **KINDS[kind])) == 1
    for orientation in (None, *range(10)):
        data = file(mode, **KINDS[kind], exif=exif(orientation, endian))
        assert read_orientation(data) == pillows(data) == (orientation if orientation in range(1, 9) else 1)
        assert read_orientation(memoryview(data), check_header(data)) == read_orientation(data)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_tiff_and_heif_are_turned_by_their_decoders(mode: str) -> None:
    assert read_orientation(file(mode, format="TIFF", exif=exif(6))) == 1
    assert read_orientation(heic(31, 20, 6)) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif(orientation: int) -> None:
    data = avif(31, 20, orientation)
    assert read_orientation(data) == pillows(data) == orientation


@pytest.mark.parametrize("kind", [*KINDS, "gif"])
@pytest.mark.parametrize("text", ['tiff:Orientation="6"', "<tiff:Orientation>6</", 'tiff:Orientation="9"', "nothing"])
@pytest.mark.parametrize("beside", [True, False])
def test_orientation_in_xmp(kind: str, text: str, beside: bool) -> None:
    """As in Pillow it counts where EXIF has none."""
    xmp: dict[str, Any] = {"xmp": text.encode()}
    if kind == "png":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", text)
        xmp = {"pnginfo": info}
    if kind == "gif":
        plain = file(format="GIF")
        at = plain.index(b"\x2c", 13)
        block = b"\x21\xff\x0bXMP DataXMP" + bytes([len(text)]) + text.encode() + b"\0"
        data = plain[:at] + block + plain[at:]
    else:
        data = file(**KINDS[kind], **xmp, **({"exif": exif(None)} if beside else {}))
        stated = file(**KINDS[kind], **xmp, exif=exif(3))
        assert read_orientation(stated) == pillows(stated) == 3
    assert read_orientation(data) == pillows(data)
    if kind != "gif":
        assert read_orientation(data) == (6 if "6" in text else 1)


@pytest.mark.slow
@given(
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 6, 8, 12, 255]) | st.integers(0, 255))),
    cut=st.none() | st.integers(0, 200),
    orientation=st.integers(0, 9),
    endian=st.sampled_from("<>"),
    extra=st.lists(
        st.tuples(
            st.sampled_from([0x010F, 0x0112, 0x011A]), st.integers(0, 20), st.integers(0, 9), st.integers(0, 2**32 - 1)
        )
    ),
)
def test_damaged_exif_is_read_as_pillow_does(
    damage: list[tuple[int, int]], cut: int | None, orientation: int, endian: str, extra: list[tuple[int, ...]]
) -> None:
    entries = [*extra, (0x0112, 3, 1, orientation << 16 if endian == ">" else orientation), (0x0131, 2, 9, 8)]
    magic = b"II*\0" if endian == "<" else b"MM\0*"
    body = bytearray(magic + struct.pack(endian + "LH", 8, len(entries)))
    for entry in entries:
        body += struct.pack(endian + "HHLL", *entry)
    body += bytes(12)
    for at, value in damage:
        body[at % len(body)] = value
    tiff = bytes(body[:cut])
    segment = b"\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff
    plain = file(format="JPEG")
    for data in (plain[:2] + segment + plain[2:], plain[:20] + segment + plain[20:]):
        assert read_orientation(data) == pillows(data)
    chunk = b"eXIf" + tiff
    png = file(format="PNG")
    at = png.index(b"IDAT") - 4
    data = png[:at] + struct.pack(">L", len(tiff)) + chunk + struct.pack(">L", zlib.crc32(chunk)) + png[at:]
    assert read_orientation(data) == pillows(data)


@given(st.binary(max_size=300), st.integers(2, 400))
def test_damaged_segments_give_some_orientation(noise: bytes, at: int) -> None:
    """Never an error, wherever the damage is; a decoder says what is wrong."""
    for kind in ("baseline", "png", "webp"):
        data = bytearray(file(**KINDS[kind], exif=exif(6)))
        data[at : at + len(noise)] = noise
        assert 1 <= read_orientation(bytes(data)) <= 8
        assert 1 <= read_orientation(bytes(data[:at])) <= 8


def test_exif_behind_other_segments_and_in_two() -> None:
    data = file(format="JPEG", exif=exif(6), icc_profile=bytes(70_000), comment=b"said")
    at = data.index(b"\xff\xe1")
    stop = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    segment, rest = data[at:stop], data[2:at] + data[stop:]
    last = rest.rindex(b"\xff\xda")
    late = data[:2] + rest[:last] + segment + rest[last:]
    assert read_orientation(late) == pillows(late) == 6
    assert read_orientation(late, check_header(late)) == 6
    twice = data[:2] + segment + segment + rest
    assert read_orientation(twice) == pillows(twice)


@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 9), st.data())
def test_boxes_of_the_upright_image(orientation: int, height: int, width: int, data: st.DataObject) -> None:
    stored = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    turned = upright(stored, orientation)
    tags = Image.Exif()
    tags[0x0112] = orientation
    rows, columns = turned.shape[:2]
    assert (rows, columns) == ((width, height) if swaps_sides(orientation) else (height, width))
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    box = top, left, data.draw(st.integers(1, rows - top)), data.draw(st.integers(1, columns - left))
    y, x, h, w = map_to_stored_box(box, orientation, rows, columns)
    np.testing.assert_array_equal(
        upright(stored[y : y + h, x : x + w], orientation), turned[top : top + box[2], left : left + box[3]]
    )
