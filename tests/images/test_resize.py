"""Resizing: torchvision's sizes, torch's pixels, and Pillow's but for rounding."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.images.decoders import get_decoder
from packstore.images.engine import OutputFormat, Requests, get_engine
from tests.conftest import SharedData
from tests.internals import (
    FITS,
    Engine,
    TooLargeError,
    UsageError,
    compute_limited_size,
    load_once,
    resize_centre,
    resize_to_fit,
    shrink_to_limits,
    size_by_shorter_side,
)
from tests.internals import resize_pixels as resize
from tests.makers.datasets import pixels

Pixels = NDArray[np.uint8]
SIDES = st.integers(1, 90)


@st.composite
def images(draw: st.DrawFn, sides: st.SearchStrategy[int] = SIDES) -> Pixels:
    height, width, seed = draw(sides), draw(sides), draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return pixels(height, width, seed % 1000)


def pillow(image: Pixels, height: int, width: int) -> Pixels:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def assert_close(found: Pixels, expected: Pixels) -> None:
    """Within 1 of 255, but for a value in a million, which may be 2 off: torch rounds after each direction, with
    weights of 16 bits."""
    assert found.shape == expected.shape
    difference = np.abs(found.astype(np.int16) - expected)
    assert difference.max() <= 2
    assert np.count_nonzero(difference > 1) <= max(2, difference.size // 1_000_000)


# torchvision.transforms.functional, written out: resize and center_crop of a PIL image. torchvision itself is no
# dependency, not even of the tests.


def torchvision_size(height: int, width: int, size: int, max_size: int | None = None) -> tuple[int, int]:
    """``_compute_resized_image_output_size``."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)
    if max_size is not None and new_long > max_size:
        new_short, new_long = int(max_size * new_short / new_long), max_size
    new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    return new_height, new_width


def torchvision_center_crop(image: Pixels, size: int) -> Pixels:
    """``center_crop`` where the image is at least as large as the crop."""
    height, width = image.shape[:2]
    top, left = int(round((height - size) / 2.0)), int(round((width - size) / 2.0))  # noqa: RUF046
    return image[top : top + size, left : left + size]


@given(images(), SIDES, SIDES)
def test_close_to_pillow(image: Pixels, height: int, width: int) -> None:
    assert_close(resize(image, height, width), pillow(image, height, width))


@pytest.mark.slow
def test_real_images_are_close_to_pillow(shared_data: SharedData) -> None:
    values = unequal = beyond = 0
    for path in [p for p in sorted((shared_data / "imagenet-600").rglob("*")) if p.is_file()][::6]:
        image = get_decoder("pillow").decode(path.read_bytes())
        found = shrink_to_limits(image, 224)
        difference = np.abs(found.astype(np.int16) - pillow(image, *found.shape[:2]))
        assert difference.max() <= 2
        values += difference.size
        unequal += np.count_nonzero(difference)
        beyond += np.count_nonzero(difference > 1)
    assert unequal <= values // 100
    assert beyond <= values // 1_000_000


@given(images(), SIDES, SIDES)
def test_equal_to_torchvision_on_tensors(image: Pixels, height: int, width: int) -> None:
    """torchvision passes uint8 ``(1, 3, H, W)`` to interpolate where the processor has AVX2."""
    assume((height, width) != (1, 1))  # torch 2.13 fails an assertion of its own there, unless channels come last
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].contiguous()
    expected = torch.nn.functional.interpolate(tensor, (height, width), mode="bilinear", antialias=True)
    np.testing.assert_array_equal(resize(image, height, width), expected[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("height", [1, 2, 3, 17])
@pytest.mark.parametrize("width", [1, 2, 3, 17])
def test_tiny_images(height: int, width: int) -> None:
    """torch finds a memory format ambiguous where a side is 1, and its kernels have failed there."""
    image = pixels(height, width, 1)
    for to in itertools.product((1, 2, 3, 17), repeat=2):
        assert_close(resize(image, *to), pillow(image, *to))


@given(images())
def test_the_same_size_is_the_same_object(image: Pixels) -> None:
    height, width, _ = image.shape
    assert resize(image, height, width) is image
    assert shrink_to_limits(image, max(height, width), max(height, width)) is image


def test_arrays_that_are_read_only_or_not_contiguous() -> None:
    image = pixels(40, 50, 1)
    expected = resize(image, 20, 25)
    locked = image.copy()
    locked.flags.writeable = False
    np.testing.assert_array_equal(resize(locked, 20, 25), expected)
    np.testing.assert_array_equal(resize(np.asfortranarray(image), 20, 25), expected)
    flipped = image[:, ::-1].copy()[:, ::-1]
    assert not flipped.flags.c_contiguous
    np.testing.assert_array_equal(resize(flipped, 20, 25), expected)


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [
        (375, 500, 256, (256, 341)),
        (500, 375, 256, (341, 256)),
        (333, 500, 224, (224, 336)),
        (32, 32, 224, (224, 224)),
        (1, 1000, 10, (10, 10000)),
    ],
)
def test_shorter_side(height: int, width: int, size: int, expected: tuple[int, int]) -> None:
    assert size_by_shorter_side(height, width, size) == expected


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600))
def test_sizes_are_torchvisions(height: int, width: int, size: int) -> None:
    assert size_by_shorter_side(height, width, size) == torchvision_size(height, width, size)


@given(st.integers(1, 5000), st.integers(1, 5000), st.none() | st.integers(1, 600), st.none() | st.integers(1, 900))
def test_limits_hold_and_never_enlarge(height: int, width: int, to: int | None, side: int | None) -> None:
    new_height, new_width = compute_limited_size(height, width, to, side)
    assert 1 <= new_height <= height
    assert 1 <= new_width <= width
    if to is not None:
        assert min(new_height, new_width) <= to
    if side is not None:
        assert max(new_height, new_width) <= side
    fits = (to is None or min(height, width) <= to) and (side is None or max(height, width) <= side)
    assert fits == ((new_height, new_width) == (height, width))
    assert compute_limited_size(new_height, new_width, to, side) == (new_height, new_width)
    if to is not None and side is not None and to < side and min(height, width) > to:
        expected = torchvision_size(height, width, to, side)
        # torchvision may round a side to nothing, and fails then.
        assert (new_height, new_width) == tuple(max(1, n) for n in expected)


def test_limit() -> None:
    image = pixels(100, 300, 1)
    assert shrink_to_limits(image, 50).shape == (50, 150, 3)
    assert shrink_to_limits(image, 50, 120).shape == (40, 120, 3)
    assert shrink_to_limits(image, None, 150).shape == (50, 150, 3)
    assert shrink_to_limits(image, 200, 400) is image
    assert_close(shrink_to_limits(image, 50), pillow(image, 50, 150))


@given(images(), SIDES)
def test_crop_is_torchvisions_resize_and_center_crop(image: Pixels, size: int) -> None:
    height, width = torchvision_size(*image.shape[:2], size)
    whole = resize(image, height, width)
    np.testing.assert_array_equal(resize_to_fit(image, size), torchvision_center_crop(whole, size))
    assert_close(resize_to_fit(image, size), torchvision_center_crop(pillow(image, height, width), size))


@given(images(), SIDES, SIDES, st.sampled_from(FITS))
def test_fit_gives_exactly_the_size(image: Pixels, height: int, width: int, mode: str) -> None:
    result = resize_to_fit(image, (height, width), mode)
    assert result.shape == (height, width, 3)
    assert result.flags.c_contiguous
    if height == width:
        np.testing.assert_array_equal(resize_to_fit(image, height, mode), result)


@given(images(), SIDES, SIDES)
def test_squash_is_a_plain_resize(image: Pixels, height: int, width: int) -> None:
    np.testing.assert_array_equal(resize_to_fit(image, (height, width), "squash"), resize(image, height, width))


@given(SIDES, SIDES, SIDES, SIDES)
def test_crop_covers_and_pad_shows_everything(height: int, width: int, to_height: int, to_width: int) -> None:
    """On a white image: a crop has no border; a pad has black only outside one centred rectangle of its proportions."""
    white = np.full((height, width, 3), 255, np.uint8)
    assert (resize_to_fit(white, (to_height, to_width), "crop") == 255).all()
    padded = resize_to_fit(white, (to_height, to_width), "pad")[..., 0]
    rows, columns = np.flatnonzero(padded.any(1)), np.flatnonzero(padded.any(0))
    inner = padded[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert (inner == 255).all()
    assert inner.shape[0] == to_height or inner.shape[1] == to_width
    assert rows[0] == (to_height - inner.shape[0]) // 2
    assert columns[0] == (to_width - inner.shape[1]) // 2
    scale = min(to_height / height, to_width / width)
    assert abs(inner.shape[0] - max(1, height * scale)) <= 1
    assert abs(inner.shape[1] - max(1, width * scale)) <= 1


def test_the_crop_is_from_the_centre() -> None:
    image = np.zeros((10, 31, 3), np.uint8)
    image[:, 10:20] = 200
    assert (resize_to_fit(image, 10) == image[:, 10:20]).all()


LONG = st.one_of(st.integers(1, 12), st.integers(1, 90), st.integers(90, 3000))


@given(st.integers(1, 12), LONG, st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_centre_alone_has_the_pixels_of_the_whole(
    short: int, long: int, to_height: int, to_width: int, upright: bool, seed: int
) -> None:
    height, width = (long, short) if upright else (short, long)
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    if to_height * width >= to_width * height:
        covering = to_height, max(to_width, int(to_height * width / height))
    else:
        covering = max(to_height, int(to_width * height / width)), to_width
    whole = resize(image, *covering)
    top, left = round((covering[0] - to_height) / 2.0), round((covering[1] - to_width) / 2.0)
    expected = whole[top : top + to_height, left : left + to_width]
    np.testing.assert_array_equal(resize_to_fit(image, (to_height, to_width)), expected)
    if covering[0] >= height and covering[1] >= width:
        np.testing.assert_array_equal(resize_centre(image, covering, (to_height, to_width)), expected)


def test_large_parts_of_large_images_have_the_pixels_of_the_whole() -> None:
    """So large that the work is done in blocks."""
    image = pixels(500, 70, 1)
    for turned in (image, image.transpose(1, 0, 2)):
        size = (600, 900) if turned is image else (900, 600)
        expected = resize_to_fit(np.ascontiguousarray(turned), size)
        covering = (int(900 * 500 / 70), 900) if turned is image else (900, int(900 * 500 / 70))
        np.testing.assert_array_equal(resize_centre(turned, covering, size), expected)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units elsewhere")
def test_thin_images_need_little_memory() -> None:
    """60,000 x 1 pixels enlarged to cover 224 x 224 would have 3 GPixel."""
    code = """
import resource, numpy
from packstore.images.resize import resize_to_fit
resize_to_fit(numpy.zeros((30, 30, 3), numpy.uint8), 224)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
column = numpy.arange(180000, dtype=numpy.uint32).astype(numpy.uint8).reshape(60000, 1, 3)
for mode in ("crop", "pad", "squash"):
    for image in (column, column.transpose(1, 0, 2)):
        assert resize_to_fit(image, 224, mode).shape == (224, 224, 3)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 200  # MiB; squashing makes 60,000 x 224 pixels on the way


def test_what_is_too_large_on_the_way_is_refused() -> None:
    column = np.zeros((900_000, 1, 3), np.uint8)
    with pytest.raises(
        TooLargeError, match=r"is 900000 x 1 pixels .* 201600000 pixels would be made on the way to 224"
    ):
        resize_to_fit(column, 224, "squash")
    with pytest.raises(TooLargeError, match="limit of 178956970"):
        resize(np.zeros((1, 1, 3), np.uint8), 20_000, 20_000)


def test_pad_keeps_the_image_between_black_bars() -> None:
    image = pixels(20, 40, 3)
    padded = resize_to_fit(image, 40, "pad")
    np.testing.assert_array_equal(padded[10:30], image)
    assert not padded[:10].any()
    assert not padded[30:].any()


def test_an_unknown_fit_lists_the_known() -> None:
    with pytest.raises(UsageError, match="crop, pad, squash, got 'stretch'"):
        resize_to_fit(pixels(5, 5, 1), 3, "stretch")


def test_threads_give_the_same_pixels() -> None:
    image = pixels(200, 300, 1)
    expected = resize(image, 100, 150)
    with ThreadPoolExecutor(8) as pool:
        assert all((r == expected).all() for r in pool.map(lambda _: resize(image, 100, 150), range(64)))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_resizing_starts_no_threads_and_leaves_torchs_setting_alone() -> None:
    """Workers are threads already; torch would add as many again to each of them."""
    code = """
import os, numpy, torch
from packstore.images.resize import resize
torch.set_num_threads(4)
image = numpy.zeros((1500, 2000, 3), numpy.uint8)
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    resize(image, 768, 1024)
assert torch.get_num_threads() == 4
print(len(os.listdir("/proc/self/task")) - before, end=" ")
(torch.zeros(1000, 1000) + 1).sum()
print(len(os.listdir("/proc/self/task")) - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    resizing, adding = map(int, run.stdout.split())
    if "AVX2" in torch.backends.cpu.get_cpu_capability() or "AVX512" in torch.backends.cpu.get_cpu_capability():
        assert resizing == 0
    assert adding > 0, "this test would not see threads"


SAMPLINGS = {0: "bilinear", 1: "nearest", 2: "bicubic", 3: "BOX", 4: "LANCZOS", 7: "BILINEAR", 8: "BICUBIC"}
"""Ways by the engine's numbers; Pillow's in capitals. 16 more for columns first."""
COLUMNS_FIRST = 16
NUMBERS = [*SAMPLINGS, *(COLUMNS_FIRST + number for number in (3, 4, 7, 8))]
LONG_SIDES = st.integers(1, 120)


def by_library(image: NDArray[np.uint8], size: tuple[int, int], number: int) -> NDArray[np.uint8]:
    sampling = SAMPLINGS[number % COLUMNS_FIRST]
    if sampling.isupper():
        # Pillow 13 chooses the order by the sizes; in two calls it is certain.
        way = Image.Resampling[sampling]
        between = (image.shape[1], size[0]) if number >= COLUMNS_FIRST else (size[1], len(image))
        return np.asarray(Image.fromarray(image).resize(between, way).resize(size[::-1], way))
    source = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    named: dict[str, Any] = {} if sampling == "nearest" else {"align_corners": False, "antialias": True}
    found = torch.nn.functional.interpolate(source, size, mode=sampling, **named)
    result: NDArray[np.uint8] = found[0].permute(1, 2, 0).numpy()
    return result


def wanted(image: Any, sizes: Any, box: Any, size: Any, window: Any, mirrored: bool, number: int) -> list[Any]:
    """The window as both engines have it; None if refused."""
    found = []
    library = load_once()[0]
    assert library is not None
    for engine in (Engine(library), Engine(library, vectors=False)):
        out = np.empty((1, *window[2:], 3), np.uint8)
        requests = Requests([image], sizes)
        arrays = (np.array([each]) for each in (box, size, window))
        requests.set_outputs(*arrays, np.array([mirrored]), out, sampling=np.array([number]))
        found.append(None if engine.run(requests, 0, 1, 1 << 30)[0] else out[0])
    return found


@pytest.mark.slow
@given(
    LONG_SIDES,
    LONG_SIDES,
    LONG_SIDES,
    st.integers(2, 120),
    st.sampled_from(NUMBERS),
    st.booleans(),
    st.integers(0, 999),
)
def test_pixels_are_those_of_torch(
    height: int, width: int, rows: int, columns: int, number: int, mirrored: bool, seed: int
) -> None:
    # For images that become one pixel wide torch fails.
    image = pixels(height, width, seed)
    box, size = (0, 0, height, width), (rows, columns)
    expected = by_library(image, size, number) if size != (height, width) else image
    if mirrored:
        expected = expected[:, ::-1]
    for found in wanted(image, np.array([(height, width)]), box, size, (0, 0, *size), mirrored, number):
        np.testing.assert_array_equal(found, expected)


@given(st.data(), st.sampled_from(NUMBERS), st.booleans())
def test_windows_of_jpeg_files_are_parts_of_the_whole(data: st.DataObject, number: int, mirrored: bool) -> None:
    image = pixels(90, 131, 5)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "jpeg", quality=92)
    engine = get_engine()
    decoded = engine.decode(buffer.getvalue(), 1 << 30)
    assert decoded is not None
    box = (
        data.draw(st.integers(0, 40)),
        data.draw(st.integers(0, 40)),
        *data.draw(st.tuples(*[st.integers(9, 50)] * 2)),
    )
    size = data.draw(st.tuples(*[st.integers(4, 80)] * 2))
    window = (*data.draw(st.tuples(*[st.integers(-5, 3)] * 2)), *data.draw(st.tuples(*[st.integers(1, 60)] * 2)))
    top, left, height, width = box
    part = np.ascontiguousarray(decoded[top : top + height, left : left + width])
    whole = part if size == (height, width) else by_library(part, size, number)
    padded = np.pad(whole, ((5, 70), (5, 70), (0, 0)))
    expected = padded[window[0] + 5 : window[0] + 5 + window[2], window[1] + 5 : window[1] + 5 + window[3]]
    if mirrored:
        expected = expected[:, ::-1]
    for found in wanted(buffer.getvalue(), None, box, size, window, mirrored, number):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("number", [-1, 5, 6, 9, 21, 22, 32, 1 << 40])
def test_unknown_ways_are_refused(number: int) -> None:
    image = pixels(20, 30, 1)
    sizes = np.array([(20, 30)])
    assert wanted(image, sizes, (0, 0, 20, 30), (9, 9), (0, 0, 9, 9), False, number) == [None, None]
    for found in wanted(image, sizes, (0, 0, 20, 30), (20, 30), (0, 0, 20, 30), False, number):
        np.testing.assert_array_equal(found, image)  # nothing is resized


@pytest.mark.parametrize("sides", [(1, 65_500), (65_500, 1)], ids=str)
@pytest.mark.parametrize("number", [number for number in NUMBERS if number])
def test_largest_sides(sides: tuple[int, int], number: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*sides, 3), np.uint8)
    size = (7, 50)
    expected = by_library(image, size, number)
    for found in wanted(image, np.array([sides]), (0, 0, *sides), size, (0, 0, *size), False, number):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_are_looked_up_in_a_table(dtype: Any, planes: bool, channels: int) -> None:
    random = np.random.default_rng(2)
    image = random.integers(0, 256, (19, 27, channels), np.uint8)
    table = random.integers(0, 9999, (channels, 256)).astype(dtype)
    expected = np.stack([table[c][image[2:, 3:, c]] for c in range(channels)], 0 if planes else -1)
    library = load_once()[0]
    assert library is not None
    box = np.array([(2, 3, 17, 24)])
    for engine in (Engine(library), Engine(library, vectors=False)):
        out = np.empty((1, *expected.shape), dtype)
        requests = Requests([image], np.array([(19, 27)]))
        form = OutputFormat(planes, table=table)
        requests.set_outputs(box, box[:, 2:], np.array([(0, 0, 17, 24)]), None, out, form)
        assert not engine.run(requests, 0, 1, 0).any()
        np.testing.assert_array_equal(out[0], expected)
        for other in (table[:, :255], table.astype(np.float64), table.T):
            with pytest.raises(ValueError, match="table"):
                requests.set_outputs(
                    box, box[:, 2:], box * 0 + [0, 0, 17, 24], None, out, OutputFormat(planes, table=other)
                )
