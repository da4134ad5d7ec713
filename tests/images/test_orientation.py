"""Orientation by EXIF and TIFF: our readers and decoders beside Pillow's; boxes of upright images in stored ones."""

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

from packstore.images.decoders import get_decoder
from packstore.testing.encodings import picture
from tests.internals import (
    DecodeError,
    HeaderError,
    check_header,
    image_files,
    map_to_stored_box,
    read_annotation_orientation,
    read_orientation,
    sniff,
    swaps_sides,
    upright,
    upright_size,
)
from tests.internals import orientation as ours
from tests.makers.images import all_images, avif, encode, heic
from tests.makers.tiffs import LAYOUTS, ORIENTATION, SIZE, TURNS, XMP, Page, Tag, noise, oriented, tiff

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


def file(mode: str = "RGB", *, format: str, **options: Any) -> bytes:
    return encode(Image.fromarray(picture(20, 31)).convert(mode), format, **options)


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
    monkeypatch.setattr(ours, "_parse_with_pillow", asked)


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


LIMIT = 10**6


def xmp(kind: int, text: str) -> Tag:
    return XMP, kind, text.encode() + bytes(50)


UNUSUAL: dict[str, list[Tag]] = {
    "missing": [],
    "zero": [oriented(0)],
    "nine": [oriented(9)],
    **{f"type {kind}": [(ORIENTATION, kind, [6])] for kind in (1, 4, 6, 8, 9, 11, 12, 16)},
    "negative": [(ORIENTATION, 8, [-6])],
    "beyond 16 bits": [(ORIENTATION, 4, [65536 + 6])],
    "rational": [(ORIENTATION, 5, [6, 1])],
    "text": [(ORIENTATION, 2, b"6\0")],
    "bytes": [(ORIENTATION, 7, b"\6")],
    "two values": [(ORIENTATION, 3, [6, 3])],
    "nine values": [(ORIENTATION, 3, [6] * 9)],
    "twice": [oriented(6), oriented(3)],
    "twice, of two types": [(ORIENTATION, 4, [8]), oriented(3)],
    "twice, and one is bytes": [(ORIENTATION, 7, b"\6"), oriented(3)],
    "XMP": [xmp(1, '<x tiff:Orientation="6"/>')],
    "XMP of undefined type": [xmp(7, "<tiff:Orientation>8</tiff:Orientation>")],
    "XMP of nine": [xmp(1, '<x tiff:Orientation="9"/>')],
    "XMP without": [xmp(1, "<x/>")],
    "both": [oriented(3), xmp(1, '<x tiff:Orientation="6"/>')],
    "XMP, and a tag of bytes": [(ORIENTATION, 7, b"\3"), xmp(1, '<x tiff:Orientation="6"/>')],
}
"""Tags of files that no ordinary writer makes; versions of Pillow differ about some."""


def decode_with_pillow(data: bytes) -> Any:
    """Pillow's pixels."""
    return image_files.open_file(memoryview(data), LIMIT).pillow.load_frame(0, LIMIT, np.array)


@pytest.mark.filterwarnings("ignore:Metadata Warning")  # Pillow's, of several values
@pytest.mark.sampled(6, fast=3)
@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])  # Pillow lacks the fourth
def test_unusual_tags_are_as_pillow_has_them(name: str, order: str, big: bool) -> None:
    """In files that Pillow decodes, and in those that tifffile decodes alike."""
    pixels = noise(3)
    data = tiff(Page(pixels, UNUSUAL[name]), order=order, big=big)
    wanted = decode_with_pillow(data)
    info = check_header(data)
    assert (info.height, info.width) == wanted.shape[:2]
    np.testing.assert_array_equal(TURNS[read_annotation_orientation(data)](pixels), wanted)
    np.testing.assert_array_equal(get_decoder().decode(data), wanted)
    deep = tiff(Page(pixels.astype(np.uint16) * 257, UNUSUAL[name]), order=order, big=big)
    np.testing.assert_array_equal(image_files.decode(memoryview(deep), LIMIT)[0], wanted.astype(np.uint16) * 257)


@pytest.mark.slow
@pytest.mark.sampled(6, fast=3)
@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("behind", [False, True], ids=["values before pixels", "values behind"])
def test_a_part_of_a_file_gives_the_same_header_or_none(name: str, big: bool, behind: bool) -> None:
    """Readers first parse the beginning of a file."""
    tags = [(270, 2, b"a long description, whose end a part of the file may lack" * 3 + b"\0"), *UNUSUAL[name]]
    small, large = Page(noise(3)[:2, :3], tags), Page(noise(3))
    whole = tiff(small, *([large] if behind else []), big=big)
    expected, parsed = sniff(whole), 0
    for length in range(8, len(whole)):
        try:
            found = sniff(whole[:length])
        except HeaderError:
            continue
        parsed += 1
        assert found == expected
    assert parsed


@pytest.mark.parametrize("orientation", range(1, 9))
def test_headers_have_the_upright_size(orientation: int) -> None:
    for layout in LAYOUTS.values():
        data = layout.write(0, oriented(orientation))
        height, width = SIZE if orientation < 5 else SIZE[::-1]
        for info in (sniff(data), check_header(data)):
            assert (info.height, info.width, info.tiff_orientation) == (height, width, orientation)
            assert read_annotation_orientation(data, info) == read_annotation_orientation(data) == orientation
            assert read_orientation(data, info) == 1
        assert upright_size(data) == (width, height)


@pytest.mark.sampled(4, fast=2)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_page_is_turned_by_its_own_tag(layout: str, backwards: bool) -> None:
    """Also a page without the tag behind one with it, and if only a later page has one."""
    pytest.importorskip("tifffile")
    kind = LAYOUTS[layout]
    turns = [1, 6, 6, 1, 8, 3, 5, 2, 7, 4]
    pages = [kind.make(number) for number in range(len(turns))]
    pages = [
        page._replace(tags=[*page.tags, *([oriented(turn)] if turn > 1 else [])])
        for page, turn in zip(pages, turns, strict=True)
    ]
    data = tiff(*pages, order=kind.order, big=kind.big)
    assert (sniff(data).height, sniff(data).width) == SIZE
    reader = image_files.open_file(memoryview(data), LIMIT)
    for number in range(len(turns))[:: -1 if backwards else 1]:
        pixels, mode = reader.read_frame(number)
        assert mode.name == kind.mode
        np.testing.assert_array_equal(pixels, kind.pixels(number, turns[number]))


def test_orientation_of_annotations_in_other_kinds() -> None:
    """HEIF has the upright size in its header, as TIFF has, and no stored frame that an annotation might be in."""
    assert read_annotation_orientation(heic(31, 20, 6)) == 1
    assert read_annotation_orientation(avif(31, 20, 6)) == 6
    for data in all_images().values():
        assert read_annotation_orientation(data) == read_orientation(data) == 1
    whole = LAYOUTS["rgb8"].write(0, oriented(6))
    assert [read_annotation_orientation(data) for data in (whole[:20], b"II*\0", b"", b"text")] == [1, 1, 1, 1]


@pytest.mark.slow
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4), st.booleans())
def test_damaged_files_have_the_size_that_is_decoded(
    orientation: int, damage: list[tuple[int, int]], deep: bool
) -> None:
    data = bytearray(LAYOUTS["rgb16" if deep else "rgb8"].write(0, oriented(orientation)))
    start = data.index(bytes((0, 1, 4, 0)))  # the first entry, whose tag is 256
    for at, value in damage:
        data[start + at % (len(data) - start)] = value
    try:
        info = check_header(data)
        pixels, _ = image_files.decode(memoryview(bytes(data)), LIMIT)
    except (HeaderError, DecodeError):
        return
    assert pixels.shape[:2] == (info.height, info.width)
