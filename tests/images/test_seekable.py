"""The crop-seekable JPEG: rewritten without loss, cut without decoding the rest, and never wrong in silence."""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.core.errors import DecodeError, UsageError
from packstore.images.decoders import SCALED_TOLERANCE, UNAVAILABLE, Decoder, available_decoders, get_decoder
from packstore.images.encode.seekable import encode_seekable
from packstore.images.engine import get_engine
from packstore.images.resize import resize
from packstore.images.seekable import (
    CropPlan,
    NotSeekableError,
    add_index,
    check_index,
    choose_interval,
    frame_header,
    make_seekable,
    plan_crop,
    plan_crops,
    read_index,
    segments,
    splice,
)
from packstore.images.seekable.index import _HEAD, _OPENING, lengths
from packstore.images.seekable.markers import restart_interval
from packstore.images.seekable.transform import transform, transform_version
from tests.conftest import SharedData
from tests.makers.datasets import pixels
from tests.makers.jpegs import SAMPLING_FACTORS, boxes, cjpeg, cut, noisy
from tests.makers.seekable import files, forged, index_of, save, seekable, with_checksum

Need = Callable[[str, bool], None]


@pytest.fixture(scope="module", autouse=True)
def programs(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    need("jpegtran", shutil.which("jpegtran") is not None and shutil.which("cjpeg") is not None)


def decoders() -> list[Decoder]:
    return [get_decoder(name) for name, what in available_decoders().items() if not what.startswith(UNAVAILABLE)]


def spliced(data: bytes, box: tuple[int, int, int, int]) -> CropPlan | None:
    """What is cut out for a box; None where the whole image is to be decoded."""
    plan = plan_crop(index_of(data), box)
    return plan if plan.height and splice(data, index_of(data), plan) is not None else None


# Crops.


@pytest.mark.slow
@given(files())
def test_a_crop_has_the_pixels_of_the_whole(case: tuple[bytes, list[tuple[int, int, int, int]]]) -> None:
    data, wanted = case
    assert check_index(data) is None
    for decoder in decoders():
        whole = decoder.decode(data)
        for box in wanted:
            np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(whole, box))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampling", SAMPLING_FACTORS)
def test_every_small_box_is_spliced(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies; otherwise the tests above would compare whole images with themselves."""
    data = seekable(70, 100, sampling)
    decoder = get_decoder("pillow" if sampling in ("410", "chroma of two kinds") else "simplejpeg")
    whole = decoder.decode(data)
    monkeypatch.setattr(Decoder, "_decode", lambda *_: pytest.fail("the whole image was decoded"))
    shares = []
    for top in range(0, 70, 3):
        for left in range(0, 100, 3):
            box = (top, left, min(5, 70 - top), min(4, 100 - left))
            part = spliced(data, box)
            assert part is not None
            shares.append(part.height * part.width / whole.size * 3)
            np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(whole, box))
    assert np.mean(shares) < 0.5


def test_no_more_is_decoded_than_the_box_and_its_margin_need() -> None:
    for sampling, margin in (("444", 0), ("420", 1)):
        data = seekable(160, 320, sampling)
        mcu = 8 if sampling == "444" else 16
        part = spliced(data, (32, 64, 32, 32))
        assert part is not None
        assert (part.top, part.left) == (mcu * margin, mcu * margin)
        # To the right and below only as far as needed, within the last MCU that is.
        assert (part.height, part.width) == (32 + (mcu + 1) * margin, 32 + (mcu + 1) * margin)
    assert spliced(data, (0, 0, 160, 320)) is None


@pytest.mark.slow
@given(st.lists(files(), max_size=5), st.sampled_from([1, 20, 1 << 17]))
def test_many_are_planned_as_each_alone(
    cases: list[tuple[bytes, list[tuple[int, int, int, int]]]], segments_at_once: int
) -> None:
    pairs = [(data, box) for data, wanted in cases for box in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[plan_crops.__module__], "_AT_ONCE", segments_at_once)
        plans = plan_crops([index_of(data) for data, _ in pairs], np.array([box for _, box in pairs]).reshape(-1, 4))
    assert len(plans) == len(pairs)
    for together, (data, box) in zip(plans, pairs, strict=True):
        alone = plan_crop(index_of(data), box)
        assert together._replace(checked=None, ends=None) == alone._replace(checked=None, ends=None)
        np.testing.assert_array_equal(together.checked, alone.checked)
        np.testing.assert_array_equal(together.ends, alone.ends)


def test_a_box_outside_is_refused() -> None:
    data = seekable(40, 60)
    for box in ((0, 0, 41, 10), (-1, 0, 10, 10), (0, 55, 10, 10), (0, 0, 0, 10)):
        with pytest.raises(DecodeError, match=r"40 x 60 pixels, the box"):
            get_decoder("simplejpeg").decode_crop(data, box)


def test_the_limit_of_pixels_holds_for_crops() -> None:
    with pytest.raises(DecodeError, match="more than the limit"):
        get_decoder("simplejpeg", max_pixels=4000).decode_crop(seekable(80, 120), (0, 0, 10, 10))


def test_other_files_are_cropped_after_decoding() -> None:
    for data in (save(noisy(50, 70)), save(noisy(50, 70), progressive=True), seekable(50, 70)):
        for decoder in decoders():
            np.testing.assert_array_equal(
                decoder.decode_crop(data, (9, 11, 20, 30)), cut(decoder.decode(data), (9, 11, 20, 30))
            )


@pytest.mark.slow
@pytest.mark.parametrize("size", [(20_000, 40), (40, 20_000), (300, 20_000)])
def test_large_images(size: tuple[int, int]) -> None:
    """20,000 pixels a side; with 95,000 segments the index is in two parts, and markers are counted far."""
    image = np.tile(noisy(50, 50), (size[0] // 50 + 1, size[1] // 50 + 1, 1))[: size[0], : size[1]]
    data = add_index(save(image, quality=50, subsampling="4:4:4", restart_marker_blocks=1))
    parts = data.count(b"packstore\0")
    assert parts == (2 if size == (300, 20_000) else 1)
    assert check_index(data) is None
    decoder = get_decoder("simplejpeg")
    whole = decoder.decode(data)
    np.testing.assert_array_equal(whole, decoder.decode(save(image, quality=50, subsampling="4:4:4")))
    for top, left in ((0, 0), (size[0] - 20, size[1] - 30), (size[0] // 3, size[1] // 3)):
        box = (top, left, min(20, size[0] - top), min(30, size[1] - left))
        assert spliced(data, box) is not None
        np.testing.assert_array_equal(decoder.decode_crop(data, box), cut(whole, box))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_lengths_of_every_width(bits: int) -> None:
    """Segments longer than 255 bytes need more bits in the index."""
    width = {1: 24, 2: 64, 4: 240, 8: 2400}[bits]
    data = add_index(save(noisy(32, width), quality=90, subsampling="4:4:4", restart_marker_blocks=width // 8))
    assert index_of(data).high_bits == bits
    decoder = get_decoder("simplejpeg")
    assert spliced(data, (9, 3, 5, 5)) is not None
    np.testing.assert_array_equal(decoder.decode_crop(data, (9, 3, 5, 5)), decoder.decode(data)[9:14, 3:8])


# Rewriting.


@pytest.mark.parametrize("sampling", SAMPLING_FACTORS)
@pytest.mark.parametrize("options", [(), ("-progressive",), ("-restart", "3B"), ("-optimize", "-quality", "97")])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (61, 83), (120, 376)])
def test_rewriting_keeps_every_pixel(sampling: str, options: tuple[str, ...], size: tuple[int, int]) -> None:
    source = cjpeg(noisy(*size), sampling, *options)
    result = make_seekable(source)
    assert check_index(result) is None
    assert read_index(result) is not None
    np.testing.assert_array_equal(get_decoder("pillow").decode(result), get_decoder("pillow").decode(source))
    assert make_seekable(source) == result
    assert make_seekable(result) == result
    assert frame_header(result, segments(result)).sof in (0xC0, 0xC1)


def test_metadata_stays() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a cat"
    exif[0x0112] = 6
    icc = b"profile" * 30_000  # in several segments
    source = save(noisy(40, 50), exif=exif, icc_profile=icc, comment=b"said", dpi=(123, 45), progressive=True)
    result = make_seekable(source)
    with Image.open(io.BytesIO(source)) as before, Image.open(io.BytesIO(result)) as after:
        assert dict(after.getexif()) == dict(before.getexif())
        assert after.info["icc_profile"] == icc
        assert after.info["comment"] == b"said"
        assert after.info.get("dpi") == before.info.get("dpi")
        assert "progressive" not in after.info
    assert check_index(result) is None
    np.testing.assert_array_equal(
        get_decoder("auto").decode(result, exif_transpose=True), get_decoder("auto").decode(source, exif_transpose=True)
    )


def test_colours_stay_as_the_file_says() -> None:
    """RGB without a transform: the Adobe segment decides, and goes into every part."""
    ppm = b"P6 60 40 255\n" + noisy(40, 60).tobytes()
    source = subprocess.run(["cjpeg", "-rgb"], input=ppm, check=True, capture_output=True).stdout
    data = make_seekable(source)
    again = add_index(
        subprocess.run(["jpegtran", "-restart", "1B"], input=source, check=True, capture_output=True).stdout
    )
    for decoder in decoders():
        whole = decoder.decode(source)
        np.testing.assert_array_equal(decoder.decode(data), whole)
        assert spliced(again, (20, 20, 9, 9)) is not None
        np.testing.assert_array_equal(decoder.decode_crop(again, (20, 20, 9, 9)), whole[20:29, 20:29])


def test_what_follows_the_end_stays() -> None:
    result = make_seekable(save(noisy(40, 50)) + b"\0tail\xff")
    assert result.endswith(b"\xff\xd9\0tail\xff")
    assert check_index(result) is None
    assert index_of(result).scan_at + index_of(result).scan_bytes == len(result) - 6


def test_what_cannot_be_rewritten_says_why() -> None:
    ordinary = save(noisy(60, 80))
    progressive = save(noisy(60, 80), progressive=True)
    last_scan = progressive.rfind(b"\xff\xda")
    mpf = ordinary[:2] + b"\xff\xe2\0\x08MPF\0xx" + ordinary[2:]
    arithmetic = subprocess.run(["jpegtran", "-arithmetic"], input=ordinary, check=True, capture_output=True).stdout
    frame = ordinary.index(b"\xff\xc0")
    twelve = ordinary[: frame + 4] + b"\x0c" + ordinary[frame + 5 :]
    lossless = ordinary[: frame + 1] + b"\xc3" + ordinary[frame + 2 :]
    cases = {
        "has 4 colour components": save(Image.new("CMYK", (30, 20))),
        "arithmetic coding": arithmetic,
        "12 bits": twelve,
        "lossless": lossless,
        "several images": mpf,
        "lacks scans": progressive[:last_scan] + b"\xff\xd9",
        "is damaged: ": ordinary[: len(ordinary) // 2] + b"\xff\xd9",
        "is not a JPEG": b"\x89PNG",
        "no marker": b"\xff\xd8\xff",
    }
    for reason, data in cases.items():
        with pytest.raises(NotSeekableError, match=reason):
            make_seekable(data)


def test_without_jpegtran_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", "")
    assert transform_version() is None
    rgb = save(noisy(20, 30), keep_rgb=True)
    if get_engine() is not None:
        assert check_index(make_seekable(save(noisy(20, 30)))) is None
        with pytest.raises(NotSeekableError, match="takes the program jpegtran"):
            make_seekable(rgb)
    monkeypatch.setattr("packstore.images.engine.native._library", lambda: (None, "not compiled"))
    with pytest.raises(UsageError, match="apt install libjpeg-turbo-progs"):
        make_seekable(save(noisy(20, 30)))


@pytest.mark.parametrize("name", ["/nonexistent/libturbojpeg.so.0", "libc.so.6"])
def test_a_library_that_was_asked_for_and_does_not_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", name)
    with pytest.raises(UsageError, match=f"PACKSTORE_TURBOJPEG names .*{name}"):
        make_seekable(save(noisy(20, 30), keep_rgb=True))


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> str:
    """The name of TurboJPEG's library, of a version that transforms with restart markers."""
    need: Need = request.getfixturevalue("need")
    name = os.environ.get("PACKSTORE_TURBOJPEG") or "libturbojpeg.so.0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKSTORE_TURBOJPEG", name)
        try:
            found = "tj3Transform" in str(transform_version())
        except UsageError:
            found = False
        need("libturbojpeg 3.1", found)
    return name


def by(name: str, function: Callable[[], bytes]) -> bytes:
    """What ``function`` gives with a library, or with the program for an empty name; and without the engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKSTORE_TURBOJPEG", name)
        patch.setattr("packstore.images.seekable.rewrite.get_engine", lambda: None)
        return function()


@given(case=files(), tail=st.binary(max_size=5))
def test_the_library_does_what_the_program_does(
    library: str, case: tuple[bytes, list[tuple[int, int, int, int]]], tail: bytes
) -> None:
    data = case[0] + tail
    made = by(library, lambda: transform(data, 3))
    assert made == by("", lambda: transform(data, 3))
    assert restart_interval(made, segments(made)) == 3


def test_the_library_and_real_files(library: str, shared_data: SharedData) -> None:
    for path in sorted((shared_data / "imagenet-600").rglob("*.*"))[::12]:
        data = path.read_bytes()
        assert by(library, lambda d=data: make_seekable(d)) == by("", lambda d=data: make_seekable(d))  # type: ignore[misc]


def test_the_library_refuses_what_the_program_refuses(library: str) -> None:
    data = save(noisy(60, 80))
    for damaged in (data[: len(data) // 2] + b"\xff\xd9", data[:-400] + data[-30:], b"\xff\xd8\xff\xd9"):
        for name in (library, ""):
            with pytest.raises(NotSeekableError, match="is damaged: "):
                by(name, lambda d=damaged: transform(d, 1))  # type: ignore[misc]


@pytest.mark.slow
def test_intervals_divide_rows_and_follow_the_price() -> None:
    for sampling in SAMPLING_FACTORS:
        whole = cjpeg(noisy(375, 500), sampling)
        frame = frame_header(whole, segments(whole))
        columns = frame.mcus[1]
        chosen = [choose_interval(frame, nbytes) for nbytes in (1000, 20_000, 100_000, 10_000_000)]
        assert all(columns % interval == 0 for interval in chosen)
        assert chosen == sorted(chosen, reverse=True)  # what costs nothing is cut finely
        assert chosen[-1] == 1
        assert chosen[0] == columns
    prime = frame_header(data := cjpeg(noisy(100, 8 * 47), "444"), segments(data))
    assert choose_interval(prime, 20_000) == 47


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 1), (1, 300), (224, 224), (256, 341)])
@pytest.mark.parametrize("quality", [50, 90, 100])
def test_pixels_are_encoded_by_pillow(size: tuple[int, int], quality: int) -> None:
    image = pixels(*size, seed=3)
    data = encode_seekable(image, quality)
    assert check_index(data) is None
    assert read_index(data) is not None
    found = get_decoder("pillow").decode(data)
    np.testing.assert_array_equal(
        found, get_decoder("pillow").decode(save(image, quality=quality, subsampling="4:2:0"))
    )
    frame = frame_header(data, segments(data))
    assert frame.mcus[1] % restart_interval(data, segments(data)) == 0
    assert encode_seekable(image, quality) == data


# Damage.


@functools.cache
def whole_sample() -> bytes:
    return seekable(64, 96, "420")


@pytest.fixture
def sample() -> bytes:
    return whole_sample()


@given(st.data())
def test_a_damaged_file_is_never_wrong_in_silence(data: st.DataObject) -> None:
    """Where the whole file is flawless, a crop of it is that of the whole file: also when somebody has forged the
    index. (Of a file that is damaged elsewhere, a crop may be right where the whole file cannot be.)"""
    sample = whole_sample()
    broken = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of it before the scan, where the index is.
        limit = data.draw(st.sampled_from([index_of(sample).scan_at, len(broken)]))
        at = data.draw(st.integers(2, limit - 1))
        if data.draw(st.booleans()):
            broken[at] = data.draw(st.integers(0, 255))
        else:
            del broken[at : at + data.draw(st.integers(1, 4))]
    damaged = with_checksum(bytes(broken)) if data.draw(st.booleans()) else bytes(broken)
    box = data.draw(boxes(64, 96))
    try:
        whole = simplejpeg.decode_jpeg(damaged, strict=True)
    except ValueError:
        whole = None
    try:
        crop = get_decoder("simplejpeg").decode_crop(damaged, box)
    except DecodeError:
        assert whole is None or whole.shape != (64, 96, 3)
    else:
        assert whole is None or np.array_equal(crop, cut(whole, box))


def test_every_byte_of_the_index_counts(sample: bytes) -> None:
    start = sample.index(b"packstore\0") - 4
    stop = start + 2 + int.from_bytes(sample[start + 2 : start + 4], "big")
    for at in range(start, stop):
        broken = sample[:at] + bytes([sample[at] ^ 1]) + sample[at + 1 :]
        assert read_index(broken) is None, at
    for at in range(index_of(sample).tables_at, index_of(sample).scan_at):
        assert read_index(sample[:at] + bytes([sample[at] ^ 1]) + sample[at + 1 :]) is None, at


def test_forged_boundaries_are_seen(sample: bytes) -> None:
    def shifted(low: NDArray[np.uint8], head: list[int]) -> None:
        low[7] += 1
        low[8] -= 1

    def swapped(low: NDArray[np.uint8], head: list[int]) -> None:
        low[[7, 8]] = low[[8, 7]]

    assert forged(sample, lambda low, head: None) == sample
    decoder = get_decoder("simplejpeg")
    whole = decoder.decode(sample)
    for change in (shifted, swapped):
        data = forged(sample, change)
        assert plan_crop(index_of(data), (20, 20, 10, 40)).height
        assert spliced(data, (20, 20, 10, 40)) is None
        np.testing.assert_array_equal(decoder.decode_crop(data, (20, 20, 10, 40)), whole[20:30, 20:60])
        assert "does not match" in str(check_index(data))


def test_every_forged_boundary_that_a_crop_uses_is_seen(sample: bytes) -> None:
    decoder, box = get_decoder("simplejpeg"), (20, 20, 10, 40)
    whole = cut(decoder.decode(sample), box)
    index, plan = index_of(sample), plan_crop(index_of(sample), box)
    ends = index.scan_at + np.cumsum(lengths([index]))
    for at, end in enumerate(ends[:-1].tolist()):

        def shifted(low: NDArray[np.uint8], head: list[int], at: int = at) -> None:
            low[at] += 1
            low[at + 1] -= 1

        data = forged(sample, shifted)
        used = any(start <= end <= stop for start, stop in zip(plan.starts, plan.stops, strict=True))
        assert (spliced(data, box) is None) == (used or at % 8 == 7), at
        np.testing.assert_array_equal(decoder.decode_crop(data, box), whole)


def shares(total: int, count: int) -> list[int]:
    return [total * (n + 1) // count - total * n // count for n in range(count)]


@pytest.mark.parametrize("fill", ["no markers", "one marker nine times"])
def test_a_forged_index_that_passes_over_eight_markers_is_seen(fill: str) -> None:
    """After which all markers have the numbers that they should have."""
    flat = np.full((160, 320, 3), 90, np.uint8)
    flat[::16, ::16] = 130
    data, box = add_index(save(flat, quality=40, restart_marker_blocks=1)), (70, 100, 40, 60)

    def merged(low: NDArray[np.uint8], head: list[int]) -> None:
        each = low.tolist()
        assert sum(each[:9]) < 256
        rest = [sum(each[:9]), *each[9:]]
        after = 176  # beyond the box
        if fill == "no markers":
            low[:] = [*rest[:after], *shares(sum(rest[after:]), len(rest) - after + 8)]
        else:
            low[:] = [*rest[:after], *[0] * 8, *rest[after:]]

    fake = forged(data, merged)
    index = index_of(fake)
    assert lengths([index]).sum() == index.scan_bytes
    assert spliced(data, box) is not None
    assert spliced(fake, box) is None
    decoder = get_decoder("simplejpeg")
    np.testing.assert_array_equal(decoder.decode_crop(fake, box), cut(decoder.decode(data), box))


@pytest.mark.parametrize("field", range(3, 15))
def test_a_forged_geometry_is_seen_at_once(sample: bytes, field: int) -> None:
    for by in (1, -1):

        def change(low: NDArray[np.uint8], head: list[int], by: int = by) -> None:
            head[field] = abs(head[field] + by)

        assert read_index(forged(sample, change)) is None


@pytest.mark.parametrize("factors", [0x00, 0x02, 0x20, 0x55, 0xFF])
def test_impossible_sampling_factors_are_no_index(sample: bytes, factors: int) -> None:
    at = index_of(sample).tables_at + index_of(sample).frame_at + 11
    data = sample[:at] + bytes([factors]) + sample[at + 1 :]
    start = data.index(b"packstore\0") - 4 + _OPENING.size
    head = list(_HEAD.unpack_from(data, start))
    for mcu in (0, 8, 16, 40):
        head[11] = head[12] = mcu
        assert read_index(with_checksum(data[:start] + _HEAD.pack(*head) + data[start + _HEAD.size :])) is None


def test_files_without_an_index_pass_its_check(sample: bytes) -> None:
    assert check_index(sample) is None
    assert check_index(save(noisy(20, 20))) is None
    assert check_index(b"\x89PNG") is None


def test_a_file_changed_by_other_programs_is_decoded_whole(sample: bytes) -> None:
    """They copy the index and rewrite the scan."""
    turned = subprocess.run(
        ["jpegtran", "-copy", "all", "-rotate", "180"], input=sample, check=True, capture_output=True
    )
    data = turned.stdout
    assert b"packstore\0" in data
    assert read_index(data) is None
    assert "does not match" in str(check_index(data))
    decoder = get_decoder("auto")
    np.testing.assert_array_equal(decoder.decode_crop(data, (3, 4, 30, 40)), decoder.decode(data)[3:33, 4:44])
    assert check_index(make_seekable(data)) is None
    assert make_seekable(data).count(b"packstore\0") == 1


@given(st.binary(max_size=300), st.integers(0, 40))
def test_anything_is_read_without_an_index(data: bytes, start: int) -> None:
    sample = seekable_head()
    for candidate in (data, sample[:start] + data, sample[: start + 20] + data):
        assert read_index(candidate) is None


def seekable_head() -> bytes:
    return b"\xff\xd8\xff\xeb\0\x40packstore\0\x01\0\x01" + bytes(40)


# Scaling.


@pytest.mark.slow
def test_scaled_crops_are_near(shared_data: SharedData) -> None:
    files = sorted((shared_data / "imagenet-600").rglob("*.*"))[::25]
    for decoder in decoders():
        scales = decoder.name in ("engine", "turbojpeg", "simplejpeg", "opencv")
        means = []
        for path in files:
            data = path.read_bytes()
            whole = decoder.decode(data)
            height, width = (side * 3 // 4 // 8 * 8 for side in whole.shape[:2])
            box = 12, 16, height, width
            for version in (data, make_seekable(data)):
                for shrink in (2, 4):
                    target = height // shrink, width // shrink
                    crop = decoder.decode_crop(version, box, target=target)
                    assert crop.shape[:2] == (target if scales else (height, width))
                    wanted = resize(np.ascontiguousarray(cut(whole, box)), *target)
                    found = resize(np.ascontiguousarray(crop), *target)
                    means.append(float(np.abs(found.astype(np.int16) - wanted).mean()))
        assert max(means) <= (SCALED_TOLERANCE if scales else 0)
        assert np.mean(means) <= 3.5


def test_nothing_is_scaled_unless_it_is_twice_the_target() -> None:
    data = seekable(100, 140)
    assert get_decoder("simplejpeg").decode_crop(data, (0, 0, 80, 90), target=(41, 41)).shape == (80, 90, 3)
    assert get_decoder("simplejpeg").decode_crop(data, (0, 0, 80, 90), target=(40, 45)).shape == (40, 45, 3)


# Real files.


@pytest.mark.slow
def test_real_images(shared_data: SharedData) -> None:
    """No pixel changes, crops are exact, and the files grow by 1.5% at most, all together."""
    before = after = 0
    rng = np.random.default_rng(5)
    for path in sorted((shared_data / "imagenet-600").rglob("*.*"))[::6]:
        source = path.read_bytes()
        data = make_seekable(source)
        before, after = before + len(source), after + len(data)
        whole = simplejpeg.decode_jpeg(source, strict=True)
        np.testing.assert_array_equal(get_decoder("auto").decode(data), whole)
        for _ in range(3):
            height, width = (int(rng.integers(1, side + 1)) for side in whole.shape[:2])
            box = int(rng.integers(whole.shape[0] - height + 1)), int(rng.integers(whole.shape[1] - width + 1))
            crop = get_decoder("auto").decode_crop(data, (*box, height, width))
            np.testing.assert_array_equal(crop, cut(whole, (*box, height, width)))
    assert after <= 1.015 * before
