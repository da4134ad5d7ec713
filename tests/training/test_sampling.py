"""Ways of resizing: those of torchvision and Pillow, wherever an operation runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from packstore.augment import Draws, RandomResizedCrop
from tests.internals import SAMPLINGS, Crops, resize_by_products
from tests.internals import resample_images as resize

SIZES = [((50, 70), (20, 24)), ((20, 24), (50, 70)), ((33, 9), (7, 31)), ((5, 5), (5, 1)), ((1, 1), (4, 3))]


def photos(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator).to(torch.uint8)


@pytest.mark.parametrize(("source", "target"), SIZES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_bytes_are_those_of_torchvision(tv: Any, sampling: str, source: Any, target: Any) -> None:
    images = photos(2, *source)
    found = resize(images, target, sampling)
    if sampling in ("box", "lanczos"):
        way = Image.Resampling[sampling.upper()]
        for one, image in zip(found, images, strict=True):
            picture = Image.fromarray(image.permute(1, 2, 0).numpy())
            # Rows first: Pillow 13 chooses the order by the sizes.
            expected = np.asarray(picture.resize((target[1], picture.height), way).resize(target[::-1], way))
            assert np.abs(one.permute(1, 2, 0).numpy().astype(int) - expected).max() <= (target[1] == 1)
        return
    mode = tv.transforms.InterpolationMode(sampling.removeprefix("plain "))
    if target[1] == 1 and not sampling.startswith("plain"):
        return  # torch fails there, or gives wrong values
    expected = tv.transforms.v2.functional.resize(images, target, mode, antialias=not sampling.startswith("plain"))
    if sampling == "plain bilinear" and not tv.transforms.v2.functional._geometry._do_native_uint8_resize_on_cpu(mode):
        # torchvision 0.19 with AVX-512 does it in float, and rounds otherwise
        assert (found.int() - expected.int()).abs().max() <= 1
        return
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("source", "target"), SIZES, ids=str)
@pytest.mark.parametrize("sampling", ["bilinear", "bicubic"])
def test_products_are_within_one_of_it(sampling: str, source: Any, target: Any) -> None:
    images = photos(2, *source)
    box = torch.tensor([(0, 0, *source)])
    difference = resize_by_products(images, box, target, sampling).int() - resize(images, target, sampling).int()
    # Weights of 16 bits, and of noise: some are off by two.
    assert difference.abs().max() <= (2 if sampling == "bicubic" else 1)
    assert (difference != 0).float().mean() < 0.3


def test_random_is_bilinear_or_bicubic() -> None:
    op = RandomResizedCrop(24, interpolation="random")
    crops = op.plan_crops(Crops.full(np.array([[40, 52]] * 4000)), Draws(3, 0, np.arange(4000)))
    assert crops.sampling is not None
    found, counts = np.unique(crops.sampling, return_counts=True)
    assert [SAMPLINGS[n] for n in found] == ["bilinear", "bicubic"]
    assert abs(counts[0] - 2000) < 150
