"""Augmentations: torchvision's semantics written out image by image, and the same pixels wherever an operation runs."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from packstore import augment as A  # noqa: N812
from tests.internals import (
    Crops,
    Draws,
    UsageError,
    apply_operations,
    crop_and_resize_each,
    log_uniform,
    output_size,
    plan_operations,
    resize_by_products,
    split_operations,
    write_crop,
)
from tests.internals import crop as kernels
from tests.internals import resample_images as resize

MODES = ("constant", "reflect", "edge", "symmetric")
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = (torch.contiguous_format, torch.channels_last)
WAYS = ("nearest", "bilinear", "bicubic", "box", "lanczos", "random")


def batch(
    count: int, height: int, width: int, dtype: torch.dtype = torch.uint8, layout: Any = None, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, height, width), generator=generator).to(dtype)
    return images.contiguous(memory_format=layout or torch.contiguous_format)


def smooth(count: int, height: int, width: int) -> Tensor:
    """Images with large structures, as photographs have them."""
    coarse = batch(count, 5, 6).float()
    return F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255).round().to(torch.uint8)


def draws(count: int, seed: int = 0, epoch: int = 0, stream: int = 0, first: int = 0) -> Draws:
    return Draws(seed, epoch, torch.arange(first, first + count), stream)


def numpy_pad(image: NDArray[Any], padding: int, mode: str, fill: float) -> NDArray[Any]:
    edges = ((0, 0), (padding, padding), (padding, padding))
    return np.pad(image, edges, "constant", constant_values=fill) if mode == "constant" else np.pad(image, edges, mode)


# Crops ------------------------------------------------------------------------------------------------------------


@st.composite
def crops(draw: st.DrawFn) -> dict[str, Any]:
    height, width = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    mode = draw(st.sampled_from(MODES))
    most = {"reflect": min(height, width) - 1, "symmetric": min(height, width)}.get(mode, 9)
    padding = draw(st.integers(0, most))
    return {
        "images": batch(
            draw(st.integers(0, 9)),
            height,
            width,
            draw(st.sampled_from(DTYPES)),
            draw(st.sampled_from(LAYOUTS)),
            draw(st.integers(0, 99)),
        ),
        "size": (draw(st.integers(1, height + 2 * padding)), draw(st.integers(1, width + 2 * padding))),
        "padding": padding,
        "mode": mode,
        "fill": draw(st.sampled_from([0, 7])),
        "flip": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
        "part": draw(st.integers(1, 4)),
    }


@pytest.mark.parametrize("kernel", [kernels.crop_rows, kernels.crop_pixels, kernels.crop])
@given(case=crops())
def test_crops_are_those_of_numpy(kernel: Callable[..., Tensor], case: dict[str, Any]) -> None:
    images, (rows, columns), padding = case["images"], case["size"], case["padding"]
    count, _, height, width = images.shape
    generator = torch.Generator().manual_seed(case["seed"])
    top = torch.randint(-padding, height + padding - rows + 1, (count,), generator=generator)
    left = torch.randint(-padding, width + padding - columns + 1, (count,), generator=generator)
    flip = torch.rand(count, generator=generator) < 0.5 if case["flip"] else None
    before = images.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_CHUNK_BYTES", case["part"] * images[:1].nbytes)
        found = kernel(images, top, left, case["size"], padding, case["mode"], case["fill"], flip)
    assert found.dtype == images.dtype
    assert found.shape == (count, 3, rows, columns)
    assert torch.equal(images, before)
    for i in range(count):
        padded = numpy_pad(images[i].double().numpy(), padding, case["mode"], case["fill"])
        y, x = int(top[i]) + padding, int(left[i]) + padding
        expected = padded[:, y : y + rows, x : x + columns]
        if flip is not None and flip[i]:
            expected = expected[:, :, ::-1]
        assert np.array_equal(found[i].double().numpy(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_crops_keep_the_memory_format(layout: Any) -> None:
    images = batch(4, 10, 10, layout=layout)
    for kernel in (kernels.crop_rows, kernels.crop_pixels):
        assert kernel(images, *[torch.zeros(4, dtype=torch.int64)] * 2, (8, 8), 1).is_contiguous(memory_format=layout)
    for found in (
        A.RandomCrop(8, 2)(images, draws(4)),
        A.RandomHorizontalFlip()(images, draws(4)),
        A.Cutout(3)(images, draws(4)),
        A.RandomResizedCrop(6)(images, draws(4)),
    ):
        assert found.is_contiguous(memory_format=layout)


def test_images_that_are_views() -> None:
    whole = batch(8, 14, 13)
    for view in (whole[1::2], whole[:, :, 2:12, 1:11], whole.flip(-1), whole.transpose(2, 3), whole[3:]):
        for ops in (
            [A.RandomCrop(8, 2, "reflect")],
            [A.RandomHorizontalFlip()],
            [A.RandomResizedCrop(5)],
            [A.Cutout(4)],
        ):
            assert torch.equal(
                apply_operations(ops, view, draws(len(view))),
                apply_operations(ops, view.contiguous(), draws(len(view))),
            )


def test_a_random_crop_reads_its_draws() -> None:
    images, d = batch(40, 10, 12), draws(40, stream=3)
    found = A.RandomCrop((8, 9), padding=2)(images, d)
    top, left = d.integers(10 + 4 - 8 + 1, 0), d.integers(12 + 4 - 9 + 1, 1)
    padded = F.pad(images, [2, 2, 2, 2])
    for i in range(40):
        assert torch.equal(found[i], padded[i, :, top[i] : top[i] + 8, left[i] : left[i] + 9])


@pytest.mark.parametrize(("height", "width"), [(11, 9), (9, 7), (13, 11), (12, 10), (5, 9), (4, 4), (9, 5)])
@pytest.mark.parametrize("size", [(8, 6), 7, 6])
def test_a_center_crop_is_that_of_torchvision(tv: Any, size: Any, height: int, width: int) -> None:
    images = batch(2, height, width)
    expected = tv.transforms.v2.functional.center_crop(images, [size, size] if isinstance(size, int) else [*size])
    assert torch.equal(A.CenterCrop(size)(images, draws(2)), expected)


# Flips and cutout -------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(DTYPES),
    st.sampled_from(LAYOUTS),
    st.integers(1, 4),
)
def test_flips(count: int, height: int, width: int, dtype: torch.dtype, layout: Any, part: int) -> None:
    images = batch(count, height, width, dtype, layout)
    before, d = images.clone(), draws(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_CHUNK_BYTES", part * images[:1].nbytes)
        found = A.RandomHorizontalFlip()(images, d)
    chosen = d.bits(0) < 2**31
    expected = [image.flip(-1) if yes else image for image, yes in zip(images, chosen, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(images, before)


@pytest.mark.parametrize("p", [0, 0.1, 0.5, 1])
def test_the_rate_of_flips(p: float) -> None:
    rates = [float(A.RandomHorizontalFlip(p).flip_mask(draws(20_000, epoch=e)).double().mean()) for e in range(3)]
    assert all(abs(rate - p) <= 5 * math.sqrt(p * (1 - p) / 20_000) for rate in rates)
    assert len(set(rates)) == (1 if p in (0, 1) else 3)


def test_alternating_flips() -> None:
    op = A.RandomHorizontalFlip(alternating=True)
    epochs = [op.flip_mask(draws(1000, epoch=e)) for e in range(5)]
    assert 400 < epochs[0].sum() < 600
    assert all(torch.equal(epochs[e], epochs[0] ^ bool(e % 2)) for e in range(5))
    assert op.flip_mask(Draws(0, 3, np.arange(1000))).tolist() == epochs[3].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 4, 5, 50])
def test_cutout(dtype: torch.dtype, size: int) -> None:
    images, d = batch(200, 9, 7, dtype), draws(200, stream=1)
    found = A.Cutout(size, fill=3)(images, d)
    y, x = d.integers(9, 0).tolist(), d.integers(7, 1).tolist()
    assert set(y) == set(range(9))
    assert set(x) == set(range(7))
    for i in range(200):
        expected = images[i].clone()
        top, left = y[i] - size // 2, x[i] - size // 2
        expected[:, max(0, top) : max(0, top + size), max(0, left) : max(0, left + size)] = 3
        assert torch.equal(found[i], expected)


# Resizing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "shape", "expected"),
    [
        (8, (10, 17), (8, 13)),
        (8, (17, 10), (13, 8)),
        (8, (8, 30), (8, 30)),
        (30, (7, 7), (30, 30)),
        (1, (1, 9), (1, 9)),
        ((3, 9), (10, 17), (3, 9)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_resize_is_that_of_torchvision(
    size: Any, shape: tuple[int, int], expected: tuple[int, int], dtype: torch.dtype
) -> None:
    images = batch(3, *shape, dtype)
    found = A.Resize(size)(images, draws(3))
    assert found.dtype == dtype
    assert found.shape[-2:] == expected == A.Resize(size).size_after(shape)
    wide = images if dtype in (torch.uint8, torch.float64) else images.float()
    if expected[1] > 1:
        by_torch = F.interpolate(wide, expected, mode="bilinear", antialias=True)
        assert torch.equal(found, by_torch.to(dtype))


def pillow_resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """By Pillow's floating point kernel, plane by plane."""
    planes = images.float().reshape(-1, *images.shape[-2:]).numpy()
    resized = [np.asarray(Image.fromarray(p).resize(size[::-1], Image.Resampling.BILINEAR)) for p in planes]
    return torch.from_numpy(np.stack(resized)).view(*images.shape[:2], *size).double()


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 500))
def test_a_planned_resize_has_the_size_of_the_other(height: int, width: int, size: int) -> None:
    crops = A.Resize(size).plan_crops(Crops.full(np.array([[height, width]])), draws(1))
    assert tuple(crops.size[0].tolist()) == A.Resize(size).size_after((height, width))


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from([torch.uint8, torch.float32, torch.float16, torch.float64]),
    st.sampled_from(LAYOUTS),
    st.integers(0, 1000),
    st.integers(1, 9),
)
def test_resizing_by_products_is_the_kernel_of_the_cpu(
    height: int, width: int, size: tuple[int, int], dtype: torch.dtype, layout: Any, seed: int, part: int
) -> None:
    images = batch(5, height, width, dtype, layout, seed)
    random = np.random.default_rng(seed)
    spans = [(random.integers(0, n, 5), n) for n in (height, width)]
    (top, rows), (left, columns) = ((start, random.integers(1, n - start + 1)) for start, n in spans)
    box = torch.from_numpy(np.stack([top, left, rows, columns], 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packstore.training.augment.resample._WEIGHTS", part * 400)
        found = resize_by_products(images, box, size)
    expected = crop_and_resize_each(images, box, size)
    assert found.dtype == expected.dtype == dtype
    assert found.shape == expected.shape == (5, 3, *size)
    tolerance = {torch.uint8: 1.0, torch.float16: 0.25, torch.float32: 2e-3, torch.float64: 1e-9}[dtype]
    assert float((found.double() - expected.double()).abs().max()) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(7, 30), (1, 1), (1, 7), (9, 1), (20, 1), (40, 25), (40, 2)])
def test_resizing_all_of_an_image(dtype: torch.dtype, layout: Any, size: tuple[int, int]) -> None:
    images = smooth(5, 20, 25).to(dtype).contiguous(memory_format=layout)
    expected = pillow_resize(images, size)
    by_products = resize_by_products(images, torch.tensor([[0, 0, 20, 25]]), size)
    tolerance = {torch.uint8: 0.51, torch.bfloat16: 1.01, torch.float16: 0.25}.get(dtype, 2e-3)
    assert float((by_products.double() - expected).abs().max()) <= tolerance
    tolerance = max(tolerance, 1.01 * (dtype == torch.uint8))  # torch's kernel rounds twice, in fixed point
    assert float((resize(images, size).double() - expected).abs().max()) <= tolerance
    assert by_products.is_contiguous(memory_format=layout)
    assert resize(images, size).is_contiguous(memory_format=layout)


def torchvision_box(
    height: int, width: int, scale: Any, ratio: Any, uniform: Sequence[float]
) -> tuple[int, int] | None:
    """torchvision's ``RandomResizedCrop.get_params`` (v0.24): height and width, or None to fall back."""
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(10):
        target_area = area * (scale[0] + (scale[1] - scale[0]) * uniform[attempt])
        aspect = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * uniform[10 + attempt])
        w = round(math.sqrt(target_area * aspect))
        h = round(math.sqrt(target_area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return h, w
    return None


def torchvision_fallback(height: int, width: int, ratio: Any) -> tuple[int, int, int, int]:
    in_ratio = float(width) / float(height)
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w, h = width, height
    w, h = max(1, w), max(1, h)  # ours alone: torchvision fails here for images of one pixel's width or height
    return (height - h) // 2, (width - w) // 2, h, w


RANGES = [
    ((0.08, 1.0), (3 / 4, 4 / 3)),
    ((0.5, 0.6), (1.0, 1.0)),
    ((0.9, 1.0), (0.2, 9.0)),
    ((0.001, 2.0), (0.01, 100.0)),
    ((1.0, 1.0), (2.0, 3.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "ratio"), RANGES)
def test_random_boxes_are_those_of_torchvision(scale: Any, ratio: Any) -> None:
    sizes = np.random.default_rng(1).integers(1, 900, (3000, 2))
    sizes[:1000] = np.exp(np.random.default_rng(2).uniform(0, 7, (1000, 2)))
    d = Draws(4, 2, np.arange(3000), 0)
    crops = A.RandomResizedCrop((32, 40), scale, ratio).plan_crops(Crops.full(sizes), d)
    assert (crops.size == [32, 40]).all()
    assert (crops.window == [0, 0, 32, 40]).all()
    assert (crops.box[:, :2] >= 0).all()
    assert (crops.box[:, :2] + crops.box[:, 2:] <= sizes).all()
    uniform = d.uniform(0, 20).reshape(10, 2, -1).swapaxes(0, 1).reshape(20, -1)  # areas, then ratios
    fallbacks = 0
    for i, (height, width) in enumerate(sizes.tolist()):
        top, left, h, w = crops.box[i].tolist()
        expected = torchvision_box(height, width, scale, ratio, uniform[:, i].tolist())
        if expected is None:
            fallbacks += 1
            assert (top, left, h, w) == torchvision_fallback(height, width, ratio)
        else:
            assert (h, w) == expected
            one = d[i : i + 1]
            assert (top, left) == (one.integers(height - h + 1, 20)[0], one.integers(width - w + 1, 21)[0])
    assert 0 < fallbacks < 3000
    # torch gives the same to the last bit.
    theirs = A.RandomResizedCrop((32, 40), scale, ratio).plan_crops(
        Crops.full(torch.from_numpy(sizes)), Draws(4, 2, torch.arange(3000), 0)
    )
    assert np.array_equal(theirs.box.numpy(), crops.box)


@pytest.mark.parametrize(("low", "high"), [(3 / 4, 4 / 3), (1, 1), (0.001, 1000), (2, 3)])
def test_log_uniform(low: float, high: float) -> None:
    uniform = np.linspace(0, 1, 1001)
    expected = np.exp(np.log(low) + uniform * np.log(high / low))
    found = log_uniform(uniform, low, high)
    assert np.abs(found / expected - 1).max() < 1e-12
    assert np.array_equal(log_uniform(torch.from_numpy(uniform), low, high).numpy(), found)


# Here or there ----------------------------------------------------------------------------------------------------


def assert_decoded(ops: Sequence[Any], images: Sequence[NDArray[np.uint8]], d: Draws) -> None:
    """Checks that images ``(H, W, 3)`` after plan and ``write_crop`` are those that ``ops`` make of each alone."""
    sizes = np.array([i.shape[:2] for i in images]).reshape(-1, 2)
    crops = plan_operations(ops, sizes, Draws(d.seed, d.epoch, d.records.numpy()))
    for i, image in enumerate(images):
        top, left, height, width = crops.box[i].tolist()
        out = np.full((*crops.window[i, 2:].tolist(), 3), 99, np.uint8)
        region = image[top : top + height, left : left + width]
        region.flags.writeable = False
        write_crop(region, crops, i, out)
        alone = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
        assert np.array_equal(out, apply_operations(ops, alone, d[i : i + 1])[0].permute(1, 2, 0).numpy()), i


LISTS: list[list[Any]] = [
    [],
    [A.RandomHorizontalFlip()],
    [A.Resize(20)],
    [A.Resize((9, 30))],
    [A.CenterCrop(16)],
    [A.CenterCrop((50, 10))],
    [A.RandomCrop((16, 9))],
    [A.RandomResizedCrop(16)],
    [A.Resize(40), A.CenterCrop(32), A.RandomHorizontalFlip()],
    [A.Resize(20), A.CenterCrop(32), A.RandomHorizontalFlip(0.9)],
    [A.RandomResizedCrop((30, 40)), A.RandomCrop(20), A.RandomHorizontalFlip(), A.RandomHorizontalFlip()],
    [A.CenterCrop(40), A.RandomCrop(30), A.CenterCrop((30, 7)), A.RandomHorizontalFlip(alternating=True)],
    [A.Resize(60), A.RandomCrop(50), A.CenterCrop((5, 50)), A.RandomCrop(5)],
    [A.RandomHorizontalFlip(), A.RandomResizedCrop((20, 17)), A.RandomHorizontalFlip(), A.RandomCrop(11)],
    [A.RandomHorizontalFlip(), A.Resize(40), A.RandomCrop((33, 28))],
    [A.RandomHorizontalFlip(), A.Resize((17, 45)), A.RandomHorizontalFlip(), A.CenterCrop((30, 44))],
    [
        A.RandomHorizontalFlip(),
        A.CenterCrop((15, 14)),
        A.RandomHorizontalFlip(),
        A.RandomCrop(12),
        A.RandomHorizontalFlip(),
    ],
    [A.CenterCrop((50, 20)), A.RandomHorizontalFlip(0.7), A.RandomCrop((40, 15))],  # beyond the image
    *([A.RandomResizedCrop(24, interpolation=way, antialias=yes)] for way in WAYS for yes in (True, False)),
    *([A.Resize((17, 30), interpolation=way, antialias=yes)] for way in WAYS for yes in (True, False)),
]


@pytest.mark.parametrize("ops", LISTS, ids=repr)
@pytest.mark.parametrize("shape", [(24, 31), (33, 24)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding_and_batches_give_the_same(ops: list[Any], shape: tuple[int, int], layout: Any) -> None:
    images = batch(12, *shape, layout=layout)
    d = Draws(3, 1, torch.arange(100, 112))
    assert split_operations(ops, flip=True) == (tuple(ops), ())
    assert_decoded(ops, list(images.permute(0, 2, 3, 1).contiguous().numpy()), d)
    found = apply_operations(ops, images, d)
    assert torch.equal(found, torch.cat([apply_operations(ops, images[i : i + 1], d[i : i + 1]) for i in range(12)]))
    assert output_size(ops, shape) == found.shape[2:]


@pytest.mark.slow
def test_resizing_what_is_mirrored_is_mirroring_what_is_resized() -> None:
    """To the last bit, for boxes of any sizes: torch's weights are the same from either side."""
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*random.integers(1, 130, 2), 3), np.uint8) for _ in range(300)]
    assert_decoded([A.RandomHorizontalFlip(), A.RandomResizedCrop((31, 29))], images, draws(len(images)))


def test_images_of_any_sizes() -> None:
    """Large ones are mirrored in pieces."""
    shapes = [(30, 40), (40, 30), (24, 24), (100, 13), (5, 5), (200, 180), (180, 200)]
    images = [batch(1, h, w, seed=h)[0].permute(1, 2, 0).contiguous().numpy() for h, w in shapes]
    for ops in (
        [A.Resize(24), A.CenterCrop(20), A.RandomCrop(18), A.RandomHorizontalFlip()],
        [A.RandomHorizontalFlip()],
    ):
        assert_decoded(ops, images, draws(len(images)))


MIXED: list[list[Any]] = [
    [
        A.RandomResizedCrop(16),
        A.RandomHorizontalFlip(),
        A.RandomCrop(16, 4, "reflect"),
        A.Cutout(5),
        A.RandomHorizontalFlip(),
    ],
    [A.RandomCrop(28, 4), A.RandomHorizontalFlip(alternating=True), A.Resize(20), A.CenterCrop(24)],
    [A.RandomHorizontalFlip(), A.RandomResizedCrop(9), lambda images: 255 - images],
]


@pytest.mark.parametrize("ops", MIXED)
def test_a_record_gets_the_same_in_any_batch(ops: list[Any]) -> None:
    images, records = batch(24, 28, 30), torch.randperm(1000, generator=torch.Generator().manual_seed(1))[:24]
    whole = apply_operations(ops, images, Draws(5, 6, records))
    for part in (slice(0, 1), slice(3, 4), slice(23, 24), slice(5, 20), slice(4, 4)):
        assert torch.equal(apply_operations(ops, images[part], Draws(5, 6, records)[part]), whole[part])
    # In two steps, with the places of the list.
    half = apply_operations(ops[:1], images, Draws(5, 6, records))
    assert torch.equal(apply_operations(ops[1:], half, Draws(5, 6, records), first=1), whole)
    assert not torch.equal(apply_operations(ops, images, Draws(5, 7, records)), whole)
    assert not torch.equal(apply_operations(ops, images, Draws(6, 6, records)), whole)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_crop_and_flip_as_one_or_apart(mode: Any, layout: Any) -> None:
    crop, flip = A.RandomCrop(20, 3, mode, 9), A.RandomHorizontalFlip(0.4)
    images, d = batch(50, 20, 22, layout=layout), draws(50)
    apart = flip(crop(images, d.replace(stream=0)), d.replace(stream=1))
    assert torch.equal(apply_operations([crop, flip], images, d), apart)


def test_two_of_the_same_operation_draw_apart() -> None:
    flips = [A.RandomHorizontalFlip(), A.RandomHorizontalFlip()]
    images = batch(100, 4, 5)
    found = apply_operations(flips, images, draws(100))
    changed = sum(not torch.equal(a, b) for a, b in zip(found, images, strict=True))
    assert 25 < changed < 75


# Lists ------------------------------------------------------------------------------------------------------------


def strangers(images: Tensor) -> Tensor:
    return images


@pytest.mark.parametrize(
    ("ops", "decoding", "with_flips"),
    [
        ([A.Resize(8), A.CenterCrop(8), A.RandomHorizontalFlip()], 2, 3),
        ([A.RandomResizedCrop(8), A.RandomHorizontalFlip(), A.Cutout(2)], 1, 2),
        ([A.RandomHorizontalFlip(), A.RandomResizedCrop(8)], 0, 2),
        (
            [A.RandomHorizontalFlip(), A.Resize(8), A.RandomHorizontalFlip(), A.CenterCrop(8), A.RandomResizedCrop(8)],
            0,
            4,
        ),
        ([A.RandomHorizontalFlip(), A.RandomCrop(8, 1)], 0, 1),
        ([A.CenterCrop(8), A.Resize(4)], 1, 1),
        ([A.Resize(8), A.RandomResizedCrop(4)], 1, 1),
        ([A.RandomCrop(8, 1)], 0, 0),
        ([A.CenterCrop(8), A.CenterCrop((6, 9))], 1, 1),
        ([A.CenterCrop(8), A.RandomCrop(8), A.RandomCrop(4), A.CenterCrop(5)], 3, 3),
        ([A.RandomResizedCrop(8), A.CenterCrop(10)], 2, 2),
        ([strangers, A.CenterCrop(8)], 0, 0),
        ([A.Cutout(3), A.CenterCrop(8)], 0, 0),
        ([], 0, 0),
    ],
)
def test_where_a_list_is_split(ops: list[Any], decoding: int, with_flips: int) -> None:
    assert split_operations(ops) == (tuple(ops[:decoding]), tuple(ops[decoding:]))
    assert split_operations(ops, flip=True) == (tuple(ops[:with_flips]), tuple(ops[with_flips:]))


def test_output_sizes() -> None:
    assert output_size([]) is None
    assert output_size([], (4, 5)) == (4, 5)
    assert output_size([A.Resize(8)]) is None
    assert output_size([A.Resize(8)], (16, 32)) == (8, 16)
    assert output_size([A.Resize(8), A.CenterCrop((6, 7)), A.RandomHorizontalFlip(), A.Cutout(3)]) == (6, 7)
    assert output_size([A.CenterCrop(8), strangers]) is None
    assert output_size([strangers, A.RandomCrop(8, 2)]) == (8, 8)
    assert A.Resize(8).output_size is None
    assert A.Resize((8, 9)).output_size == (8, 9)
    assert A.RandomResizedCrop(8).output_size == A.RandomCrop(8).output_size == A.CenterCrop(8).output_size == (8, 8)
    assert A.RandomHorizontalFlip().output_size is None


def test_operations_travel_and_compare() -> None:
    ops = [A.Resize(8), A.CenterCrop([8, 9]), A.RandomCrop(3, 1, "edge"), A.RandomResizedCrop(4, [0.5, 1])]
    ops += [A.Cutout(3), A.RandomHorizontalFlip()]
    assert pickle.loads(pickle.dumps(ops)) == ops
    assert A.RandomCrop(8) == A.RandomCrop((8, 8)) != A.RandomCrop(8, 1)
    assert len({*ops, A.Resize(8)}) == len(ops)


def planned(*ops: Any, size: tuple[int, int] = (9, 8), first: int = 0) -> Crops:
    crops = Crops.full(np.array([size]))
    for op in ops:
        crops = op.plan_crops(crops, draws(1, first=first))
    return crops


def test_a_resize_of_a_crop_is_planned_where_it_is_exact() -> None:
    crops = planned(A.CenterCrop((16, 20)), A.Resize(10), size=(24, 31))
    assert crops.box.tolist() == [[4, 6, 16, 20]]
    assert crops.size.tolist() == [[10, 12]]
    assert crops.window.tolist() == [[0, 0, 10, 12]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: A.Resize(0), r"Resize: size should be a positive integer or \(height, width\), got 0"),
        (lambda: A.Resize((3,)), r"got \(3,\)"),
        (lambda: A.CenterCrop((3, -1)), "CenterCrop: size should be"),
        (lambda: A.RandomCrop("3"), "RandomCrop: size should be"),
        (lambda: A.RandomCrop(3, -1), "padding should be an integer of at least 0, got -1"),
        (lambda: A.RandomCrop(3, 1, "wrap"), "should be one of constant, reflect, edge, symmetric, got 'wrap'"),
        (lambda: A.RandomResizedCrop(3, scale=(0, 1)), r"scale should be .*, 0 < low <= high, got \(0.0, 1.0\)"),
        (lambda: A.RandomResizedCrop(3, ratio=(2, 1)), "ratio should be"),
        (lambda: A.RandomResizedCrop(3, ratio=(1, math.nan)), "ratio should be"),
        (lambda: A.RandomResizedCrop(3, scale=(0.1, 0.5, 1)), "scale should be"),
        (lambda: A.RandomResizedCrop(3, scale=("a", 1)), "scale should be numbers, got \\('a', 1\\)"),
        (lambda: A.RandomResizedCrop(10**5000), "size should be .* got a number with thousands of digits"),
        (lambda: A.ScaleJitter(3, None), "scale_range should be a list of numbers, got None"),
        (lambda: A.RandomIoUCrop(sampler_options=("a",)), r"sampler_options should be .* got \('a',\)"),
        (lambda: A.RandomIoUCrop(sampler_options=()), "sampler_options should be a list of numbers"),
        (lambda: A.RandomIoUCrop(trials=0), "trials should be 1 … 10,000, got 0"),
        (lambda: A.RandomZoomOut(None), "RandomZoomOut: fill should be"),
        (lambda: A.RandomShortestSize(None), "min_size and max_size should be"),
        (lambda: A.Pad(None), "padding should be 1, 2 or 4 integers"),
        (lambda: A.RandomChoice([A.RandomHorizontalFlip()], p=1), "p should be a list of numbers"),
        (lambda: A.AutoAugment([]), "policy should be one of"),
        (lambda: A.TimmAugment([]), "config should be a policy"),
        (lambda: A.RandomHorizontalFlip(1.1), r"p should be 0 … 1, got 1.1"),
        (lambda: A.RandomHorizontalFlip("1"), r"p should be a number, got '1'"),
        (lambda: A.RandomRotation(9, fill=math.inf), "fill should be a finite number .*, got inf"),
        (lambda: A.Cutout(0), "Cutout: size should be a positive integer, got 0"),
        (lambda: split_operations([A.Resize(3), "flip"]), r"augment\[1\] is not callable: 'flip'"),
        (lambda: A.RandomCrop(9)(batch(1, 8, 9), draws(1)), "8x9 with padding 0 are smaller than the crop of 9x9"),
        (lambda: A.RandomCrop(4, 4, "reflect")(batch(1, 4, 9), draws(1)), "larger images than 4x9; .* at most 3"),
        (lambda: A.RandomCrop(4, 5, "symmetric")(batch(1, 4, 9), draws(1)), "for these at most 4"),
        (lambda: planned(A.RandomCrop(9), first=17), "record 17 is 9x8 there, smaller than .* 9x9"),
        (lambda: planned(A.Resize(4), A.Resize(3)), "resized or padded already"),
        (lambda: planned(A.CenterCrop(9), A.RandomResizedCrop(3)), "padded already"),
    ],
)
def test_what_cannot_be(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


# CUDA -------------------------------------------------------------------------------------------------------------


CUDA_LISTS: list[list[Any]] = [[A.RandomCrop(32, 4, mode), A.RandomHorizontalFlip(), A.Cutout(8)] for mode in MODES] + [
    [A.RandomHorizontalFlip(alternating=True), A.CenterCrop(20)],
    [A.RandomResizedCrop(24)],
    [A.Resize(20), A.CenterCrop(24)],
]


@pytest.mark.sampled(12, per="cuda")
@pytest.mark.parametrize("ops", CUDA_LISTS, ids=repr)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cuda_gives_what_the_cpu_gives(ops: list[Any], layout: Any, cuda: torch.device) -> None:
    images, records = smooth(64, 32, 32).contiguous(memory_format=layout), torch.arange(64)
    expected = apply_operations(ops, images, Draws(1, 1, records))
    found = apply_operations(ops, images.to(cuda), Draws(1, 1, records.to(cuda)))
    assert found.device.type == "cuda"
    difference = (found.cpu().int() - expected.int()).abs().max()
    assert difference <= (1 if any(isinstance(op, A.Resize | A.RandomResizedCrop) for op in ops) else 0)
