"""What an image is, by its content: against Pillow for whole files, and against truncation for all others."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packstore import convert
from packstore.images.engine import is_plain_jpeg
from tests.conftest import SharedData
from tests.internals import HeaderError, ImageInfo, check_header, jpeg_headers, sniff, tiff_directory
from tests.makers.images import HEIGHT, WIDTH, all_images, encode, picture

NAMES = tuple(all_images())
EOI = b"\xff\xd9"


def reason(data: bytes) -> str:
    with pytest.raises(HeaderError) as caught:
        check_header(data)
    assert str(caught.value) == caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize("name", NAMES)
def test_kind_and_size_are_told(name: str) -> None:
    data = all_images()[name]
    info = check_header(data)
    assert (info.kind, info.width, info.height) == (name.partition("-")[0], WIDTH, HEIGHT)
    assert sniff(data) == info == check_header(memoryview(data)) == sniff(bytearray(data))
    with Image.open(io.BytesIO(data)) as image:
        assert (info.width, info.height) == image.size


@pytest.mark.parametrize(
    ("name", "components", "precision"),
    [
        ("jpeg-420", 3, 8),
        ("jpeg-gray", 1, 8),
        ("jpeg-cmyk", 4, 8),
        ("png-rgba", 4, 8),
        ("png-gray-alpha", 2, 8),
        ("png-16", 1, 16),
        ("png-palette", 1, 8),
        ("png-bits", 1, 1),
        ("bmp-24", 3, 8),
        ("bmp-32", 4, 8),
        ("bmp-1", 1, 1),
        ("webp-lossy", 3, 8),
        ("webp-alpha", 4, 8),
        ("tiff", 3, 8),
        ("tiff-16", 1, 16),
        ("tiff-bits", 1, 1),
        ("pnm-p6", 3, 8),
        ("pnm-p5-16", 1, 16),
        ("pnm-p4", 1, 1),
    ],
)
def test_components_and_precision(name: str, components: int, precision: int) -> None:
    info = sniff(all_images()[name])
    assert (info.components, info.precision) == (components, precision)


def test_what_a_jpeg_decoder_must_know() -> None:
    images = all_images()
    assert sniff(images["jpeg-progressive"]).progressive
    assert sniff(images["jpeg-progressive"]).sof == 0xC2
    assert not sniff(images["jpeg-420"]).progressive
    assert sniff(images["jpeg-420"]).sof == 0xC0
    assert sniff(images["jpeg-420"]).adobe is None
    assert sniff(images["jpeg-cmyk"]).adobe == 0


@pytest.mark.parametrize("name", NAMES)
def test_bytes_after_the_end_are_allowed(name: str) -> None:
    data = all_images()[name]
    for tail in (b"\0", b"\0" * 1000, b"<html>", b"\xff"):
        assert check_header(data + tail) == check_header(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_told_wherever_it_is_cut(name: str) -> None:
    data = all_images()[name]
    # In text, a last value that loses a digit is still a value: there the cut begins before it.
    end = len(data.rstrip()) - 3 if name in ("pnm-p2", "pnm-p3") else len(data.rstrip(b"\n"))
    for length in [*range(min(64, end)), *range(64, end, 7), end - 2, end - 1]:
        text = reason(data[:length])
        assert "truncated" in text or "empty" in text or "not an image" in text, (length, text)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_filled_up_with_zeros_is_told(name: str) -> None:
    """What a download that was cut off leaves when the space was reserved: the size is right."""
    if name.startswith(("bmp", "tiff", "pnm", "webp")):
        return  # formats that have no end that could be missing: the size is all that they say
    data = all_images()[name]
    assert reason(data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2))


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image() -> None:
    data = all_images()["jpeg-exif"]
    assert data.count(EOI) == 2
    thumbnail_end = data.index(EOI) + 2
    assert "truncated" in reason(data[:thumbnail_end])
    assert reason(data[:-2]) == "is truncated: no end-of-image marker"
    assert "truncated" in reason(data[: data.index(b"\xff\xda", thumbnail_end) + 40])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b"\0" * 100, "is not an image (begins with b'\\x00"),
        (b"<html><body>404", "is not an image (begins with b'<html><b')"),
        (b"\xff\xd8\xff", "is truncated"),
        (b"\xff\xd8\xff\xd9", "before any scan"),
        (b"\xff\xd8\xff\xd8", "a second start"),
        (b"\xff\xd8\xff\xdb\0\1", "a JPEG segment of 1 bytes"),
        (b"\xff\xd8\xff\xda\0\2\xff\xd9", "without a frame header"),
        (b"\xff\xd8\xff\xc0\0\x0b\x08\0\0\0\x10\x01\1\x11\0\xff\xda\0\2\xff\xd9", "has no pixels"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDX" + b"\0" * 20, "is damaged: a PNG that begins with b'IHDX'"),
        (b"GIF89a\1\0\1\0\0\0\0;", "a GIF without any image"),
        (b"GIF89a\1\0\1\0\0\0\0!\xfe\0\x99", "a block of unknown kind 0x99"),
        (b"GIF89a\0\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\0;", "has no pixels"),
        (b"RIFF\4\0\0\0WAVEdata\0\0\0\0", "is not an image (a RIFF file of kind b'WAVE')"),
        (b"BMX, and other text that begins so", "is not an image (begins with b'BM'"),
        (b"P5 and so on and so forth, a text", "has no netpbm header"),
        (b"P5 3 3 0\n" + b"\0" * 9, "the maximum 0"),
        (b"P6 0 3 255\n" + b"\0" * 9, "has no pixels"),
        (b"II*\0\x08\0\0\0\0\0\0\0\0\0", "a TIFF without width and height"),
    ],
)
def test_what_is_no_image_and_why(data: bytes, expected: str) -> None:
    assert expected in reason(data)


def test_messages_carry_both_numbers() -> None:
    webp = all_images()["webp-lossy"]
    assert reason(webp[:-4]) == f"is truncated: RIFF says {len(webp)} bytes, the file has {len(webp) - 4}"
    assert reason(all_images()["png-rgb"][:-12]) == "is truncated: PNG without IEND"
    assert reason(all_images()["gif"][:-1]) == "is truncated: GIF without trailer"


def tiff_of(*entries: tuple[int, int, int, int], tail: bytes = b"") -> bytes:
    """A TIFF of directory entries (tag, type, count, value or offset) and what follows them."""
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + directory + bytes(4) + tail


@pytest.mark.parametrize("tag", [347, 700, 34665, 65000])
@pytest.mark.parametrize(("kind", "count"), [(7, 5), (2, 5), (5, 1), (12, 1), (18, 1), (9, 2), (7, 0xFFFFFFFF)])
def test_values_on_which_the_pixels_of_a_tiff_depend_lie_in_the_file(tag: int, kind: int, count: int) -> None:
    """347 has the tables of JPEG, the others are metadata."""
    size = ((256, 4, 1, 1), (257, 4, 1, 1), (273, 4, 1, 8), (279, 4, 1, 1))
    end = len(tiff_of(*size, (tag, kind, count, 0)))
    whole = tiff_of(*size, (tag, kind, count, end), tail=bytes(8))
    if count < 10:
        assert check_header(whole).width == 1
    if tag == 347:
        assert "TIFF values end at byte" in reason(whole[: end + 4])
    else:
        assert check_header(whole[: end + 4]).width == 1
    assert sniff(whole).width == 1


@pytest.mark.slow
def test_a_tiff_that_names_its_strips_again_and_again_has_them_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, entries = 100_000, 20_000
    start = len(tiff_of(*[(0, 0, 0, 0)] * (entries + 3)))
    strips = [(273, 4, count, start)] * entries
    data = tiff_of((256, 4, 1, 1), (257, 4, 1, 1), *strips, (279, 4, count, start), tail=bytes(4 * count))
    read = Mock(side_effect=tiff_directory._read_numbers)
    monkeypatch.setattr(tiff_directory, "_read_numbers", read)
    assert check_header(data).width == 1
    assert read.call_count == 2  # where the strips lie, and how long they are


def test_the_first_of_two_equal_tags_of_a_tiff_counts() -> None:
    assert sniff(tiff_of((256, 4, 1, 3), (256, 4, 1, 7), (257, 3, 1, 2)))[1:3] == (3, 2)


def test_strips_beyond_64_bits() -> None:
    data = bytearray(all_images()["tiff-big"])
    if data[2] != 43:
        pytest.skip("this Pillow writes no BigTIFF")
    at, count = (
        struct.unpack_from("<Q", data, 8)[0],
        struct.unpack_from("<Q", data, struct.unpack_from("<Q", data, 8)[0])[0],
    )
    for entry in range(at + 8, at + 8 + 20 * count, 20):
        if struct.unpack_from("<H", data, entry)[0] in (273, 279):
            struct.pack_into("<HQQ", data, entry + 2, 16, 1, (1 << 64) - 1)
    assert f"TIFF pixels end at byte {2 * ((1 << 64) - 1)}" in reason(bytes(data))


def test_a_bigtiff_of_more_tags_than_there_can_be() -> None:
    head = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 70_000)
    assert "a TIFF directory of 70000 entries" in reason(head + bytes(20 * 70_000))


def test_bmp_may_have_its_rows_from_the_top() -> None:
    data = bytearray(all_images()["bmp-24"])
    data[22:26] = struct.pack("<i", -HEIGHT)
    assert check_header(data) == check_header(all_images()["bmp-24"])


def test_jpeg_fill_bytes_and_stray_bytes_are_skipped_as_libjpeg_does() -> None:
    data = all_images()["jpeg-420"]
    plain = check_header(data)
    assert check_header(data[:2] + b"\xff\xff\xff" + data[2:]) == plain
    at = data.index(b"\xff\xdb")
    for stray in (b"\0\0\0", b"abc", b"\xff\x00"):
        padded = data[:at] + stray + data[at:]
        assert check_header(padded) == plain


@pytest.mark.slow
def test_real_files_pass(shared_data: SharedData) -> None:
    folder = shared_data / "imagenet-600"
    kinds: set[str] = set()
    for path in folder.rglob("*.JPEG"):
        data = path.read_bytes()
        info = check_header(data)
        kinds.add(info.kind)
        with Image.open(path) as image:
            assert image.size == (info.width, info.height)
            assert {"L": 1, "RGB": 3, "CMYK": 4, "RGBA": 4}[image.mode] == info.components
        assert reason(data[: len(data) // 2])
    assert "jpeg" in kinds


def accept_or_refuse(data: bytes) -> None:
    """Whatever the bytes, there is an answer or a :class:`HeaderError`, and the check never accepts more."""
    header, whole = outcome(sniff, data), outcome(check_header, data)
    if isinstance(header, str):
        assert header
        assert "\n" not in header
        assert isinstance(whole, str)
    else:
        assert header.width > 0
        assert header.height > 0
        assert isinstance(whole, str) or whole == header


def outcome(look: Callable[[bytes], ImageInfo], data: bytes) -> ImageInfo | str:
    try:
        return look(data)
    except HeaderError as error:
        return error.reason


@given(
    name=st.sampled_from([name for name in NAMES if name.startswith("jpeg")]),
    changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=3),
    stop=st.integers(1, 2000),
)
def test_a_header_that_was_seen_before_says_the_same(name: str, changes: list[tuple[int, int]], stop: int) -> None:
    data = all_images()[name]
    other = bytearray(data[:stop])
    for at, value in changes:
        other[at % len(other)] = value
    for look in (sniff, check_header):
        jpeg_headers._latest = None
        expected = outcome(look, bytes(other))
        sniff(data)
        assert outcome(look, bytes(other)) == expected


@given(
    name=st.sampled_from([name for name in NAMES if name.startswith("jpeg")]),
    changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=3),
    stop=st.integers(1, 2000),
    max_pixels=st.sampled_from([HEIGHT * WIDTH, HEIGHT * WIDTH - 1]),
)
def test_a_plain_jpeg_passes_the_check_and_has_nothing_to_note(
    name: str, changes: list[tuple[int, int]], stop: int, max_pixels: int
) -> None:
    data = bytearray(all_images()[name])
    for at, value in changes:
        data[at % len(data)] = value
    for each in (bytes(data), bytes(data[:stop]), bytes(data[:stop]) + EOI):
        info = outcome(check_header, each)
        plain = (
            isinstance(info, ImageInfo)
            and (info.kind, info.components, info.precision, info.app1_at) == ("jpeg", 3, 8, 0)
            and info.width * info.height <= max_pixels
        )
        assert plain or not is_plain_jpeg(each, max_pixels)


def test_usual_jpegs_are_plain() -> None:
    data = all_images()["jpeg-420"]
    assert is_plain_jpeg(data, HEIGHT * WIDTH)
    assert not is_plain_jpeg(data, HEIGHT * WIDTH - 1)
    assert not is_plain_jpeg(data[:2] + b"\xff\xe1\x00\x04ab" + data[2:], HEIGHT * WIDTH)
    assert not is_plain_jpeg(data[:-2], HEIGHT * WIDTH)
    assert not is_plain_jpeg(all_images()["jpeg-gray"], HEIGHT * WIDTH)


def test_a_header_with_two_frames_is_not_one_that_was_seen() -> None:
    """The second is so short that its width ends behind it, in the bytes of the scan."""
    data = all_images()["jpeg-420"]
    at = data.index(b"\xff\xda")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    short = data[:at] + b"\xff\xc0\x00\x02" + b"\xff\xda\x00\x02"
    scan = data[at + 2 + length :]
    for behind in (3, 5):
        info = sniff(short + bytes([behind]) + scan)
        assert info.width == 2 << 8 | behind


def test_a_scan_header_that_is_too_short_is_not_one_that_was_seen() -> None:
    """What it should hold lies behind it, in other bytes each time."""
    data = all_images()["jpeg-420"]
    short = data[: data.index(b"\xff\xda")] + b"\xff\xda\x00\x02"
    for rest in (b"\x03rest\xff\xd9", b"\x01rest\xff\xd9", b"\x03\xff\xd9"):
        assert sniff(short + rest) == sniff(data)


@given(
    start=st.sampled_from([data[:n] for data in all_images().values() for n in (2, 3, 8, 12, 30)]),
    rest=st.binary(max_size=200),
)
def test_any_bytes_behind_any_beginning(start: bytes, rest: bytes) -> None:
    accept_or_refuse(start + rest)


@given(data=st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    accept_or_refuse(data)


@given(
    name=st.sampled_from(NAMES),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    header=st.lists(st.tuples(st.integers(0, 79), st.sampled_from([0, 1, 127, 128, 255])), max_size=4),
    stop=st.one_of(st.none(), st.floats(0, 1)),
)
def test_damaged_files(
    name: str, changes: list[tuple[float, int]], header: list[tuple[int, int]], stop: float | None
) -> None:
    data = bytearray(all_images()[name])
    for where, value in changes:
        data[int(where * len(data))] = value
    for at, value in header:
        data[at] = value
    accept_or_refuse(bytes(data if stop is None else data[: int(stop * len(data))]))


@given(width=st.integers(1, 70), height=st.integers(1, 70), kind=st.sampled_from(["JPEG", "PNG", "BMP", "WEBP", "PPM"]))
def test_any_size(width: int, height: int, kind: str) -> None:
    info = check_header(encode(picture(width=width, height=height), kind))
    assert (info.width, info.height, info.components) == (width, height, 3)


@pytest.mark.slow
def test_a_kind_is_imported_at_its_first_file(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "images" / "a" / f"{number}.jpg").write_bytes(all_images()["jpeg-420"])
    convert(tmp_path / "images", tmp_path / "x.lmdb")
    code = """
import sys, packstore
def kinds():
    return {name.rpartition(".")[2] for name in sys.modules if name.startswith("packstore.images.kinds.")}
packstore.verify(sys.argv[1])
assert not kinds(), kinds()
next(iter(packstore.PackedLoader(packstore.PackedDataset(sys.argv[1]), 4, augment=[packstore.augment.CenterCrop(4)])))
assert kinds() == {"base", "jpeg"}, kinds()
from packstore.images.sniff import sniff
assert sniff(bytes.fromhex(sys.argv[2])).kind == "gif"
assert kinds() == {"base", "jpeg", "by_pillow"}, kinds()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "x.lmdb", all_images()["gif"].hex()], check=True)
