"""Ways of resizing in the engine: torch's bytes, and Pillow's, rows or columns first."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packstore.images.engine import OutputFormat, Requests, get_engine
from tests.internals import Engine, load_once
from tests.makers.datasets import pixels

SAMPLINGS = {0: "bilinear", 1: "nearest", 2: "bicubic", 3: "BOX", 4: "LANCZOS", 7: "BILINEAR", 8: "BICUBIC"}
"""Ways by the engine's numbers; Pillow's in capitals. 16 more for columns first."""
COLUMNS_FIRST = 16
NUMBERS = [*SAMPLINGS, *(COLUMNS_FIRST + number for number in (3, 4, 7, 8))]
SIDES = st.integers(1, 120)


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
@given(SIDES, SIDES, SIDES, st.integers(2, 120), st.sampled_from(NUMBERS), st.booleans(), st.integers(0, 999))
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
