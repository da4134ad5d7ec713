"""Samples to records: each encoding, what passes through, what is refused, and how records are compared again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.images.decoders import available_decoders, get_decoder
from tests.conftest import SharedData
from tests.internals import (
    NORMALIZATIONS,
    NUMPY_DTYPE,
    Column,
    DatasetStatistics,
    EncodeOptions,
    Encoder,
    Normalization,
    SampleError,
    UsageError,
    cast_floats,
    encode_jpeg,
    normalization_tables,
    normalize,
    parse_normalization,
    parse_size,
    resize_to_fit,
    shrink_to_limits,
    to_float32,
    worst_patch,
)
from tests.makers.datasets import pixels
from tests.makers.images import all_images, encode

FLOAT_ENCODINGS = ("float16", "bfloat16", "float32")
IMAGENET = NORMALIZATIONS["imagenet"]
TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def file(height: int, width: int, seed: int = 1, kind: str = "JPEG", **options: Any) -> bytes:
    return encode(Image.fromarray(pixels(height, width, seed)), kind, **options)


def decoded(data: bytes) -> NDArray[np.uint8]:
    return get_decoder("pillow").decode(data)


def array(record: Any, encoding: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(record, NUMPY_DTYPE[encoding]).reshape(shape)


def normalized(image: NDArray[np.uint8], normalization: Normalization | None) -> torch.Tensor:
    """ToTensor and Normalize of torchvision, in float32."""
    values = torch.from_numpy(image.copy()).permute(2, 0, 1).to(torch.float32).div(255)
    if normalization is None:
        return values
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (normalization.mean, normalization.std))
    return values.sub(mean).div(std)


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"encoding": "png"},
            "encoding should be one of original, jpeg, uint8, uint16, int16, int32, float16, bfloat16, float32, "
            "got 'png'",
        ),
        ({"encoding": 5}, "encoding should be one of"),
        ({"fit": ["crop"]}, "fit should be one of"),
        ({"encoding": "uint8", "size": "224"}, r"size should be a whole number from 1 to 65535, or \(height, width\)"),
        ({"encoding": "uint8", "size": ("4", 4)}, "size should be a whole number from 1 to 65535, got '4'"),
        ({"encoding": "uint8", "size": True}, "size should be a whole number"),
        ({"encoding": "uint8", "size": 65535}, "at most 178956970 pixels, got 65535 x 65535"),
        ({"encoding": "jpeg", "resize": 1.5}, "resize should be a whole number"),
        ({"encoding": "jpeg", "max_side": "9"}, "max-side should be a whole number"),
        ({"encoding": "jpeg", "quality": "80"}, "quality should be a whole number from 1 to 100, got '80'"),
        ({"encoding": "jpeg", "quality": None}, "quality should be a whole number"),
        ({"encoding": "jpeg", "exif_transpose": "yes"}, "exif-transpose should be True or False, got 'yes'"),
        ({"encoding": "float16", "normalization": "imagenet"}, "should be a Normalization or None, got 'imagenet'"),
        ({"encoding": "uint8", "fit": "zoom"}, "fit should be one of crop, pad, squash, got 'zoom'"),
        ({"progressive": "keep"}, "progressive should be one of baseline, got 'keep'"),
        ({"encoding": "jpeg", "progressive": "baseline"}, "progressive is for the encoding original, not jpeg"),
        ({"check": "twice"}, "check should be one of header, decode, none"),
        ({"decoder": "gd"}, "decoder should be one of auto, engine, turbojpeg"),
        ({"encoding": "uint8", "size": 0}, "size should be a whole number from 1 to 65535, got 0"),
        ({"encoding": "uint8", "size": (5, -1)}, "size should be a whole number"),
        ({"encoding": "uint8", "size": 2.5}, "size should be a whole number"),
        ({"encoding": "uint8", "size": (1, 2, 3)}, "size should be a whole number"),
        ({"encoding": "jpeg", "resize": 0}, "resize should be"),
        ({"encoding": "jpeg", "resize": True}, "resize should be"),
        ({"encoding": "jpeg", "max_side": 10**9}, "max-side should be"),
        ({"encoding": "jpeg", "quality": 0}, "quality should be a whole number from 1 to 100, got 0"),
        ({"encoding": "jpeg", "quality": 101}, "quality should be"),
        ({"encoding": "uint8", "size": 5, "resize": 5}, "size fixes height and width"),
        ({"encoding": "uint8", "size": 5, "max_side": 5}, "so resize and max-side have no effect"),
        ({"encoding": "original", "size": 5}, "keeps files as they are"),
        ({"encoding": "original", "resize": 5}, "so size, resize and max-side cannot"),
        ({"encoding": "uint8", "normalization": IMAGENET}, "normalisation is for float16, bfloat16, float32, not"),
    ],
)
def test_impossible_options_say_what_is_possible(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EncodeOptions(**options)


@pytest.mark.parametrize(("text", "size"), [("224", 224), ("32x48", (32, 48)), ("1X1", (1, 1)), ("65535", 65535)])
def test_sizes_are_read(text: str, size: int | tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "x", "32x", "x32", "1x2x3", "-5", "2.5", "65536", "³", "a"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="like 224 or 32x48"):
        parse_size(text)


HALF = (0.5,) * 3
TEXTS = ("", "mnist", "1,2,3", "1,2/1,2,3", "0,0,0/1,1,0", "0,0,0/1,1,-1", "a,b,c/1,1,1", "nan,0,0/1,1,1")


@pytest.mark.parametrize(
    "value", [*TEXTS, None, 5, True, (), (HALF,), (HALF, 0.5), ((0.5,) * 2, HALF), ("a", "b"), ("abc", "abc")]
)
def test_other_normalizations_are_refused(value: object) -> None:
    said = "a normalisation should be one of imagenet, cifar10, cifar100, auto, none, or M,M,M"
    with pytest.raises(UsageError, match=said):
        parse_normalization(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("124,116,104/58,57,57", "got 124,116,104/58,57,57: these look like 0…255; divide by 255"),
        ("0.5,0.5,0.5/58,57,57", "divide by 255"),
        ("0.5,0.5,1.01/0.2,0.2,0.2", "divide by 255"),
        ("-0.1,0.5,0.5/0.2,0.2,0.2", "pixels are scaled to 0…1 first"),
    ],
)
def test_normalizations_of_another_scale_are_refused(text: str, hint: str) -> None:
    mean, std = (tuple(map(float, part.split(","))) for part in text.split("/"))
    for value in (text, (mean, std), [list(mean), list(std)], Normalization(mean, std)):
        with pytest.raises(UsageError, match=hint):
            parse_normalization(value)


def test_whatever_says_a_normalization() -> None:
    half = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert parse_normalization("0.5,0.5,0.5/.25,.25,.25") == half
    assert parse_normalization(half) is half
    assert parse_normalization(((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))) == half
    assert parse_normalization(np.array([[0.5] * 3, [0.25] * 3], np.float32)) == half
    assert parse_normalization("imagenet") == IMAGENET
    assert parse_normalization("none") is None
    assert parse_normalization("cifar100") == Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    assert parse_normalization("0.5,0,1/1,.2,3e-1") == Normalization((0.5, 0.0, 1.0), (1.0, 0.2, 0.3))
    with pytest.raises(UsageError, match="--normalize auto; then packstore info"):
        parse_normalization("auto")


# Columns.


def test_columns() -> None:
    image = Column("image", "ragged", "uint8", type="image")
    assert Encoder(EncodeOptions()).columns() == (image,)
    assert Encoder(EncodeOptions("jpeg", size=8)).columns() == (image,)
    ragged = (Column("image", "ragged", "uint8", layout="HWC", type="image"), Column("shape", "fixed", "int32", (3,)))
    assert Encoder(EncodeOptions("uint8")).columns() == ragged
    assert Encoder(EncodeOptions("uint8", max_side=9)).columns() == ragged
    fixed = (Column("image", "fixed", "uint8", (8, 6, 3), layout="HWC", type="image"),)
    assert Encoder(EncodeOptions("uint8", size=(8, 6))).columns() == fixed
    assert Encoder(EncodeOptions("uint8"), shape=(8, 6, 3)).columns() == fixed
    assert Encoder(EncodeOptions(), "uint8", (8, 6, 3)).columns() == fixed
    halved = (Column("image", "fixed", "uint8", (8, 4, 3), layout="HWC", type="image"),)
    assert Encoder(EncodeOptions("uint8", resize=4), "uint8", (16, 8, 3)).columns() == halved
    for encoding in FLOAT_ENCODINGS:
        tensor = (Column("image", "fixed", encoding, (3, 8, 6), layout="CHW", type="image"),)
        assert Encoder(EncodeOptions(encoding, size=(8, 6))).columns() == tensor
        assert Encoder(EncodeOptions(encoding), shape=(8, 6, 3)).columns() == tensor
        with pytest.raises(UsageError, match="give one, for example --size 224"):
            Encoder(EncodeOptions(encoding)).columns()


def test_a_shape_without_three_channels_is_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(8, 6\); expected"):
        Encoder(EncodeOptions("uint8"), "uint8", (8, 6))


# Passing through.


@pytest.mark.parametrize("check", ["header", "decode", "none"])
def test_files_stay_as_they_are(check: str) -> None:
    encoder = Encoder(EncodeOptions(check=check))
    assert encoder.passes_through
    for name, data in all_images().items():
        record, shape, *_ = encoder(name, data)
        assert record is data
        assert shape == ((23, 37, 3) if check == "decode" else None)
    view = memoryview(file(9, 9))
    assert encoder("key", view).record is view


@pytest.mark.parametrize(("source", "target"), [("jpeg", "jpeg"), ("jpeg", "original")])
def test_encoded_stores_pass_through(source: str, target: str) -> None:
    encoder = Encoder(EncodeOptions(target), source)
    data = file(9, 9)
    assert encoder.passes_through
    assert encoder("key", data).record is data


def test_a_jpeg_store_is_encoded_again_for_another_size() -> None:
    encoder = Encoder(EncodeOptions("jpeg", resize=8), "jpeg")
    assert not encoder.passes_through
    assert encoder("key", file(16, 24)).shape == (8, 12, 3)


@pytest.mark.parametrize("target", ["uint8", "original"])
def test_arrays_stay_as_they_are(target: str) -> None:
    image = pixels(5, 4, 1)
    for encoder in (Encoder(EncodeOptions(target), "uint8"), Encoder(EncodeOptions(target), "uint8", (5, 4, 3))):
        assert encoder.passes_through
        assert encoder.encoding.name == "uint8"
        record, shape, *_ = encoder("key", image)
        assert bytes(record) == image.tobytes()
        assert np.shares_memory(np.frombuffer(record, np.uint8), image)
        assert shape == (5, 4, 3)


@pytest.mark.parametrize("encoding", FLOAT_ENCODINGS)
def test_floats_stay_as_they_are(encoding: str) -> None:
    values = np.arange(3 * 4 * 5).reshape(3, 4, 5).astype(NUMPY_DTYPE[encoding])
    for target in (encoding, "original"):
        normalization = IMAGENET if target == encoding else None
        encoder = Encoder(EncodeOptions(target, normalization=normalization), encoding, (4, 5, 3), IMAGENET)
        assert encoder.passes_through
        assert encoder.encoding.name == encoding
        assert encoder.columns() == (Column("image", "fixed", encoding, (3, 4, 5), layout="CHW", type="image"),)
        record, shape, *_ = encoder("key", values)
        assert bytes(record) == values.tobytes()
        assert shape == (4, 5, 3)


# Checks.


def truncated(kind: str) -> bytes:
    data = file(60, 80, kind=kind)
    return data[: len(data) * 2 // 3]


DAMAGED = {
    "empty": b"",
    "text": b"this is not an image",
    "truncated jpeg": truncated("JPEG"),
    "truncated png": truncated("PNG"),
    "truncated webp": truncated("WEBP"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_bad_file_is_described_alike_whatever_becomes_of_it(name: str) -> None:
    reasons = set()
    for options in (
        EncodeOptions(),
        EncodeOptions(check="decode"),
        EncodeOptions("jpeg"),
        EncodeOptions("jpeg", check="decode"),
        EncodeOptions("uint8", exif_transpose=True),
        EncodeOptions("float16", size=8),
    ):
        with pytest.raises(SampleError) as caught:
            Encoder(options)("key", DAMAGED[name])
        reasons.add(caught.value.reason)
    assert len(reasons) == 1
    if name in ("empty", "truncated jpeg"):
        assert reasons == {{"empty": "is empty", "truncated jpeg": "is truncated: no end-of-image marker"}[name]}


def test_a_decoder_alone_judges_unchecked_files() -> None:
    """A check may be stricter than the decoder, and comparing must not be stricter than packing was."""
    data = file(20, 30, kind="PNG")
    without_end = data[:-12]
    with pytest.raises(SampleError, match="is truncated: PNG without IEND"):
        Encoder(EncodeOptions("uint8"))("key", without_end)
    assert Encoder(EncodeOptions("uint8", check="none"))("key", without_end).shape == (20, 30, 3)


def test_what_would_be_too_large_on_the_way_is_named() -> None:
    """torch brings each row to its new width before it brings the columns to their height."""
    image = np.zeros((2_000_000, 1, 3), np.uint8)
    encoder = Encoder(EncodeOptions("uint8", size=224, fit="squash"), "uint8")
    with pytest.raises(SampleError, match=r"key: is 2000000 x 1 pixels .* 448000000 pixels .* limit of 178956970"):
        encoder("key", image)
    assert Encoder(EncodeOptions("uint8", size=224), "uint8")("key", image).shape == (224, 224, 3)


def test_a_source_that_breaks_its_word_is_named() -> None:
    with pytest.raises(SampleError, match="expected the bytes of an image file"):
        Encoder(EncodeOptions())("key", pixels(5, 5, 1))
    with pytest.raises(SampleError, match="expected an array"):
        Encoder(EncodeOptions("uint8"), "uint8")("key", b"bytes")
    for wrong in (np.zeros((5, 5), np.uint8), np.zeros((5, 5, 4), np.uint8), np.zeros((5, 5, 3), np.float32)):
        with pytest.raises(SampleError, match="expected uint8 with 3 channels"):
            Encoder(EncodeOptions("uint8"), "uint8")("key", wrong)


# JPEG.


@pytest.mark.parametrize("quality", [30, 75, 90, 100])
def test_jpeg_records_are_ordinary_files(quality: int) -> None:
    record, shape, *_ = Encoder(EncodeOptions("jpeg", resize=32, quality=quality))("key", file(64, 96))
    assert shape == (32, 48, 3)
    image = Image.open(io.BytesIO(bytes(record)))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (48, 32))
    assert [component[1:3] for component in image.layer] == [(2, 2), (1, 1), (1, 1)]  # 4:2:0
    # Pillow takes the accurate DCT at any quality, simplejpeg from 96 on.
    wanted = shrink_to_limits(decoded(file(64, 96)), 32)
    out = io.BytesIO()
    Image.fromarray(wanted).save(out, "JPEG", quality=quality, subsampling=2)
    assert image.quantization == Image.open(out).quantization
    difference = np.abs(np.asarray(image).astype(int) - decoded(out.getvalue()))
    assert difference.mean() <= (2 if quality < 96 else 0)


def test_every_kind_of_image_becomes_jpeg_and_uint8() -> None:
    jpeg, raw = Encoder(EncodeOptions("jpeg", quality=95)), Encoder(EncodeOptions("uint8"))
    for name, data in all_images().items():
        expected = decoded(data)
        np.testing.assert_array_equal(array(raw(name, data).record, "uint8", (23, 37, 3)), expected)
        found = jpeg(name, data)
        assert decoded(bytes(found.record)).shape == expected.shape == found.shape


def test_jpeg_of_arrays() -> None:
    image = pixels(40, 50, 1)
    image.flags.writeable = False
    record, shape, *_ = Encoder(EncodeOptions("jpeg", max_side=25), "uint8")("key", image)
    assert shape == (20, 25, 3)
    assert record == encode_jpeg(shrink_to_limits(image, None, 25), 90)


def test_what_is_too_long_for_jpeg_is_named() -> None:
    with pytest.raises(SampleError, match="1x65536 pixels are too many for a JPEG; shrink it with max-side"):
        Encoder(EncodeOptions("jpeg"), "uint8")("key", np.zeros((1, 65536, 3), np.uint8))


# Pixels.


def test_ragged_pixels() -> None:
    encoder = Encoder(EncodeOptions("uint8", max_side=50))
    for height, width in ((20, 30), (100, 60)):
        data = file(height, width)
        expected = shrink_to_limits(decoded(data), None, 50)
        record, shape, *_ = encoder("key", data)
        assert shape == expected.shape
        assert bytes(record) == expected.tobytes()


@pytest.mark.parametrize("mode", ["crop", "pad", "squash"])
@pytest.mark.parametrize("size", [24, (24, 40)])
def test_fixed_pixels(mode: str, size: int | tuple[int, int]) -> None:
    data = file(50, 70)
    encoder = Encoder(EncodeOptions("uint8", size=size, fit=mode))
    expected = resize_to_fit(decoded(data), size, mode)
    record, shape, *_ = encoder("key", data)
    assert shape == expected.shape == encoder.columns()[0].shape
    assert bytes(record) == expected.tobytes()


@pytest.mark.parametrize("encoding", FLOAT_ENCODINGS)
@pytest.mark.parametrize("normalization", [None, *NORMALIZATIONS.values()])
def test_floats_are_torchvisions(encoding: str, normalization: Normalization | None) -> None:
    image = np.arange(256 * 3, dtype=np.uint16).reshape(3, 256).T.reshape(16, 16, 3).astype(np.uint8)  # every value
    record, shape, *_ = Encoder(EncodeOptions(encoding, normalization=normalization), "uint8", (16, 16, 3))(
        "key", image
    )
    expected = normalized(image, normalization).to(TORCH[encoding])
    found = torch.frombuffer(bytearray(record), dtype=TORCH[encoding]).reshape(3, 16, 16)
    assert torch.equal(found, expected)
    assert shape == (16, 16, 3)


def test_images_that_differ_in_size_are_named() -> None:
    encoder = Encoder(EncodeOptions("float16"), shape=(375, 500, 3))
    encoder("a/first.jpg", file(375, 500))
    with pytest.raises(UsageError) as caught:
        encoder("b/\nsmall.jpg", file(32, 30))
    assert str(caught.value) == (
        "images differ in size (height x width): 32x30 (b/\\nsmall.jpg), 375x500 (a/first.jpg); "
        "give --size, e.g. --size 32"
    )
    with pytest.raises(UsageError, match="--size 224"):
        encoder("c.jpg", file(300, 400))
    with pytest.raises(UsageError, match="differ in size"):
        Encoder(EncodeOptions("uint8"), "uint8", (4, 4, 3))("key", pixels(4, 5, 1))


# Between floating point encodings.

FLOAT32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(FLOAT32, min_size=1, max_size=50))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    source = np.array(values, np.float32)
    expected = torch.from_numpy(source).to(torch.bfloat16).to(torch.float32).numpy()
    overflows = (np.isinf(expected) & np.isfinite(source)).any()
    if overflows:
        with pytest.raises(UsageError, match="bfloat16 cannot hold values up to"):
            cast_floats(source, "float32", "bfloat16")
    else:
        found = to_float32(cast_floats(source, "float32", "bfloat16"), "bfloat16")
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


def test_every_bfloat16_survives_float32() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    values = to_float32(bits, "bfloat16")
    tensor = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(values, tensor)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(cast_floats(bits, "bfloat16", "bfloat16")[numbers], bits[numbers])


@pytest.mark.parametrize("source", FLOAT_ENCODINGS)
@pytest.mark.parametrize("target", FLOAT_ENCODINGS)
def test_casts_are_torchs(source: str, target: str) -> None:
    values = normalize(pixels(6, 5, 1), normalization_tables(source, IMAGENET))
    encoder = Encoder(EncodeOptions(target, normalization=IMAGENET), source, (6, 5, 3), IMAGENET)
    assert encoder.passes_through == (source == target)
    record, shape, *_ = encoder("key", values)
    assert shape == (6, 5, 3)
    tensor = torch.frombuffer(bytearray(values.tobytes()), dtype=TORCH[source])
    assert torch.equal(torch.frombuffer(bytearray(record), dtype=TORCH[target]), tensor.to(TORCH[target]))
    assert encoder.compare("key", values, record) is None


def test_values_that_an_encoding_cannot_hold_are_refused() -> None:
    values = np.full((3, 2, 2), 70000, np.float32)
    with pytest.raises(UsageError, match="float16 cannot hold values up to 70000; use float32"):
        Encoder(EncodeOptions("float16"), "float32", (2, 2, 3))("key", values)
    with pytest.raises(UsageError, match="float16 cannot hold"):
        Encoder(EncodeOptions("float16", size=2, normalization=Normalization((0, 0, 0), (1e-6, 1, 1))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EncodeOptions("uint8"), "pack from the images"),
        (EncodeOptions("jpeg"), "pack from the images"),
        (EncodeOptions("float16", size=2, normalization=IMAGENET), "nor other sizes can be made"),
        (EncodeOptions("float16"), "not with nothing"),
        (EncodeOptions("float32", normalization=NORMALIZATIONS["cifar10"]), "is normalised with mean"),
    ],
)
def test_floats_do_not_become_anything_else(options: EncodeOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Encoder(options, "float32", (4, 4, 3), IMAGENET)


def test_the_decoder_is_the_one_asked_for() -> None:
    assert Encoder(EncodeOptions("uint8", decoder="pillow")).versions()["decoder"] == available_decoders()["pillow"]


# Statistics.


@st.composite
def some_images(draw: st.DrawFn) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
    high = draw(st.sampled_from((2, 40, 256)))
    return [rng.integers(0, high, (*size, 3), np.uint8) for size in sizes]


@given(some_images(), st.integers(0, 6))
def test_statistics_are_those_of_all_pixels(images: list[NDArray[np.uint8]], cut: int) -> None:
    everything = np.concatenate([image.reshape(-1, 3) for image in images]) / 255
    statistics, other = DatasetStatistics(), DatasetStatistics()
    for image in images[cut:]:
        statistics.update(image)
    for image in reversed(images[:cut]):
        other.update(image)
    statistics.merge(other)
    assert statistics.pixels == len(everything)
    if (everything.std(0) == 0).any():
        with pytest.raises(UsageError, match="all pixels of a channel are the same"):
            statistics.normalization()
        return
    found = statistics.normalization()
    np.testing.assert_allclose(found.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, everything.std(0), rtol=1e-9)


def test_statistics_do_not_overflow() -> None:
    statistics, both = DatasetStatistics(), DatasetStatistics()
    statistics.update(np.array([[[0] * 3, [255] * 3]], np.uint8))
    for _ in range(55):  # 2**55 of each
        both.merge(statistics)
        statistics.merge(both)
        both = DatasetStatistics()
    assert statistics.pixels == 2**56
    assert statistics.normalization() == Normalization((0.5,) * 3, (0.5,) * 3)


def test_statistics_of_nothing() -> None:
    with pytest.raises(UsageError, match="no pixels"):
        DatasetStatistics().normalization()


# Comparing.


def shifted(image: NDArray[np.uint8], by: int) -> NDArray[np.uint8]:
    return np.clip(image.astype(np.int16) + by, 0, 255).astype(np.uint8)


def records_off_by(options: EncodeOptions, by: int) -> Iterator[tuple[Encoder, NDArray[np.uint8], Any]]:
    """Records of pixels that are all off by ``by``, for images of every value."""
    for value in range(256):
        image = np.full((4, 4, 3), value, np.uint8)
        encoder = Encoder(options, "uint8")
        yield encoder, image, encoder("key", shifted(image, by)).record


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("encoding", ["uint8", *FLOAT_ENCODINGS])
def test_resized_pixels_may_differ_by_one(encoding: str) -> None:
    for normalization in (None, IMAGENET, Normalization((2.0, -2.0, 0.0), (0.01, 5.0, 1.0))):
        options = EncodeOptions(encoding, size=4, normalization=None if encoding == "uint8" else normalization)
        for by in (-1, 1):
            for encoder, image, record in records_off_by(options, by):
                assert encoder.compare("key", image, record) is None
        # bfloat16 has 8 bits, as a pixel has, so its own rounding hides more.
        off = 2 if encoding != "bfloat16" else 6
        differences = [e.compare("key", i, r) for e, i, r in records_off_by(options, off)]
        assert sum(d is not None for d in differences) >= 250


@pytest.mark.parametrize("encoding", ["float16", "float32"])
def test_pixels_that_were_not_resized_may_not_differ(encoding: str) -> None:
    image = pixels(4, 4, 1)
    image[0, 0, 0] = 100
    encoder = Encoder(EncodeOptions(encoding, normalization=IMAGENET), "uint8", (4, 4, 3))
    other = image.copy()
    other[0, 0, 0] = 101
    difference = encoder.compare("key", image, encoder("key", other).record)
    assert difference is not None
    assert difference.startswith("1 of 48 values differ by up to 0.017")


def test_uint8_that_was_not_resized_may_not_differ() -> None:
    data = file(20, 30)
    encoder = Encoder(EncodeOptions("uint8"))
    wrong = decoded(data)
    wrong[3, 4, 1] ^= 1
    found = encoder.compare("key", data, wrong.tobytes())
    assert found == "1 of 1800 values differ by up to 1, allowed are 0 of 255"


def test_not_a_number_is_a_difference() -> None:
    encoder = Encoder(EncodeOptions("float32", size=4), "uint8")
    record = np.full((3, 4, 4), np.nan, np.float32).tobytes()
    found = encoder.compare("key", pixels(4, 4, 1), record)
    assert found is not None
    assert "48 of 48 values" in found


def test_bytes_that_pass_through_may_not_differ() -> None:
    data = file(20, 30)
    encoder = Encoder(EncodeOptions())
    wrong = bytearray(data)
    wrong[100] ^= 1
    assert encoder.compare("key", data, wrong) == f"1 of {len(data)} bytes differ, the first at 100"
    assert encoder.compare("key", data, data[:-1]) == f"it has {len(data) - 1} bytes, the source {len(data)}"


def test_shapes_are_compared() -> None:
    image = pixels(4, 9, 1)
    encoder = Encoder(EncodeOptions("uint8"), "uint8")
    assert encoder.compare("key", image, image.tobytes(), np.array([4, 9, 3], np.int32)) is None
    assert encoder.compare("key", image, image.tobytes(), (9, 4, 3)) == "its shape is (9, 4, 3), expected (4, 9, 3)"


def test_jpegs_of_another_resizing_are_equal_enough() -> None:
    """As another torch or Pillow would have packed them, for every quality; and noise is the worst that can be."""
    rng = np.random.default_rng(0)
    for image in (pixels(300, 400, 1), rng.integers(0, 256, (300, 400, 3), np.uint8)):
        other = np.asarray(Image.fromarray(image).resize((133, 100), Image.Resampling.BILINEAR))
        for quality in (10, 50, 90, 100):
            encoder = Encoder(EncodeOptions("jpeg", resize=100, quality=quality), "uint8")
            assert encoder.compare("key", image, encode_jpeg(other, quality)) is None
            assert encoder.compare("key", image, encode_jpeg(shifted(other, 4), quality)) is not None


def test_jpegs_of_another_quality_differ() -> None:
    encoder = Encoder(EncodeOptions("jpeg", quality=90), "uint8")
    image = pixels(100, 100, 1)
    found = encoder.compare("key", image, encode_jpeg(image, 80))
    assert found is not None
    assert "of 255 on average, allowed are 0.5" in found
    assert "does not decode" in str(encoder.compare("key", image, b"\xff\xd8\xff"))
    assert "has 50x100 pixels" in str(encoder.compare("key", image, encode_jpeg(image[:50], 90)))


@pytest.mark.parametrize("quality", [90, 95, 100])
@pytest.mark.parametrize("at", [(0, 0), (30, 29), (59, 60), (60, 33)])
def test_a_small_patch_in_a_jpeg_is_a_difference(quality: int, at: tuple[int, int]) -> None:
    encoder = Encoder(EncodeOptions("jpeg", quality=quality), "uint8")
    image = pixels(64, 64, 1) // 2 + 40
    other = image.copy()
    other[at[0] : at[0] + 4, at[1] : at[1] + 4] += 38
    found = encoder.compare("key", image, encode_jpeg(other, quality))
    assert found is not None
    assert "in any 8 x 8 pixels" in found


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 40), (40, 3), (4, 5), (8, 8), (9, 17)])
def test_patches_of_small_images(height: int, width: int) -> None:
    difference = np.zeros((height, width, 3), np.int16)
    assert worst_patch(difference)[0] == 0
    difference[height // 2, width // 2] = 64
    worst, row, column = worst_patch(difference)
    assert worst == 1
    assert abs(row - height // 2) <= 4
    assert abs(column - width // 2) <= 4


@pytest.mark.slow
def test_real_images_compare_across_decoders_and_resizers(shared_data: SharedData) -> None:
    files: list[Path] = [p for p in sorted((shared_data / "imagenet-600").rglob("*")) if p.is_file()][::10]
    for options in (EncodeOptions("jpeg", resize=256), EncodeOptions("uint8", resize=128), EncodeOptions("uint8")):
        encoder = Encoder(options)
        for path in files:
            data = path.read_bytes()
            image = decoded(data)
            if options.resize is not None:
                height, width, _ = shrink_to_limits(image, options.resize).shape
                image = np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
            record = encode_jpeg(image, 90) if options.encoding == "jpeg" else image.tobytes()
            assert encoder.compare(path.name, data, record, image.shape) is None
